"""Which hypotheses of a recording are speakers, which to keep, and how scores share out sources; arrays alone.

A model with more hypotheses than speakers leaves some of them idle, and may give one speaker to several. Those count
whose score is above a threshold and that are not duplicates.
"""

from __future__ import annotations

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
        scores: of each utterance, those of its distinct hypotheses.
        counts: how many speak in each.

    Returns:
        The threshold, log-odds, and the share in [0, 1]. `DEFAULT_THRESHOLD` and NaN where there is no utterance.
    """
    ends = sorted({score for utterance in scores for score in utterance})
    if not ends:
        right = sum(count == 0 for count in counts)
        return DEFAULT_THRESHOLD, right / len(counts) if counts else float("nan")
    ends = [ends[0] - 2.0, *ends, ends[-1] + 2.0]
    place = {end: index for index, end in enumerate(ends)}
    # A count of c is right from the (c + 1)st best score up to, but without, the cth: one more, then one less.
    steps = [0] * len(ends)
    for utterance, count in zip(scores, counts, strict=True):
        best_first = sorted(utterance, reverse=True)
        if count > len(best_first):
            continue
        low = place[best_first[count]] if count < len(best_first) else 0
        high = place[best_first[count - 1]] if count else len(ends) - 1
        steps[low] += 1
        steps[high] -= 1
    return _widest_best(ends, steps, len(counts))


def _widest_best(ends: Sequence[float], steps: Sequence[int], total: int) -> tuple[float, float]:
    """Return the middle of the widest run of intervals with the largest running sum, and that sum over the total."""
    right, running = [], 0
    for step in steps[:-1]:
        running += step
        right.append(running)
    best = max(right)
    low, widest = 0, (float("-inf"), 0.0)
    for index, value in enumerate([*right, -1]):
        if value != best:
            if index > low:
                width = ends[index] - ends[low]
                widest = max(widest, (width, (ends[index] + ends[low]) / 2), key=lambda pair: pair[0])
            low = index + 1
    return widest[1], best / total
