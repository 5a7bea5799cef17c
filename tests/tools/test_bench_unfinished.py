"""Rows of an interrupted line: none is measured twice, and those of another commit or machine do not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.bench import unfinished
from tools.bench.unfinished import measure_each


def test_an_interrupted_line_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured: list[int] = []

    def measure(row: int) -> dict[str, Any]:
        if row == 3 and measured.count(3) == 0:
            measured.append(3)
            raise KeyboardInterrupt
        measured.append(row)
        return {"square": row**2}

    with pytest.raises(KeyboardInterrupt):
        measure_each("line", [1, 2, 3, 4], measure, tmp_path)
    expected = [{"square": 1}, {"square": 4}, {"square": 9}, {"square": 16}]
    assert measure_each("line", [1, 2, 3, 4], measure, tmp_path) == expected
    assert measured == [1, 2, 3, 3, 4] and "2 of 4 rows were measured before" in capsys.readouterr().out
    # Now that it has ended, it begins anew.
    measure_each("line", [1], measure, tmp_path)
    assert measured == [1, 2, 3, 3, 4, 1]


@pytest.mark.parametrize(("commit", "measured"), [("abc+", []), ("abd", [1])])
def test_rows_of_another_commit_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str, measured: list[int]
) -> None:
    """A plus only says that files have changed: results of other lines, for example."""

    def interrupted(row: int) -> dict[str, Any]:
        if row == 2:
            raise KeyboardInterrupt
        return {}

    monkeypatch.setattr(unfinished, "environment", lambda: {"machine": "fast", "commit": "abc"})
    with pytest.raises(KeyboardInterrupt):
        measure_each("line", [1, 2], interrupted, tmp_path)
    monkeypatch.setattr(unfinished, "environment", lambda: {"machine": "fast", "commit": commit})
    again: list[int] = []
    measure_each("line", [1, 2], lambda row: again.append(row) or {}, tmp_path)
    assert again == [*measured, 2]
