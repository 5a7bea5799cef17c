"""Recordings that are likely not separated, and how alike voices are."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.inference.diarization.profiles import measure_voices
from sepkit.inference.quality.failure import failure_features, fit_failure
from sepkit.inference.quality.features import likeness_features

RATE = 8000


def harmonics(pitch_hz: float, seconds: float = 1.0) -> np.ndarray:
    """A voice of constant pitch."""
    time = np.arange(round(seconds * RATE)) / RATE
    wave = sum(np.sin(2 * np.pi * k * pitch_hz * time) / k for k in range(1, 9))
    return 0.1 * wave


def of(*estimates: np.ndarray) -> dict[str, np.ndarray]:
    stacked = np.stack(estimates)
    powers = [np.square(np.abs(np.fft.rfft(one.reshape(-1, 200)))) for one in stacked]
    return likeness_features(powers, measure_voices(stacked, RATE, float(np.square(stacked).sum(0).mean())))


def test_likeness_of_voices_that_take_turns():
    early = np.where(np.arange(RATE) < RATE // 2, 1.0, 0.0)
    low, high = harmonics(110) * early, harmonics(220) * (1 - early)
    apart = of(low, high)
    assert apart["dominance"] == pytest.approx([1, 1], abs=1e-3)
    assert apart["pitch_distance"] == pytest.approx([np.log(2)] * 2, abs=0.05)
    nearer = of(low, harmonics(125) * (1 - early))
    assert nearer["pitch_distance"] == pytest.approx([np.log(125 / 110)] * 2, abs=0.05)
    same = of(low, harmonics(110) * (1 - early))
    assert 10 * same["voice_distance"][0] < apart["voice_distance"][0]
    # Estimates that share every frame and frequency are as alike as can be, and nothing is known of their voices.
    together = of(harmonics(110), harmonics(110))
    assert together["dominance"] == pytest.approx([0.5, 0.5])
    assert together["pitch_distance"][0] == of(np.zeros(RATE), low)["pitch_distance"][0]


def test_the_nearest_other_voice_counts():
    third = np.arange(RATE) * 3 // RATE
    found = of(*(harmonics(pitch) * (third == place) for place, pitch in enumerate((100, 120, 240))))
    expected = np.log([120 / 100, 120 / 100, 240 / 120])
    np.testing.assert_allclose(found["pitch_distance"], expected, atol=0.06)


def mixtures(count: int = 400, seed: int = 0):
    """Two examples a mixture; the improvement hangs on what is predicted and on dominance."""
    generator = np.random.default_rng(seed)
    quality = 5 + 4 * generator.standard_normal(count)
    predicted = np.repeat(quality, 2) + 0.5 * generator.standard_normal(2 * count)
    improvements = np.repeat(quality + 1.5 * generator.standard_normal(count), 2)
    features = {"dominance": np.repeat(0.8 + 0.02 * quality, 2), "pitch_distance": np.full(2 * count, 0.3)}
    return features, predicted, improvements, np.repeat(np.arange(count), 2)


def test_flags_find_what_is_not_separated_with_few_false_alarms():
    predictor = fit_failure(*mixtures())
    assert predictor is not None and "pitch_distance" not in predictor.features
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
