"""Scores of test sets as HTML: in tables, run against run, by kind of mixture, mixture by mixture."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from sepkit.evaluation.labels import label_of, short_label_of
from sepkit.evaluation.results import by_group
from sepkit.evaluation.run_folder import EvaluationFolder, Run
from sepkit.evaluation.statistics import paired_difference
from sepkit.reporting import page
from sepkit.reporting.compared_runs import ComparedRuns, better, digits_of
from sepkit.reporting.tables import INTERVALS, Cell, Table, score_cell
from sepkit.reporting.text import matching_lines, warning_lines

_MAX_UTTERANCES = 200
# Of fewer mixtures neither means nor quartiles are reliable.
_FEW_MIXTURES = 20


def _each(test_sets: Sequence[ComparedRuns]) -> Iterator[tuple[ComparedRuns, str, EvaluationFolder]]:
    return ((s, run, evaluation) for s in test_sets for run, evaluation in s.evaluations.items())


def score_tables(runs: Sequence[Run], test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield all metrics of all runs on all sets, mixtures left out, and runs against the first one, as HTML."""
    if not test_sets:
        return
    metrics = list(dict.fromkeys(name for test_set in test_sets for name in test_set.metrics))
    best = {test_set.name: {name: test_set.best(name) for name in metrics} for test_set in test_sets}
    rows = []
    for test_set, run, evaluation in _each(test_sets):
        scores = evaluation.summary["metrics"]
        cells = [_mean_cell(scores.get(name), digits_of(name), run == best[test_set.name][name]) for name in metrics]
        names, count = [run] * (len(runs) > 1) + [test_set.name], evaluation.summary["n_utterances"]
        rows.append([*names, *cells, count, _speakers(scores.values())])
    header = ["run"] * (len(runs) > 1) + ["test set", *map(short_label_of, metrics), "mixtures", "speakers"]
    yield Table(header, rows, "Means with 95 % confidence intervals").html()
    yield f'<p class="quiet">{INTERVALS}</p>'
    for run in runs:
        for evaluation in run.evaluations:
            for line in warning_lines(evaluation.summary):
                yield f'<p class="note">{escape(f"{run.name}, {evaluation.name}: {line}")}.</p>'
    yield from _paired(test_sets)


def _speakers(scores: Iterable[Mapping[str, Any]]) -> int | None:
    return max((score.get("n_speakers") or 0 for score in scores), default=0) or None


def _mean_cell(score: Mapping[str, Any] | None, digits: int, is_best: bool = False) -> Cell:
    return score_cell(score["mean"], digits, score["ci95"], strong=is_best) if score else Cell("-")


def _paired(test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield every run minus the first one, mixture by mixture."""
    compared = []
    for test_set in test_sets:
        if (metric := test_set.leading) is not None:
            (first, base), *others = test_set.aligned(metric).items()
            found = ((run, paired_difference(scores, base, test_set.first.speakers())) for run, scores in others)
            compared += [(test_set.name, metric, run, first, one) for run, one in found if one.mean is not None]
    if not compared:
        return
    rows = []
    for name, metric, run, first, one in compared:
        difference = score_cell(one.mean, digits_of(metric), one.ci95, signed=True)
        higher = 100 * (one.share_better or 0.0)
        counts = [Cell(f"{higher:.0f}", higher), one.n, one.n_speakers]
        rows.append([run, first, difference, name, short_label_of(metric), *counts])
    header = ["run", "compared with", "difference", "test set", "score", "higher [%]"]
    caption = "Differences on the same mixtures, with 95 % intervals"
    yield Table([*header, "mixtures", "speakers"], rows, caption).html()
    yield (
        '<p class="quiet">If an interval excludes 0, the difference would rarely change its sign with other '
        "mixtures of this kind (and other speakers, if their number is given). Another training seed may change it.</p>"
    )


def matching_notes(test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield how hypotheses are used, and how often the number of speakers is right, in sentences, as HTML."""
    for test_set, run, evaluation in _each(test_sets):
        for line in matching_lines(evaluation.summary.get("matching") or {}):
            yield f'<p class="quiet">{escape(f"{run}, {test_set.name}: {line.strip()}")}</p>'


def group_tables(test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield the leading metric by every property of the mixtures in utterances.csv, as HTML."""
    for test_set in test_sets:
        if (metric := test_set.leading) is None:
            continue
        scores = {run: values.tolist() for run, values in test_set.aligned(metric).items()}
        tables = []
        for column, groups in by_group(test_set.first.properties(), scores, test_set.first.speakers()).items():
            rows = []
            for place, (group, means) in enumerate(groups.items()):
                cells = [_mean_cell(mean, digits_of(metric)) for mean in means.values()]
                rows.append([Cell(group, f"{place:04d}"), *cells, max(mean["n"] for mean in means.values())])
            runs = list(test_set.evaluations) if len(test_set.evaluations) > 1 else [short_label_of(metric)]
            name = label_of(column)
            caption = f"{short_label_of(metric)} by {name.partition(' [')[0]}"
            tables.append(Table([name, *runs, "mixtures"], rows, caption).html())
        if tables:
            yield f'<h3>{escape(test_set.name)}</h3><div class="tables">{"".join(tables)}</div>'


def mixture_tables(test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield the scores of every mixture, worst first, up to 200 of each evaluation, as HTML."""
    for test_set, run, evaluation in _each(test_sets):
        if (metric := test_set.leading) is None:
            continue
        values = {name: evaluation.scores(name) for name in test_set.metrics}
        order = np.argsort(better(metric) * values[metric], kind="stable")[:_MAX_UTTERANCES]
        rows = [
            [evaluation.rows[k]["id"], *(score_cell(float(values[name][k]), digits_of(name)) for name in values)]
            for k in order
        ]
        name = " · ".join([run] * (len(test_set.evaluations) > 1) + [test_set.name])
        total = len(evaluation.rows)
        extent = f"the {len(order)} worst of {total}" if len(order) < total else f"all {total}"
        caption = f"{name}, worst {short_label_of(metric)} first"
        yield page.details(f"{name}: {extent}", Table(["mixture", *map(short_label_of, values)], rows, caption).html())


def few_mixtures(run: Run) -> str:
    """Return a warning about test sets that are too small for reliable means; "" if there are none."""
    counts = {evaluation.name: evaluation.summary.get("n_utterances", _FEW_MIXTURES) for evaluation in run.evaluations}
    small = [f"{name} ({count})" for name, count in counts.items() if count < _FEW_MIXTURES]
    if not small:
        return ""
    text = f"Fewer than {_FEW_MIXTURES} mixtures: {', '.join(small)}. Means of so few say little; look at the examples."
    return f'<p class="note">{escape(text)}</p>'
