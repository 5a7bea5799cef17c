"""A recording that is likely not separated: the second head of a model's prediction of its own quality.

A logistic regression of "the mean SI-SDR improvement of the mixture is below 1 dB" on what the first head predicts and
on how alike the voices are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sepkit.inference.likeness import LIKENESS_FEATURES

LIMIT_DB = 1.0
"""A mixture whose mean SI-SDR improvement is below this is not separated."""

MOST_FALSE_ALARMS = 0.1
"""Share of separated mixtures that may be flagged."""

LEAST_OF_EACH = 10
"""Fit only with at least this many mixtures that are separated, and as many that are not."""

# Strengths of the penalty, times the number of mixtures.
_STRENGTHS = np.logspace(-4, 0, 9)
_FOLDS = 10
_FARTHEST = 4.0


@dataclass
class NotSeparatedPredictor:
    """Log-odds that a recording is not separated: intercept + sum of coefficient * (feature - mean) / scale.

    Args:
        features: names, see `recording_summary`.
        means: of the features, over the mixtures.
        scales: their standard deviations.
        coefficients: nats for each deviation; deviations are limited to four.
        intercept: nats.
        threshold: log-odds above which a recording is flagged.
        flagged: share of the mixtures below the limit that the threshold flags, by fits without the mixture.
        false_alarms: share of the others that it flags, in the same way.
        limit_db: SI-SDR improvement below which a mixture is not separated.
    """

    features: list[str]
    means: list[float]
    scales: list[float]
    coefficients: list[float]
    intercept: float
    threshold: float
    flagged: float
    false_alarms: float
    limit_db: float = LIMIT_DB

    def log_odds(self, table: np.ndarray) -> np.ndarray:
        """Return (N,) log-odds of not being separated.

        Args:
            table: (N, features).
        """
        standardized = (table - np.array(self.means)) / np.array(self.scales)
        return self.intercept + np.clip(standardized, -_FARTHEST, _FARTHEST) @ np.array(self.coefficients)

    def flags(self, summary: Mapping[str, float]) -> bool | None:
        """Return whether a recording is likely not separated; None if a feature is not known.

        Args:
            summary: of the recording, see `recording_summary`.
        """
        row = np.array([summary.get(name, math.nan) for name in self.features])
        return bool(self.log_odds(row[None])[0] > self.threshold) if np.isfinite(row).all() else None


def recording_summary(features: Mapping[str, np.ndarray], predicted_si_sdr_db: np.ndarray) -> dict[str, float]:
    """Return the features of a recording: mean and least prediction, and the likeness of its voices.

    Args:
        features: (n,) each, by name; those of `LIKENESS_FEATURES` that the model has are used.
        predicted_si_sdr_db: (n,) predictions for the same estimates; those that are not finite are left out.
    """
    known = np.isfinite(predicted_si_sdr_db)
    if not known.any():
        return {}
    summary = {
        "predicted_mean_db": float(predicted_si_sdr_db[known].mean()),
        "predicted_least_db": float(predicted_si_sdr_db[known].min()),
    }
    return summary | {name: float(features[name][known].mean()) for name in LIKENESS_FEATURES if name in features}


def fit_not_separated(
    features: Mapping[str, np.ndarray],
    predicted_si_sdr_db: np.ndarray,
    improvements_db: np.ndarray,
    mixtures: np.ndarray,
) -> NotSeparatedPredictor | None:
    """Return the regression, or None if fewer than `LEAST_OF_EACH` mixtures are separated or not separated.

    The threshold flags at most 10 % of the separated mixtures, by fits without the mixture in question; it leaves a
    margin of one standard error of that share, because other mixtures are not these.

    Args:
        features: (N,) each, of the estimates of sources.
        predicted_si_sdr_db: (N,) predictions of the first head for them by fits without their mixture.
        improvements_db: (N,) their SI-SDR improvements; NaN for a source that is alone.
        mixtures: (N,) number of the mixture that each comes from.
    """
    summaries, below = [], []
    for mixture in np.unique(mixtures):
        rows = np.flatnonzero(mixtures == mixture)
        improvement = improvements_db[rows].mean()
        if np.isfinite(improvement):
            of_mixture = {name: np.asarray(values)[rows] for name, values in features.items()}
            summaries.append(recording_summary(of_mixture, predicted_si_sdr_db[rows]))
            below.append(improvement < LIMIT_DB)
    labels = np.array(below, bool)
    if min(labels.sum(), (~labels).sum()) < LEAST_OF_EACH:
        return None
    names = [name for name in summaries[0] if np.ptp([summary[name] for summary in summaries]) > 1e-9]
    if not names:
        return None
    table = np.array([[summary[name] for name in names] for summary in summaries])
    strength, scores = best_left_out(table, labels)
    quiet = np.sort(scores[~labels])
    margin = math.sqrt(MOST_FALSE_ALARMS * (1 - MOST_FALSE_ALARMS) / len(quiet))
    alarms = math.floor(max(0.0, MOST_FALSE_ALARMS - margin) * len(quiet))
    threshold = float(quiet[len(quiet) - alarms - 1])
    predictor = fit_logistic(table, labels, strength)
    predictor.features, predictor.threshold = names, threshold
    predictor.flagged = float(np.mean(scores[labels] > threshold))
    predictor.false_alarms = float(np.mean(scores[~labels] > threshold))
    return predictor


def best_left_out(table: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, np.ndarray]:
    """Return the strength of the penalty that is best for rows left out, and (N,) their log-odds by fits without them.

    Args:
        table: (N, features).
        labels: (N,) bool, both kinds among them.
        groups: (N,) int from 0, rows that are left out together; None: each alone.
    """
    tried = [(float(strength), _left_out(table, labels, groups, strength)) for strength in _STRENGTHS]
    return min(tried, key=lambda pair: _log_loss(pair[1], labels))


def _left_out(table: np.ndarray, labels: np.ndarray, groups: np.ndarray | None, strength: float) -> np.ndarray:
    """Return (N,) log-odds of each mixture by a fit without its tenth of the mixtures, or of the groups."""
    fold = np.arange(len(labels)) % _FOLDS
    # Each fold has its share of both kinds.
    fold[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % _FOLDS
    if groups is not None and groups.max() >= _FOLDS - 1:
        fold = groups % _FOLDS
    scores = np.empty(len(labels))
    for number in range(_FOLDS):
        rest = fold != number
        scores[~rest] = fit_logistic(table[rest], labels[rest], strength).log_odds(table[~rest])
    return scores


def fit_logistic(table: np.ndarray, labels: np.ndarray, strength: float) -> NotSeparatedPredictor:
    """Return the penalized logistic regression, without threshold and names.

    Args:
        table: (N, features).
        labels: (N,) bool.
        strength: of the penalty on the squared coefficients, times the number of rows.
    """
    from scipy.optimize import minimize

    means, scales = table.mean(0), np.maximum(table.std(0), 1e-9)
    design = np.clip((table - means) / scales, -_FARTHEST, _FARTHEST)
    signs = np.where(labels, 1.0, -1.0)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (weights[0] + design @ weights[1:])
        pull = -signs / (1 + np.exp(np.clip(margins, -500, 500))) / len(signs)
        value = float(np.logaddexp(0, -margins).mean() + strength / 2 * weights[1:] @ weights[1:])
        return value, np.concatenate([[pull.sum()], design.T @ pull + strength * weights[1:]])

    weights = minimize(loss, np.zeros(design.shape[1] + 1), jac=True, method="L-BFGS-B").x
    return NotSeparatedPredictor(
        [], means.tolist(), scales.tolist(), weights[1:].tolist(), float(weights[0]), math.inf, math.nan, math.nan
    )


def _log_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.logaddexp(0, np.where(labels, -scores, scores)).mean())
