"""Time functions in turns, so that other load on the machine affects all of them."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any


@dataclass
class Ratio:
    """How many times faster one function is than another: above 1, ours is faster.

    Args:
        median: over turns of theirs / ours.
        range: smallest and largest of a turn.
    """

    median: float
    range: tuple[float, float]

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Make it from the times of the same turns."""
        ratios = [their_seconds / our_seconds for our_seconds, their_seconds in zip(ours, theirs, strict=True)]
        return cls(statistics.median(ratios), (min(ratios), max(ratios)))

    def __str__(self) -> str:
        return f"{self.median:.2f} x [{self.range[0]:.2f}, {self.range[1]:.2f}]"


@dataclass
class Comparison:
    """Times of two functions that ran in turns.

    Args:
        ours_seconds: median.
        theirs_seconds: median.
        ratio: median over pairs of theirs / ours: above 1, ours is faster.
        ratio_range: smallest and largest ratio of a pair.
        pairs: number of pairs.
    """

    ours_seconds: float
    theirs_seconds: float
    ratio: float
    ratio_range: tuple[float, float]
    pairs: int


def compare(
    ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float = 3.0, least_pairs: int = 7
) -> Comparison:
    """Compare two functions, called A B A B ... (see `take_turns`) after one call each to warm up.

    It continues for about this many seconds, and for at least this many pairs.
    """
    ours()
    theirs()
    times = take_turns({"ours": ours, "theirs": theirs}, seconds, least_pairs)
    a, b = times["ours"], times["theirs"]
    ratio = Ratio.of(a, b)
    return Comparison(statistics.median(a), statistics.median(b), ratio.median, ratio.range, len(a))


def take_turns(
    functions: Mapping[str, Callable[[], Any]],
    seconds: float = 3.0,
    least_turns: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of every call of every function, called A B C A B C ...; warm them up before.

    An untimed call precedes each timed one. Memory that one function frees decides whether the next one gets its memory
    from the kernel, page by page; this cost should fall on the function that causes it.

    Args:
        functions: without arguments, by name.
        seconds: continue for about this long.
        least_turns: and for at least this many turns.
        clock: `time.process_time` leaves out the time of other programs; for one thread.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    began, turns = clock(), 0
    while turns < least_turns or clock() - began < seconds:
        for name, function in functions.items():
            function()
            times[name].append(seconds_of(function, clock))
        turns += 1
    return times


def seconds_of(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of one call."""
    began = clock()
    function()
    return clock() - began


def environment(*packages: str) -> dict[str, Any]:
    """Return what the figures depend on: machine, threads, versions."""
    import torch

    return {
        "machine": _processor(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()}, {' '.join(platform.libc_ver()) or 'C library unknown'}",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "versions": {package: _version(package) for package in ("sepkit", "torch", *packages)},
        "measured_on": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
    }


def _processor() -> str:
    """Return the processor's name, and the wide instructions that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict([part.strip() for part in line.split(":", 1)] for line in lines if ":" in line)
    flags = set(fields.get("flags", "").split())
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return ", ".join([fields.get("model name", platform.machine()), *wide])


def _commit() -> str | None:
    """Return the commit of the checkout, with a plus if files of it have changed; None without git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
