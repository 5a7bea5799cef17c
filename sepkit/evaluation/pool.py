"""Work in other processes that survives the death of one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context
from typing import Any

import torch

__all__ = ["Pool", "ProcessDied", "Task"]

# What tasks need; a server imports it once, and every process is a copy of the server.
_PRELOADED = ["sepkit.evaluation.evaluate", "fast_bss_eval.torch", "pystoi", "pesq"]
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ProcessDied(RuntimeError):
    """The process that ran a task ended without an answer."""


class Pool:
    """Runs functions in processes of one thread each, or at once and here where there are none.

    A function that brings its process down (a crash in a library, too little memory) takes those with it that run
    beside it: they are run again, each alone, and only the guilty one raises `ProcessDied`.

    Args:
        processes: how many; 0: none.
    """

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._executor = _start(processes) if processes else None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Task:
        """The task of calling a function, which another process can import, with arguments that can be pickled."""
        if self._executor is None:
            future: Future[Any] = Future()
            try:
                with _one_thread():
                    future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)
            return Task(future, function, arguments)
        try:
            return Task(self._executor.submit(function, *arguments), function, arguments)
        except BrokenProcessPool:
            self._executor = _start(self.processes)
            return Task(self._executor.submit(function, *arguments), function, arguments)


class Task:
    """A call that is under way, see `Pool.submit`."""

    def __init__(self, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._future, self._function, self._arguments = future, function, arguments

    def done(self) -> bool:
        """Whether `result` returns without waiting for other processes that are alive."""
        return self._future.done()

    def result(self) -> Any:
        """What the function returned.

        Raises:
            ProcessDied: the function ended its process.
            Exception: whatever the function raised.
        """
        try:
            return self._future.result()
        except BrokenProcessPool:
            pass
        with _start(1) as alone:
            try:
                return alone.submit(self._function, *self._arguments).result()
            except BrokenProcessPool as error:
                raise ProcessDied("the process that computed its scores crashed, or ran out of memory") from error


def _start(processes: int) -> ProcessPoolExecutor:
    # Not fork: torch's threads, and an accelerator, do not survive it.
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(_PRELOADED)
    executor = ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,))
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        # The first task starts the server and the processes, which read the variables when they import numpy.
        executor.submit(os.getpid)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return executor


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums come out the same to the last bit, wherever a task runs, only if they are cut into the same pieces."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
