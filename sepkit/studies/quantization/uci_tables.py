"""Tables 1, 2, 4 and 5 of the aMCL paper from the rows of the UCI experiment, and how methods compare over splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from sepkit.files import write_json, write_text
from sepkit.reporting.markdown import markdown_table

TITLES = {
    "last": "last epoch",
    "held_out": "least distortion on held-out training rows",
    "reference": "least loss on the test rows: a leak, as in the published code",
}


def write_tables(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Write OUT/table.json and OUT/table.md, print the latter, and return the path of the former.

    Args:
        rows: as `uci` makes them.
        folder: OUT.

    Raises:
        UserError: the folder cannot be written to.
    """
    text = "\n".join(
        f"## {name}, {TITLES[select]}\n\n{_scores(part)}\n{_differences(part)}"
        for (name, select), part in _groups(rows).items()
    )
    print(text)
    write_text(folder / "table.md", text)
    return write_json(folder / "table.json", rows)


def _groups(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["select"]), []).append(row)
    return groups


def _scores(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            row["method"],
            *(f"{row[f'{measure}_mean']:.4g} ± {row[f'{measure}_std']:.2g}" for measure in ("distortion", "rmse")),
            f"{row['median_epoch']:.0f}",
        ]
        for row in rows
    ]
    return markdown_table(["method", "distortion", "RMSE", "median epoch"], cells)


def _differences(rows: list[dict[str, Any]]) -> str:
    """Paired differences of each method from the one of least mean distortion, with 95 % intervals."""
    if len(rows) < 2 or rows[0]["folds"] < 2:
        return ""
    parts = []
    for measure, title in (("distortion", "distortion"), ("rmse", "RMSE")):
        best = min(rows, key=lambda row: row[f"{measure}_mean"])
        words = []
        for row in sorted(rows, key=lambda row: row[f"{measure}_mean"]):
            if row is not best:
                mean, half = paired_difference(row[f"{measure}s"], best[f"{measure}s"])
                words.append(f"{row['method']} {mean:+.3g} ± {half:.2g}")
        parts.append(f"{title} above {best['method']} (paired, 95 % interval): {'; '.join(words)}.")
    return "\n".join(parts) + "\n"


def paired_difference(values: list[float], others: list[float]) -> tuple[float, float]:
    """The mean of values - others over splits, and half its 95 % interval by Student's t.

    Args:
        values: one a split.
        others: the same splits.
    """
    difference = np.array(values) - np.array(others)
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return float(difference.mean()), float(student.ppf(0.975, len(difference) - 1) * error)
