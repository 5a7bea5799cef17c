"""Which hypotheses of a recording are speakers, which to keep, and how scores share out sources; arrays alone.

A model with more hypotheses than speakers leaves some of them idle, and may give one speaker to several. Those count
whose score is above a threshold and that are not duplicates.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

DEFAULT_THRESHOLD = 0.0
"""Log-odds above which a hypothesis counts as a speaker if no threshold was calibrated: more likely than not."""

DUPLICATE_SI_SDR_DB = 10.0
"""Two hypotheses are duplicates if the SI-SDR of one to the other is above this: a correlation above 0.953.

Two estimates of one source reach it if each has an SI-SDR of 13 dB and their errors are uncorrelated. So do estimates
of two equally strong sources in which the other source is only 2.7 dB weaker: these have not been separated.
"""

# Rounding leaves at most this share of a constant signal's energy when its mean is subtracted in float64.
_ROUNDING = 1e-12


def hypothesis_weights(scores: np.ndarray, loss: Literal["binary", "cross_entropy"] = "binary") -> np.ndarray:
    """Return a distribution over hypotheses: which one a source is expected to be nearest to.

    `cross_entropy`: the softmax of the scores. `binary`: the probability of each to be a speaker, over their sum.

    Args:
        scores: (..., n) logits.
    """
    # In logarithms, for scores that are all very low.
    logits = np.asarray(scores, np.float64)
    logits = logits if loss == "cross_entropy" else -np.logaddexp(0, -logits)
    likely = np.exp(logits - logits.max(-1, keepdims=True))
    return likely / likely.sum(-1, keepdims=True)


def distinct_hypotheses(scores: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    """Return which hypotheses are neither silent nor duplicates of one with a higher score, (n,) bool.

    Hypotheses are visited from the best score down. One is a duplicate if its SI-SDR to an earlier distinct one is
    above `DUPLICATE_SI_SDR_DB`. (SI-SDR without means is symmetric: 10 log10(r^2 / (1 - r^2)) with the correlation r.)
    Among equal scores the lower index counts as better.

    Args:
        scores: (n,) log-odds.
        estimates: (n, T); constant ones are silent.
    """
    signals = np.asarray(estimates, np.float64)
    centered = signals - signals.mean(-1, keepdims=True)
    return distinct_by_products(scores, centered @ centered.T, np.square(signals).sum(-1))


def distinct_by_products(scores: np.ndarray, products: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Like `distinct_hypotheses`, but computed from inner products instead of waveforms. Returns (n,) bool.

    Args:
        scores: (n,) log-odds.
        products: (n, n) float64 inner products of the estimates less their means.
        energies: (n,) float64, of the estimates with their means.
    """
    powers = np.diagonal(products)
    silent = powers <= _ROUNDING * energies
    # r^2 / (1 - r^2) > limit, without a division by silence.
    ratio = 10 ** (DUPLICATE_SI_SDR_DB / 10)
    alike = np.square(products) * (1 + ratio) > ratio * np.outer(powers, powers)
    distinct = np.zeros(len(scores), bool)
    for place in _best_first(scores):
        distinct[place] = not silent[place] and not (alike[place] & distinct).any()
    return distinct


def best_hypotheses(scores: np.ndarray, distinct: np.ndarray, count: int) -> np.ndarray:
    """Return the numbers of the hypotheses to keep for a known number of speakers, (count,) int, ascending.

    Distinct hypotheses come first, then the others, each group by score.

    Args:
        scores: (n,) log-odds.
        distinct: (n,) bool, see `distinct_hypotheses`.
    """
    order = _best_first(scores)
    return np.sort(np.concatenate([order[distinct[order]], order[~distinct[order]]])[:count])


def _best_first(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-np.asarray(scores), kind="stable")


def calibrate_threshold(scores: Sequence[Sequence[float]], counts: Sequence[int]) -> tuple[float, float]:
    """Find the threshold that gets the number of speakers right most often; return it and the share of right counts.

    The number of speakers is that of distinct hypotheses with a score above the threshold. The share of right counts is
    constant between neighboring scores. Of the intervals with the largest share the widest is taken (the lowest of
    equally wide ones), and the threshold is its middle. An open end lies 1 beyond the last score.

    Args:
        scores: Scores of the distinct hypotheses of each utterance.
        counts: Number of speakers in each utterance.

    Returns:
        The threshold, log-odds, and the share in [0, 1]. `DEFAULT_THRESHOLD` and NaN where there is no utterance.
    """
    found = np.unique(np.concatenate([[], *scores]))
    if not len(found):
        right = sum(count == 0 for count in counts)
        return DEFAULT_THRESHOLD, right / len(counts) if counts else float("nan")
    ends = np.array([found[0] - 2.0, *found, found[-1] + 2.0])
    # Of the intervals between ends; less than any before the first and behind the last.
    right = np.pad(np.zeros(len(ends) - 1, int), 1, constant_values=-1)
    for utterance, count in zip(scores, counts, strict=True):
        # In an interval, as many scores are above the threshold as above its lower end.
        right[1:-1] += len(utterance) - np.searchsorted(np.sort(utterance), ends[:-1], side="right") == count
    low, high = ends[np.flatnonzero(np.diff(right == right.max()))].reshape(-1, 2).T
    widest = np.argmax(high - low)
    return float(low[widest] + high[widest]) / 2, float(right.max()) / len(counts)
