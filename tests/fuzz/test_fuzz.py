"""Mutated inputs of every kind: an exit code and a line, whatever they hold. `make fuzz N=20000` tries more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fuzz.kinds import KINDS
from tools.fuzz.oracle import run_case, run_cases

CASES = Path(__file__).parent / "cases"
FOUND = sorted(path for path in CASES.glob("*/*") if path.is_dir())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_mutated_passes(kind: str) -> None:
    assert run_case(kind, KINDS[kind]().files)[:2] == (KINDS[kind]().passes, [])


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_inputs(kind: str) -> None:
    """200 of the kinds that come from strangers most, some of the others."""
    cases = [KINDS[kind]().case(number) for number in range(KINDS[kind]().tested)]
    fell = {number: outcome.falls for number, outcome in enumerate(run_cases(kind, cases)) if outcome.falls}
    assert not fell


@pytest.mark.parametrize("folder", FOUND, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_what_was_found_before(folder: Path) -> None:
    name = folder.parent.name.replace("_", " ")
    files = KINDS[name]().files | {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not run_case(name, files).falls
