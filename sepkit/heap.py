"""Memory that was freed goes back to the system.

The heap of glibc cannot return a block while something that lives longer lies behind it. A loop that leaves small
results beside large temporaries therefore takes more and more: an hour of chunks took 1.6 GB, of which 0.2 GB were in
use. Returning the free pages now and then costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def return_freed_memory() -> None:
    """Give the system the pages that this process has freed; do nothing where the C library has no such function.

    Source: malloc_trim(3).
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
