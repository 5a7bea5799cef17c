"""The objective: named terms, each a function of batch and separation to one value an utterance, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sepkit.config import ObjectiveConfig
from sepkit.objectives.assignment import PIT, Assignment
from sepkit.objectives.costs import PairwiseCost, pairwise_neg_si_sdr
from sepkit.registry import build
from sepkit.types import Batch, Separation

__all__ = ["Objective", "ObjectiveResult", "SeparationTerm", "Term", "build_objective", "hard_pit_si_sdr_db"]

Term = Callable[[Batch, Separation], Tensor]


@dataclass
class ObjectiveResult:
    """The value of an objective.

    Args:
        loss: (B,) weighted sum of the terms.
        terms: (B,) each, by name, unweighted.
    """

    loss: Tensor
    terms: dict[str, Tensor]


class SeparationTerm:
    """Cost and assignment together: how far the estimates are from the sources they are matched to.

    dB costs: mean over the active sources. Costs in nats: sum over the active sources over T, so that it is a
    negative log likelihood a sample. Zero, without gradient, where no source is active. In a padded batch each
    utterance counts with its own length.

    Args:
        cost: the pairwise cost.
        assignment: the matching.
        signal_std: the model's stored training deviation; costs in nats compare signals divided by it.
    """

    def __init__(self, cost: PairwiseCost, assignment: Assignment, signal_std: float = 1.0) -> None:
        self.cost = cost
        self.assignment = assignment
        self.signal_std = signal_std

    def __call__(self, batch: Batch, separation: Separation) -> Tensor:
        """The term's value for each utterance, (B,)."""
        estimates, scales, active = separation.estimates, separation.estimate_scales, batch.active
        # The cost of an inactive source is not used, but its gradient is computed, and 0 * NaN must not occur there.
        sources = batch.sources.where(active.unsqueeze(2), batch.mixture.unsqueeze(1))
        more = {"lengths": batch.lengths}
        if self.cost.unit != "nats":
            return self.assignment(self.cost(estimates, sources, **more), active)
        if scales is not None:
            more["scale"] = scales / self.signal_std
        cost = self.cost(estimates / self.signal_std, sources / self.signal_std, **more)
        return self.assignment(cost, active) * active.sum(1) / batch.lengths

    def set_progress(self, t_epochs: float) -> None:
        """Sets the assignment's scheduled parameters."""
        self.assignment.set_progress(t_epochs)


class Objective:
    """What is minimised: the weighted sum of named terms.

    Args:
        terms: name -> (batch, separation) -> (B,).
        weights: name -> factor; a term that is not named here has weight 1.

    Raises:
        ValueError: a weight for a term that does not exist.
    """

    def __init__(self, terms: Mapping[str, Term], weights: Mapping[str, float] | None = None) -> None:
        unknown = set(weights or {}) - set(terms)
        if unknown:
            raise ValueError(f"weights for unknown terms {sorted(unknown)}; the terms are {sorted(terms)}")
        self.terms = dict(terms)
        self.weights = {name: 1.0 for name in terms} | dict(weights or {})

    def __call__(self, batch: Batch, separation: Separation) -> ObjectiveResult:
        """The loss of each utterance and what it is made of."""
        values = {name: term(batch, separation) for name, term in self.terms.items()}
        loss = torch.stack([self.weights[name] * value for name, value in values.items()]).sum(0)
        return ObjectiveResult(loss, values)

    def set_progress(self, t_epochs: float) -> None:
        """Sets every scheduled parameter of every term to its value after that many epochs."""
        for term in self.terms.values():
            set_progress = getattr(term, "set_progress", None)
            if set_progress is not None:
                set_progress(t_epochs)


def build_objective(config: ObjectiveConfig, signal_std: float = 1.0) -> Objective:
    """The objective that `config` describes: one term, "separation".

    Args:
        config: cost and assignment.
        signal_std: the model's stored training deviation, for costs in nats.

    Raises:
        UserError: a choice that nothing is registered for.
    """
    return Objective({"separation": SeparationTerm(build(config.cost), build(config.assignment), signal_std)})


@torch.no_grad()
def hard_pit_si_sdr_db(
    estimates: Tensor, sources: Tensor, active: Tensor | None = None, lengths: Tensor | None = None
) -> Tensor:
    """The SI-SDR of each utterance under its best one-to-one matching, mean over active sources, dB. Higher is better.

    Args:
        estimates: (B, n, T).
        sources: (B, m, T).
        active: (B, m) bool; None: all active.
        lengths: (B,) samples that count; None: all.

    Returns:
        (B,) in dB; NaN where no source is active.

    Raises:
        ValueError: shapes that do not fit together.
        TooFewHypothesesError: more active sources than hypotheses.
    """
    score = -PIT()(pairwise_neg_si_sdr(estimates, sources, lengths=lengths), active)
    return score if active is None else score.where(active.any(1), torch.nan)
