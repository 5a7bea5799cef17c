"""Summaries and bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.evaluation import statistics


def test_the_interval_is_that_of_the_normal_approximation_for_many_scores() -> None:
    scores = np.random.default_rng(0).normal(5, 2, size=2000)
    low, high = statistics.bootstrap_ci95(scores)
    half_width = 1.96 * scores.std() / np.sqrt(len(scores))
    assert low == pytest.approx(scores.mean() - half_width, abs=0.1 * half_width)
    assert high == pytest.approx(scores.mean() + half_width, abs=0.1 * half_width)


def test_the_interval_covers_the_mean_95_times_in_100() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        low, high = statistics.bootstrap_ci95(generator.exponential(size=100), resamples=400)
        covered += low <= 1 <= high
    assert 0.90 < covered / 300 < 0.98


def test_the_interval_is_a_function_of_scores_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.arange(50.0)
    first = statistics.bootstrap_ci95(scores, seed=3)
    assert statistics.bootstrap_ci95(scores, seed=3) == first
    assert statistics.bootstrap_ci95(scores, seed=4) != first
    monkeypatch.setattr(statistics, "_PIECE", 500)
    low, high = statistics.bootstrap_ci95(scores, seed=3)
    assert (low, high) == pytest.approx(first, abs=0.5)


def test_summary_leaves_out_nan() -> None:
    summary = statistics.summarise([1.0, np.nan, 3.0])
    assert (summary.mean, summary.median, summary.n) == (2.0, 2.0, 2)
    assert summary.std == pytest.approx(np.sqrt(2))
    assert summary.ci95 == [1.0, 3.0]


def test_summary_of_one_score_and_of_none() -> None:
    one = statistics.summarise([4.0])
    assert (one.mean, one.std, one.median, one.ci95, one.n) == (4.0, None, 4.0, [4.0, 4.0], 1)
    assert statistics.summarise([np.nan]) == statistics.Summary(None, None, None, None, 0)
    with pytest.raises(ValueError, match="at least one"):
        statistics.bootstrap_ci95([])
