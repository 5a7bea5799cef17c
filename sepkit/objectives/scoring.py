"""Training of scores: the hard matching of the current costs says which hypotheses are speakers."""

from typing import Literal

import torch
from torch import Tensor

from sepkit.objectives.assignment import MCL, PIT, Assignment
from sepkit.objectives.costs import PairwiseCosts, Step, Term


class ScoringTerm(Term):
    """Loss of a model's scores: they predict which hypotheses win sources.

    A hypothesis wins the sources that it is matched to. `binary`: binary cross-entropy of each score against whether
    its hypothesis won any active source, mean over hypotheses. Without active sources, every target is 0.
    `cross_entropy`: cross-entropy of the softmax of the scores over hypotheses against each one's share of the active
    sources; zero, without gradient, if no source is active.

    The matching is hard and detached, whatever weights the separation is trained with: the least cost of each source
    (MCL) or, if `one_to_one`, the best one-to-one matching (PIT).

    Args:
        costs: Cost of every pair of hypothesis and source.
        kind: Kind of the loss, "binary" or "cross_entropy".
        one_to_one: whether each hypothesis wins one source at most.

    Source: reference code of the aMCL paper (binary, with a weight of 0.1).
    """

    def __init__(
        self, costs: PairwiseCosts, one_to_one: bool = False, kind: Literal["binary", "cross_entropy"] = "binary"
    ) -> None:
        self.costs = costs
        self.matching = PIT() if one_to_one else MCL()
        self.kind: Literal["binary", "cross_entropy"] = kind

    def __call__(self, step: Step) -> Tensor:
        """Return the term's value for each utterance, (B,) nats.

        Raises:
            ValueError: a separation without scores.
            TooFewHypothesesError: one-to-one matching with more active sources than hypotheses.
        """
        batch, separation = step.batch, step.separation
        if separation.scores is None:
            raise ValueError("the separation has no scores; give the model a scoring head")
        cost = step.cost(self.costs)
        return score_loss(separation.scores.to(cost.dtype), cost, batch.active, self.matching, self.kind)


def score_loss(
    scores: Tensor,
    cost: Tensor,
    active: Tensor | None = None,
    matching: Assignment | None = None,
    kind: Literal["binary", "cross_entropy"] = "binary",
) -> Tensor:
    """Return the loss of each utterance's scores, (B,) nats; see `ScoringTerm`.

    Args:
        cost: Cost of every pair, (B, n, m).
        active: Which sources are active, (B, m) bool; None: all.
        kind: Kind of the loss, "binary" or "cross_entropy".
        scores: (B, n) logits.
        matching: a hard one; None: MCL.
    """
    wins = (matching or MCL()).weights(cost, active).sum(2)
    if kind == "cross_entropy":
        count = wins.sum(1, keepdim=True) if active is None else active.sum(1, keepdim=True)
        return -(wins / count.clamp_min(1) * scores.log_softmax(1)).sum(1)
    won = (wins > 0).to(scores.dtype)
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, won, reduction="none").mean(1)
