"""Recordings that are likely not separated: a logistic regression on predicted SI-SDR and on how estimates overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sepkit.inference.quality.features import DOMINANCE
from sepkit.inference.quality.regression import LogisticRegression, fit_logistic, threshold_above

LIMIT_DB = 1.0
"""A mixture whose mean SI-SDR improvement is below this is not separated."""

MOST_FALSE_ALARMS = 0.1
"""Share of separated mixtures that may be flagged."""

LEAST_OF_EACH = 10
"""Fit only with at least this many mixtures that are separated, and as many that are not."""


def failure_features(features: Mapping[str, np.ndarray], predicted_si_sdr_db: np.ndarray) -> dict[str, float]:
    """Return the mean and least prediction of a recording, and the dominance; nothing without predictions.

    Args:
        features: (n,) each, by name; `DOMINANCE` is used where there are two estimates or more.
        predicted_si_sdr_db: (n,) predictions for the same estimates; those that are not finite are left out.
    """
    known = np.isfinite(predicted_si_sdr_db)
    if not known.any():
        return {}
    found = {
        "predicted_mean_db": float(predicted_si_sdr_db[known].mean()),
        "predicted_least_db": float(predicted_si_sdr_db[known].min()),
    }
    return found | ({DOMINANCE: float(features[DOMINANCE][known].mean())} if DOMINANCE in features else {})


def fit_failure(
    features: Mapping[str, np.ndarray],
    predicted_si_sdr_db: np.ndarray,
    improvements_db: np.ndarray,
    mixtures: np.ndarray,
) -> LogisticRegression | None:
    """Return the regression, or None if fewer than `LEAST_OF_EACH` mixtures are separated or not separated.

    The threshold flags at most 10 % of the separated mixtures, by fits without the mixture in question; it leaves a
    margin of one standard error of that share, because other mixtures are not these.

    Args:
        features: (N,) each, of the estimates of sources.
        predicted_si_sdr_db: (N,) predictions for them by fits without their mixture.
        improvements_db: (N,) their SI-SDR improvements; NaN for a source that is alone.
        mixtures: (N,) number of the mixture that each comes from.
    """
    rows, below = [], []
    for mixture in np.unique(mixtures):
        own = np.flatnonzero(mixtures == mixture)
        improvement = improvements_db[own].mean()
        if np.isfinite(improvement):
            of_mixture = {name: np.asarray(values)[own] for name, values in features.items()}
            rows.append(failure_features(of_mixture, predicted_si_sdr_db[own]))
            below.append(improvement < LIMIT_DB)
    labels = np.array(below, bool)
    if min(labels.sum(), (~labels).sum()) < LEAST_OF_EACH or (fit := fit_logistic(rows, labels)) is None:
        return None
    regression, scores = fit
    margin = math.sqrt(MOST_FALSE_ALARMS * (1 - MOST_FALSE_ALARMS) / (~labels).sum())
    threshold = threshold_above(scores[~labels], max(0.0, MOST_FALSE_ALARMS - margin))
    regression.set_threshold(threshold, scores[labels], scores[~labels])
    return regression
