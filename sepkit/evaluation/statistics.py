"""Statistics of scores over utterances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# Resampled index matrices are built in pieces of about this many entries (32 MB).
_PIECE = 4_000_000


@dataclass
class Summary:
    """A metric over utterances; every number is None if there is no score.

    Args:
        mean: of the scores.
        std: standard deviation with n - 1 in the denominator; None for a single score.
        median: of the scores.
        ci95: the ends of the 95 % confidence interval of the mean.
        n: number of scores.
    """

    mean: float | None
    std: float | None
    median: float | None
    ci95: list[float] | None
    n: int


@dataclass
class PairedDifference:
    """A metric of one run minus that of another, over the utterances that both have scored.

    Args:
        mean: of the differences; None where there is none.
        ci95: the ends of the 95 % confidence interval of the mean difference.
        n: number of utterances.
        share_better: share of the utterances that score higher in the first run; ties count half.
    """

    mean: float | None
    ci95: list[float] | None
    n: int
    share_better: float | None


def summarize(scores: ArrayLike, seed: int = 0) -> Summary:
    """Return a summary of scores of utterances, (N,); NaN means a missing score.

    >>> summary = summarize([1.0, float("nan"), 3.0])
    >>> summary.mean, summary.n, summary.ci95
    (2.0, 2, [1.0, 3.0])
    """
    return summarize_columns({"": scores}, seed)[""]


def summarize_columns(columns: Mapping[str, ArrayLike], seed: int = 0) -> dict[str, Summary]:
    """Return a summary of every column, as `summarize` does; columns that miss the same scores share the bootstrap's
    draws. Columns are (N,) each, by name."""
    values = {name: np.asarray(scores, dtype=np.float64).ravel() for name, scores in columns.items()}
    together: dict[bytes, list[str]] = {}
    for name, scores in values.items():
        together.setdefault(np.isnan(scores).tobytes(), []).append(name)
    intervals: dict[str, list[float] | None] = {}
    for names in together.values():
        present = ~np.isnan(values[names[0]])
        if not present.any():
            intervals |= dict.fromkeys(names)
            continue
        ends = _intervals(np.stack([values[name][present] for name in names], axis=1), 10_000, seed)
        intervals |= {name: [float(low), float(high)] for name, low, high in zip(names, *ends, strict=True)}
    return {name: _summary(scores[~np.isnan(scores)], intervals[name]) for name, scores in values.items()}


def bootstrap_ci95(scores: ArrayLike, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Return the 2.5th and 97.5th percentile of the mean under resampling of utterances with replacement.

    Utterances count as independent: if they share speakers, the interval is too narrow for new speakers.

    Args:
        scores: (N,), at least one, without NaN.
        resamples: how many there are.
        seed: the same one gives the same interval.

    Raises:
        ValueError: no scores.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3 (percentile interval).
    """
    values = np.asarray(scores, dtype=np.float64).ravel()
    if len(values) == 0:
        raise ValueError("scores: none given, expected at least one")
    low, high = _intervals(values[:, None], resamples, seed)
    return float(low[0]), float(high[0])


def times_drawn(count: int, resamples: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield how often each utterance is in each resample with replacement: pieces (R, count) float64.

    All pieces together have `resamples` rows.
    """
    generator = np.random.default_rng(seed)
    rows = max(1, _PIECE // count)
    for done in range(0, resamples, rows):
        piece = min(rows, resamples - done)
        drawn = generator.integers(count, size=(piece, count)) + count * np.arange(piece)[:, None]
        yield np.bincount(drawn.ravel(), minlength=piece * count).reshape(piece, count).astype(np.float64)


def paired_difference(first: ArrayLike, second: ArrayLike, seed: int = 0) -> PairedDifference:
    """Return how much higher the first run scores than the second on the same utterances.

    The interval is over utterances' differences, in which common difficulty cancels.

    Args:
        first: (N,) scores; NaN means a missing one, and leaves the pair out.
        second: (N,) scores of the same utterances.
        seed: of the bootstrap.

    Raises:
        ValueError: different numbers of scores.
    """
    a, b = (np.asarray(scores, dtype=np.float64).ravel() for scores in (first, second))
    if len(a) != len(b):
        raise ValueError(f"scores: found {len(a)} and {len(b)}, expected one pair an utterance")
    differences = (a - b)[~np.isnan(a - b)]
    if len(differences) == 0:
        return PairedDifference(None, None, 0, None)
    better = float(np.mean((differences > 0) + 0.5 * (differences == 0)))
    interval = list(bootstrap_ci95(differences, seed=seed))
    return PairedDifference(float(differences.mean()), interval, len(differences), better)


def _summary(values: np.ndarray, interval: list[float] | None) -> Summary:
    if len(values) == 0:
        return Summary(None, None, None, None, 0)
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return Summary(float(values.mean()), std, float(np.median(values)), interval, len(values))


def _intervals(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Return (2, C): percentile intervals of the means of the columns of `values` (N, C), all from the same draws."""
    means = [drawn @ values / len(values) for drawn in times_drawn(len(values), resamples, seed)]
    return np.percentile(np.concatenate(means), [2.5, 97.5], axis=0)
