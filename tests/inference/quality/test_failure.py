"""Recordings that are likely not separated."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.inference.quality.failure import failure_features, fit_failure


def mixtures(count: int = 400, seed: int = 0):
    """Two examples a mixture; the improvement hangs on what is predicted and on dominance."""
    generator = np.random.default_rng(seed)
    quality = 5 + 4 * generator.standard_normal(count)
    predicted = np.repeat(quality, 2) + 0.5 * generator.standard_normal(2 * count)
    improvements = np.repeat(quality + 1.5 * generator.standard_normal(count), 2)
    features = {"dominance": np.repeat(0.8 + 0.02 * quality, 2)}
    return features, predicted, improvements, np.repeat(np.arange(count), 2)


def test_flags_find_what_is_not_separated_with_few_false_alarms():
    predictor = fit_failure(*mixtures())
    assert predictor is not None
    assert predictor.false_alarms <= 0.1 and predictor.found > 0.6
    features, predicted, improvements, numbers = mixtures(1000, seed=1)
    flags = np.array(
        [
            predictor.flags(
                failure_features({k: v[numbers == n] for k, v in features.items()}, predicted[numbers == n])
            )
            for n in range(1000)
        ]
    )
    below = improvements[::2] < 1
    assert flags[~below].mean() < 0.13 and flags[below].mean() == pytest.approx(predictor.found, abs=0.15)


def test_the_regression_is_where_its_gradient_vanishes():
    features, predicted, improvements, numbers = mixtures()
    predictor = fit_failure(features, predicted, improvements, numbers)
    pairs = predicted.reshape(-1, 2)
    columns = zip(pairs.mean(1), pairs.min(1), features["dominance"][::2], strict=True)
    assert predictor.features == ["predicted_mean_db", "predicted_least_db", "dominance"]
    probability = 1 / (
        1 + np.exp(-predictor.log_odds([dict(zip(predictor.features, row, strict=True)) for row in columns]))
    )
    # An intercept without penalty makes the mean probability the share.
    assert probability.mean() == pytest.approx(np.mean(improvements[::2] < 1), abs=1e-3)


def test_what_is_not_known_is_not_flagged():
    predictor = fit_failure(*mixtures())
    assert predictor.flags({}) is None
    assert predictor.flags({"predicted_mean_db": 1.0}) is None
    assert failure_features({}, np.array([np.nan])) == {}
    features, predicted, improvements, numbers = mixtures(40)
    assert fit_failure(features, predicted, improvements + 100, numbers) is None
    assert fit_failure(features, predicted, np.full(80, np.nan), numbers) is None
