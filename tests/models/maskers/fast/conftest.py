"""Fixtures for the tests of fast ways: record which are taken, and turn them off."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from sepkit.models.maskers import replaceable
from sepkit.models.maskers.fast import folded, folded_sudormrf, recomputed, time_major  # noqa: F401  They register.


@pytest.fixture
def taken() -> Iterator[list[str]]:
    """Names of the fast functions that are called, in order."""
    names: list[str] = []

    def spied(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: names.append(function.__name__) or function(*inputs)

    with _replacements_changed(lambda entries: [(when, spied(function)) for when, function in entries]):
        yield names


@pytest.fixture
def modules_alone() -> Callable[[], AbstractContextManager[None]]:
    """A context in which no fast way is taken."""
    return lambda: _replacements_changed(lambda entries: [])


@contextmanager
def _replacements_changed(change: Callable[[list[Any]], list[Any]]) -> Iterator[None]:
    every = list(replaceable._replacements.values())
    saved = [list(entries) for entries in every]
    for entries in every:
        entries[:] = change(entries)
    try:
        yield
    finally:
        for entries, before in zip(every, saved, strict=True):
            entries[:] = before
