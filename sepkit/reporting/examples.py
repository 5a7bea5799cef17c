"""Mixtures to look at and listen to: the worst, the median and the best, with each run's estimates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape

import numpy as np

from sepkit.data.manifest import MixtureEntry
from sepkit.data.mixing import Mixed, mix_entry
from sepkit.errors import UserError
from sepkit.evaluation.labels import label_of
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.evaluation.run_folder import EvaluationFolder, find, find_estimates, read_estimates
from sepkit.reporting import figures, page
from sepkit.reporting.tables import number

Separate = Callable[[np.ndarray, int], np.ndarray]

LoadSeparator = Callable[[str], Separate]
"""name of a model -> (mixture (T,), sample_rate) -> estimates (n, T)"""

# Estimates made again on another device may differ by rounding; a larger difference means another model.
_SAME_SCORE_DB = 0.1


@dataclass
class Outcome:
    """One run's separation of a mixture.

    Args:
        estimates: index of the source -> (T,) the hypothesis that it was matched with.
        si_sdr_db: index of the source -> SI-SDR of that hypothesis.
        note: a remark for the reader; "" for none.
    """

    estimates: dict[int, np.ndarray] = field(default_factory=dict)
    si_sdr_db: dict[int, float] = field(default_factory=dict)
    note: str = ""


@dataclass
class Example:
    """A mixture, its references, and each run's separation.

    Args:
        kind: "worst", "median" or "best".
        entry: line of the manifest.
        mixed: the mixture and its sources.
        outcomes: run -> its separation.
        scores: run -> the score by which examples are chosen.
    """

    kind: str
    entry: MixtureEntry
    mixed: Mixed
    outcomes: dict[str, Outcome]
    scores: dict[str, float]


def choose_examples(scores: np.ndarray, count: int) -> list[tuple[str, int]]:
    """Return (kind, position) of the worst utterances, those around the median, and the best.

    No utterance appears twice, and the order is from worst to best. With fewer than 3 `count` utterances, kinds are
    filled from the ends.

    Args:
        scores: (N,), larger is better; NaN is never chosen.
        count: Number of examples of each kind.
    """
    order = [int(place) for place in np.argsort(scores, kind="stable") if np.isfinite(scores[place])]
    count = max(0, count)
    worst = order[:count]
    best = order[max(count, len(order) - count) :]
    between = order[len(worst) : len(order) - len(best)]
    begin = min(max(0, (len(order) - count) // 2 - len(worst)), max(0, len(between) - count))
    chosen = {"worst": worst, "median": between[begin : begin + count], "best": best}
    return [(kind, place) for kind, places in chosen.items() for place in places]


class Outcomes:
    """Makes examples: reads estimates from disk, or else runs the model.

    Args:
        load_separator: makes a separator of a model's name; None: models are not run.
    """

    def __init__(self, load_separator: LoadSeparator | None) -> None:
        self._load_separator = None if load_separator is None else cache(load_separator)

    def example(
        self, kind: str, key: tuple[str, str], evaluations: Mapping[str, EvaluationFolder], column: str
    ) -> Example:
        """Return the example of an utterance.

        Args:
            kind: why it was chosen.
            key: Key of the utterance, see `EvaluationFolder.keys`.
            evaluations: run -> its evaluation; the first one's manifest says how the mixture is made.
            column: the score by which examples are chosen.

        Raises:
            UserError: the manifest or a recording is missing.
        """
        entry = next(iter(evaluations.values())).entries.get(key)
        if entry is None:
            raise UserError(f"{key[1]}: no longer in manifest {key[0]}; evaluate again")
        mixed = mix_entry(entry)
        outcomes, scores = {}, {}
        for run, evaluation in evaluations.items():
            rows = [place for place, other in enumerate(evaluation.keys()) if other == key]
            if rows:
                scores[run] = float(evaluation.scores(column)[rows[0]])
                try:
                    outcomes[run] = self._outcome(entry, mixed, evaluation, evaluation.rows[rows[0]])
                except UserError as error:
                    outcomes[run] = Outcome(note=f"No estimates: {error}")
        return Example(kind, entry, mixed, outcomes, scores)

    def _outcome(self, entry: MixtureEntry, mixed: Mixed, evaluation: EvaluationFolder, row: dict[str, str]) -> Outcome:
        estimates = self._estimates(entry, mixed, evaluation)
        outcome = Outcome()
        for source, name in enumerate((row.get("assignment") or "").split()):
            if not name.isdigit() or source >= len(mixed.sources):
                continue
            hypothesis = int(name) - 1
            if hypothesis >= len(estimates) or estimates.shape[-1] != mixed.sources.shape[-1]:
                raise UserError(f"{entry.id}: estimates of shape {estimates.shape} are not those that were evaluated")
            outcome.estimates[source] = estimates[hypothesis]
            outcome.si_sdr_db[source] = float(si_sdr_db(estimates[hypothesis], mixed.sources[source]))
        recorded = row.get("si_sdr_db")
        if recorded and outcome.si_sdr_db:
            score = float(np.mean(list(outcome.si_sdr_db.values())))
            if abs(score - float(recorded)) > _SAME_SCORE_DB:
                outcome.note = (
                    f"The estimates shown score {score:.2f} dB SI-SDR, those evaluated {float(recorded):.2f} dB: "
                    "the model, or the files, have changed since."
                )
        return outcome

    def _estimates(self, entry: MixtureEntry, mixed: Mixed, evaluation: EvaluationFolder) -> np.ndarray:
        folder, model = evaluation.summary.get("estimates"), evaluation.summary.get("model")
        if folder:
            return read_estimates(find_estimates(find(folder, evaluation.folder), entry), entry.sample_rate)
        if not model or self._load_separator is None:
            raise UserError("found neither a folder of estimates nor a model")
        return np.asarray(self._load_separator(model_path(model, evaluation))(mixed.mixture, entry.sample_rate))


def model_path(model: str, evaluation: EvaluationFolder) -> str:
    """Return the path of the model that an evaluation names, or the name itself if it is no path."""
    try:
        return str(find(model, evaluation.folder))
    except UserError:
        return model  # "asteroid:..." and the like are names, not paths


# Longer mixtures are cut, because a page with minutes of sound takes long to open.
_MAX_SECONDS = 30.0
_PEAK = 0.9


def example_html(example: Example, metric: str, name: str) -> str:
    """Return the mixture with the references, then a row of estimates for each run, as HTML.

    Sounds and waveforms share one scale: the loudest of the mixture and references is at 0.9 of full scale. An estimate
    that would exceed this is turned down to it, with a note.
    """
    entry, rate = example.entry, example.entry.sample_rate
    stop = round(_MAX_SECONDS * rate)
    mixture, sources = example.mixed.mixture[:stop], example.mixed.sources[:, :stop]
    loudest = max(float(np.abs(mixture).max(initial=0)), float(np.abs(sources).max(initial=0)))
    gain = _PEAK / loudest if loudest else 1.0
    top_db = float(figures.level_db(gain * mixture, rate).max())
    unit = " dB" if metric.endswith("_db") else ""

    def view(waveform: np.ndarray, title: str, text: str, color: str, place: str) -> str:
        peak = float(np.abs(gain * waveform).max(initial=0))
        waveform = gain * waveform * (_PEAK / peak if peak > 1 else 1.0)
        text += f" · turned down {20 * np.log10(peak / _PEAK):.0f} dB" * (peak > 1)
        figure = figures.signal_view(waveform, rate, color=color, peak=1.0, top_db=top_db)
        picture = page.figure_html(figure, f"example-{name}-{place}", f"Waveform and spectrogram: {title}, {text}")
        sound = page.player(waveform, rate, f"{title}, {text}")
        return f'<div class="signal"><p><b>{escape(title)}</b>{escape(text)}</p>{picture}{sound}</div>'

    cut = f", the first {_MAX_SECONDS:.0f} s" if entry.num_samples > stop else ""
    several = len(example.outcomes) > 1
    scores = " · ".join(
        f"{escape(run + ' ') if several else ''}{number(score, 3 if not unit else 2)}{unit}"
        for run, score in example.scores.items()
    )
    rows = [[view(mixture, "Mixture", f"{entry.duration_seconds:.1f} s{cut}", figures.MIXTURE_COLOR, "mixture")]]
    for j, source in enumerate(sources):
        part = entry.sources[j]
        who = " ".join(filter(None, (part.speaker, part.sex and {"F": "female", "M": "male"}.get(part.sex, part.sex))))
        text = f"reference{' · ' + who if who else ''}"
        rows[0].append(view(source, f"Speaker {j + 1}", text, figures.REFERENCE_COLOR, f"reference{j}"))
    for place, (run, outcome) in enumerate(example.outcomes.items()):
        label, title = (run, run) if several else ("estimate", "Estimates")
        head = f'<div class="signal gains"><p><b>{escape(title)}</b></p></div>'
        rows.append([head, *(_estimate(example, outcome, j, stop, label, view, place) for j in range(len(sources)))])
    html = [f'<div class="signals" style="--columns: {len(cells)}">{"".join(cells)}</div>' for cells in rows]
    notes = "".join(
        f'<p class="note">{escape(f"{run}: " if several else "")}{escape(outcome.note.strip())}</p>'
        for run, outcome in example.outcomes.items()
        if outcome.note
    )
    label = label_of(metric).partition(" [")[0]
    heading = (
        f'<h4><span class="badge">{example.kind}</span>{scores} '
        f'<span class="quiet">{escape(label)} · {escape(entry.id)}</span></h4>'
    )
    return f'<article class="example" id="example-{name}">{heading}{notes}{"".join(html)}</article>'


def _estimate(example: Example, outcome: Outcome, source: int, stop: int, run: str, view, place: int) -> str:
    title = f"Speaker {source + 1}"
    if source not in outcome.estimates:
        text = "no estimate" if outcome.note else "silent: nothing is matched with it"
        return f'<div class="signal"><p><b>{escape(title)}</b>{escape(run)} · {text}</p></div>'
    before = float(si_sdr_db(example.mixed.mixture, example.mixed.sources[source]))
    score = f"{run} · SI-SDR {number(outcome.si_sdr_db[source])} dB (mixture: {number(before)} dB)"
    color = figures.COLORS[place % len(figures.COLORS)]
    return view(outcome.estimates[source][:stop], title, score, color, f"estimate{source}-{place}")
