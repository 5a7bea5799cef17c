"""A bound on the memory of graphs from elsewhere: 700 bytes may ask ONNX Runtime for any number of gigabytes.

Linux refuses this process what lies beyond the bound (`RLIMIT_DATA`). Elsewhere ONNX Runtime is limited: its arena of
tensors counts what all graphs take together.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sepkit.limits import GRAPH_ARENA_BYTES

if sys.platform == "linux":
    import resource

HAS_LIMIT = sys.platform == "linux"
"""Whether the system bounds the memory of a process."""

_lock = threading.Lock()
_bounds: list[int] = []  # of the blocks that run now, in all threads
_before = (0, 0)  # the soft and the hard limit while no block runs


@contextmanager
def bounded_memory(num_bytes: int) -> Iterator[None]:
    """Let this process take at most `num_bytes` more while the block runs; without `HAS_LIMIT` do nothing.

    All threads share the limit, so the bounds of blocks that run side by side add up, and it falls only when the last
    one ends. Then it is what it was before. An allocation beyond it fails, as one does that the machine has no memory
    for.
    """
    if not HAS_LIMIT:
        yield
        return
    with _lock:
        _bounds.append(num_bytes)
        _raise_limit()
    try:
        yield
    finally:
        with _lock:
            _bounds.remove(num_bytes)
            if not _bounds:
                resource.setrlimit(resource.RLIMIT_DATA, _before)


def _leave_blocks() -> None:
    """Restore the limit in a process that was forked while a block ran in another thread."""
    global _lock
    _lock = threading.Lock()
    if _bounds:
        _bounds.clear()
        resource.setrlimit(resource.RLIMIT_DATA, _before)


if HAS_LIMIT:
    os.register_at_fork(after_in_child=_leave_blocks)


def _raise_limit() -> None:
    global _before
    now = resource.getrlimit(resource.RLIMIT_DATA)
    if len(_bounds) == 1:
        _before = now
    # The sixth number is of pages that can be written to, those that RLIMIT_DATA counts, and of stacks.
    taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    wanted = max(taken + sum(_bounds), now[0] if len(_bounds) > 1 else 0)
    if _before[0] != resource.RLIM_INFINITY:
        wanted = min(wanted, _before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, now[1]))


def stacks(threads: int) -> int:
    """Return the bytes that Linux counts for the stacks of threads.

    Args:
        threads: Number of threads; 0: one per CPU core.
    """
    if not HAS_LIMIT:
        return 0
    size = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return (threads or os.cpu_count() or 1) * (2**23 if size == resource.RLIM_INFINITY else size)


def bound_arena(options: Any) -> None:
    """Let a session take its tensors from an arena that is bounded, and that all such sessions share.

    Args:
        options: `onnxruntime.SessionOptions`.
    """
    _register_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")


@cache
def _register_arena() -> None:
    import onnxruntime

    kind, cpu = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    arena = onnxruntime.OrtArenaCfg({"max_mem": GRAPH_ARENA_BYTES})
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, cpu), arena)
