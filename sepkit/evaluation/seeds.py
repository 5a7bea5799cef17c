"""Runs that differ in nothing but their seed as one row: mean and deviation over trainings, not over utterances."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from sepkit.data._files import atomic_output
from sepkit.errors import UserError
from sepkit.evaluation import matching_figures
from sepkit.evaluation.labels import label_of, short_label_of
from sepkit.evaluation.run_folder import EvaluationFolder, Run

__all__ = ["FIGURES", "SeedGroup", "group_runs", "seed_table", "temperature_series", "write_seed_table"]

FigureKind = Literal["boxes", "temperature"]
FIGURES: tuple[FigureKind, ...] = ("boxes", "temperature")

_SEED = re.compile(r"_seed(\d+)")
_DEFAULT_METRICS = ("si_sdr_db", "si_sdri_db", "mcl_si_sdr_db")
# Columns from summary.json's "matching", where evaluation wrote it: name -> (head of the column, factor).
_MATCHING = {"collapse_rate": ("collapsed hypotheses [%]", 100.0)}
# Where runs of one group may differ: these change no result, or say how long a run took.
_IMMATERIAL = ("trainer.seed", "trainer.checkpoint_every_steps", "trainer.keep_every_epochs", "data.workers")


@dataclass
class SeedGroup:
    """Runs of one configuration.

    Args:
        name: for tables.
        runs: in the order given.
    """

    name: str
    runs: list[Run]

    @property
    def seeds(self) -> list[str]:
        """Of the runs: as their configurations or else their folders' names say, "?" where neither does."""
        return [_seed_of(run) for run in self.runs]

    def differences(self) -> list[str]:
        """Keys of the configuration, other than the seed, in which the runs differ although they should not."""
        trees = [_flatten(run.config) for run in self.runs if run.config is not None]
        keys = {key for tree in trees for key in tree} - set(_IMMATERIAL)
        return sorted(key for key in keys if any(tree.get(key) != trees[0].get(key) for tree in trees))


def group_runs(runs: Sequence[Run], pattern: str | None = None) -> list[SeedGroup]:
    """The runs by group, in order of appearance.

    Args:
        runs: one or more.
        pattern: a regular expression that finds the group's name in the folder's: its first group in parentheses, or
            all that it matches; None: the name without `_seed` and the number after it.

    Raises:
        UserError: no regular expression, or one that does not fit a folder's name.
    """
    try:
        expression = re.compile(pattern) if pattern is not None else None
    except re.error as error:
        raise UserError(f"--group: found {pattern!r}, expected a regular expression ({error})") from error
    groups: dict[str, list[Run]] = {}
    for run in runs:
        name = _SEED.sub("", run.name)
        if expression is not None:
            match = expression.search(run.name)
            if match is None:
                raise UserError(f"--group: {pattern!r} is not in the name {run.name}; expected it in every run's")
            name = (match.group(1) if expression.groups else match.group(0)) or ""
        groups.setdefault(name, []).append(run)
    return [SeedGroup(name, members) for name, members in groups.items()]


def write_seed_table(
    runs: Sequence[Run],
    path: str | Path,
    *,
    metrics: Sequence[str] | None = None,
    pattern: str | None = None,
    figures: Sequence[FigureKind] = (),
) -> str:
    """The Markdown that is now in the file, with figures beside it (FILE_boxes.png, FILE_temperature.png).

    Args:
        runs: one or more.
        path: FILE.md.
        metrics: columns; None: SI-SDR, its improvement and that of the best hypothesis, as far as they were measured.
        pattern: see `group_runs`.
        figures: "boxes": the first metric of every utterance, the seeds of a group together (Fig. 7 of the aMCL
            paper); "temperature": SI-SDR on dev against temperature, a curve a run (Fig. 8).

    Raises:
        UserError: nothing measured, an unknown metric, a bad pattern, or no run with a temperature to draw.
    """
    path, groups = Path(path), group_runs(runs, pattern)
    sets = list(dict.fromkeys(evaluation.name for run in runs for evaluation in run.evaluations))
    if not sets and "temperature" not in figures:
        raise UserError(f"{runs[0].folder}: found no evaluation/*/summary.json; evaluate the runs (sepkit evaluate)")
    chosen = _metrics(runs, metrics) if sets else []
    drawn: list[tuple[str, str, Figure]] = []
    if "boxes" in figures:
        for name in sets:
            ending = f"_boxes_{name}" if len(sets) > 1 else "_boxes"
            drawn.append((ending, f"{label_of(chosen[0])}, {name}", _boxes(groups, name, chosen[0])))
    if "temperature" in figures:
        series = temperature_series(runs)
        drawn.append(
            ("_temperature", "SI-SDR on dev against temperature", matching_figures.scores_by_temperature(series))
        )
    parts = [seed_table(groups, name, chosen) for name in sets]
    if len(sets) > 1:
        parts = [f"### {name}\n\n{part}" for name, part in zip(sets, parts, strict=True)]
    parts += [f"![{_escaped(caption)}]({path.stem}{ending}.png)\n" for ending, caption, _ in drawn]
    notes = list(_notes(groups))
    text = "\n".join([*parts, *(f"{note}\n" for note in notes)])
    for ending, _, figure in drawn:
        with atomic_output(path.with_name(f"{path.stem}{ending}.png")) as temporary:
            figure.savefig(temporary, format="png", dpi=160)
    with atomic_output(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text


def seed_table(groups: Sequence[SeedGroup], test_set: str, metrics: Sequence[str]) -> str:
    """A Markdown table: a row a group, a column a metric with mean and sample standard deviation over seeds.

    The last columns name the best and the worst seed by the first metric. A single seed has no deviation.

    Args:
        groups: rows.
        test_set: name of the evaluation.
        metrics: columns.
    """
    columns = [
        name for name in _MATCHING if any(_matching(e, name) is not None for e in _evaluations(groups, test_set))
    ]
    heads = [*map(short_label_of, metrics), *(_MATCHING[name][0] for name in columns)]
    lines = [["group", "seeds", *heads, "best seed", "worst seed"], ["---", *["---:"] * (len(heads) + 1), "---", "---"]]
    for group in groups:
        found = [(seed, _of(run, test_set)) for seed, run in zip(group.seeds, group.runs, strict=True)]
        known = [(seed, evaluation) for seed, evaluation in found if evaluation is not None]
        cells = [_mean_and_deviation([_mean(evaluation, name) for _, evaluation in known]) for name in metrics]
        for name in columns:
            factor = _MATCHING[name][1]
            values = [_matching(evaluation, name) for _, evaluation in known]
            cells.append(_mean_and_deviation([None if v is None else factor * v for v in values], digits=1))
        ranked = [(_mean(evaluation, metrics[0]), seed) for seed, evaluation in known]
        ranked = [(value, seed) for value, seed in ranked if value is not None]
        ends = [f"{seed} ({value:.2f})" for value, seed in (max(ranked), min(ranked))] if len(ranked) > 1 else ["", ""]
        lines.append([_escaped(group.name), str(len(known)), *cells, *ends])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def temperature_series(runs: Sequence[Run]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Run -> ((E,) temperatures, (E,) negative MCL SI-SDR on dev in dB) of the epochs that were validated.

    Runs whose log has no temperature are left out.

    Raises:
        UserError: no run has both.
    """
    series = {}
    for run in runs:
        records = [] if run.log is None else run.log.records
        pairs = [
            (float(record["temperature"]), -float(record["dev_mcl_si_sdr_db"]))
            for record in records
            if record.get("kind") == "epoch"
            and record.get("temperature") is not None
            and record.get("dev_mcl_si_sdr_db") is not None
        ]
        if pairs:
            temperatures, scores = np.array(pairs).T
            series[run.name] = temperatures, scores
    if not series:
        raise UserError(
            f"--figure temperature: found no temperature with dev_mcl_si_sdr_db in the metrics.jsonl of {runs[0].name}"
            f"{' or another run' if len(runs) > 1 else ''}; expected runs of annealed multiple choice learning"
        )
    return series


def _boxes(groups: Sequence[SeedGroup], test_set: str, metric: str) -> Figure:
    scores = {}
    for group in groups:
        found = [evaluation.scores(metric) for run in group.runs if (evaluation := _of(run, test_set)) is not None]
        if found:
            scores[group.name] = np.concatenate(found)
    return matching_figures.score_boxes(scores, label_of(metric))


def _metrics(runs: Sequence[Run], asked: Sequence[str] | None) -> list[str]:
    present = list(dict.fromkeys(name for run in runs for evaluation in run.evaluations for name in evaluation.metrics))
    if asked is None:
        asked = [name for name in _DEFAULT_METRICS if name in present] or present[:1]
    unknown = [name for name in asked if name not in present]
    if unknown or not asked:
        raise UserError(
            f"--metric: found {', '.join(unknown) or 'none'}, expected one of {', '.join(present) or 'none'}"
        )
    return list(asked)


def _notes(groups: Sequence[SeedGroup]) -> Iterator[str]:
    if any(len(group.runs) > 1 for group in groups):
        yield "Mean ± sample standard deviation over training seeds."
    for group in groups:
        twice = [seed for seed, count in Counter(group.seeds).items() if count > 1 and seed != "?"]
        if twice:
            yield f"{_escaped(group.name)}: seed {' and '.join(twice)} stands for more than one run."
        different = group.differences()
        if different:
            yield f"{_escaped(group.name)}: its runs differ in more than the seed: {', '.join(different)}."
        missing = [run.name for run in group.runs if not run.evaluations]
        if missing:
            yield f"{_escaped(group.name)}: not evaluated: {', '.join(map(_escaped, missing))}."


def _evaluations(groups: Sequence[SeedGroup], test_set: str) -> list[EvaluationFolder]:
    found = (_of(run, test_set) for group in groups for run in group.runs)
    return [evaluation for evaluation in found if evaluation is not None]


def _of(run: Run, test_set: str) -> EvaluationFolder | None:
    return next((evaluation for evaluation in run.evaluations if evaluation.name == test_set), None)


def _mean(evaluation: EvaluationFolder, metric: str) -> float | None:
    return evaluation.summary.get("metrics", {}).get(metric, {}).get("mean")


def _matching(evaluation: EvaluationFolder, name: str) -> float | None:
    return (evaluation.summary.get("matching") or {}).get(name)


def _mean_and_deviation(values: Sequence[float | None], digits: int = 2) -> str:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    mean = f"{statistics.fmean(known):.{digits}f}"
    return f"{mean} ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else mean


def _seed_of(run: Run) -> str:
    seed = _flatten(run.config).get("trainer.seed") if run.config is not None else None
    match = _SEED.search(run.name)
    return str(seed) if seed is not None else match.group(1) if match else "?"


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {prefix[:-1]: tree}
    return {key: value for name, part in tree.items() for key, value in _flatten(part, f"{prefix}{name}.").items()}


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
