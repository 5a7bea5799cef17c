"""Training steps on a GPU: sepkit against asteroid, by precision, compiled or not."""

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tools.bench.measure import environment, measure_each, take_turns, timed
from tools.bench.train import MODELS, Sizes, steps

FULL = Sizes(seconds=5.0, least_turns=7, device="cuda")
TOLERANCE_DB = {"fp32": 1e-2, "tf32": 0.1, "bf16": 0.5}
"""Precision -> largest difference of the losses of the first step."""


def run(unfinished: Path | None, sizes: Sizes = FULL, names: Sequence[str] = tuple(MODELS)) -> dict[str, Any]:
    """Return rows of models in all precisions, eager and compiled, of whole steps: forward, loss, backward, Adam.

    Args:
        unfinished: Folder of rows of interrupted calls; None: nothing is kept.
        sizes: Sizes of the batch, and the device.
        names: Names in `MODELS`.

    Raises:
        RuntimeError: the losses of the same weights differ, or there is no CUDA device.
    """
    warnings.simplefilter("ignore")
    if sizes.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device here")
    rows = [(name, precision, compiled) for name in names for precision in TOLERANCE_DB for compiled in (False, True)]
    found = measure_each("accelerator", rows, lambda row: _measured(*row, sizes), unfinished)
    device = torch.cuda.get_device_name() if sizes.device == "cuda" else "no accelerator: a rehearsal"
    return {"rows": found, "environment": environment("asteroid") | {"device": device}}


def _measured(name: str, precision: str, compiled: bool, sizes: Sizes) -> dict[str, Any]:
    record = {"what": f"{name}, {precision}{', compiled' * compiled}", "peer": "asteroid", "threads": 1}
    # Otherwise code compiled for other rows counts as recompilation.
    torch.compiler.reset()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    ours, theirs = steps(name, sizes, compiled=compiled)
    with torch.autocast(sizes.device, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
        try:
            difference = abs(ours() - theirs())
        except Exception as error:
            if not compiled:
                raise
            return record | {"left_out": " ".join(str(error).split())[:200]}  # Not every peer compiles.
        if not difference <= TOLERANCE_DB[precision]:
            raise RuntimeError(f"{record['what']}: the losses differ by {difference:.2g} dB")
        times = take_turns({"ours": ours, "theirs": theirs}, sizes.seconds, sizes.least_turns)
    return record | timed(times) | {"difference": difference, "unit": "dB"}
