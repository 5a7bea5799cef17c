"""Calls of functions that take a dataclass of options, written shorter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def by_place(function: Callable[[Any], Path], options: type, *names: str) -> Callable[..., Path]:
    """Return `function` as one of arguments: the first ones, in the order of `names`, and options by name."""

    def call(*places: object, **more: object) -> Path:
        return function(options(**dict(zip(names, places, strict=False)), **more))

    return call
