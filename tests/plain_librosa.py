"""librosa without numba's compilation, which takes half a minute where it was not imported before."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest


def import_librosa() -> ModuleType:
    """Return librosa, whose loops run as the Python that they are written in; skip the test where it is not there."""
    numba = pytest.importorskip("numba")
    with (
        mock.patch.object(numba, "jit", _as_it_is),
        mock.patch.object(numba, "stencil", lambda function: function),
        mock.patch.object(numba, "vectorize", lambda *_, **__: np.vectorize),
        mock.patch.object(numba, "guvectorize", lambda *_, **__: _refused),
    ):
        librosa = pytest.importorskip("librosa")
        # They are loaded when they are first touched.
        for name in ("core", "util", "filters", "feature", "effects"):
            dir(getattr(librosa, name))
        assert callable(librosa.feature.melspectrogram) and callable(librosa.effects.split)
    return librosa


def _as_it_is(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    return (lambda later: later) if function is None else function


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Such a function fills an argument instead of returning something: it would be another one uncompiled."""

    def fails(*_: Any) -> None:
        raise NotImplementedError(f"{function.__name__}: only compiled")

    return fails
