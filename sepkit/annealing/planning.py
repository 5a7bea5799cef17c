"""Plan schedules from theory: plain numbers in, initial temperature, length and expected outcome out. No torch.

Each function returns a `Plan`: the numbers by name, lines that state them, warnings, and the YAML lines for
`sepkit train`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sepkit.annealing import collapse, linear_vae
from sepkit.annealing.order_parameters import bias
from sepkit.errors import UserError
from sepkit.schedules import (
    InverseTemperature,
    LinearInverseTemperature,
    SaturatingInverseTemperature,
    Schedule,
    StepInverseTemperature,
)

Shape = Literal["exponential", "linear", "saturating", "step"]

_NAMES = {
    "exponential": "inverse_temperature",
    "linear": "linear_inverse_temperature",
    "saturating": "saturating_inverse_temperature",
    "step": "step_inverse_temperature",
}
# After this many time constants 1 - exp(-t / time) is 1 to six digits.
_SATURATED = 20.0


@dataclass
class Plan:
    """A planned schedule.

    Args:
        data: every number by name, or None.
        lines: the same for a reader.
        warnings: likely mistakes.
        yaml: lines for a configuration of `sepkit train`.
    """

    data: dict[str, Any]
    lines: list[str]
    warnings: list[str] = field(default_factory=list)
    yaml: list[str] = field(default_factory=list)


def rising_schedule(shape: Shape, initial_beta: float, steps: float) -> tuple[Schedule, float]:
    """Return beta(t) of this shape, and the number of steps after which it is 1.

    Args:
        shape: "exponential" min(beta_i^(1 - t / t0), 1); "linear" in beta; "saturating" the exponential approach to 1
            with time constant t0; "step" from beta_i to 1 at t0.
        initial_beta: beta_i.
        steps: t0, the length of the schedule.
    """
    if shape == "saturating":
        return SaturatingInverseTemperature(initial_beta, steps), _SATURATED * steps
    kinds = {"exponential": InverseTemperature, "linear": LinearInverseTemperature, "step": StepInverseTemperature}
    return kinds[shape](initial_beta, steps), steps


def plan_inverse_temperature(
    dimension: int,
    radius: float,
    heavy_weight: float,
    *,
    initial_beta: float | None = None,
    steps: float | None = None,
    target_probability: float | None = None,
    step_size: float = 0.05,
    shape: Shape = "exponential",
    alpha: float = collapse.PAPER_ALPHA,
    limit_steps: float = 1e6,
    steps_per_epoch: int = 1,
) -> Plan:
    """Return how likely annealed variational inference loses one of two modes, and the beta_i and t0 that avoid it.

    Args:
        dimension: d.
        radius: R, distance of the two modes from their center in units of their standard deviation.
        heavy_weight: w*, weight of the heavy mode.
        initial_beta: beta_i; None: the optimum.
        steps: t0; None: the one that `target_probability` needs.
        target_probability: of collapse, instead of `steps`.
        step_size: eta.
        shape: of the schedule.
        alpha: R^2 beta at the end of the hot phase, for the paper's form and the optimum.
        limit_steps: longest t0 to propose.
        steps_per_epoch: of the training, for the YAML lines, whose unit is the epoch.

    Raises:
        UserError: a number out of its range, or a target that no t0 below the limit reaches.
    """
    positive(
        dimension=dimension, radius=radius, step_size=step_size, alpha=alpha, limit_steps=limit_steps,
        steps_per_epoch=steps_per_epoch,
    )  # fmt: skip
    if dimension < 2:
        raise UserError(f"--dimension: found {dimension}, expected 2 or more")
    inside("heavy-weight", heavy_weight)
    if (steps is None) == (target_probability is None):
        raise UserError("--steps, --target-probability: expected exactly one of the two")
    optimum = collapse.optimal_initial_beta(radius, alpha)
    beta = optimum if initial_beta is None else initial_beta
    inside("initial-beta", beta)
    stable_alpha = collapse.stability_alpha(radius, heavy_weight)
    warnings = _warnings(beta, radius, heavy_weight, alpha)
    if target_probability is not None:
        inside("target-probability", target_probability)
        if shape != "exponential":
            raise UserError("--target-probability: only for --schedule exponential; give --steps for other schedules")
        steps = _steps_for(
            target_probability, beta, step_size, dimension, radius, heavy_weight, stable_alpha, limit_steps
        )
    assert steps is not None
    positive(steps=steps)
    schedule, end = rising_schedule(shape, beta, steps)
    growth_paper = collapse.growth_of_schedule(schedule, end, step_size, radius, alpha)
    growth = collapse.growth_of_schedule(schedule, end, step_size, radius, stable_alpha)
    start = collapse.start_probability(dimension, radius, heavy_weight)
    unbiased = bias(radius, heavy_weight) == 0
    probability = collapse.collapse_probability(growth, dimension, radius, heavy_weight, repelled=True)
    if growth == 0 and not unbiased:
        probability = start
    data = {
        "dimension": dimension,
        "radius": radius,
        "heavy_weight": heavy_weight,
        "schedule": shape,
        "initial_beta": beta,
        "optimal_initial_beta": optimum,
        "steps": steps,
        "step_size": step_size,
        "flow_time": step_size * steps,
        "rate": beta ** (-1 / steps) if shape == "exponential" else None,
        "alpha": alpha,
        "stability_alpha": stable_alpha,
        "growth_exponent_paper": growth_paper,
        "growth_exponent": growth,
        "collapse_probability_paper": collapse.collapse_probability(growth_paper, dimension, radius, heavy_weight),
        "collapse_probability": probability,
        "start_probability": start,
    }
    lines = [
        f"initial beta          {beta:.6g}  (temperature {1 / beta:.4g}; the optimum is {optimum:.6g})",
        f"steps                 {steps:.6g}  (flow time {step_size * steps:.4g})",
        f"collapse probability  {probability:.3f}  (paper's form {data['collapse_probability_paper']:.3f},"
        f" without annealing {start:.3f})",
    ]
    length = "time" if shape == "saturating" else "end"
    yaml = [
        "objective:",
        "  rates:",
        f"    tempering: {{name: {_NAMES[shape]}, initial: {beta:.6g}, {length}: {steps / steps_per_epoch:.6g}}}",
    ]
    return Plan(data, lines, warnings, yaml)


def _warnings(beta: float, radius: float, heavy_weight: float, alpha: float) -> list[str]:
    warnings = []
    if heavy_weight == 0.5:
        warnings.append("heavy-weight .5: neither mode attracts both means, so that the probability of collapse is 0")
    if radius**2 * beta >= alpha:
        warnings.append(
            f"initial beta {beta:.6g} is not below alpha / R^2 = {alpha / radius**2:.6g}: there is no hot phase, and"
            " the probability is that of the start"
        )
    return warnings


def _steps_for(
    target: float, beta: float, step_size: float, d: int, radius: float, heavy: float, alpha: float, limit: float
) -> float:
    steps = collapse.steps_for_probability(target, beta, step_size, d, radius, heavy, alpha, repelled=True)
    # t0 = 0 is no schedule; if the start is good enough, one step is.
    steps = max(1.0, float(math.ceil(steps))) if math.isfinite(steps) else steps
    if steps > limit:
        raise UserError(
            f"--target-probability: found {target:g}, which no schedule of up to {limit:g} steps from beta {beta:.6g}"
            " reaches; raise --limit-steps or --step-size, or begin at the optimal --initial-beta"
        )
    return steps


def growth_curve(
    radius: float, steps: float, step_size: float, alpha: float, shape: Shape = "exponential", points: int = 121
) -> tuple[list[float], list[float]]:
    """Return beta_i from 1e-6 to 1, and I for each, as `--figure` draws them.

    Args:
        radius: R, distance of each mode from the center, in deviations of a mode.
        steps: t0, the length of the schedule.
        step_size: eta.
        alpha: R^2 beta at the end of the hot phase.
        shape: of the schedule.
        points: how many beta_i there are.
    """
    betas = [10 ** (-6 * (1 - k / points)) for k in range(points)]
    values = []
    for beta in betas:
        schedule, end = rising_schedule(shape, beta, steps)
        values.append(collapse.growth_of_schedule(schedule, end, step_size, radius, alpha))
    return betas, values


def plan_kl_warmup(
    variances: Sequence[float],
    noise_variance: float,
    epochs: float,
    *,
    final_weight: float = 1.0,
    initial_beta: float | None = None,
) -> Plan:
    """Return which latents of a linear auto-encoder live, and when they die or are born, in KL warm-up and tempering.

    The warm-up of the KL weight is linear from 0 to `final_weight`; tempering multiplies the log joint by
    min(beta_i^(1 - t / epochs), 1).

    Args:
        variances: of the data along its principal axes.
        noise_variance: of the decoder.
        epochs: of either schedule.
        final_weight: of the rate, after the warm-up.
        initial_beta: beta_i of tempering; None: where the first latent comes to life.

    Raises:
        UserError: a number out of its range.
    """
    positive(noise_variance=noise_variance, epochs=epochs, final_weight=final_weight)
    if not variances:
        raise UserError("--variances: none given, expected the variances of the data along its principal axes")
    largest = max(variances)
    positive(variances=min(variances))
    first = noise_variance / largest
    beta = initial_beta if initial_beta is not None else first
    warnings = []
    if first >= 1:
        warnings.append(
            f"no variance is above the decoder's noise variance {noise_variance:g}: tempering brings no latent to life"
        )
        beta = 0.1 if initial_beta is None else initial_beta
    inside("initial-beta", beta)
    latents = []
    for variance in variances:
        dies = linear_vae.threshold_beta(variance, noise_variance, "kl")
        born = linear_vae.threshold_beta(variance, noise_variance, "tempered")
        latents.append(
            {
                "variance": variance,
                "kl_dies_at_beta": dies if dies < final_weight else None,
                "kl_dies_at_epoch": epochs * dies / final_weight if dies < final_weight else None,
                "tempered_alive_from_beta": born if born < 1 else None,
                "tempered_alive_from_epoch": _birth(born, beta, epochs) if born < 1 else None,
            }
        )
    data = {
        "noise_variance": noise_variance,
        "epochs": epochs,
        "final_weight": final_weight,
        "initial_beta": beta,
        "alive_after_kl_warmup": sum(linear_vae.alive(v, noise_variance, final_weight, "kl") for v in variances),
        "alive_after_tempering": sum(linear_vae.alive(v, noise_variance, 1.0, "tempered") for v in variances),
        "latents": latents,
    }
    lines = ["variance   KL warm-up: dies at epoch   tempering: alive from epoch"]
    lines += [
        f"{latent['variance']:<10.4g} {_or_never(latent['kl_dies_at_epoch']):<27}"
        f" {_or_never(latent['tempered_alive_from_epoch'])}"
        for latent in latents
    ]
    yaml = [
        "objective:",
        "  rates:",
        f"    encoding: {{weight: {{name: linear_warmup, value: {final_weight:g}, end: {epochs:g}}}}}",
        f"    # or: tempering: {{name: inverse_temperature, initial: {beta:.6g}, end: {epochs:g}}}",
    ]
    return Plan(data, lines, warnings, yaml)


def _birth(born: float, initial: float, epochs: float) -> float:
    """Return the epoch at which initial^(1 - t / epochs) is `born`; 0 if it begins above."""
    return max(0.0, epochs * (1 - math.log(born) / math.log(initial)))


def _or_never(epoch: float | None) -> str:
    return "never" if epoch is None else f"{epoch:.4g}"


def positive(**values: float) -> None:
    """Raise UserError unless every number is positive and finite.

    Args:
        **values: by the names of their options.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"--{name.replace('_', '-')}: found {value:g}, expected a positive number")


def inside(name: str, value: float) -> None:
    """Raise UserError unless a number lies between 0 and 1.

    Args:
        name: of its option.
        value: the number.
    """
    if not 0 < value < 1:
        raise UserError(f"--{name}: found {value:g}, expected a number between 0 and 1")
