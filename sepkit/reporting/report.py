"""One HTML file that shows the quality of one or several runs: scores, figures, sound, training, configuration."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sepkit.data import audio
from sepkit.data.segments import EMBEDDINGS
from sepkit.errors import UserError
from sepkit.evaluation.labels import label_of
from sepkit.evaluation.run_folder import EvaluationFolder, Run, flatten, load_run
from sepkit.files import atomic_output
from sepkit.reporting import figures, page
from sepkit.reporting.clusters import embedding_figure, read_embeddings, timeline_figure
from sepkit.reporting.compared_runs import (
    ComparedRuns,
    better,
    compared_runs,
    drop_missing_metrics,
    leading_metric,
    unique_names,
)
from sepkit.reporting.curve_figures import rate_distortion_curve
from sepkit.reporting.examples import LoadSeparator, Outcomes, choose_examples, example_html
from sepkit.reporting.score_tables import few_mixtures, group_tables, matching_notes, mixture_tables, score_tables
from sepkit.reporting.tables import Table
from sepkit.version import __version__

# Further metrics that do not repeat the leading one in another form.
_MOST_TIMELINES, _MOST_RECORDINGS, _MOST_SECONDS = 20, 20, 60
_ALSO_DRAWN = ("stoi", "estoi", "pesq", "word_accuracy", "blr_nats_per_sample")

# Parts of a summary that do not concern its origin.
_SHOWN_ELSEWHERE = frozenset({"metrics", "n_utterances", "skipped", "failures", "by", "by_manifest", "comparison"})


def write_report(
    runs: Sequence[Run | str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    examples: int = 1,
    load_separator: LoadSeparator | None = None,
    title: str | None = None,
) -> Path:
    """Write the report on one run, or the comparison of several, to one HTML file that opens offline; return its path.

    Examples are chosen by the first run's scores. Their estimates are read if files were evaluated, and made again if a
    model was; the page says what is missing.

    Args:
        runs: runs, or folders that `load_run` reads.
        out: the file.
        examples: number of worst, median and best mixtures of each test set to show.
        load_separator: makes a separator of a model's name; None: models are not run.
        title: Title of the page.

    Raises:
        UserError: no run, a folder that holds none, or a file that cannot be written.
    """
    if not runs:
        raise UserError("report: no run given, expected one folder or more")
    loaded = drop_missing_metrics([run if isinstance(run, Run) else load_run(run) for run in runs])
    loaded = [replace(run, name=name) for run, name in zip(loaded, unique_names(loaded), strict=True)]
    test_sets = compared_runs(loaded)
    title = title or f"{'Comparison' if len(loaded) > 1 else 'Report'}: {', '.join(run.name for run in loaded)}"
    parts = {
        "scores": ("Scores", list(score_tables(loaded, test_sets))),
        "examples": ("Examples", list(_examples(test_sets, examples, Outcomes(load_separator)))),
        "matching": ("Hypotheses and speakers", list(matching_notes(test_sets))),
        "distributions": ("Distributions", list(_distributions(loaded, test_sets))),
        "groups": ("By property", list(group_tables(test_sets))),
        "mixtures": ("Mixtures", list(mixture_tables(test_sets))),
        "training": ("Training", list(_training(loaded))),
        "curves": ("Rate-distortion", list(_curves(loaded))),
        "clusters": ("Who spoke when", list(_clusters(loaded))),
        "tracks": ("Tracks", list(_tracks(loaded))),
        "configuration": ("Configuration", list(_configuration(loaded))),
        "environment": ("Environment", list(_environment(loaded))),
    }
    shown = {name: part for name, part in parts.items() if part[1]}
    made = f"Made by sepkit {__version__} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}."
    warnings = "".join(few_mixtures(run) for run in loaded)
    body = [f"<header><h1>{escape(title)}</h1>{warnings}</header>"]
    body += [page.section(name, heading, *content) for name, (heading, content) in shown.items()]
    body.append(f"<footer>{escape(made)}</footer>")
    out = Path(out)
    with atomic_output(out) as temporary:
        html = page.document(title, [(name, heading) for name, (heading, _) in shown.items()], "\n".join(body))
        temporary.write_text(html, encoding="utf-8", errors="backslashreplace")
    return out


def _figures(drawn: Sequence[str], note: str = "") -> Iterator[str]:
    """Yield figures side by side, and a note below; nothing without figures."""
    if drawn:
        yield f'<div class="figures">{"".join(drawn)}</div>'
        if note:
            yield f'<p class="quiet">{note}</p>'


def _distributions(runs: Sequence[Run], test_sets: Sequence[ComparedRuns]) -> Iterator[str]:
    """Yield figures of the runs on each set, or of all sets of a single run."""
    compared = {test_set.name: test_set.evaluations for test_set in test_sets}
    if len(runs) == 1 and test_sets:
        compared = {"": {name: one for name, evaluations in compared.items() for one in evaluations.values()}}
    drawn = []
    for name, evaluations in compared.items():
        metrics = list(dict.fromkeys(metric for evaluation in evaluations.values() for metric in evaluation.metrics))
        if (leading := leading_metric(metrics)) is not None:
            others = [metric for metric in _ALSO_DRAWN if metric in metrics]
            drawn += _draw(name, evaluations, list(dict.fromkeys([leading, *others])))
    yield from _figures(drawn)


def _draw(name: str, evaluations: dict[str, EvaluationFolder], metrics: Sequence[str]) -> Iterator[str]:
    title, prefix = escape(f"{name}: " if name else ""), f"{page.slug(name)}-"
    for metric in metrics:
        scores, label = {run: evaluation.scores(metric) for run, evaluation in evaluations.items()}, label_of(metric)
        text, place = f"{title}{escape(label)}, means dashed", f"{prefix}distribution-{page.slug(metric)}"
        yield page.figure_html(figures.score_distributions(scores, label), place, f"Histogram of {label}", text)
    measured = {run: e.scores("si_sdr_db") for run, e in evaluations.items()}
    points = {run: (measured[run] - e.scores("si_sdri_db"), measured[run]) for run, e in evaluations.items()}
    if any(np.isfinite(x + y).any() for x, y in points.values()):
        text = f"{title}every point is a mixture; above the dashed line separation helped"
        figure = figures.input_output_scatter(points)
        yield page.figure_html(figure, f"{prefix}scatter", "SI-SDR before and after separation", text)
    points = {run: (e.scores("predicted_si_sdr_db"), measured[run]) for run, e in evaluations.items()}
    if any(np.isfinite(x + y).any() for x, y in points.values()):
        text = f"{title}what the model expected of its estimates, mean of each mixture, without their references"
        figure = figures.predicted_scatter(points)
        yield page.figure_html(figure, f"{prefix}predicted", "Predicted and measured SI-SDR", text)


def _training(runs: Sequence[Run]) -> Iterator[str]:
    logs = {run.name: run.log for run in runs if run.log is not None and run.log.records}
    drawn = []
    for label, names in figures.training_panels(logs.values()).items():
        figure = figures.training_curves(logs, label, names)
        drawn.append(page.figure_html(figure, f"training-{page.slug(label)}", f"Training curve: {label}"))
    yield from _figures(drawn, "Dots are epochs; the faint line is what was recorded in between.")


def _curves(runs: Sequence[Run]) -> Iterator[str]:
    drawn = []
    for run in runs:
        for name, curve in run.curves.items():
            text = f"{', '.join(dict.fromkeys([run.name, name]))}: rate-distortion"
            drawn.append(page.figure_html(rate_distortion_curve(curve), page.slug(text), text, escape(text)))
    note = "A dot is a model, lines are running means over three of them, stars the best in each condition."
    yield from _figures(drawn, note)


def _clusters(runs: Sequence[Run]) -> Iterator[str]:
    drawn, lines = [], []
    for run in runs:
        files = [run.folder / EMBEDDINGS, *sorted(run.folder.glob(f"*/{EMBEDDINGS}"))]
        for file in (file for file in files if file.is_file()):
            segments = read_embeddings(file)
            where = run.name if file.parent == run.folder else f"{run.name}, {file.parent.name}"
            text = f"{where}: embeddings"
            drawn.append(page.figure_html(embedding_figure(segments), page.slug(text), text, escape(text)))
            recordings = list(dict.fromkeys(segment.recording for segment in segments))
            for name in recordings[:_MOST_TIMELINES]:
                text = f"{where}: {name}"
                own = [segment for segment in segments if segment.recording == name]
                lines.append(page.figure_html(timeline_figure(own), page.slug(text), f"Turns: {text}", escape(text)))
            if len(recordings) > _MOST_TIMELINES:
                lines.append(f'<p class="quiet">Of {len(recordings)} recordings, {_MOST_TIMELINES} are drawn.</p>')
    yield from _figures(drawn + lines, "A point is a segment of speech; segments of one speaker have one color.")


def _tracks(runs: Sequence[Run]) -> Iterator[str]:
    """Yield players of recordings and their tracks, of the first recordings and the first minute of each."""
    recordings = [(recording, tracks) for run in runs for recording, tracks in run.separated.items()]
    for recording, tracks in recordings[:_MOST_RECORDINGS]:
        rows = []
        for path in (recording, *tracks):
            try:
                rate = audio.info(path).sample_rate
                wave = audio.read(path, 0, round(_MOST_SECONDS * rate), pad_end=True)
                wave = wave[: audio.info(path).num_samples]
            except UserError as error:
                rows.append(f'<tr><th>{escape(path.name)}</th><td class="quiet">{escape(str(error))}</td></tr>')
                continue
            wave = wave / max(1.0, float(np.abs(wave).max(initial=0.0)))
            rows.append(f"<tr><th>{escape(path.name)}</th><td>{page.player(wave, rate, path.name)}</td></tr>")
        yield f"<h3>{escape(recording.stem)}</h3><table>{''.join(rows)}</table>"
    if recordings:
        yield (
            f'<p class="quiet">The first {_MOST_SECONDS} s of each; {min(len(recordings), _MOST_RECORDINGS)} of '
            f"{len(recordings)} recordings.</p>"
        )


def _examples(test_sets: Sequence[ComparedRuns], count: int, outcomes: Outcomes) -> Iterator[str]:
    chosen = [test_set for test_set in test_sets if test_set.leading is not None and count > 0]
    if chosen:
        yield (
            '<p class="quiet">Each example is played at one level throughout. Press play on another player while '
            "one plays, and it goes on from the same moment.</p>"
        )
    for test_set in chosen:
        metric, base = test_set.leading or "", test_set.first
        yield f"<h3>{escape(test_set.name)}</h3>"
        keys, scores = base.keys(), better(metric) * base.scores(metric)
        for place, (kind, row) in enumerate(choose_examples(scores, count)):
            try:
                example = outcomes.example(kind, keys[row], test_set.evaluations, metric)
            except UserError as error:
                yield f'<p class="note">No example: {escape(str(error))}</p>'
                break
            yield example_html(example, metric, f"{page.slug(test_set.name)}-{place}")


def _configuration(runs: Sequence[Run]) -> Iterator[str]:
    flat = {run.name: dict(_texts(run.settings)) for run in runs if run.config}
    keys = list(dict.fromkeys(key for entries in flat.values() for key in entries))
    differing = [key for key in keys if any(a.get(key) != b.get(key) for a, b in pairwise(flat.values()))]
    if differing:
        rows = [[key, *(entries.get(key, "-") for entries in flat.values())] for key in differing]
        yield Table(["key", *flat], rows, "What differs").html()
    elif len(flat) > 1:
        yield "<p>The configurations are equal.</p>"
    for run in runs:
        if run.config:
            text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
            yield page.details(f"{run.name}: config.yaml", f"<pre>{escape(text)}</pre>")


def _environment(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        for evaluation in run.evaluations:
            facts = {name: value for name, value in evaluation.summary.items() if name not in _SHOWN_ELSEWHERE}
            pairs = [*_texts(flatten(facts)), ("folder", str(evaluation.folder))]
            items = "".join(
                f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(text)}</dd>" for name, text in pairs if text
            )
            yield page.details(f"{run.name}: {evaluation.name}", f"<dl>{items}</dl>")


def _texts(leaves: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key and the text of every leaf that is not null."""
    for key, value in leaves.items():
        if isinstance(value, list):
            yield key, ", ".join(text for item in value for _, text in _texts(flatten(item)))
        elif value is not None:
            yield key, f"{value:.4g}" if isinstance(value, float) else str(value)
