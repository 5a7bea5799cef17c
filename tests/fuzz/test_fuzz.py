"""Mutated inputs of every kind: an exit code and a line, whatever they hold. `make fuzz N=20000` tries more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fuzz.kinds import KINDS
from tools.fuzz.oracle import run_case

CASES = Path(__file__).parent / "cases"
FOUND = sorted(path for path in CASES.glob("*/*") if path.is_dir())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_mutated_passes(kind: str) -> None:
    code, falls = run_case(kind, KINDS[kind]().files)
    # A configuration names a manifest that is not there: nothing is trained here.
    assert (code, falls) == (2 if kind == "configurations" else 0 if kind != "manifests" else 1, [])


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_cases(kind: str) -> None:
    fell = {}
    for number in range(200):
        _, falls = run_case(kind, KINDS[kind]().case(number))
        if falls:
            fell[number] = falls
    assert not fell


@pytest.mark.parametrize("folder", FOUND, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_what_was_found_before(folder: Path) -> None:
    kind = KINDS[folder.parent.name]()
    _, falls = run_case(folder.parent.name, kind.files | {path.name: path.read_bytes() for path in folder.iterdir()})
    assert not falls
