"""Objectives: pairwise costs, assignments of hypotheses to sources, schedules, and terms made of them."""

from typing import TYPE_CHECKING

from sepkit.config import AssignmentConfig, CostConfig, ScheduleConfig
from sepkit.lazy import lazy_names
from sepkit.registry import offer

if TYPE_CHECKING:
    from sepkit.objectives import assignment as assignment
    from sepkit.objectives import costs as costs
    from sepkit.objectives import likelihoods as likelihoods
    from sepkit.objectives import schedules as schedules
    from sepkit.objectives.costs import Step as Step
    from sepkit.objectives.costs import Term as Term
    from sepkit.objectives.objective import Objective as Objective
    from sepkit.objectives.objective import SeparationTerm as SeparationTerm
    from sepkit.objectives.objective import build_objective as build_objective
    from sepkit.objectives.scoring import ScoringTerm as ScoringTerm

offer(dict.fromkeys(AssignmentConfig.choices.values(), f"{__name__}.assignment"))
offer(dict.fromkeys(CostConfig.choices.values(), f"{__name__}.costs"))
offer(dict.fromkeys(ScheduleConfig.choices.values(), "sepkit.schedules"))

__getattr__ = lazy_names(
    __name__,
    {
        "Objective": "objective",
        "ScoringTerm": "scoring",
        "SeparationTerm": "objective",
        "Step": "costs",
        "Term": "costs",
        "build_objective": "objective",
    },
)
