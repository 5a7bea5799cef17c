"""Objectives: pairwise costs, assignments of hypotheses to sources, schedules, and terms made of them."""

from sepkit.objectives import assignment, costs, likelihoods, schedules
from sepkit.objectives.costs import Step
from sepkit.objectives.objective import (
    Objective,
    SeparationTerm,
    build_objective,
    hard_pit_si_sdr_db,
)
from sepkit.objectives.scoring import ScoringTerm
from sepkit.objectives.term import Term

__all__ = [
    "Objective",
    "ScoringTerm",
    "SeparationTerm",
    "Step",
    "Term",
    "assignment",
    "build_objective",
    "costs",
    "hard_pit_si_sdr_db",
    "likelihoods",
    "schedules",
]
