"""Statistics of scores over utterances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Summary", "bootstrap_ci95", "summarise"]

# Resampled index matrices are built in pieces of about this many entries (32 MB).
_PIECE = 4_000_000


@dataclass
class Summary:
    """A metric over utterances; every number is None where there is no score.

    Args:
        mean: of the scores.
        std: standard deviation with n - 1 in the denominator; None for a single score.
        median: of the scores.
        ci95: the ends of the 95 % confidence interval of the mean.
        n: how many scores there are.
    """

    mean: float | None
    std: float | None
    median: float | None
    ci95: list[float] | None
    n: int


def summarise(scores: ArrayLike, seed: int = 0) -> Summary:
    """The summary of scores; NaN means that there is none and is left out.

    Args:
        scores: one an utterance.
        seed: of the bootstrap.
    """
    values = np.asarray(scores, dtype=np.float64).ravel()
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return Summary(None, None, None, None, 0)
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return Summary(
        float(values.mean()), std, float(np.median(values)), list(bootstrap_ci95(values, seed=seed)), len(values)
    )


def bootstrap_ci95(scores: ArrayLike, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """The 2.5th and 97.5th percentile of the mean under resampling of utterances with replacement.

    Utterances count as independent: where they share speakers, the interval is too narrow for new speakers.

    Args:
        scores: (N,), at least one, without NaN.
        resamples: how often to resample.
        seed: of the resampling; the same seed gives the same interval.

    Raises:
        ValueError: no scores.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3 (percentile interval).
    """
    values = np.asarray(scores, dtype=np.float64).ravel()
    if len(values) == 0:
        raise ValueError("scores: none given, expected at least one")
    generator = np.random.default_rng(seed)
    rows = max(1, _PIECE // len(values))
    means = [
        values[generator.integers(len(values), size=(min(rows, resamples - done), len(values)))].mean(axis=1)
        for done in range(0, resamples, rows)
    ]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)
