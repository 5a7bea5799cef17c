"""Mixtures to look at and listen to: the worst, the median and the best, with each run's estimates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sepkit.data.manifest import MixtureEntry
from sepkit.data.mixing import Mixed, mix_entry
from sepkit.errors import UserError
from sepkit.evaluation.estimates import find_estimates, read_estimates
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.evaluation.run_folder import EvaluationFolder, find

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
        count: how many of each kind.
    """
    order = [int(place) for place in np.argsort(scores, kind="stable") if np.isfinite(scores[place])]
    count = max(0, count)
    worst = order[:count]
    best = order[max(count, len(order) - count) :]
    between = order[len(worst) : len(order) - len(best)]
    begin = min(max(0, (len(order) - count) // 2 - len(worst)), max(0, len(between) - count))
    median = between[begin : begin + count]
    chosen = {"worst": worst, "median": median, "best": best}
    return [(kind, place) for kind, places in chosen.items() for place in places]


class Outcomes:
    """Makes examples: reads estimates from disk, or else runs the model.

    Args:
        load_separator: makes a separator of a model's name; None: models are not run.
    """

    def __init__(self, load_separator: LoadSeparator | None) -> None:
        self._load_separator = load_separator
        self._separators: dict[str, Separate] = {}

    def example(
        self, kind: str, key: tuple[str, str], evaluations: Mapping[str, EvaluationFolder], column: str
    ) -> Example:
        """Return the example of an utterance.

        Args:
            kind: why it was chosen.
            key: of the utterance, see `EvaluationFolder.keys`.
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
        if len(estimates) > len(outcome.estimates):
            outcome.note += f" {len(estimates)} hypotheses; those matched with a speaker are shown."
        return outcome

    def _estimates(self, entry: MixtureEntry, mixed: Mixed, evaluation: EvaluationFolder) -> np.ndarray:
        folder, model = evaluation.summary.get("estimates"), evaluation.summary.get("model")
        if folder:
            return read_estimates(find_estimates(find(folder, evaluation.folder), entry), entry.sample_rate)
        if not model or self._load_separator is None:
            raise UserError("found neither a folder of estimates nor a model")
        if model not in self._separators:
            self._separators[model] = self._load_separator(_model_path(model, evaluation))
        return np.asarray(self._separators[model](mixed.mixture, entry.sample_rate))


def _model_path(model: str, evaluation: EvaluationFolder) -> str:
    try:
        return str(find(model, evaluation.folder))
    except UserError:
        return model  # "asteroid:..." and the like are names, not paths
