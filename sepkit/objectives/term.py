"""The base of all terms of an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from torch import Tensor

from sepkit.config import ObjectiveConfig
from sepkit.objectives.assignment import Assignment
from sepkit.objectives.costs import Step

BuildTerm = Callable[[ObjectiveConfig, Assignment], "Term"]
"""Takes the objective's configuration and the assignment of its separation."""

_builders: dict[str, tuple[str, BuildTerm]] = {}


def trains(extra: str, *, name: str) -> Callable[[BuildTerm], BuildTerm]:
    """Return a decorator: its function builds the term that trains an extra of maskers.

    Args:
        extra: as the masker offers it.
        name: of the term in the objective.
    """

    def register(build_term: BuildTerm) -> BuildTerm:
        _builders[extra] = name, build_term
        return build_term

    return register


def terms_of(offers: Set[str]) -> dict[str, BuildTerm]:
    """Return name of the term -> what builds it, of every extra among `offers` that a term trains."""
    if not offers <= _builders.keys():
        # Terms register themselves: no file knows them all.
        for module in iter_modules([str(Path(__file__).parent)]):
            import_module(f"{__package__}.{module.name}")
    return dict(_builders[extra] for extra in sorted(offers) if extra in _builders)


class Term(ABC):
    """One part of an objective: a value for each utterance, and a weight.

    Attributes:
        wants: names of what the model returns only on request: "source_encodings", "reconstructions", or an extra, such
            as "source_reconstructions" and those of the masker.
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
