"""The silence term drives hypotheses without a source to silence."""

from __future__ import annotations

import torch
from torch import Tensor

from sepkit.objectives.assignment import PIT
from sepkit.objectives.costs import PairwiseCosts, Step
from sepkit.objectives.term import Term


class SilenceTerm(Term):
    """Level of the hypotheses without a source relative to the mixture, dB, mean over these hypotheses.

        10 log10( |e|^2 / |x|^2 + tau ),   tau = 10^(-threshold_db / 10)

    Hypotheses are matched to the active sources one to one (PIT); the others are without a source. The term lies
    between -threshold_db, for silence, and about 0. It is zero, without gradient, where every hypothesis has a source,
    and where no source is active. Levels below -threshold_db gain nothing further.

    Args:
        threshold_db: hypotheses this far below the mixture are quiet enough.

    Source: S. Wisdom et al., "What's all the fuss about free universal sound separation data?", ICASSP 2021, eq. 2.
    """

    def __init__(self, costs: PairwiseCosts, threshold_db: float = 30.0) -> None:
        self.costs = costs
        self.threshold_db = threshold_db

    def __call__(self, step: Step) -> Tensor:
        """The term's value for each utterance, (B,)."""
        batch, separation = step.batch, step.separation
        active = batch.active
        matched = (PIT().weights(step.cost(self.costs).detach(), active) > 0).any(2)
        free = ~matched & active.any(1, keepdim=True)
        inside = torch.arange(batch.mixture.shape[-1], device=active.device) < batch.lengths[:, None]
        energies = separation.estimates.where(inside.unsqueeze(1), 0.0).square().sum(-1)
        reference = batch.mixture.where(inside, 0.0).square().sum(-1, keepdim=True)
        tiny = torch.finfo(energies.dtype).tiny
        ratio = energies / reference.clamp_min(tiny) + 10 ** (-self.threshold_db / 10)
        # The energy of hypotheses with a source is not used, and may be anything.
        level_db = 10 * torch.log10(ratio.where(free, 1.0))
        return level_db.sum(1) / free.sum(1).clamp_min(1)
