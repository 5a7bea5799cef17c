"""Keep freed memory in the process, for reuse.

glibc asks the kernel for every block above 32 MB, and returns it when it is freed. Each operation on a long recording
then has its result faulted in again, page by page, which takes longer than most operations. With both thresholds raised
such blocks come from the heap. The peak of a command grows little; between operations it keeps its memory.

SEPKIT_MALLOC=default keeps the allocator's own settings. So do MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_ and
GLIBC_TUNABLES, which mean that the user has chosen. C libraries other than glibc are left alone. Only a process that is
the `sepkit` command does this, and its child processes; importing sepkit never does.

Source: mallopt(3).
"""

from __future__ import annotations

import os
import sys

from sepkit.errors import UserError

VARIABLE = "SEPKIT_MALLOC"
_DEFAULT, _RAISED = "default", "raised"
# Names in mallopt, and in glibc's variables, which child processes read at their start.
_TRIM, _MMAP = (-1, "MALLOC_TRIM_THRESHOLD_"), (-3, "MALLOC_MMAP_THRESHOLD_")
_CHOSEN_BY_USER = (_TRIM[1], _MMAP[1], "GLIBC_TUNABLES")
# mallopt takes an int. Versions of glibc that refuse this value take 32 MiB, which is still above their default.
_MOST, _MOST_OF_OLD = 2**31 - 1, 32 * 2**20


def raise_thresholds() -> bool:
    """Raise the thresholds, see above; return whether they are raised.

    Raises:
        UserError: SEPKIT_MALLOC is something else than default or raised.
    """
    chosen = os.environ.get(VARIABLE, _RAISED)
    if chosen not in (_DEFAULT, _RAISED):
        raise UserError(f"{VARIABLE}: found {chosen!r}, expected {_DEFAULT} or {_RAISED}")
    if chosen == _DEFAULT or any(name in os.environ for name in _CHOSEN_BY_USER) or not _is_glibc():
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    for parameter, variable in (_MMAP, _TRIM):
        accepted = next((size for size in (_MOST, _MOST_OF_OLD) if mallopt(parameter, size)), None)
        if accepted is None:
            return False
        os.environ[variable] = str(accepted)
    return True


def _is_glibc() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False
