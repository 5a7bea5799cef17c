"""Outputs that are either complete or absent."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sepkit.errors import UserError


@contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not.

    The folder is made if it is absent.

    Raises:
        UserError: the folder cannot be made or written to.
    """
    path = Path(path)
    # Names differ between processes and threads that write the same file at once: the last one to finish wins.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}-{threading.get_ident()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError
    except OSError as error:
        reason = error.strerror or "permission denied"
        raise UserError(f"{path.parent}: cannot be written to ({reason}); give an output folder that can") from error
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
