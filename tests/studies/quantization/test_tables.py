"""What is printed at the end: means over seeds, whether these are in lists or in rows."""

from __future__ import annotations

from sepkit.studies.quantization.tables import seeds_table


def test_seeds_in_lists_and_in_rows_are_the_same() -> None:
    lists = [{"kind": "linear", "cost": [1.0, 2.0, 3.0], "failed": 1}, {"kind": "none"}]
    rows = [{"kind": "linear", "cost": cost} for cost in (1.0, 2.0, 3.0)]
    shown = seeds_table(lists, ["kind"], {"cost": "the cost", "failed": "runs that failed"})
    assert shown.splitlines()[0] == "| kind | the cost | runs that failed |"
    assert shown.splitlines()[2:] == ["| linear | 2 ± 1 | 1 |", "| none |  |  |"]
    assert seeds_table(rows, ["kind"], {"cost": "cost"}).splitlines()[2] == "| linear | 2 ± 1 |"
