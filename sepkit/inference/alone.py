"""One speaker alone: a recording in which all estimates hold the same voice from beginning to end.

Two logistic regressions have to say so. The first tells one speaker from several who speak at once, by what the
estimates tell of each other. The second tells one speaker from people who take turns, who may all be in one estimate,
by how the voice changes as well. It needs an encoder of voices, which is asked only if the first one says "alone".
Nothing in them depends on the level of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sepkit.inference.not_separated import NotSeparatedPredictor, best_left_out, fit_logistic

MOST_AT_ONCE_MISSED = 0.05
"""Share of the mixtures of several speakers that may be taken for one speaker."""

MOST_IN_TURN_MISSED = 0.015
"""Share of the recordings of people who take turns that may be taken for one speaker: less, because the words of two
people are then in one file, and because of new people it is up to three times as many, where turns are short."""

LEAST_FOUND = 0.5
"""The rule is kept only if it finds at least this share of the recordings of one speaker."""

LEAST_OF_EACH = 30
"""Fit only with at least this many recordings of one speaker, of several at once, and of several in turn."""

_OF_ESTIMATES = (
    "residual_db",
    "relative_level_db",
    "correlation_db",
    "mask_spread_db",
    "mask_rate_nats_per_frame",
    "dominance",
    "pitch_distance",
    "voice_distance",
    "estimate_flatness_db",
    "estimate_level_deviation_db",
    "estimate_log_pitch",
)


@dataclass
class HeardRecording:
    """What is known of a recording to fit the rule.

    Args:
        estimates: see `estimates_summary`.
        voice: see `sepkit.inference.voice_change.voice_change`; not needed of those who speak at once.
        speakers: how many speak in it.
        in_turn: whether they take turns.
        group: of recordings that are left out together, those of a speaker.
    """

    estimates: Mapping[str, float]
    voice: Mapping[str, float] = field(default_factory=dict)
    speakers: int = 1
    in_turn: bool = False
    group: str = ""


@dataclass
class AloneRule:
    """Tells recordings of one speaker alone.

    Args:
        at_once: flags one speaker rather than several at once, by `estimates_summary`.
        in_turn: flags one speaker rather than several in turn, by `estimates_summary` and `voice_change`.
        encoder: fingerprint of the encoder of voices that it was fitted with.
        flagged: share of the recordings of one speaker that both flag, by fits without the recording's speaker.
        missed_at_once: share of the mixtures that the first one flags, in the same way.
        missed_in_turn: share of the recordings of people in turn that both flag, in the same way.
    """

    at_once: NotSeparatedPredictor
    in_turn: NotSeparatedPredictor
    encoder: str
    flagged: float
    missed_at_once: float
    missed_in_turn: float

    def flags(self, estimates: Mapping[str, float], voice: Callable[[], Mapping[str, float]]) -> bool | None:
        """Return whether one speaker is alone in a recording; None if a feature is not known.

        Args:
            estimates: see `estimates_summary`.
            voice: returns what `voice_change` does; called only if it matters.
        """
        alone = self.at_once.flags(estimates)
        return self.in_turn.flags({**estimates, **voice()}) if alone else alone


def estimates_summary(features: Mapping[str, np.ndarray], levels_db: np.ndarray) -> dict[str, float]:
    """Return numbers of a recording: the mean of each feature over the estimates, its range, and the range of levels.

    Args:
        features: (n,) each, by name.
        levels_db: (n,) of the estimates, see `sepkit.inference.silence.levels_db`.
    """
    summary = {"levels_range": float(np.ptp(levels_db))}
    for name in _OF_ESTIMATES:
        if name in features:
            summary[f"{name}_mean"] = float(np.mean(features[name]))
            summary[f"{name}_range"] = float(np.ptp(features[name]))
    return summary


def fit_alone(heard: Sequence[HeardRecording], encoder: str) -> AloneRule | None:
    """Return the rule that flags recordings of one speaker, or None if it would not tell enough of them.

    By fits without the speaker in question, the first regression flags at most 5 % of the mixtures, and both flag at
    most 1.5 % of the recordings of people in turn.

    Args:
        heard: recordings; those with numbers that are not finite are left out.
        encoder: fingerprint of the encoder of voices.
    """
    usable = [one for one in heard if all(map(math.isfinite, (*one.estimates.values(), *one.voice.values())))]
    alone = [one for one in usable if one.speakers == 1]
    at_once = [one for one in usable if one.speakers > 1 and not one.in_turn]
    in_turn = [one for one in usable if one.in_turn]
    if min(map(len, (alone, at_once, in_turn))) < LEAST_OF_EACH:
        return None
    first = _fit(alone, at_once, [one.estimates for one in alone + at_once])
    # Those in turn are unknown to the first one.
    unseen = first.predictor.log_odds(_table([one.estimates for one in in_turn], first.predictor.features))
    second = _fit(alone, in_turn, [{**one.estimates, **one.voice} for one in alone + in_turn])
    first.predictor.threshold = _threshold(first.of_others, MOST_AT_ONCE_MISSED)
    flagged, alarmed = first.of_alone > first.predictor.threshold, unseen > first.predictor.threshold
    both = np.where(alarmed, second.of_others, -np.inf)
    second.predictor.threshold = max(_threshold(both, MOST_IN_TURN_MISSED), -1e3)
    flagged &= second.of_alone > second.predictor.threshold
    missed = [first.of_others > first.predictor.threshold, both > second.predictor.threshold]
    for fit, own, others in ((first, first.of_alone, missed[0]), (second, second.of_alone, missed[1])):
        fit.predictor.flagged = float(np.mean(own > fit.predictor.threshold))
        fit.predictor.false_alarms = float(np.mean(others))
    found = float(np.mean(flagged))
    if found < LEAST_FOUND:
        return None
    return AloneRule(first.predictor, second.predictor, encoder, found, *(float(np.mean(share)) for share in missed))


@dataclass
class _Fit:
    """A regression without threshold, and log-odds by fits without the speaker: of one speaker, and of several."""

    predictor: NotSeparatedPredictor
    of_alone: np.ndarray
    of_others: np.ndarray


def _fit(
    alone: Sequence[HeardRecording], others: Sequence[HeardRecording], summaries: Sequence[Mapping[str, float]]
) -> _Fit:
    """Return the regression of one speaker against others, given the features of those and of these."""
    names = [name for name in summaries[0] if np.ptp([summary[name] for summary in summaries]) > 1e-9]
    table, labels = _table(summaries, names), np.arange(len(summaries)) < len(alone)
    groups = {group: number for number, group in enumerate(sorted({one.group for one in (*alone, *others)}))}
    strength, scores = best_left_out(table, labels, np.array([groups[one.group] for one in (*alone, *others)]))
    predictor = fit_logistic(table, labels, strength)
    predictor.features = names
    return _Fit(predictor, scores[labels], scores[~labels])


def _table(summaries: Sequence[Mapping[str, float]], names: Sequence[str]) -> np.ndarray:
    return np.array([[summary[name] for name in names] for summary in summaries])


def _threshold(scores: np.ndarray, most: float) -> float:
    """Return the log-odds that at most a share of the scores is above."""
    return float(np.sort(scores)[len(scores) - math.floor(most * len(scores)) - 1])
