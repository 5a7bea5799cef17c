"""Timing of two functions in turns, so that whatever else the machine does falls on both."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any


@dataclass
class Comparison:
    """Times of two functions that ran in turns.

    Args:
        ours_seconds: median.
        theirs_seconds: median.
        ratio: median over pairs of theirs / ours: above 1, ours is faster.
        ratio_range: smallest and largest ratio of a pair.
        pairs: how many.
    """

    ours_seconds: float
    theirs_seconds: float
    ratio: float
    ratio_range: tuple[float, float]
    pairs: int


def compare(
    ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float = 3.0, least_pairs: int = 7
) -> Comparison:
    """The comparison of two functions, called A B A B ... after one call each to warm up.

    Args:
        ours: without arguments.
        theirs: without arguments.
        seconds: go on for about this long.
        least_pairs: but for at least this many pairs.
    """
    ours()
    theirs()
    a: list[float] = []
    b: list[float] = []
    began = time.perf_counter()
    while len(a) < least_pairs or time.perf_counter() - began < seconds:
        a.append(_seconds(ours))
        b.append(_seconds(theirs))
    ratios = [theirs_seconds / ours_seconds for ours_seconds, theirs_seconds in zip(a, b, strict=True)]
    return Comparison(
        statistics.median(a), statistics.median(b), statistics.median(ratios), (min(ratios), max(ratios)), len(a)
    )


def environment(*packages: str) -> dict[str, Any]:
    """What the figures depend on: machine, threads, versions."""
    import torch

    return {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "versions": {package: metadata.version(package) for package in ("sepkit", "torch", *packages)},
    }


def _seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
