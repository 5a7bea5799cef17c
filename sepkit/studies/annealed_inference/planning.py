"""Plan schedules from theory: plain numbers in, initial temperature, length and expected outcome out. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sepkit.annealing.planning import Plan, command_of, inside, positive
from sepkit.errors import UserError
from sepkit.studies.annealed_inference import collapse
from sepkit.studies.annealed_inference.order_parameters import bias

_MOST_STEPS = 1e6


def plan_inverse_temperature(
    dimension: int,
    radius: float,
    heavy_weight: float,
    *,
    initial_beta: float | None = None,
    steps: float | None = None,
    target_probability: float | None = None,
    step_size: float = 0.05,
    alpha: float = collapse.PAPER_ALPHA,
) -> Plan:
    """Predict how likely annealed variational inference loses a mode, and the temperature and length that avoid it.

    Args:
        dimension: d, of the space
        radius: R, distance of both modes from their center in standard deviations of a mode
        heavy_weight: w*, weight of the heavy mode, between 0 and 1
        initial_beta: inverse temperature at the start, between 0 and 1; default: the optimum
        steps: t0, after which the inverse temperature is 1
        target_probability: of collapse, instead of --steps; the steps that it needs are printed
        step_size: eta, of a gradient step
        alpha: R^2 beta at the end of the hot phase, for the paper's form and the optimum
    """
    positive(dimension=dimension, radius=radius, step_size=step_size, alpha=alpha)
    if dimension < 2:
        raise UserError(f"--dimension: found {dimension}, expected 2 or more")
    inside(heavy_weight=heavy_weight)
    if (steps is None) == (target_probability is None):
        raise UserError("--steps, --target-probability: expected exactly one of the two")
    optimum = collapse.optimal_initial_beta(radius, alpha)
    beta = optimum if initial_beta is None else initial_beta
    inside(initial_beta=beta)
    stable_alpha = collapse.stability_alpha(radius, heavy_weight)
    if target_probability is not None:
        inside(target_probability=target_probability)
        steps = collapse.steps_for_probability(
            target_probability, beta, step_size, dimension, radius, heavy_weight, stable_alpha, repelled=True
        )
        if steps > _MOST_STEPS:
            raise UserError(
                f"--target-probability: found {target_probability:g}, which no schedule of up to {_MOST_STEPS:g} steps"
                f" from beta {beta:.6g} reaches; raise --step-size, or begin at the optimal --initial-beta"
            )
        # t0 = 0 is no schedule; if the start is good enough, one step is.
        steps = max(1.0, float(math.ceil(steps)))
    assert steps is not None
    positive(steps=steps)
    growth_paper = collapse.growth_exponent(beta, steps, step_size, radius, alpha)
    growth = collapse.growth_exponent(beta, steps, step_size, radius, stable_alpha)
    start = collapse.start_probability(dimension, radius, heavy_weight)
    probability = collapse.collapse_probability(growth, dimension, radius, heavy_weight, repelled=True)
    warnings = []
    if bias(radius, heavy_weight) == 0:
        warnings.append("heavy-weight .5: neither mode attracts both means, so that the probability of collapse is 0")
    elif growth == 0:
        probability = start
    if radius**2 * beta >= alpha:
        warnings.append(
            f"initial beta {beta:.6g} is not below alpha / R^2 = {alpha / radius**2:.6g}: there is no hot phase, and"
            " the probability is that of the start"
        )
    data = {
        "dimension": dimension,
        "radius": radius,
        "heavy_weight": heavy_weight,
        "initial_beta": beta,
        "optimal_initial_beta": optimum,
        "steps": steps,
        "step_size": step_size,
        "flow_time": step_size * steps,
        "rate": beta ** (-1 / steps),
        "alpha": alpha,
        "stability_alpha": stable_alpha,
        "growth_exponent_paper": growth_paper,
        "growth_exponent": growth,
        "collapse_probability_paper": collapse.collapse_probability(growth_paper, dimension, radius, heavy_weight),
        "collapse_probability": probability,
        "start_probability": start,
    }
    low, high = sorted((probability, data["collapse_probability_paper"]))
    lines = [
        f"initial beta          {beta:.6g}  (temperature {1 / beta:.4g}; the optimum is {optimum:.6g})",
        f"steps                 {steps:.6g}  (flow time {step_size * steps:.4g})",
        f"collapse probability  {low:.3f} to {high:.3f}  (two closed forms for many samples a step; few samples make it"
        f" larger; without annealing {start:.3f})",
    ]
    return Plan(data, lines, warnings)


def plan_kl_warmup(
    variances: Sequence[float],
    noise_variance: float,
    epochs: float,
    *,
    final_weight: float = 1.0,
    initial_beta: float | None = None,
) -> Plan:
    """Predict which latents live in a linear model, and when they die (KL warm-up) or come to life (tempering).

    Args:
        variances: of the data along its principal axes
        noise_variance: of the decoder
        epochs: of the schedule
        final_weight: of the rate after the warm-up
        initial_beta: of tempering; default: where the first latent comes to life
    """
    # Data of independent coordinates, variance lambda each, are decoded as x = W z + noise of variance v, and encoded
    # as q(z | x) = N(V x, D). A latent is alive if W = V = 0 is no minimum of the loss: by the Hessians there, if
    # lambda > beta v in KL warm-up, which weighs the rate with beta and where all begin alive, or if lambda > v / beta
    # in tempering, which weighs log p(x, z) with beta = min(beta_i^(1 - t / epochs), 1).
    positive(noise_variance=noise_variance, epochs=epochs, final_weight=final_weight)
    if not variances:
        raise UserError("--variances: none given, expected the variances of the data along its principal axes")
    positive(variances=min(variances))
    first = noise_variance / max(variances)
    warnings = []
    if first >= 1:
        warnings.append(
            f"no variance is above the decoder's noise variance {noise_variance:g}: tempering brings no latent to life"
        )
    beta = initial_beta if initial_beta is not None else first if first < 1 else 0.1
    inside(initial_beta=beta)
    latents = []
    for variance in variances:
        dies, born = variance / noise_variance, noise_variance / variance
        birth = max(0.0, epochs * (1 - math.log(born) / math.log(beta)))
        latents.append(
            {
                "variance": variance,
                "kl_dies_at_beta": dies if dies < final_weight else None,
                "kl_dies_at_epoch": epochs * dies / final_weight if dies < final_weight else None,
                "tempered_alive_from_beta": born if born < 1 else None,
                "tempered_alive_from_epoch": birth if born < 1 else None,
            }
        )
    data = {
        "noise_variance": noise_variance,
        "epochs": epochs,
        "final_weight": final_weight,
        "initial_beta": beta,
        "alive_after_kl_warmup": sum(variance > final_weight * noise_variance for variance in variances),
        "alive_after_tempering": sum(variance > noise_variance for variance in variances),
        "latents": latents,
    }
    lines = ["variance   KL warm-up: dies at epoch   tempering: alive from epoch"]
    for latent in latents:
        epochs_of = (latent["kl_dies_at_epoch"], latent["tempered_alive_from_epoch"])
        dies, born = ("never" if epoch is None else f"{epoch:.4g}" for epoch in epochs_of)
        lines.append(f"{latent['variance']:<10.4g} {dies:<27} {born}")
    yaml = [
        "objective:",
        "  rates:",
        f"    encoding: {{weight: {{name: linear_warmup, value: {final_weight:g}, end: {epochs:g}}}}}",
    ]
    return Plan(data, lines, warnings, yaml)


inverse_temperature = command_of("inverse-temperature", plan_inverse_temperature)
kl_warmup = command_of("kl-warmup", plan_kl_warmup)
