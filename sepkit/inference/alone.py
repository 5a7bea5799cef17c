"""One speaker alone: a recording in which all estimates hold the same voice.

A logistic regression on what the estimates tell of each other, fitted on mixtures and on one source of each alone.
Nothing in it depends on the level of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sepkit.inference.not_separated import NotSeparatedPredictor, best_left_out, fit_logistic

MOST_MISSED = 0.05
"""Share of the mixtures of several speakers that may be taken for one speaker."""

LEAST_FOUND = 0.7
"""The regression is kept only if it finds at least this share of the recordings of one speaker."""

LEAST_OF_EACH = 30
"""Fit only with at least this many recordings of one speaker, and as many of more."""

_OF_ESTIMATES = (
    "residual_db",
    "relative_level_db",
    "correlation_db",
    "mask_spread_db",
    "mask_rate_nats_per_tick",
    "dominance",
    "pitch_distance",
    "voice_distance",
    "estimate_flatness_db",
    "estimate_level_deviation_db",
    "estimate_log_pitch",
)


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


def fit_alone(summaries: Sequence[Mapping[str, float]], speakers: Sequence[int]) -> NotSeparatedPredictor | None:
    """Return the regression that flags recordings of one speaker, or None if it would not tell enough of them.

    At most 5 % of the recordings of several speakers are flagged, by fits without the recording in question.

    Args:
        summaries: of the recordings, see `estimates_summary`; those with numbers that are not finite are left out.
        speakers: how many speak in each.
    """
    usable = [k for k, summary in enumerate(summaries) if all(map(math.isfinite, summary.values()))]
    alone = np.array([speakers[k] == 1 for k in usable], bool)
    if min(alone.sum(), (~alone).sum()) < LEAST_OF_EACH:
        return None
    names = [name for name in summaries[usable[0]] if np.ptp([summaries[k][name] for k in usable]) > 1e-9]
    table = np.array([[summaries[k][name] for name in names] for k in usable])
    strength, scores = best_left_out(table, alone)
    others = np.sort(scores[~alone])
    threshold = float(others[len(others) - math.floor(MOST_MISSED * len(others)) - 1])
    predictor = fit_logistic(table, alone, strength)
    predictor.features, predictor.threshold = names, threshold
    predictor.flagged = float(np.mean(scores[alone] > threshold))
    predictor.false_alarms = float(np.mean(scores[~alone] > threshold))
    return predictor if predictor.flagged >= LEAST_FOUND else None
