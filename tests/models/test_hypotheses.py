"""Duplicates, numbers of speakers and thresholds by plain definitions."""

import itertools

import numpy as np
import pytest
import torch

from sepkit.models import hypotheses


def distinct_of(scores, estimates):
    """Return the expected result of `distinct_hypotheses` for one utterance."""
    found = []
    for index in sorted(range(len(scores)), key=lambda k: (-scores[k], k)):
        if np.ptp(estimates[index]) == 0:
            continue
        correlations = [np.corrcoef(estimates[index], estimates[other])[0, 1] for other in found]
        if not any(10 * np.log10(r**2 / (1 - r**2)) > hypotheses.DUPLICATE_SI_SDR_DB for r in correlations):
            found.append(index)
    return [index in found for index in range(len(scores))]


@pytest.mark.parametrize("seed", range(20))
def test_duplicates_are_found_as_with_numpy(seed):
    generator = np.random.default_rng(seed)
    sources = generator.standard_normal((2, 300))
    mixing = generator.standard_normal((5, 2)) * (generator.random((5, 2)) < 0.6)
    estimates = mixing @ sources + 0.3 * generator.standard_normal((5, 300)) + generator.standard_normal((5, 1))
    estimates[generator.integers(5)] = 0.7
    scores = generator.integers(-2, 3, 5).astype(float)
    for level in (1.0, 1e-5, 1e5):
        assert hypotheses.distinct_hypotheses(scores, level * estimates).tolist() == distinct_of(scores, estimates)


def test_the_limit_is_an_si_sdr():
    source, other = np.random.default_rng(0).standard_normal((2, 4000))
    source, other = source - source.mean(), other - other.mean()
    other = other - (other @ source) / (source @ source) * source
    for difference_db, duplicate in ((-0.1, False), (0.1, True)):
        gain = 10 ** (-(hypotheses.DUPLICATE_SI_SDR_DB + difference_db) / 20)
        share = gain * np.linalg.norm(source) / np.linalg.norm(other)
        estimates = np.stack([source, -3 * (source + share * other)])
        assert hypotheses.distinct_hypotheses(np.array([0.0, 1.0]), estimates).tolist() == [not duplicate, True]


def test_silence_is_no_hypothesis():
    assert not hypotheses.distinct_hypotheses(np.array([1.0, 2.0, 3.0]), np.zeros((3, 200))).any()


def test_a_known_number_takes_the_best_and_duplicates_last():
    scores, distinct = np.array([0.0, 3.0, 1.0, 2.0]), np.array([True, True, False, False])
    kept = [hypotheses.best_hypotheses(scores, distinct, count).tolist() for count in range(5)]
    assert kept == [[], [1], [0, 1], [0, 1, 3], [0, 1, 2, 3]]


# ----------------------------------------------------------------------------------------------------------- threshold


def share_right(scores, counts, threshold):
    return np.mean([sum(s > threshold for s in row) == count for row, count in zip(scores, counts, strict=True)])


@pytest.mark.parametrize("seed", range(40))
def test_no_threshold_counts_better(seed):
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 12))
    scores = [np.round(generator.standard_normal(generator.integers(0, 5)), 1).tolist() for _ in range(size)]
    counts = generator.integers(0, 4, size).tolist()
    threshold, share = hypotheses.calibrate_threshold(scores, counts)
    assert share == pytest.approx(share_right(scores, counts, threshold))
    every = sorted({s for row in scores for s in row})
    between = [(a + b) / 2 for a, b in itertools.pairwise(every)]
    for other in [*every, *between, -100.0, 100.0]:
        assert share >= share_right(scores, counts, other) - 1e-12


def test_threshold_is_the_middle_of_the_widest_of_the_best_intervals():
    threshold, share = hypotheses.calibrate_threshold([[4.0, -1.0], [3.0, 1.0, -2.0], [5.0, 4.0, 2.0]], [1, 2, 3])
    # [-1, 1) is right for all three.
    assert (threshold, share) == (0.0, 1.0)
    assert hypotheses.calibrate_threshold([[1.0], [3.0], [9.0]], [0, 1, 1]) == (2.0, 1.0)
    # It is right for one of two below 0 and from 10 on. Ends are open; the nearer ones lie 1 beyond the last scores.
    assert hypotheses.calibrate_threshold([[0.0], [10.0]], [1, 0]) == (-1.0, 0.5)
    assert hypotheses.calibrate_threshold([[0.0], [10.0]], [0, 0]) == (11.0, 1.0)
    assert hypotheses.calibrate_threshold([], [])[0] == hypotheses.DEFAULT_THRESHOLD
    assert hypotheses.calibrate_threshold([[], []], [0, 2]) == (hypotheses.DEFAULT_THRESHOLD, 0.5)


def test_weights_are_a_distribution():
    """The softmax, or probabilities over their sum; also where all scores are very low."""
    scores = torch.tensor([[1.0, -2.0, 0.5], [-90.0, -91.0, -300.0]], dtype=torch.float64)
    weights = [hypotheses.hypothesis_weights(scores.numpy(), kind) for kind in ("binary", "cross_entropy")]
    binary, softmax = map(torch.from_numpy, weights)
    torch.testing.assert_close(binary, scores.sigmoid() / scores.sigmoid().sum(1, keepdim=True))
    torch.testing.assert_close(softmax, scores.softmax(1))
