"""Rows of a line that was interrupted: the same call on the same machine continues after them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sepkit.files import write_json
from tools.bench.timing import environment

Row = TypeVar("Row")

FOLDER = Path(__file__).parent / "results" / "unfinished"
"""Of the files of lines that were interrupted; not under version control."""


def measure_each(
    line: str, rows: Sequence[Row], measure: Callable[[Row], dict[str, Any]], folder: Path | None
) -> list[dict[str, Any]]:
    """Return the record of every row; one that an interrupted call measured is not measured again.

    Records count if they are of this commit and of such a machine. They are forgotten once all rows are measured.

    Args:
        line: name of the line.
        rows: told apart by how they print.
        measure: returns the record of a row.
        folder: of unfinished lines; None: nothing is kept.
    """
    if folder is None:
        return [measure(row) for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{line}.json"
    here = _here()
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    records: dict[str, dict[str, Any]] = known["records"] if known.get("of") == here else {}
    if records:
        print(f"{line}: {len(records)} of {len(rows)} rows were measured before", flush=True)
    for row in rows:
        if repr(row) not in records:
            records[repr(row)] = measure(row)
            write_json(path, {"of": here, "records": records})
    path.unlink(missing_ok=True)
    return [records[repr(row)] for row in rows]


def _here() -> dict[str, Any]:
    found = environment()
    # Results of other lines, written in between, make a checkout a changed one.
    return {"machine": found["machine"], "commit": (found["commit"] or "").rstrip("+")}
