"""One Markdown file about runs that belong together: the table, and the figures asked for below it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from sepkit.cleaning import code, escaped
from sepkit.errors import UserError
from sepkit.evaluation.labels import label_of, short_label_of
from sepkit.evaluation.run_folder import Run
from sepkit.files import write_text
from sepkit.reporting.compared_runs import better, digits_of, leading_metric, unique_names
from sepkit.reporting.curve_figures import score_boxes, scores_by_temperature
from sepkit.reporting.depth import depth_section
from sepkit.reporting.figures import save_png
from sepkit.reporting.rate_distortion import rate_distortion_section
from sepkit.reporting.seeds import SeedGroup, group_runs, metrics_of, seed_sections, temperature_series, with_dev_scores
from sepkit.reporting.tables import INTERVALS, Cell, Table, number

FigureKind = Literal["boxes", "temperature", "rate-distortion", "depth"]


def write_summary(
    runs: Sequence[Run],
    path: str | Path,
    *,
    metrics: Sequence[str] | None = None,
    figures: Sequence[FigureKind] = (),
    reference_sets: Sequence[str] = (),
) -> str:
    """Write a Markdown file, with figures beside it (FILE_boxes.png and so on); return the text.

    Experiments are rows over seeds, see `seed_sections`. If every run is one evaluation, the table is
    `evaluations_table`.

    Args:
        runs: one or more.
        path: FILE.md.
        metrics: columns; None: the usual ones.
        figures: "boxes": the first metric of every utterance, the seeds of a group together (Fig. 7 of the aMCL
            paper); "temperature": SI-SDR on dev over temperature, one curve per run (Fig. 8); "rate-distortion"
            and "depth": see `rate_distortion_section` and `depth_section`.
        reference_sets: see `drop_pairs`.

    Raises:
        UserError: nothing measured, an unknown metric or test set, or nothing to draw.
    """
    path, measured = Path(path), [with_dev_scores(run) for run in runs]
    groups = group_runs(measured)
    sets = list(dict.fromkeys(evaluation.name for run in measured for evaluation in run.evaluations))
    if not sets and "temperature" not in figures:
        raise UserError(f"{runs[0].folder}: found no evaluation/*/summary.json; evaluate the runs (sepkit evaluate)")
    if sets and not reference_sets and all([part.folder for part in run.evaluations] == [run.folder] for run in runs):
        sections = [evaluations_table(runs, metrics), f"{INTERVALS}\n"]
    else:
        sections = seed_sections(groups, sets, metrics, reference_sets)
    if "boxes" in figures:
        name = metrics_of(measured, metrics)[0]
        for test_set in sets:
            ending = f"boxes_{test_set}" if len(sets) > 1 else "boxes"
            file = save_png(score_boxes(_scores(groups, test_set, name), label_of(name)), path, ending)
            sections.append(f"![{escaped(f'{label_of(name)}, {test_set}')}]({file})\n")
    if "temperature" in figures:
        file = save_png(scores_by_temperature(temperature_series(runs)), path, "temperature")
        sections.append(f"![SI-SDR on dev against temperature]({file})\n")
    if "rate-distortion" in figures:
        sections.append(rate_distortion_section(runs, path))
    if "depth" in figures:
        sections.append(depth_section(runs, path))
    text = "\n".join(sections)
    write_text(path, text)
    return text


def evaluations_table(runs: Sequence[Run], metrics: Sequence[str] | None = None) -> str:
    """Return a Markdown table: a row per evaluation, best first, and the command that made it.

    Each metric is the mean over mixtures with half its 95 % interval; the best of a column is bold.

    Args:
        runs: each one evaluation.
        metrics: columns, the first ranks the rows; None: all, ranked by the leading one.

    Raises:
        UserError: an unknown metric.
    """
    measured = list(dict.fromkeys(name for run in runs for name in run.evaluations[0].metrics))
    columns = metrics_of(runs, metrics or measured)
    rank = metrics[0] if metrics else leading_metric(columns)
    names, means = unique_names(runs), {name: [run.evaluations[0].mean(name) for run in runs] for name in columns}
    best = {name: max(better(name) * v for v in values if v is not None) for name, values in means.items()}

    def key(place: int) -> float:
        value = means[rank][place] if rank else None
        return np.inf if value is None else -better(rank or "") * value

    rows = []
    for place in sorted(range(len(runs)), key=key):
        summary = runs[place].evaluations[0].summary
        cells = []
        for name in columns:
            value, digits = means[name][place], digits_of(name)
            if value is None:
                cells.append("")
                continue
            interval = summary["metrics"][name]["ci95"]
            half = f" ± {(interval[1] - interval[0]) / 2:.{digits}f}" if interval else ""
            is_best = len(runs) > 1 and better(name) * value == best[name]
            cells.append(Cell(number(value, digits) + half, strong=is_best))
        drawn = (summary["metrics"][name].get("n_speakers") for name in columns if means[name][place] is not None)
        speakers = next(filter(None, drawn), None)
        command = Cell(code(summary["command"])) if summary.get("command") else ""
        rows.append([names[place], summary["n_utterances"], speakers, *cells, command])
    header = ["run", "mixtures", "speakers", *map(short_label_of, columns), "command"]
    return Table(header, rows).markdown(words=(0, len(header) - 1))


def _scores(groups: Sequence[SeedGroup], test_set: str, metric: str) -> dict[str, np.ndarray]:
    """Return group -> scores of every mixture and seed."""
    found = {}
    for group in groups:
        evaluations = [e for run in group.runs if (e := run.evaluation(test_set)) is not None]
        found[group.name] = np.concatenate([np.empty(0), *(e.scores(metric) for e in evaluations)])
    return found
