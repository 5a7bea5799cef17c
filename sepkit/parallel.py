"""Work on many items in several processes: an item's error is recorded, and the others continue.

    for path, result in for_each(partial(convert, out), paths, processes, "converting"):
        if isinstance(result, Failed):
            skipped[str(path)] = result.reason

Results come in the order of the items, as soon as they exist. The function takes one item, and another process must be
able to import it: it belongs to a module, or is a `functools.partial` of such. Any exception in it fails the item, and
what the next item would meet too, such as a full disk, stops everything with one line. An item that brings its process
down (too little memory, a crash in a library) fails alone. To be resumable the
function checks whether its output exists; outputs are written atomically, so an existing one is complete.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_all_start_methods, get_context, parent_process
from typing import Any, TypeVar

from sepkit.errors import Bounds, UserError, exhausted, failure, one_line
from sepkit.interrupts import Stopped, ignore_terminal, postponed, shielded
from sepkit.owned import Command, adopt, command
from sepkit.registry import import_file, imported_files
from sepkit.streams import open_streams

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items that go to a process at a time: enough that sending them costs nothing, few enough that all finish together.
_MOST_IN_CHUNK = 32
_CHUNKS_PER_PROCESS = 8
# Chunks that wait for each process. If a process dies, they are worked on again, each alone.
_WAITING = 4
# What `concurrent.futures` can wait for there.
_MOST_ON_WINDOWS = 61
# What a process has to remove what it was writing, once the one that started it is gone.
_CLEANUP_SECONDS = 3.0
# Of each process, and of what starts and feeds them.
_THREADS_OF_PROCESS, _THREADS_OF_POOL = 4, 6
# Of the process of a pool: what it was started with.
_pickled_function = b""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Failed:
    """The result of an item that could not be worked on."""

    reason: str


def available_processes() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_each(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int | None = None,
    description: str = "preparing",
    unit: str = "file",
) -> Iterator[tuple[Item, Result | Failed]]:
    """Yield each item with the function's result, in the order of the items."""
    from tqdm import tqdm

    Bounds(ge=1).check("--processes", processes)
    processes = min(processes or available_processes(), len(items))
    results = (attempt(function, item) for item in items) if processes <= 1 else _elsewhere(function, items, processes)
    try:
        # One item has no progress to show, and shows its own if it takes long.
        disable = True if len(items) <= 1 else None
        yield from tqdm(zip(items, results, strict=True), description, len(items), unit=unit, disable=disable)
    except OSError as error:
        if line := exhausted(error):
            raise UserError(line) from error
        raise


def _elsewhere(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result | Failed]:
    size = max(1, min(_MOST_IN_CHUNK, len(items) // (processes * _CHUNKS_PER_PROCESS)))
    named = function.func if isinstance(function, partial) else function
    with Pool(processes, [named.__module__], function) as pool:
        waiting: deque[tuple[Sequence[Item], Task]] = deque()
        for first in range(0, len(items), size):
            chunk = items[first : first + size]
            waiting.append((chunk, pool.submit(_call_all, chunk)))
            if len(waiting) == processes * _WAITING:
                yield from _results(function, *waiting.popleft())
        while waiting:
            yield from _results(function, *waiting.popleft())


def _results(function: Callable[[Item], Result], chunk: Sequence[Item], task: Task) -> list[Result | Failed]:
    try:
        return task.result()
    except ProcessDied as error:
        if len(chunk) == 1:
            return [Failed(str(error))]
    with Pool(1, [], function) as pool:
        tasks = [([item], pool.submit(_call_all, [item])) for item in chunk]
        return [result for item, task in tasks for result in _results(function, item, task)]


def attempt(function: Callable[[Item], Result], item: Item) -> Result | Failed:
    """Return the function's result for an item, or why it failed; see `for_each`."""
    try:
        return function(item)
    except Exception as error:
        return Failed(reason_of(error))


def reason_of(error: Exception) -> str:
    """Return why an item failed, in one line; raise the error if the next item would meet it too."""
    if exhausted(error) or (os.environ.get("SEPKIT_TRACEBACK") and not isinstance(error, UserError | OSError)):
        raise error
    if isinstance(error, OSError) and error.filename is not None:
        # It vanished, or cannot be read.
        return f"{os.fspath(error.filename)}: {error.strerror}"
    return one_line(str(error) if isinstance(error, UserError) else f"failed: {failure(error)}")


def _call_all(items: Sequence[Any]) -> list[Any]:
    """Return the results of items, in a process of a pool, by the function that it was started with."""
    return [attempt(_function(), item) for item in items]


_works = False


def _task(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Return the result of a function in a process of a pool, which a signal ends after cleanup."""
    global _works
    _works = True
    try:
        return function(*arguments)
    except Stopped:
        pass
    finally:
        _works = False
    # Only now, when the exception is gone: it keeps references to context managers, which clean up when it is deleted.
    os._exit(1)


def _stop(number: int, frame: Any) -> None:
    if postponed(number, frame):
        return
    # The process that started this one passes on what both were sent; cleanup is not interrupted by it.
    signal.signal(number, signal.SIG_IGN)
    if _works:
        raise Stopped
    os._exit(1)


@cache
def _function() -> Callable[[Any], Any]:
    return pickle.loads(_pickled_function)


# --------------------------------------------------------------------------------------------------------------- tasks


class ProcessDied(RuntimeError):
    """The process that ran a task ended without an answer."""


class Pool:
    """Runs functions in processes of one thread each, or at once and here if there are none (`processes` is 0).

    A function that brings its process down (a crash in a library, too little memory) takes those with it that run
    beside it: they are run again, each alone, and only the guilty one raises `ProcessDied`.

    `function` goes to each process once and not with each task: it may hold a model, which takes long to open.
    """

    def __init__(
        self, processes: int, preloaded: Sequence[str] = (), function: Callable[..., Any] | None = None
    ) -> None:
        pickled = pickle.dumps(function) if processes and function else b""
        self._start = partial(_start, processes, list(preloaded), pickled)
        self._start_alone = partial(_start, 1, [], pickled)
        self._executor = self._start() if processes else None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._executor is not None:
            _end(self._executor, kind)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Task:
        """Return the task of a call in another process."""
        if self._executor is None:
            future: Future[Any] = Future()
            try:
                with _one_thread():
                    future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)
            return Task(future, self._start_alone, function, arguments)
        try:
            future = self._executor.submit(_task, function, arguments)
        except BrokenProcessPool:
            self._executor = self._start()
            future = self._executor.submit(_task, function, arguments)
        return Task(future, self._start_alone, function, arguments)


class Task:
    """A call that is under way."""

    def __init__(
        self,
        future: Future[Any],
        start_alone: Callable[[], ProcessPoolExecutor],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> None:
        self._future, self._start_alone, self._function, self._arguments = future, start_alone, function, arguments

    def done(self) -> bool:
        """Return whether `result` returns without waiting for other processes that are alive."""
        return self._future.done()

    def result(self) -> Any:
        """Return the function's result, or raise its exception; ProcessDied: it ended its process."""
        try:
            return self._future.result()
        except BrokenProcessPool:
            pass
        alone, kind = self._start_alone(), None
        try:
            return alone.submit(_task, self._function, self._arguments).result()
        except BrokenProcessPool as error:
            raise ProcessDied("the process that worked on it crashed, or ran out of memory") from error
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            _end(alone, kind)


def _end(executor: ProcessPoolExecutor, kind: type[BaseException] | None) -> None:
    """End the processes of a pool; their work is waited for, unless what came is no error, such as a signal."""
    if kind is not None and not issubclass(kind, Exception):
        for process in list(executor._processes.values()):
            process.terminate()
    executor.shutdown(cancel_futures=True)


def _start(processes: int, preloaded: list[str], pickled: bytes) -> ProcessPoolExecutor:
    _check_threads(processes * _THREADS_OF_PROCESS + _THREADS_OF_POOL)
    # A fork would copy the threads and the accelerator of a notebook, which do not survive it.
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    if preloaded and context.get_start_method() == "forkserver":
        context.set_forkserver_preload(preloaded)
    if sys.platform == "win32":
        processes = min(processes, _MOST_ON_WINDOWS)
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        with shielded():
            executor = ProcessPoolExecutor(processes, context, _prepare_process, (imported_files(), pickled, command()))
            # The first task starts the server and the processes, which read the variables on importing numpy.
            executor.submit(os.getpid)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    return executor


def _check_threads(count: int) -> None:
    """Start as many threads as a pool will: processes that cannot start theirs leave tracebacks, or wait forever."""
    end, threads = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            threads.append(thread)
    finally:
        end.set()
        for thread in threads:
            thread.join()


def _prepare_process(own_files: Sequence[str], pickled: bytes, of_command: Command) -> None:
    global _pickled_function
    # What a terminal sends goes to the process that the user sees, which ends the others.
    ignore_terminal()
    signal.signal(signal.SIGTERM, _stop)
    open_streams()
    adopt(of_command)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # What is sent here may be of classes that the user's own files define.
    for file in own_files:
        import_file(file)
    _pickled_function = pickled
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, killed for example."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        # A signal to the whole group also ends the fork server, and then the parent leaves without waiting for this
        # process, which first removes the file that it was writing.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_CLEANUP_SECONDS)
        os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: sums are the same to the last bit everywhere only if they are cut into the same pieces."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    try:
        if torch:
            torch.set_num_threads(1)
        yield
    finally:
        if torch:
            torch.set_num_threads(threads)
