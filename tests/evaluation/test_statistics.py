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


@pytest.mark.slow
def test_the_interval_as_it_is_published_covers_the_mean_95_times_in_100() -> None:
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(1000):
        low, high = statistics.bootstrap_ci95(generator.normal(10.0, 3.0, size=200))
        covered += low <= 10.0 <= high
    assert 0.93 <= covered / 1000 <= 0.97


def test_columns_share_the_draws_of_those_with_the_same_scores_missing() -> None:
    generator = np.random.default_rng(4)
    columns = {name: generator.normal(size=60) for name in "abc"}
    columns["b"][:7] = np.nan
    together = statistics.summarize_columns(columns)
    for name, scores in columns.items():
        alone = statistics.summarize(scores)
        assert together[name].n == alone.n and together[name].mean == alone.mean
        assert together[name].ci95 == pytest.approx(alone.ci95, abs=1e-12)
    assert statistics.summarize_columns({"none": [np.nan] * 3})["none"].n == 0


def test_paired_differences_are_narrower_than_the_runs() -> None:
    generator = np.random.default_rng(5)
    hardness = generator.normal(10, 5, size=300)
    first, second = hardness + 0.3 + generator.normal(0, 0.5, 300), hardness + generator.normal(0, 0.5, 300)
    difference = statistics.paired_difference(first, second)
    assert difference.ci95 is not None and 0 < difference.ci95[0] < difference.mean < difference.ci95[1]
    assert difference.ci95[1] - difference.ci95[0] < 0.3 * np.diff(statistics.bootstrap_ci95(first))
    assert difference.share_better is not None and 0.5 < difference.share_better < 0.8


def test_paired_differences_of_what_both_have() -> None:
    difference = statistics.paired_difference([1, np.nan, 3, 5], [1, 2, np.nan, 4])
    assert (difference.n, difference.mean, difference.share_better) == (2, 0.5, 0.75)
    assert statistics.paired_difference([np.nan], [1.0]) == statistics.PairedDifference(None, None, 0, None)
    with pytest.raises(ValueError, match="one pair"):
        statistics.paired_difference([1.0], [1.0, 2.0])


def test_the_interval_is_a_function_of_scores_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.arange(50.0)
    first = statistics.bootstrap_ci95(scores, seed=3)
    assert statistics.bootstrap_ci95(scores, seed=3) == first
    assert statistics.bootstrap_ci95(scores, seed=4) != first
    monkeypatch.setattr(statistics, "_PIECE", 500)
    low, high = statistics.bootstrap_ci95(scores, seed=3)
    assert (low, high) == pytest.approx(first, abs=0.5)


def test_summary_leaves_out_nan() -> None:
    summary = statistics.summarize([1.0, np.nan, 3.0])
    assert (summary.mean, summary.median, summary.n) == (2.0, 2.0, 2)
    assert summary.std == pytest.approx(np.sqrt(2))
    assert summary.ci95 == [1.0, 3.0]


def test_summary_of_one_score_and_of_none() -> None:
    one = statistics.summarize([4.0])
    assert (one.mean, one.std, one.median, one.ci95, one.n) == (4.0, None, 4.0, [4.0, 4.0], 1)
    assert statistics.summarize([np.nan]) == statistics.Summary(None, None, None, None, 0)
    with pytest.raises(ValueError, match="at least one"):
        statistics.bootstrap_ci95([])
