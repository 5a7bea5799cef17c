"""Work on many items in several processes: what is wrong with one is recorded, and the rest goes on.

    for path, result in for_each(partial(convert, out), paths, processes, "converting"):
        if isinstance(result, Failed):
            skipped[str(path)] = result.reason

Results come in the order of the items, as soon as they are there. The function takes one item and must be one that
another process can import: of a module, or a `functools.partial` of such. In it a `UserError` fails the item, a full
disk stops everything with one line, and any other exception is a defect and is raised. An item that brings its process
down (too little memory, a crash in a library) fails alone. To be resumable the function itself looks whether its
output is there: outputs are written atomically, so what is there is whole.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from typing import Any, TypeVar

from sepkit.errors import UserError

__all__ = ["Failed", "available_processes", "for_each"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items that go to a process at a time: enough that sending them costs nothing, few enough that all finish together.
_MOST_IN_CHUNK = 32
_CHUNKS_PER_PROCESS = 8
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Failed:
    """The result of an item that could not be worked on.

    Args:
        reason: one line.
    """

    reason: str


def available_processes() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_each(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int | None = None,
    description: str = "preparing",
    unit: str = "file",
) -> Iterator[tuple[Item, Result | Failed]]:
    """Each item with what the function makes of it, in the order of the items.

    Args:
        function: see above; it, the items and the results can be pickled.
        items: what to work on.
        processes: how many; 1: none but this one; None: `available_processes`.
        description: of the progress bar.
        unit: of the progress bar.

    Raises:
        UserError: `processes` below 1, or no room is left on a disk.
    """
    from tqdm import tqdm

    if processes is not None and processes < 1:
        raise UserError(f"--processes {processes}: expected at least 1")
    processes = min(processes or available_processes(), len(items))
    results = _here(function, items) if processes <= 1 else _elsewhere(function, items, processes)
    try:
        yield from tqdm(zip(items, results, strict=True), description, len(items), unit=unit, disable=None)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(
            f"{where}no room left on the disk ({error.strerror}); what is written is whole: make room, and run the "
            "same command again"
        ) from error


def _here(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result | Failed]:
    for item in items:
        yield _call(function, item)


def _elsewhere(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result | Failed]:
    size = max(1, min(_MOST_IN_CHUNK, len(items) // (processes * _CHUNKS_PER_PROCESS)))
    chunks = [items[first : first + size] for first in range(0, len(items), size)]
    executor, waiting = _submit(function, chunks, processes)
    try:
        for number, chunk in enumerate(chunks):
            try:
                results = waiting[number].result()
            except BrokenProcessPool:
                # Whoever did it, this chunk is worked on with each item by itself, and the others start again.
                executor.shutdown(cancel_futures=True)
                results = [_call_alone(function, item) for item in chunk]
                executor, again = _submit(function, chunks[number + 1 :], processes)
                waiting[number + 1 :] = again
            yield from results
    finally:
        executor.shutdown(cancel_futures=True)


_Chunk = list[Any]


def _submit(
    function: Callable[[Item], Result], chunks: Sequence[Sequence[Item]], processes: int
) -> tuple[ProcessPoolExecutor, list[Future[_Chunk]]]:
    executor = _start(function, processes)
    waiting: list[Future[_Chunk]] = []
    for chunk in chunks:
        try:
            waiting.append(executor.submit(_call_all, function, chunk))
        except BrokenProcessPool as error:
            broken: Future[_Chunk] = Future()
            broken.set_exception(error)
            waiting.append(broken)
    return executor, waiting


def _start(function: Callable[..., Any], processes: int) -> ProcessPoolExecutor:
    # Not fork: a notebook that calls this may hold threads, and an accelerator, which do not survive it.
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    if context.get_start_method() == "forkserver":
        named = function.func if isinstance(function, partial) else function
        context.set_forkserver_preload(["scipy.signal", named.__module__])
    executor = ProcessPoolExecutor(processes, context, _prepare_process)
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        # The first task starts the server and the processes, which read the variables when they import numpy.
        executor.submit(os.getpid)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    return executor


def _prepare_process() -> None:
    # An interrupt is for the process that the user sees; it ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(function: Callable[[Item], Result], item: Item) -> Result | Failed:
    try:
        return function(item)
    except UserError as error:
        return Failed(str(error))


def _call_all(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | Failed]:
    return [_call(function, item) for item in items]


def _call_alone(function: Callable[[Item], Result], item: Item) -> Result | Failed:
    with _start(function, 1) as alone:
        try:
            return alone.submit(_call, function, item).result()
        except BrokenProcessPool:
            return Failed("the process that worked on it crashed, or ran out of memory")
