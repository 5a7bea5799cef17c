"""The base of all terms of an objective, and what they share in a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set

from torch import Tensor

from sepkit.objectives.costs import PairwiseCost
from sepkit.types import Batch, Separation

__all__ = ["PairwiseCosts", "Step", "Term"]


class PairwiseCosts:
    """The cost of every (hypothesis, source) pair of a batch, (B, n, m).

    Costs in nats compare signals divided by the model's stored training deviation. In a padded batch each utterance
    counts with its own length. Columns of inactive sources hold finite numbers of no meaning.

    Args:
        cost: the pairwise cost.
        signal_std: the model's stored training deviation.
    """

    def __init__(self, cost: PairwiseCost, signal_std: float = 1.0) -> None:
        self.cost = cost
        self.signal_std = signal_std

    @property
    def unit(self) -> str:
        """Of the cost: "db", "power" or "nats"."""
        return self.cost.unit

    def __call__(self, batch: Batch, separation: Separation) -> Tensor:
        """The cost of the estimates, (B, n, m)."""
        return self.of(separation.estimates, batch, separation.estimate_scales)

    def of(self, estimates: Tensor, batch: Batch, scales: Tensor | None = None) -> Tensor:
        """(B, n, m) of these estimates (B, n, T), with scales (B, n, T) where the decoder has them."""
        # Rows of inactive sources may hold anything, and 0 * NaN must not occur. A cost that is not told which they
        # are compares with the mixture, which is silent less often than zeros.
        instead = 0.0 if self.cost.takes_active else batch.mixture.unsqueeze(1)
        sources = batch.sources.where(batch.active.unsqueeze(2), instead)
        more = {"lengths": batch.lengths, "active": batch.active}
        if self.unit != "nats":
            return self.cost(estimates, sources, **more)
        if scales is not None:
            more["scale"] = scales / self.signal_std
        return self.cost(estimates / self.signal_std, sources / self.signal_std, **more)


class Step:
    """What the terms look at: a batch, its separation, and what several of them need, made once.

    Args:
        batch: mixtures with their references.
        separation: what the model makes of them.
    """

    def __init__(self, batch: Batch, separation: Separation) -> None:
        self.batch = batch
        self.separation = separation
        self._costs: dict[PairwiseCosts, Tensor] = {}

    def cost(self, costs: PairwiseCosts) -> Tensor:
        """The cost of every pair, (B, n, m): the same tensor for every term that asks with the same `costs`."""
        if costs not in self._costs:
            self._costs[costs] = costs(self.batch, self.separation)
        return self._costs[costs]


class Term(ABC):
    """One part of an objective: a value for each utterance, and a weight.

    Attributes:
        wants: what the model has to make beside estimates: "sources" (their encodings), "reconstructions".
        weight: multiplies the term; it may change as training goes on.
        scheduled: the present value of every parameter that follows a schedule, by name.
    """

    wants: Set[str] = frozenset()
    weight: float = 1.0

    @abstractmethod
    def __call__(self, step: Step) -> Tensor:
        """The value for each utterance, (B,)."""

    @property
    def scheduled(self) -> dict[str, float]:
        return {}

    def set_progress(self, t_epochs: float) -> None:  # noqa: B027
        """Set every scheduled parameter to its value after that many epochs."""

    def statistics(self) -> dict[str, Tensor]:
        """What is worth recording of the last call, (B,) each, by name, detached."""
        return {}
