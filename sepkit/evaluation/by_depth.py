"""Evaluations of one model at several depths, side by side: score and cost by number of steps."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepkit.evaluation.labels import short_label_of
from sepkit.files import atomic_output, read_json, write_json

_SHOWN = ("si_sdri_db", "si_sdr_db")


def write_by_depth(out: Path, folders: Mapping[int, Path], own_steps: int | None) -> list[str]:
    """Write OUT/summary.json and OUT/utterances.csv from evaluations by number of steps, and return a table to print.

    The files are those of the model's own number of steps, or else of the middle one. "by_depth_steps" of the summary
    has the metrics and the real-time factor of each. Nothing is written while an evaluation is missing.

    Args:
        out: folder of the results.
        folders: number of steps -> folder of an evaluation.
        own_steps: what the model takes unless told otherwise.
    """
    paths = {steps: folder / "summary.json" for steps, folder in folders.items()}
    if not all(path.is_file() for path in paths.values()):
        return []
    summaries = {steps: read_json(path, "remove it, and evaluate again") for steps, path in sorted(paths.items())}
    chosen = own_steps if own_steps in summaries else sorted(summaries)[len(summaries) // 2]
    by_steps = {
        str(steps): {name: summary[name] for name in ("metrics", "real_time_factor", "n_utterances", "n_skipped")}
        for steps, summary in summaries.items()
    }
    with atomic_output(out / "utterances.csv") as temporary:
        shutil.copyfile(folders[chosen] / "utterances.csv", temporary)
    write_json(out / "summary.json", summaries[chosen] | {"by_depth_steps": by_steps})
    return _table(summaries)


def _table(summaries: Mapping[int, Mapping[str, Any]]) -> list[str]:
    columns = [name for name in _SHOWN if all(summary["metrics"].get(name) for summary in summaries.values())]
    rows = [["steps", *(short_label_of(name) for name in columns), "real-time factor"]]
    for steps, summary in summaries.items():
        scores = (summary["metrics"][name]["mean"] for name in columns)
        factor = summary["real_time_factor"]
        cells = ["" if score is None else f"{score:.2f}" for score in scores]
        rows.append([str(steps), *cells, "" if factor is None else f"{factor:.4f}"])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
