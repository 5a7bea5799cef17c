"""Scores of hypotheses tell which of them are speakers, which to keep, and how many people speak.

A model with more hypotheses than speakers leaves some of them idle, and may give one speaker to several. Those count
whose score is above a threshold and that are not duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from sepkit.errors import UserError

DEFAULT_THRESHOLD = 0.0
"""Log-odds above which a hypothesis counts as a speaker if no threshold was calibrated: more likely than not."""

DUPLICATE_SI_SDR_DB = 10.0
"""Two hypotheses are duplicates if the SI-SDR of one to the other is above this: a correlation above 0.953.

Two estimates of one source reach it if each has an SI-SDR of 13 dB and their errors are uncorrelated. So do estimates
of two equally strong sources in which the other source is only 2.7 dB weaker: these have not been separated.
"""

# Rounding leaves at most this share of a constant signal's energy when its mean is subtracted in float64.
_ROUNDING = 1e-12


class ScoringHead(nn.Module):
    """The log-odds that a hypothesis is a speaker, from its mask alone: Linear(mean over frames), ReLU, Linear.

    The mean is over all frames, including the padding of shorter utterances in a batch: a model does not know lengths.
    Recordings that are separated one by one have no padding.

    Args:
        mask_dim: values of a mask in a frame (K).

    Source: reference code of the aMCL paper, where the mean follows the first layer; linear maps and means commute.
    """

    def __init__(self, mask_dim: int, hidden_size: int = 128) -> None:
        super().__init__()
        if hidden_size < 1:
            raise UserError(f"model.scoring.hidden_size: found {hidden_size}, expected at least 1")
        self.hidden = nn.Linear(mask_dim, hidden_size)
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, masks: Tensor) -> Tensor:
        """Return log-odds that a hypothesis is a speaker, (B, n); masks are (B, n, K, F)."""
        # Scores are compared with a threshold: bfloat16's two digits are too few, and float32 costs almost nothing.
        with torch.autocast(masks.device.type, enabled=False):
            pooled = masks.mean(-1, dtype=self.hidden.weight.dtype)
            return self.output(self.hidden(pooled).relu()).squeeze(-1)


def hypothesis_weights(scores: Tensor, loss: Literal["binary", "cross_entropy"] = "binary") -> Tensor:
    """Return a distribution over hypotheses: which one a source is expected to be nearest to.

    `cross_entropy`: the softmax of the scores. `binary`: the probability of each to be a speaker, over their sum.

    Args:
        scores: (..., n) logits.
    """
    if loss == "cross_entropy":
        return scores.softmax(-1)
    # In logarithms, for scores that are all very low.
    return torch.nn.functional.logsigmoid(scores).softmax(-1)


def distinct_hypotheses(scores: Tensor, estimates: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return which hypotheses are neither silent nor duplicates of one with a higher score: (B, n) bool.

    Hypotheses are visited from the best score down. One is a duplicate if its SI-SDR to an earlier distinct one is
    above `DUPLICATE_SI_SDR_DB`. (SI-SDR without means is symmetric: 10 log10(r^2 / (1 - r^2)) with the correlation r.)
    Among equal scores the lower index counts as better.

    Args:
        scores: (B, n) log-odds.
        estimates: (B, n, T); constant ones are silent.
        lengths: (B,) samples that count; None: all.
    """
    return distinct_by_products(scores, *_centered_products(estimates, lengths))


def distinct_by_products(scores: Tensor, products: Tensor, energy: Tensor) -> Tensor:
    """Like `distinct_hypotheses`, but computed from inner products instead of waveforms. Returns (B, n) bool.

    Args:
        scores: (B, n) log-odds.
        products: (B, n, n) float64 inner products of the estimates less their means.
        energy: (B, n) float64, of the estimates with their means.
    """
    alike, silent = _alike(products, energy)
    order = scores.argsort(dim=1, descending=True, stable=True)
    distinct = torch.zeros_like(silent)
    rows = torch.arange(len(scores), device=scores.device)
    for hypothesis in order.unbind(1):
        duplicate = (alike[rows, hypothesis] & distinct).any(1)
        distinct[rows, hypothesis] = ~duplicate & ~silent[rows, hypothesis]
    return distinct


def _centered_products(estimates: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (B, n, n) inner products of estimates less their means, and (B, n) energies with them."""
    signals = estimates.double()
    counts = torch.full((len(signals),), signals.shape[-1]) if lengths is None else lengths
    counts = counts.to(signals.device)[:, None, None]
    inside = torch.arange(signals.shape[-1], device=signals.device) < counts
    signals = signals.where(inside, 0.0)
    energy = signals.square().sum(-1)
    centered = (signals - signals.sum(-1, keepdim=True) / counts).where(inside, 0.0)
    return centered @ centered.mT, energy


def _alike(products: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """Return (B, n, n) which pairs are duplicates, and (B, n) which estimates are silent."""
    powers = products.diagonal(dim1=1, dim2=2)
    silent = powers <= _ROUNDING * energy
    # r^2 / (1 - r^2) > limit, without a division by silence.
    ratio = 10 ** (DUPLICATE_SI_SDR_DB / 10)
    squared = products.square() * (1 + ratio)
    return squared > ratio * powers[:, :, None] * powers[:, None, :], silent


def best_hypotheses(scores: Tensor, distinct: Tensor, count: int) -> Tensor:
    """Return which hypotheses to keep for a known number of speakers: (B, n) bool with `count` True in each row.

    Distinct hypotheses come first, then the others, each group by score.

    Args:
        scores: (B, n) log-odds.
        distinct: (B, n) bool, see `distinct_hypotheses`.
    """
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    first = distinct.gather(1, by_score).to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    kept = by_score.gather(1, first)[:, :count]
    return torch.zeros_like(distinct).scatter_(1, kept, True)


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
