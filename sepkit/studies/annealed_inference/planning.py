"""The probability that annealed variational inference loses a mode, in closed form, and plans that follow. No torch.

In the hot phase (R^2 beta < alpha) the two means of the student drive each other apart along mu*: their difference
grows by the factor e^I. If the difference is then below 2 epsilon, both means go to the heavy mode: the run collapses.
Time is counted in steps. The time of the flow is eta t; the annealed VI paper's eq. 3.8 leaves eta out.
"""

import math
from typing import Annotated

from scipy.special import erfinv, lambertw, stdtr

from sepkit.annealing.planning import Between, Positive, shown
from sepkit.errors import Bounds, UserError
from sepkit.studies.annealed_inference.order_parameters import bias, pull_slope, repulsion

_MOST_STEPS = 1e6

PAPER_ALPHA = 0.608
"""End of the hot phase, R^2 beta, as the annealed VI paper fitted it."""


def stability_alpha(radius: float, heavy_weight: float) -> float:
    """Return alpha, the R^2 beta at which the sum m1 + m2 becomes unstable, 2 f(-1) = -g'(0) / 2: the hot phase's end.

    Below it the sum stays nearly 0 while the difference grows; above it both means run to the heavy mode. It is .5863
    for R = 3, w* = .8, and .58343 for R to infinity.
    """
    # Imported here: it takes most of a second, which `--help` does not have.
    from scipy.optimize import root_scalar

    def excess(value: float) -> float:
        r = math.sqrt(value)
        # f depends on R / sigma = r alone.
        return 2 * float(repulsion(-1.0, r, 1.0)) + float(pull_slope(0.0, radius, radius / r, heavy_weight)) / 2

    high = 0.01
    while excess(high) > 0:
        high *= 1.5
        if high > 1e6:
            raise UserError(
                f"radius {radius:g}: the sum of the overlaps is always stable, so there is no hot phase that could end;"
                " the modes are too close to be lost"
            )
    return root_scalar(excess, bracket=(1e-9, high), xtol=1e-12).root


def growth_exponent(initial_beta: float, steps: float, step_size: float, radius: float, alpha: float) -> float:
    """Return I = sqrt(2 / pi) eta t0 / ln(1 / beta_i) (sqrt(alpha) - sqrt(R^2 beta_i)), 0 without a hot phase.

    It is the integral of eta sqrt(R^2 beta / (2 pi)) over the steps with R^2 beta < alpha (eq. 3.7) under the schedule
    beta = min(beta_i^(1 - t / t0), 1).

    Source: annealed VI paper, eq. 3.8, with eta.
    """
    reach = math.sqrt(alpha) - radius * math.sqrt(initial_beta)
    return max(0.0, math.sqrt(2 / math.pi) * step_size * steps / math.log(1 / initial_beta) * reach)


def growth_by_rate(rate: float, step_size: float, alpha: float) -> float:
    """Return the limit of I for hot starts, sqrt(2 alpha / pi) eta / ln(rate), rate = beta_i^(-1 / t0) > 1.

    Source: annealed VI paper, eq. D.15.
    """
    return math.sqrt(2 * alpha / math.pi) * step_size / math.log(rate)


def start_probability(dimension: int, radius: float, heavy_weight: float) -> float:
    """Return the probability that both means start on the same side of m = -epsilon: collapse without a hot phase.

    It is P^2 + (1 - P)^2, with P the probability that the overlap of a uniform direction in d >= 2 dimensions is above
    -epsilon. For that overlap, m sqrt((d - 1) / (1 - m^2)) has Student's distribution with d - 1 degrees of freedom.
    """
    epsilon = abs(bias(radius, heavy_weight))
    if epsilon >= 1:
        return 1.0
    above = float(stdtr(dimension - 1, epsilon * math.sqrt((dimension - 1) / (1 - epsilon**2))))
    return above**2 + (1 - above) ** 2


def collapse_probability(
    growth: float, dimension: int, radius: float, heavy_weight: float, *, repelled: bool = False
) -> float:
    """Return p = erf(sqrt(d) epsilon e^-I), or with `repelled` erf(sqrt(d / 2) epsilon e^-I); 0 for w* = .5.

    While s falls from 0 to -1 the repulsion multiplies m1 - m2 by sqrt 2: antipodal means differ by twice one of them,
    variance 4 / d, independent ones by variance 2 / d. The paper leaves that factor out. It applies once the repulsion
    has finished (eta t0 far above 4).

    Source: annealed VI paper, eq. 3.7.
    """
    return math.erf(_deviation(dimension, radius, heavy_weight, repelled) * math.exp(-growth))


def _deviation(dimension: int, radius: float, heavy_weight: float, repelled: bool) -> float:
    return math.sqrt(dimension / 2 if repelled else dimension) * abs(bias(radius, heavy_weight))


def optimal_initial_beta(radius: float, alpha: float) -> float:
    """Return the beta_i that makes I largest at every t0: alpha / (R^2 W^2), W = W_{-1}(-sqrt(alpha) / (e R)).

    This equals exp(2 + 2 W). The annealed VI paper's D.14 prints e^2 W_0^2, which is above alpha / R^2, where there is
    no hot phase. UserError: R is so small that every start is cold.
    """
    if not radius**2 > alpha:
        raise UserError(
            f"radius: found {radius:g}, expected more than {math.sqrt(alpha):.4g}; nearer modes need no annealing"
        )
    w = float(lambertw(-math.sqrt(alpha) / (math.e * radius), -1).real)
    return alpha / (radius**2 * w**2)


def steps_for_probability(
    probability: float,
    initial_beta: float,
    step_size: float,
    dimension: int,
    radius: float,
    heavy_weight: float,
    alpha: float,
    *,
    repelled: bool = False,
) -> float:
    """Return the t0 at which `collapse_probability` is `probability`: 0 if the start suffices, inf if never."""
    if collapse_probability(0.0, dimension, radius, heavy_weight, repelled=repelled) <= probability:
        return 0.0
    growth = math.log(_deviation(dimension, radius, heavy_weight, repelled) / float(erfinv(probability)))
    per_step = growth_exponent(initial_beta, 1.0, step_size, radius, alpha)
    return growth / per_step if per_step > 0 else math.inf


# --------------------------------------------------------------------------------------------------------------- plans


def plan_inverse_temperature(
    *,
    dimension: Annotated[int, Bounds(ge=2)],
    radius: Positive,
    heavy_weight: Between,
    initial_beta: Between | None = None,
    steps: Positive | None = None,
    target_probability: Between | None = None,
    step_size: Positive = 0.05,
    alpha: Positive = PAPER_ALPHA,
    json: bool = False,
) -> str:
    """Predict how likely annealed variational inference loses a mode, and the temperature and length that avoid it.

    Example:
        sepkit plan-schedule inverse-temperature --dimension 10 --radius 4 --heavy-weight 0.7 --steps 20

    Args:
        dimension: d, dimension of the space
        radius: R, distance of both modes from their center in standard deviations of a mode
        heavy_weight: w*, weight of the heavy mode, between 0 and 1
        initial_beta: inverse temperature at the start, between 0 and 1 (default: the optimum)
        steps: t0, number of steps after which the inverse temperature is 1
        target_probability: probability of collapse, instead of --steps; the number of steps it needs is printed
        step_size: eta, size of a gradient step
        alpha: R^2 beta at the end of the hot phase, for the paper's form and the optimum
        json: print all numbers as JSON
    """
    if (steps is None) == (target_probability is None):
        raise UserError("--steps, --target-probability: expected exactly one of the two")
    optimum = optimal_initial_beta(radius, alpha)
    beta = optimum if initial_beta is None else initial_beta
    stable_alpha = stability_alpha(radius, heavy_weight)
    if target_probability is not None:
        steps = steps_for_probability(
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
    growth_paper = growth_exponent(beta, steps, step_size, radius, alpha)
    growth = growth_exponent(beta, steps, step_size, radius, stable_alpha)
    start = start_probability(dimension, radius, heavy_weight)
    probability = collapse_probability(growth, dimension, radius, heavy_weight, repelled=True)
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
        "collapse_probability_paper": collapse_probability(growth_paper, dimension, radius, heavy_weight),
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
    return shown("inverse-temperature", data, lines, warnings, json)
