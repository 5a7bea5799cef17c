"""Messages of training to its user."""

from __future__ import annotations

import os
import sys

from tqdm import tqdm


def is_first_process() -> bool:
    """Whether this process prints for all ranks."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def say(line: str) -> None:
    """Write a line to standard error, above the progress bar if there is one; ranks other than the first are silent."""
    if is_first_process():
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()
