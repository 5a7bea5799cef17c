"""`sepkit plan-schedule KIND`: plan an annealing schedule from theory instead of by search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sepkit.annealing.planning import Plan


def inverse_temperature(
    *,
    dimension: int,
    radius: float,
    heavy_weight: float,
    initial_beta: float | None = None,
    steps: float | None = None,
    target_probability: float | None = None,
    step_size: float = 0.05,
    schedule: Literal["exponential", "linear", "saturating", "step"] = "exponential",
    alpha: float = 0.608,
    limit_steps: float = 1e6,
    steps_per_epoch: int = 1,
    figure: str | None = None,
    json: bool = False,
) -> Path | None:
    """Predict how likely annealed variational inference loses a mode, and the temperature and length that avoid it.

    Args:
        dimension: d, of the space
        radius: R, distance of both modes from their center in standard deviations of a mode
        heavy_weight: w*, weight of the heavy mode, between 0 and 1
        initial_beta: inverse temperature at the start, between 0 and 1; default: the optimum
        steps: t0, after which the inverse temperature is 1
        target_probability: of collapse, instead of --steps; the steps that it needs are printed
        step_size: eta, of a gradient step
        schedule: shape of the inverse temperature; "saturating" approaches 1 with time constant --steps
        alpha: R^2 beta at the end of the hot phase, for the paper's form and the optimum
        limit_steps: the most that --target-probability may propose
        steps_per_epoch: of your training, for the YAML lines, whose unit is the epoch
        figure: also draw the growth exponent over the initial beta, as this PNG file
        json: print the numbers as JSON, nothing else

    Returns:
        The figure, where one is asked for.

    Raises:
        UserError: a number out of its range.
    """
    from sepkit.annealing.planning import plan_inverse_temperature

    plan = plan_inverse_temperature(
        dimension,
        radius,
        heavy_weight,
        initial_beta=initial_beta,
        steps=steps,
        target_probability=target_probability,
        step_size=step_size,
        shape=schedule,
        alpha=alpha,
        limit_steps=limit_steps,
        steps_per_epoch=steps_per_epoch,
    )
    _print(plan, "inverse-temperature", json)
    if figure is None:
        return None
    from sepkit.reporting.planned_schedules import write_growth_figure

    path = write_growth_figure(plan, figure)
    return None if json else path


def amcl(
    *,
    critical_temperature: float,
    initial_temperature: float,
    epochs: float,
    kind: Literal["linear", "exponential"] = "exponential",
    decay: float = 0.9,
    step_size: float = 0.05,
    spread_growth: float = 120.0,
    steps_per_epoch: int = 1,
    observed_split: float | None = None,
    observed_kind: Literal["linear", "exponential"] | None = None,
    observed_initial_temperature: float | None = None,
    observed_epochs: float | None = None,
    observed_decay: float | None = None,
    wanted_split: float | None = None,
    noise_floor: bool = False,
    closed_form: bool = False,
    json: bool = False,
) -> None:
    """Predict the temperature and epoch at which hypotheses of annealed multiple choice learning split.

    Args:
        critical_temperature: T_c, as `sepkit find-temperature` prints it
        initial_temperature: T0, in the same unit
        epochs: of annealing
        kind: of cooling
        decay: of the temperature in an epoch, with --kind exponential
        step_size: eta, of a gradient step on one hypothesis
        spread_growth: factor by which the distance of two hypotheses grows until the split is seen
        steps_per_epoch: gradient steps in an epoch
        observed_split: temperature at which a run was seen to split; replaces --step-size and --spread-growth
        observed_kind: cooling of that run; default: --kind, and so on
        observed_initial_temperature: of that run
        observed_epochs: of that run
        observed_decay: of that run
        wanted_split: temperature at which the split should be seen: also says how slowly to cool from T_c for that
        noise_floor: noise keeps hypotheses apart above T_c, so that a hot start costs only time
        closed_form: take steps to be small (Lambert's W) instead of adding up what each does
        json: print the numbers as JSON, nothing else

    Raises:
        UserError: a number out of its range.
    """
    from sepkit.annealing.amcl_planning import plan_amcl
    from sepkit.annealing.split_delay import Cooling
    from sepkit.errors import UserError

    of_run = {
        "--observed-initial-temperature": observed_initial_temperature,
        "--observed-epochs": observed_epochs,
        "--observed-decay": observed_decay,
    }
    for name, value in of_run.items():
        if value is not None and not (0 < value < (1 if name == "--observed-decay" else float("inf"))):
            raise UserError(f"{name}: found {value:g}, expected a positive number")
    if observed_split is None and (observed_kind is not None or any(v is not None for v in of_run.values())):
        raise UserError("--observed-split: missing, the temperature at which the observed run was seen to split")
    observed = Cooling(
        observed_kind or kind,
        initial_temperature if observed_initial_temperature is None else observed_initial_temperature,
        epochs if observed_epochs is None else observed_epochs,
        decay if observed_decay is None else observed_decay,
        noise_floor,
    )
    plan = plan_amcl(
        critical_temperature,
        initial_temperature,
        epochs,
        kind=kind,
        decay=decay,
        step_size=step_size,
        spread_growth=spread_growth,
        steps_per_epoch=steps_per_epoch,
        observed_split=observed_split,
        observed=observed,
        floor=noise_floor,
        wanted_split=wanted_split,
        closed_form=closed_form,
    )
    _print(plan, "amcl", json)


def kl_warmup(
    *,
    variances: list[float],
    noise_variance: float,
    epochs: float,
    final_weight: float = 1.0,
    initial_beta: float | None = None,
    json: bool = False,
) -> None:
    """Predict which latents live in a linear model, and when they die (KL warm-up) or come to life (tempering).

    Args:
        variances: of the data along its principal axes
        noise_variance: of the decoder
        epochs: of the schedule
        final_weight: of the rate after the warm-up
        initial_beta: of tempering; default: where the first latent comes to life
        json: print the numbers as JSON, nothing else

    Raises:
        UserError: a number out of its range.
    """
    from sepkit.annealing.planning import plan_kl_warmup

    plan = plan_kl_warmup(variances, noise_variance, epochs, final_weight=final_weight, initial_beta=initial_beta)
    _print(plan, "kl-warmup", json)


def _print(plan: Plan, kind: str, as_json: bool) -> None:
    import json
    import sys

    for warning in plan.warnings:
        print(f"sepkit plan-schedule {kind}: {warning}", file=sys.stderr)
    if as_json:
        print(json.dumps(plan.data, allow_nan=False))
    else:
        print("\n".join([*plan.lines, *plan.yaml]))


COMMANDS = {"inverse-temperature": inverse_temperature, "amcl": amcl, "kl-warmup": kl_warmup}
