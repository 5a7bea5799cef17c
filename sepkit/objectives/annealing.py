"""Temperatures: what they are measured in, and where hypotheses that move freely split as the temperature falls."""

from __future__ import annotations

import torch
from torch import Tensor

from sepkit.objectives.costs import pairwise_neg_si_sdr

__all__ = ["spread_db"]


@torch.no_grad()
def spread_db(sources: Tensor, active: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    """How far the sources of each utterance are from their mean, dB: the unit that temperatures are multiples of.

    (1/m) sum_j |SI-SDR(mean of the active sources, s_j)|. For two uncorrelated sources it is the difference of their
    levels in dB, for three equally loud ones 3.01 dB. An initial temperature is a multiple of its mean over training
    segments: the paper's T0 of about 0.1, 5 and 23 are 0.05, 2 and 10 times that of WSJ0-2mix.

    Args:
        sources: (B, m, T); inactive rows may hold anything.
        active: (B, m) bool; None: all active.
        lengths: (B,) samples that count; None: all.

    Returns:
        (B,) in dB; NaN where fewer than two sources are active, which have no spread.

    Raises:
        ValueError: shapes that do not fit together.

    Source: reference code of the aMCL paper ("variance" unit).
    """
    if active is None:
        active = torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device)
    if active.shape != sources.shape[:2]:
        raise ValueError(f"expected active of shape {tuple(sources.shape[:2])}, found {tuple(active.shape)}")
    active = active.to(sources.device)
    sources = sources.where(active.unsqueeze(2), 0.0)
    # Of the mean only the direction counts, so that the sum may stand for it.
    distances = pairwise_neg_si_sdr(sources.sum(1, keepdim=True), sources, lengths=lengths)[:, 0].abs()
    count = active.sum(1)
    spread = distances.where(active, 0.0).sum(1) / count
    return spread.where(count > 1, torch.nan)
