"""Functions in separate processes, called in turns, so that times and memory are those of each alone.

Nothing heavy is imported here: memory is counted from `import torch` on.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sepkit.inference.memory import resident_peak_mib

# Calls shorter than this are first made once untimed, because the other process had the caches.
_SHORT_SECONDS = 2.0


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process at its peak, in MB above that after `import torch`.

    Args:
        before: including the first call: imports, weights, inputs.
        peak: of all calls.
    """

    before: float
    peak: float


class Contestant:
    """A function in its own process, which waits between calls.

    Args:
        maker: "module:function"; called there, it returns the function without arguments that is timed.
        arguments: of the maker.
        threads: of torch.
    """

    def __init__(self, maker: str, *arguments: Any, threads: int = 1) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        try:
            self._do(_begin, maker, arguments, threads)
        except BaseException:
            self._pool.shutdown()
            raise

    def seconds(self, clock: str = "perf_counter") -> float:
        """Return the time of one call.

        Args:
            clock: a function of `time`; process_time leaves out the time in which other programs had the processor.
        """
        return self._do(_seconds, clock)

    def save(self, path: Path) -> None:
        """Call once more, and save the result (a tensor) to a .npy file."""
        self._do(_save, path)

    def result(self) -> Any:
        """Call once more, and return the result."""
        return self._do(_result)

    def memory(self) -> Memory:
        """Return the memory of all calls so far."""
        return self._do(_memory)

    def _do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.submit(function, *arguments).result()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown()


def take_turns_apart(contestants: Mapping[str, Contestant], turns: int, clock: str) -> dict[str, list[float]]:
    """Return the seconds of every call of every contestant, called A B A B ... after one call each to warm up.

    With a single turn there is no call to warm up, because such calls are long. For `clock` see `Contestant.seconds`.
    """
    if turns == 1:
        return {name: [contestant.seconds(clock)] for name, contestant in contestants.items()}
    warm_up = {name: contestant.seconds() for name, contestant in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, contestant in contestants.items():
            if warm_up[name] < _SHORT_SECONDS:
                contestant.seconds()
            times[name].append(contestant.seconds(clock))
    return times


def once(function: str, *arguments: Any, threads: int = 1) -> Any:
    """Return the result of "module:function" in a new process."""
    with Contestant("tools.bench.processes:bound", function, *arguments, threads=threads) as contestant:
        return contestant.result()


def bound(function: str, *arguments: Any) -> Callable[[], Any]:
    """Bind "module:function" to its arguments."""
    module, name = function.split(":")
    return lambda: getattr(importlib.import_module(module), name)(*arguments)


# -------------------------------------------------------------------------------------------------- in the process

_STATE: dict[str, Any] = {}


def _begin(maker: str, arguments: tuple[Any, ...], threads: int) -> None:
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    after_torch = resident_peak_mib()
    function = bound(maker, *arguments)()
    _STATE.update(function=function, after_torch=after_torch, before=resident_peak_mib() - after_torch)


def _seconds(clock: str) -> float:
    read: Callable[[], float] = getattr(time, clock)
    began = read()
    _STATE["function"]()
    return read() - began


def _save(path: Path) -> None:
    import numpy as np

    np.save(path, _STATE["function"]().detach().numpy())


def _result() -> Any:
    return _STATE["function"]()


def _memory() -> Memory:
    return Memory(_STATE["before"], resident_peak_mib() - _STATE["after_torch"])
