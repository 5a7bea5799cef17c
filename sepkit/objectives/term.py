"""The base of all terms of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set

from torch import Tensor

from sepkit.objectives.costs import Step


class Term(ABC):
    """One part of an objective: a value for each utterance, and a weight.

    Attributes:
        wants: names of what the model returns only on request: "source_encodings", "reconstructions" or
            "source_reconstructions".
        weight: multiplies the term; it may change during training.
        scheduled: the present value of every parameter that follows a schedule, by name.
    """

    wants: Set[str] = frozenset()
    weight: float = 1.0

    @abstractmethod
    def __call__(self, step: Step) -> Tensor:
        """The value for each utterance, (B,)."""

    @property
    def scheduled(self) -> dict[str, float]:
        """The present values of what follows a schedule, by name."""
        return {}

    def set_progress(self, t_epochs: float) -> None:  # noqa: B027
        """Set every scheduled parameter to its present value."""

    def statistics(self) -> dict[str, Tensor]:
        """Return numbers of the last call that are worth recording, (B,) each, by name, detached."""
        return {}
