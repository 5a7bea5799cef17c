"""Scores of test sets as HTML: in large type, in tables, run against run, by kind of mixture, mixture by mixture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.errors import UserError
from sepkit.evaluation.labels import label_of, short_label_of
from sepkit.evaluation.results import by_group
from sepkit.evaluation.run_folder import EvaluationFolder, Run
from sepkit.evaluation.statistics import PairedDifference, paired_difference
from sepkit.files import read_yaml
from sepkit.reporting import page
from sepkit.reporting.compared_runs import ComparedRuns, better, digits_of
from sepkit.reporting.page import Cell
from sepkit.reporting.text import INTERVALS

_MAX_HEADLINES = 6
_MAX_UTTERANCES = 200


def headlines(test_sets: Sequence[ComparedRuns]) -> str:
    """Return the leading score of every run on every set in large type, as HTML; a sentence if there are too many."""
    runs = {run for test_set in test_sets for run in test_set.evaluations}
    cards = [
        _headline(test_set, run, test_set.leading, bool(len(runs) > 1), bool(len(test_sets) > 1))
        for test_set in test_sets
        for run, evaluation in test_set.evaluations.items()
        if test_set.leading in evaluation.metrics
    ]
    if not cards:
        return '<p class="quiet">Nothing has been scored yet.</p>'
    if len(cards) > _MAX_HEADLINES:
        return f'<p class="quiet">{len(runs)} run{"s" * (len(runs) > 1)} on {len(test_sets)} test sets.</p>'
    return f'<div class="headlines">{"".join(cards)}</div>'


def _headline(test_set: ComparedRuns, run: str, metric: str | None, name_run: bool, name_set: bool) -> str:
    assert metric is not None
    score, digits = test_set.evaluations[run].summary["metrics"][metric], digits_of(metric)
    label, _, unit = label_of(metric).partition(" [")
    is_best = run == test_set.best(metric)
    name = " · ".join([run] * name_run + [test_set.name] * name_set) or test_set.name
    interval = f"95 % interval {_ends(score['ci95'], digits)} · " if score["ci95"] else ""
    speakers = f" of {score['n_speakers']} speakers" if score.get("n_speakers") else ""
    return (
        f'<div class="headline{" best" * is_best}"><div class="what">{escape(name)}</div>'
        f'<div class="value">{page.number(score["mean"], digits)} <small>{escape(unit.rstrip("]"))}</small></div>'
        f'<div class="how">{escape(label)}{" · best" * is_best}<br>'
        f'<span class="quiet">{interval}{score["n"]} mixtures{speakers}</span></div></div>'
    )


def score_tables(runs: Sequence[Run], test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield all metrics of all runs on all sets, mixtures left out, and runs against the first one, as HTML."""
    if not test_sets:
        return
    metrics = list(dict.fromkeys(name for test_set in test_sets for name in test_set.metrics))
    rows = []
    for test_set in test_sets:
        best = {name: test_set.best(name) for name in metrics}
        for run, evaluation in test_set.evaluations.items():
            count = evaluation.summary["n_utterances"]
            cells = [Cell.text(run)] * (len(runs) > 1) + [Cell.text(test_set.name)]
            for name in metrics:
                score = evaluation.summary["metrics"].get(name)
                cells.append(_score_cell(score, digits_of(name), run == best[name]))
            rows.append([*cells, Cell(str(count), count), _speakers_cell(evaluation.summary["metrics"].values())])
    header = ["run"] * (len(runs) > 1) + ["test set", *map(short_label_of, metrics), "mixtures", "speakers"]
    yield page.table("Means with 95 % confidence intervals", header, rows)
    yield f'<p class="quiet">{INTERVALS}</p>'
    for sentence in _left_out(runs):
        yield f'<p class="note">{sentence}</p>'
    yield from _paired(test_sets)
    yield page.details("All statistics", _statistics(test_sets))


def _speakers_cell(scores: Iterable[Mapping[str, Any]]) -> Cell:
    count = max((score.get("n_speakers") or 0 for score in scores), default=0)
    return Cell(str(count), count) if count else Cell("-")


def _score_cell(score: Mapping[str, Any] | None, digits: int, is_best: bool = False) -> Cell:
    if not score or score.get("mean") is None:
        return Cell("-")
    mean = page.number(score["mean"], digits)
    ends = f"<small>{_ends(score['ci95'], digits)}</small>" if score["ci95"] else ""
    return Cell((f"<strong>{mean}</strong>" if is_best else mean) + ends, score["mean"])


def _ends(interval: Sequence[float], digits: int, signed: bool = False) -> str:
    return " to ".join(page.number(end, digits, signed=signed) for end in interval)


def _left_out(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the mixtures that the means leave out."""
    for run in runs:
        for evaluation in run.evaluations:
            name, summary = escape(f"{run.name}, {evaluation.name}"), evaluation.summary
            skipped = summary.get("skipped") or []
            if skipped:
                first = escape(f"{skipped[0]['id']}: {skipped[0]['reason']}")
                yield f"{name}: {len(skipped)} mixtures were skipped ({first}{' ...' if len(skipped) > 1 else ''})."
            if summary.get("n_without_improvement"):
                count = summary["n_without_improvement"]
                yield f"{name}: {count} mixtures are one speaker alone and have no improvement."
            if summary.get("n_silent_sources"):
                yield f"{name}: {summary['n_silent_sources']} silent sources have no score and are left out."
            for metric, failure in (summary.get("failures") or {}).items():
                first = escape(f"{failure['first']['id']}: {failure['first']['reason']}")
                yield f"{name}: {escape(metric)} failed in {failure['n']} mixtures ({first})."


def _statistics(test_sets: Sequence[ComparedRuns]) -> str:
    rows = []
    for test_set in test_sets:
        for run, evaluation in test_set.evaluations.items():
            for metric in evaluation.metrics:
                score, digits = evaluation.summary["metrics"][metric], digits_of(metric)
                names = [Cell.text(run), Cell.text(test_set.name), Cell.text(label_of(metric))]
                values = [score["mean"], *(score["ci95"] or (None, None)), score.get("median"), score.get("std")]
                cells = [Cell(page.number(value, digits), value) for value in values]
                rows.append([*names, *cells, Cell(str(score["n"]), score["n"]), _speakers_cell([score])])
    header = ["run", "test set", "score", "mean", "from", "to", "median", "deviation", "mixtures", "speakers"]
    return page.table("Mean, 95 % interval, median, standard deviation", header, rows)


def _paired(test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield every run minus the first one, mixture by mixture."""
    compared: list[tuple[ComparedRuns, str, str, PairedDifference]] = []
    for test_set in test_sets:
        if test_set.leading is None:
            continue
        (first, base), *others = test_set.aligned(test_set.leading).items()
        speakers = test_set.first.speakers()
        compared += [(test_set, run, first, paired_difference(scores, base, speakers)) for run, scores in others]
    compared = [entry for entry in compared if entry[-1].mean is not None]
    if not compared:
        return
    ends = [end for *_, difference in compared for end in difference.ci95 or (difference.mean or 0.0,)]
    scale = (min(0.0, *ends), max(0.0, *ends))
    rows = [_paired_row(*entry, scale) for entry in compared]
    header = [
        "run",
        "compared with",
        "difference",
        "interval",
        "test set",
        "score",
        "higher [%]",
        "mixtures",
        "speakers",
    ]
    yield page.table("Differences on the same mixtures, with 95 % intervals", header, rows)
    yield (
        '<p class="quiet">Where the interval leaves out 0 (dashed), the difference would hardly change its sign '
        "with other mixtures of this kind (and other speakers, where their number is given). Another seed of training "
        "may still change it.</p>"
    )


def _paired_row(
    test_set: ComparedRuns, run: str, first: str, difference: PairedDifference, scale: tuple[float, float]
) -> list[Cell]:
    metric = test_set.leading
    assert metric is not None and difference.mean is not None and difference.share_better is not None
    digits, share = digits_of(metric), 100 * difference.share_better
    ends, drawing = "", "-"
    if difference.ci95:
        ends = f"<small>{_ends(difference.ci95, digits, signed=True)}</small>"
        low, high = difference.ci95
        drawing = page.interval_svg(difference.mean, low, high, scale)
    return [
        Cell.text(run),
        Cell.text(first),
        Cell(page.number(difference.mean, digits, signed=True) + ends, difference.mean),
        Cell(drawing, difference.mean),
        Cell.text(test_set.name),
        Cell.text(short_label_of(metric)),
        Cell(f"{share:.0f}", share),
        Cell(str(difference.n), difference.n),
        _speakers_cell([asdict(difference)]),
    ]


def matching_tables(test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield tables of the use of hypotheses, and of the number of speakers found, where there are any, as HTML."""
    all_told = [
        (Cell.text(run), Cell.text(test_set.name), evaluation.summary["matching"])
        for test_set in test_sets
        for run, evaluation in test_set.evaluations.items()
        if evaluation.summary.get("matching")
    ]
    told = [entry for entry in all_told if "hypothesis_usage" in entry[-1]]
    most = max((len(matching["hypothesis_usage"]) for *_, matching in told), default=0)
    rows = []
    for run, name, matching in told:
        usage = [_percent(share) for share in matching["hypothesis_usage"]]
        lost = [_count(matching.get(key)) for key in ("n_sources", "missed_sources", "extra_hypotheses")]
        rows.append([run, name, *usage, *[Cell("-")] * (most - len(usage)), _percent(matching["collapse_rate"]), *lost])
    header = [
        "run",
        "test set",
        *(f"hypothesis {k + 1} [%]" for k in range(most)),
        "never best [%]",
        "sources",
        "missed",
        "too many",
    ]
    if rows:
        yield page.table("Share of the sources that each hypothesis is the best for", header, rows)
    counted = [(run, name, m["speaker_count"]) for run, name, m in all_told if "speaker_count" in m]
    if not counted:
        return
    found_numbers = {n for *_, c in counted for found in c["confusion"].values() for n in found}
    numbers = sorted(found_numbers, key=lambda number: (len(number), number))
    rows = []
    for run, name, count in counted:
        for true, found in count["confusion"].items():
            cells = [_count(found.get(n, 0)) for n in numbers]
            right = _percent(found.get(true, 0) / max(1, sum(found.values())))
            rows.append([run, name, Cell(true, int(true)), *cells, right])
        rates = [f"{100 * count[f'{kind}_separation_rate']:.1f} %" for kind in ("over", "under")]
        yield (
            f'<p class="quiet">{run.html}, {name.html}: number of speakers right in {100 * count["accuracy"]:.1f} % of '
            f"all {count['n']} mixtures, too many in {rates[0]}, too few in {rates[1]}, no number in "
            f"{count.get('n_without_number', 0)} of them.</p>"
        )
    header = ["run", "test set", "speaking", *(f"{n} found" for n in numbers), "right [%]"]
    yield page.table("Number of speakers: mixtures by how many speak and how many were found", header, rows)


def _percent(share: float | None) -> Cell:
    return Cell("-") if share is None else Cell(f"{100 * share:.1f}", share)


def _count(count: int | None) -> Cell:
    return Cell("-") if count is None else Cell(str(count), count)


def group_tables(test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield the leading metric by every property of the mixtures in utterances.csv, as HTML."""
    for test_set in test_sets:
        metric = test_set.leading
        if metric is None:
            continue
        scores = {run: values.tolist() for run, values in test_set.aligned(metric).items()}
        tables = []
        for column, groups in by_group(test_set.properties(), scores, test_set.first.speakers()).items():
            rows = []
            for place, (group, means) in enumerate(groups.items()):
                count = max(mean["n"] for mean in means.values())
                cells = [_score_cell(mean, digits_of(metric)) for mean in means.values()]
                rows.append([Cell(escape(group), f"{place:04d}"), *cells, Cell(str(count), count)])
            runs = list(test_set.evaluations) if len(test_set.evaluations) > 1 else [short_label_of(metric)]
            name = label_of(column)
            caption = f"{short_label_of(metric)} by {name.partition(' [')[0]}"
            tables.append(page.table(caption, [name, *runs, "mixtures"], rows))
        if tables:
            yield f'<h3>{escape(test_set.name)}</h3><div class="tables">{"".join(tables)}</div>'


def mixture_tables(test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield the scores of every mixture, worst first, up to 200 of each evaluation, as HTML."""
    for test_set in test_sets:
        metric = test_set.leading
        if metric is None:
            continue
        for run, evaluation in test_set.evaluations.items():
            values = {name: evaluation.scores(name) for name in test_set.metrics}
            order = np.argsort(better(metric) * values[metric], kind="stable")[:_MAX_UTTERANCES]
            rows = [
                [
                    Cell.text(evaluation.rows[place]["id"]),
                    *(_number_cell(float(values[name][place]), name) for name in values),
                ]
                for place in order
            ]
            name = " · ".join([run] * (len(test_set.evaluations) > 1) + [test_set.name])
            total = len(evaluation.rows)
            extent = f"the {len(order)} worst of {total}" if len(order) < total else f"all {total}"
            header = ["mixture", *map(short_label_of, values)]
            caption = f"{name}, worst {short_label_of(metric)} first"
            yield page.details(f"{name}: {extent}", page.table(caption, header, rows))


def _number_cell(value: float, metric: str) -> Cell:
    return Cell(page.number(value, digits_of(metric)), value if np.isfinite(value) else None)


_LEVELS_DB = (0, 5, 10)
# Of fewer mixtures neither means nor quartiles are reliable.
_FEW_MIXTURES = 20


def facts_row(run: Run) -> str:
    """Return a row of figures: mixtures above 0, 5 and 10 dB, voices of one sex and of two, parameters, speed.

    They are those of the run's first test set. The row is empty if none of them is known.
    """
    facts = [*(_of_scores(run.evaluations[0]) if run.evaluations else ()), *_of_model(run)]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{cells}</dl>' if cells else ""


def few_mixtures(run: Run) -> str:
    """Return a warning about test sets that are too small for reliable means; "" if there are none."""
    small = [
        f"{evaluation.name} ({evaluation.summary['n_utterances']})"
        for evaluation in run.evaluations
        if evaluation.summary.get("n_utterances", _FEW_MIXTURES) < _FEW_MIXTURES
    ]
    if not small:
        return ""
    text = f"Fewer than {_FEW_MIXTURES} mixtures: {', '.join(small)}. Means of so few say little; look at the examples."
    return f'<p class="note">{escape(text)}</p>'


def _of_scores(evaluation: EvaluationFolder) -> Iterator[tuple[str, str]]:
    scores = evaluation.scores("si_sdr_db")
    known = scores[np.isfinite(scores)]
    if len(known):
        shares = " · ".join(f"{100 * np.mean(known > level):.0f} %" for level in _LEVELS_DB)
        yield f"of {len(known)} mixtures above {', '.join(map(str, _LEVELS_DB))} dB SI-SDR", shares
    pairs = np.array([row.get("sex_pair") or "" for row in evaluation.rows], dtype=str)
    alike = np.array([len(set(pair.split("-"))) == 1 for pair in pairs], dtype=bool)
    kinds = (("same sex", alike & (pairs != "")), ("different sexes", ~alike & (pairs != "")))
    means = [
        f"{kind} {scores[chosen].mean():.1f} dB" for kind, rows in kinds if (chosen := rows & np.isfinite(scores)).any()
    ]
    if len(means) > 1:
        yield "mean SI-SDR by voices", " · ".join(means)
    factor = evaluation.summary.get("real_time_factor")
    if factor:
        yield "real-time factor", f"{factor:.3g}"


def _of_model(run: Run) -> Iterator[tuple[str, str]]:
    parameters = _description(run.folder).get("parameters")
    if isinstance(parameters, int):
        yield "parameters", f"{parameters:,}"


def _description(folder: Path) -> dict[str, Any]:
    """Return what was noted when an experiment's model was saved; empty without a model."""
    try:
        found = read_yaml(folder / "model" / "model.yaml")
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}
