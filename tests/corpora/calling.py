"""Calls of functions that take a dataclass of options, and tables, written shorter."""

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.complaint import complaint


def by_place(function: Callable[[Any], Path], options: type, *names: str) -> Callable[..., Path]:
    """Return `function` as one of arguments: the first ones, in the order of `names`, and options by name."""

    def call(*places: object, **more: object) -> Path:
        return function(options(**dict(zip(names, places, strict=False)), **more))

    return call


def check_mistakes(
    function: Callable[..., Path], good: list[Path], mistakes: list[tuple[int, Path, dict, str]]
) -> None:
    """Each mistake: the place of a bad path among the good ones, the path, further options, and what is said of it."""
    for index, bad, options, message in mistakes:
        complaint(partial(function, *good[:index], bad, *good[index + 1 :], **options), message)


def table(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file."""
    with open(path, newline="") as file:
        return list(csv.reader(file))
