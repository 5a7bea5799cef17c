"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from sepkit import heap
from sepkit.config import ModelConfig
from sepkit.inference.long import chunked
from sepkit.inference.long.stitching import Chunking
from sepkit.inference.runners.torch_runner import TorchRunner
from sepkit.models import build_model


def test_where_the_c_library_cannot_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: Any) -> object:
        return object()

    heap._malloc_trim.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", without)
    heap.return_freed_memory()
    heap._malloc_trim.cache_clear()


def test_a_long_recording_returns_memory_now_and_then(
    tiny_model_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[bool] = []
    monkeypatch.setattr(chunked, "return_freed_memory", lambda: returned.append(True))
    monkeypatch.setattr(chunked, "_RETURN_MEMORY_EVERY", 2)
    runner = TorchRunner(build_model(tiny_model_config))
    separation = chunked.ChunkedSeparation(runner, Chunking(200, 100))
    separation.push(np.random.default_rng(0).standard_normal(2000).astype(np.float32))
    joined = separation.finish()
    assert len(returned) == separation._calls // 2 > 1
    joined.close()
