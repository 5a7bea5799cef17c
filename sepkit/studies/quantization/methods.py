"""The ways of matching that the experiments compare, by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sepkit.choices import did_you_mean
from sepkit.errors import UserError
from sepkit.objectives.assignment import MCL, AnnealedMCL, Assignment, RelaxedWTA
from sepkit.schedules import TruncatedExponential, TruncatedLinear

METHODS = ("mcl", "amcl_linear", "amcl_exponential", "relaxed_wta_EPSILON", "relaxed_wta_annealed")
"""Names; EPSILON is a number, as in relaxed_wta_0.1."""

_RELAXED = "relaxed_wta_"


@dataclass(frozen=True)
class Annealing:
    """What annealed methods follow, in epochs.

    Args:
        initial_temperature: T0.
        decay: of the temperature in an epoch, exponential.
        end_epoch: where a linear temperature, or an annealed epsilon, is zero.
        floor: temperature at and below which matching is hard.
        initial_epsilon: of relaxed WTA with annealed epsilon.
    """

    initial_temperature: float
    decay: float
    end_epoch: float
    floor: float
    initial_epsilon: float


def build_method(name: str, annealing: Annealing) -> Assignment:
    """The assignment of this name; `set_progress(epoch)` moves it along its schedule.

    Args:
        name: of `METHODS`; "relaxed_wta_0.1" has epsilon 0.1.
        annealing: the schedules of temperature and epsilon; methods without one ignore it.

    Raises:
        UserError: an unknown name, or an epsilon outside [0, 1].
    """
    if name == "mcl":
        return MCL()
    if name == "amcl_linear":
        return AnnealedMCL(
            TruncatedLinear(annealing.initial_temperature, annealing.end_epoch), floor=annealing.floor, unit="cost"
        )
    if name == "amcl_exponential":
        return AnnealedMCL(
            TruncatedExponential(annealing.initial_temperature, annealing.decay), floor=annealing.floor, unit="cost"
        )
    if name == "relaxed_wta_annealed":
        return RelaxedWTA(TruncatedLinear(annealing.initial_epsilon, annealing.end_epoch))
    if name.startswith(_RELAXED):
        return RelaxedWTA(_epsilon(name))
    raise UserError(f"--methods: found {name!r}{did_you_mean(name, METHODS)}, expected {', '.join(METHODS)}")


def _epsilon(name: str) -> float:
    try:
        epsilon = float(name.removeprefix(_RELAXED))
    except ValueError:
        epsilon = math.nan
    if not 0 <= epsilon <= 1:
        raise UserError(f"--methods: found {name!r}, expected relaxed_wta_ and a number from 0 to 1, or annealed")
    return epsilon
