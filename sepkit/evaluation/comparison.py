"""Evaluations side by side: two of the same mixtures, paired; several of one model at different depths."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.errors import UserError
from sepkit.evaluation.labels import BY_DEPTH
from sepkit.evaluation.results import interval_unit
from sepkit.evaluation.run_folder import EvaluationFolder, load_evaluation, read_rows
from sepkit.evaluation.statistics import paired_difference
from sepkit.files import atomic_output, read_json, write_json


def compare(folder: Path, other: str | os.PathLike[str], columns: Sequence[str]) -> dict[str, Any]:
    """Return how much better the first run is than the other, the section "comparison" of summary.json.

    `metrics` has, for every column of both runs, `PairedDifference` over the utterances that both have scored: first
    minus other, so above 0 the first is better.

    Args:
        folder: Folder with the utterances.csv of an evaluation.
        other: Folder of another one.
        columns: Columns of utterances.csv; those that the other lacks are left out.

    Raises:
        UserError: no such evaluation, or no utterance or column that both have.
    """
    first = EvaluationFolder(folder, folder.name, {}, read_rows(folder / "utterances.csv"))
    second = load_evaluation(other)
    columns = [column for column in columns if column in second.columns]
    pairs = _pairs(first, second)
    if not pairs or not columns:
        raise UserError(
            f"{other}: has no {'metric' if pairs else 'mixture'} in common with {folder}; compare runs on one manifest"
        )
    mine, theirs = (np.array(side) for side in zip(*pairs, strict=True))
    speakers = first.speakers(mine)
    differences = {
        column: paired_difference(first.scores(column)[mine], second.scores(column)[theirs], speakers)
        for column in columns
    }
    return {
        "other": str(other),
        "n_utterances": len(pairs),
        "interval_unit": interval_unit(differences.values()),
        "metrics": {column: asdict(difference) for column, difference in differences.items()},
    }


def _pairs(first: EvaluationFolder, second: EvaluationFolder) -> list[tuple[int, int]]:
    """Return positions of the same mixture in both: of one manifest and identifier, or, where no manifest is common, of
    one identifier that each run has once."""
    for key in (lambda row: (row.get("manifest"), row["id"]), lambda row: row["id"]):
        mine, theirs = ([key(row) for row in run.rows] for run in (first, second))
        if len(set(mine)) < len(mine) or len(set(theirs)) < len(theirs):
            continue
        places = {name: place for place, name in enumerate(theirs)}
        pairs = [(place, places[name]) for place, name in enumerate(mine) if name in places]
        if pairs:
            return pairs
    return []


def write_by_depth(out: Path, folders: Mapping[int, Path], own_steps: int | None) -> dict[str, Any]:
    """Write OUT/summary.json and OUT/utterances.csv from evaluations by number of steps; return the summary.

    The files are those of the model's own number of steps, or else of the middle one. `BY_DEPTH` of the summary
    has the metrics and the real-time factor of each.

    Args:
        out: Folder of the results.
        folders: Number of steps -> folder of an evaluation.
        own_steps: Default number of steps of the model.
    """
    summaries = {
        steps: read_json(folder / "summary.json", "remove it, and evaluate again")
        for steps, folder in sorted(folders.items())
    }
    chosen = own_steps if own_steps in summaries else list(summaries)[len(summaries) // 2]
    by_steps = {
        str(steps): {name: summary[name] for name in ("metrics", "real_time_factor", "n_utterances", "n_skipped")}
        for steps, summary in summaries.items()
    }
    with atomic_output(out / "utterances.csv") as temporary:
        shutil.copyfile(folders[chosen] / "utterances.csv", temporary)
    summary = summaries[chosen] | {BY_DEPTH: by_steps}
    write_json(out / "summary.json", summary)
    return summary
