"""Summaries and bootstrap intervals."""

import numpy as np
import pytest

from sepkit.evaluation import statistics


def interval(scores: np.ndarray, speakers: list[tuple[str, ...]] | None = None, resamples: int = 10_000):
    """The ends of the interval of one column of scores."""
    return statistics.bootstrap_ci95(scores[:, None], speakers, resamples)[0]


def test_the_interval_is_that_of_the_normal_approximation_for_many_scores() -> None:
    scores = np.random.default_rng(0).normal(5, 2, size=2000)
    half_width = 1.96 * scores.std() / np.sqrt(len(scores))
    expected = scores.mean() - half_width, scores.mean() + half_width
    assert interval(scores) == pytest.approx(expected, abs=0.1 * half_width)


def test_the_interval_covers_the_mean_95_times_in_100() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        low, high = interval(generator.exponential(size=100), resamples=400)
        covered += low <= 1 <= high
    assert 0.90 < covered / 300 < 0.98


def mixtures_of_people(
    generator: np.random.Generator, people: int, count: int, deviation: float, residual: float
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Scores with mean 0 of mixtures of two people each: the sum of theirs, and what is the mixture's own."""
    first = generator.integers(people, size=count)
    second = (first + generator.integers(1, people, size=count)) % people
    own = generator.normal(0, deviation, people)
    scores = own[first] + own[second] + generator.normal(0, residual, count)
    return scores, [(str(a), str(b)) for a, b in zip(first, second, strict=True)]


def test_with_speakers_the_interval_covers_the_mean_of_other_speakers_and_drawing_mixtures_does_not() -> None:
    generator = np.random.default_rng(6)
    covered, repeats = np.zeros(2), 300
    for _ in range(repeats):
        scores, speakers = mixtures_of_people(generator, 30, 300, 2.0, 3.0)
        for place, (low, high) in enumerate((interval(scores, speakers, 500), interval(scores, None, 500))):
            covered[place] += low <= 0 <= high
    of_speakers, of_mixtures = covered / repeats
    # Three standard errors of 95 % are 0.038. Drawn mixtures see (2 * 4 + 9) / 300 of the variance 0.14 * 4 + 9 / 300.
    assert 0.912 <= of_speakers <= 0.988
    assert of_mixtures == pytest.approx(0.45, abs=0.1)


def test_the_interval_by_speakers_has_the_width_of_the_known_variance() -> None:
    scores, speakers = mixtures_of_people(np.random.default_rng(7), 400, 20_000, 2.0, 1.0)
    low, high = interval(scores, speakers, 2000)
    # The mean of a mixture's two speakers has the variance 4 * 2 ** 2 / 400; mixtures' own parts hardly count.
    assert (high - low) / 2 == pytest.approx(1.96 * 2 * 2 / np.sqrt(400), rel=0.08)


def test_the_interval_of_pairs_who_never_meet_others_is_sqrt_3_times_too_wide() -> None:
    scores = np.random.default_rng(8).normal(size=400)
    speakers = [(f"a{k}", f"b{k}") for k in range(400)]
    ratio = np.ptp(interval(scores, speakers)) / np.ptp(interval(scores))
    assert ratio == pytest.approx(np.sqrt(3), rel=0.1)


def test_a_resample_counts_a_mixture_as_often_as_the_product_of_its_speakers_draws() -> None:
    (weights,) = statistics.resample_weights(4, [("a", "b"), ("b", "c"), ("c",), ("a", "a")], 500)
    # The one speaker of a mixture tells how often c, and the one who speaks twice how often a, was drawn.
    c, a = weights[:, 2], weights[:, 3]
    np.testing.assert_array_equal(weights[:, :2], np.stack([a * (3 - a - c), (3 - a - c) * c], axis=1))
    assert a.mean() == pytest.approx(1, abs=0.15) and weights.any(axis=1).all() and 400 < len(weights) < 500


def test_mixtures_are_drawn_where_a_speaker_is_not_known_or_nobody_else_speaks() -> None:
    scores = np.random.default_rng(9).normal(size=6)
    named = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("b", "d"), ("c", "d")]
    assert statistics.drawn_speakers(named) == 4
    plain = statistics.summarize(scores)
    for unknown in (None, [("a", ""), *named[1:]], [(), *named[1:]], [("a", "b")] * 6):
        assert statistics.summarize(scores, unknown) == plain and plain.n_speakers is None
    # Only the mixtures with a score count.
    scores[3:] = np.nan
    found = statistics.summarize(scores, named)
    assert (found.n, found.n_speakers) == (3, 3)


def test_speakers_are_drawn_if_no_utterance_has_them_all() -> None:
    assert statistics.drawn_speakers([("a", "b"), ("a",)]) is None
    assert statistics.drawn_speakers([("a",), ("a", "b"), ("b", "c")]) == 3


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
    assert difference.ci95[1] - difference.ci95[0] < 0.3 * np.ptp(interval(first))
    assert difference.share_better is not None and 0.5 < difference.share_better < 0.8


def test_paired_differences_of_what_both_have() -> None:
    difference = statistics.paired_difference([1, np.nan, 3, 5], [1, 2, np.nan, 4])
    assert (difference.n, difference.mean, difference.share_better) == (2, 0.5, 0.75)
    assert statistics.paired_difference([np.nan], [1.0]) == statistics.PairedDifference(None, None, 0, None)
    with pytest.raises(ValueError, match="one pair"):
        statistics.paired_difference([1.0], [1.0, 2.0])


def test_paired_differences_draw_the_speakers_of_what_both_have() -> None:
    scores, speakers = mixtures_of_people(np.random.default_rng(10), 20, 200, 1.0, 1.0)
    plain = statistics.paired_difference(scores, np.zeros(200))
    drawn = statistics.paired_difference(scores, np.zeros(200), speakers)
    assert drawn.ci95 is not None and plain.ci95 is not None and (drawn.n_speakers, plain.n_speakers) == (20, None)
    assert np.diff(drawn.ci95) > 2 * np.diff(plain.ci95) and drawn.mean == plain.mean


def test_the_interval_is_a_function_of_scores_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.arange(50.0)
    first = statistics.summarize(scores, seed=3).ci95
    assert first is not None and statistics.summarize(scores, seed=3).ci95 == first
    assert statistics.summarize(scores, seed=4).ci95 != first
    monkeypatch.setattr(statistics, "_PIECE", 500)
    assert statistics.summarize(scores, seed=3).ci95 == pytest.approx(first, abs=0.5)


def test_there_is_no_interval_below_five_mixtures_or_speakers() -> None:
    assert statistics.summarize([1.0, 2.0, 3.0, np.nan, 5.0]).ci95 is None
    assert statistics.summarize([1.0, 2.0, 3.0, 4.0, 5.0]).ci95 is not None
    of_pairs = [("abcd"[k % 4], "abcd"[(k + 1) % 4]) for k in range(20)]
    found = statistics.summarize(np.arange(20.0), of_pairs)
    assert (found.ci95, found.n_speakers, found.mean) == (None, 4, 9.5)
    assert statistics.summarize(np.arange(20.0), [*of_pairs[:19], ("a", "e")]).ci95 is not None
    few_mixtures = [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]
    assert statistics.paired_difference(np.arange(4.0), np.zeros(4), few_mixtures).ci95 is None


def test_a_column_without_scores_leaves_the_next_ones_alone() -> None:
    found = statistics.summarize_columns({"none": [np.nan] * 6, "all": [1.0, 2, 3, 4, 5, 9], "one": [np.nan] * 5 + [7]})
    assert [(s.mean, s.median, s.n) for s in found.values()] == [(None, None, 0), (4.0, 3.5, 6), (7.0, 7.0, 1)]


def test_summary_of_two_scores_of_one_and_of_none() -> None:
    two = statistics.summarize([1.0, np.nan, 3.0])
    assert (two.mean, two.std, two.median, two.n) == (2.0, pytest.approx(np.sqrt(2)), 2.0, 2)
    one = statistics.summarize([4.0])
    assert (one.mean, one.std, one.median, one.ci95, one.n) == (4.0, None, 4.0, None, 1)
    assert statistics.summarize([np.nan]) == statistics.Summary(None, None, None, None, 0)
