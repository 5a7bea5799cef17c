"""Tests of `tools`, which is no part of the package: found beside it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tools.bench.processes import Memory, bound
from tools.bench.timing import seconds_of


class InThisProcess:
    """Stands in for `Contestant` where its processes would only cost time."""

    def __init__(self, maker, *arguments, threads=1):
        self.call = bound(maker, *arguments)()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def seconds(self, clock="perf_counter"):
        return seconds_of(self.call, getattr(time, clock))

    def save(self, path):
        np.save(path, self.call().numpy())

    def memory(self):
        return Memory(1.0, 2.0)


@pytest.fixture
def contestant_in_this_process(monkeypatch: pytest.MonkeyPatch) -> type[InThisProcess]:
    """The class, for a module's `Contestant`; the allocator of the tests' process stays as it is."""
    monkeypatch.setenv("SEPKIT_MALLOC", "default")
    return InThisProcess
