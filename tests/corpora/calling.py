"""Calls of functions that take a dataclass of options, and tables, written shorter."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any


def by_place(function: Callable[[Any], Path], options: type, *names: str) -> Callable[..., Path]:
    """Return `function` as one of arguments: the first ones, in the order of `names`, and options by name."""

    def call(*places: object, **more: object) -> Path:
        return function(options(**dict(zip(names, places, strict=False)), **more))

    return call


def table(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file."""
    with open(path, newline="") as file:
        return list(csv.reader(file))
