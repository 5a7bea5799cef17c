"""Show what fewer steps of a model of continuous depth cost: score and real-time factor by number of steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sepkit.cleaning import escaped
from sepkit.errors import UserError
from sepkit.evaluation.labels import BY_DEPTH, label_of, short_label_of
from sepkit.evaluation.run_folder import Run
from sepkit.reporting.compared_runs import digits_of
from sepkit.reporting.figures import COLORS, legend, panels, save_png
from sepkit.reporting.seeds import group_runs
from sepkit.reporting.tables import markdown_table, mean_and_deviation

_METRICS = ("si_sdri_db", "si_sdr_db")
_FACTOR = "real_time_factor"
_BESIDE = ("over_reference_nats", "over_floor_nats")
FIXED = "fixed"
"""Number of steps of a model whose depth cannot be chosen."""


def depth_section(runs: Sequence[Run], path: Path) -> str:
    """Return Markdown of scores by number of steps; write FILE_depth.png (one for each test set) beside `path`.

    A row is a group of runs over seeds at one number of steps: mean and sample deviation over seeds of the scores and,
    of separators, of the real-time factor. Models of fixed depth have one row.

    Raises:
        UserError: no run was measured at several numbers of steps.
    """
    sets = list(dict.fromkeys(evaluation.name for run in runs for evaluation in run.evaluations))
    if not any(BY_DEPTH in evaluation.summary for run in runs for evaluation in run.evaluations):
        raise UserError(
            f"--figure depth: found no evaluation of {', '.join(run.name for run in runs)} at several numbers of steps;"
            " evaluate models of continuous depth with --depth-steps 2 4 8"
        )
    parts = []
    for test_set in sets:
        found = {group.name: by_steps(group.runs, test_set) for group in group_runs(runs)}
        file = save_png(depth_figure(found), path, f"depth_{test_set}" if len(sets) > 1 else "depth")
        title = f"### {test_set}, by number of steps\n\n"
        parts.append(f"{title}{_table(found)}\n![Score by number of steps]({file})\n")
    return "\n".join([*parts, "A dot is a number of steps, mean over seeds.\n"])


def by_steps(runs: Sequence[Run], test_set: str) -> dict[str, dict[str, np.ndarray]]:
    """Return number of steps -> name -> values over runs, (R,), of the scores and of "real_time_factor"."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        evaluation = run.evaluation(test_set)
        if evaluation is None:
            continue
        summaries: Mapping[str, Any] = evaluation.summary.get(BY_DEPTH) or {FIXED: evaluation.summary}
        for steps, summary in summaries.items():
            scores = {name: score.get("mean") for name, score in summary["metrics"].items()}
            chosen = [name for name in _METRICS if scores.get(name) is not None] or list(scores)
            row = {name: scores[name] for name in chosen} | {_FACTOR: summary.get(_FACTOR)}
            for name in _BESIDE:
                value = summary.get(name)
                row[name] = value["mean"] if isinstance(value, dict) else value
            for name, value in row.items():
                if value is not None:
                    found.setdefault(steps, {}).setdefault(name, []).append(value)
    return {steps: {name: np.array(numbers) for name, numbers in of.items()} for steps, of in found.items()}


def _table(found: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]) -> str:
    columns = list(dict.fromkeys(name for of in found.values() for values in of.values() for name in values))
    columns.sort(key=lambda name: name == _FACTOR)
    rows = []
    for group, of_steps in found.items():
        for steps, values in of_steps.items():
            seeds = max(len(numbers) for numbers in values.values())
            cells = (mean_and_deviation(list(values.get(n, ())), 4 if n == _FACTOR else digits_of(n)) for n in columns)
            rows.append([escaped(group), steps, str(seeds), *cells])
    heads = ["real-time factor" if name == _FACTOR else short_label_of(name) for name in columns]
    return markdown_table(["group", "steps", "seeds", *heads], rows)


def depth_figure(found: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]) -> Figure:
    """Return a figure of the first score over the real-time factor, or over the width of a step without times.

    A color is a group; each dot is named by its number of steps.

    `found` is group -> number of steps -> name -> values, of `by_steps`.
    """
    timed = any(_FACTOR in values for of in found.values() for values in of.values())
    score = next(name for of in found.values() for values in of.values() for name in values)
    figure = panels("real-time factor" if timed else "width of a step", [label_of(score)])
    axes = figure.axes[0]
    for place, (group, of_steps) in enumerate(found.items()):
        points = []
        for steps, values in of_steps.items():
            x = values[_FACTOR].mean() if _FACTOR in values else None if timed or steps == FIXED else 1 / int(steps)
            if x is not None:
                points.append((x, next(iter(values.values())).mean(), steps))
        color = COLORS[place % len(COLORS)]
        if not points:
            # Of fixed depth, and without a time: a line across.
            for values in of_steps.values():
                axes.axhline(
                    next(iter(values.values())).mean(), color=color, linestyle="--", linewidth=1.2, label=group
                )
            continue
        x, y, names = zip(*points, strict=True)
        axes.plot(x, y, color=color, marker="o", markersize=4, linewidth=1.4, label=group)
        for name, at in zip(names, zip(x, y, strict=True), strict=True):
            if name != FIXED:
                axes.annotate(name, at, textcoords="offset points", xytext=(3, 4), fontsize=8)
    axes.set_xscale("log")
    legend(axes, 1)
    return figure
