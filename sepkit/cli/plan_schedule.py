"""`sepkit plan-schedule KIND`: plan an annealing schedule from theory instead of by search."""

from __future__ import annotations

from typing import Literal


def amcl(
    *,
    critical_temperature: float,
    initial_temperature: float,
    epochs: float,
    kind: Literal["linear", "exponential"] = "exponential",
    decay: float = 0.9,
    step_size: float = 0.05,
    observed_split: float | None = None,
    observed_decay: float | None = None,
    json: bool = False,
) -> str:
    """Predict the temperature and epoch at which hypotheses of annealed multiple choice learning split.

    Args:
        critical_temperature: T_c, as `sepkit find-temperature` prints it
        initial_temperature: T0, in the same unit
        epochs: of annealing
        kind: of cooling
        decay: of the temperature in an epoch, with --kind exponential
        step_size: eta, of a gradient step on one hypothesis, one an epoch
        observed_split: temperature at which a run was seen to split; replaces --step-size, which --json prints
        observed_decay: of that run, which is otherwise that of the plan; default: --decay
        json: print the numbers as JSON, nothing else
    """
    from sepkit.annealing.planning import plan_amcl

    plan = plan_amcl(
        critical_temperature,
        initial_temperature,
        epochs,
        kind=kind,
        decay=decay,
        step_size=step_size,
        observed_split=observed_split,
        observed_decay=observed_decay,
    )
    return plan.shown("amcl", json)


COMMANDS = {"amcl": amcl}
