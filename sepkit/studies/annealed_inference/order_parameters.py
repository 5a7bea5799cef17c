"""The flow of the student's two means in three numbers: m_k = <mu_k, mu*> / R^2 and s = <mu_1, mu_2> / R^2.

Two forces drive all three: the repulsion f(s) of the student's entropy and the pull g(m) of the target.

Source: annealed VI paper, eq. 3.3 and 3.4, appendix C. Time is counted in steps of the reference code. Its step size is
eta / beta, so beta does not multiply the forces.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, expit

from sepkit.schedules import Schedule

Array = NDArray[np.float64]
Variance = Literal["quasi_static", "integrated"]

# The trapezoidal rule converges geometrically on analytic functions; these steps and reaches leave errors below 1e-12.
_NORMAL_NODES = np.arange(-90, 91) * 0.1
_NORMAL_WEIGHTS = 0.1 * np.exp(-(_NORMAL_NODES**2) / 2) / math.sqrt(2 * math.pi)
_WIDE_NODES = np.arange(-200, 201) * 0.1
_SECH_NODES = np.arange(-76, 77) * 0.25
_SECH_WEIGHTS = 0.25 / np.cosh(_SECH_NODES) ** 2
# For a larger variance of its argument the repulsion is below exp(-400 / 8).
_LARGEST_VARIANCE = 400.0


def bias(radius: float, heavy_weight: float) -> float:
    """Return epsilon = ln(w* / (1 - w*)) / (2 R^2): once cold, a mean with m < -epsilon goes to the light mode."""
    return math.log(heavy_weight / (1 - heavy_weight)) / (2 * radius**2)


def _repulsion_of_variance(variance: ArrayLike) -> tuple[Array, Array]:
    """Return f and df/dv for the variance v = 2 (R / sigma)^2 (1 - s) of its Gaussian argument, whose mean is -v / 2.

    Completing the square, E F(z) = exp(-v / 8) E F(y) exp(-y / 2), y ~ N(0, v). The remaining expectation has its mass
    near 0 and keeps its relative precision where f is tiny. Nodes are multiples of the deviation, or of 4 if that is
    larger.
    """
    variance = np.asarray(variance, np.float64)[..., None]
    scale = np.minimum(np.sqrt(variance), 4.0)
    y = scale * _WIDE_NODES
    # The density of y times the distance between its nodes; at v = 0 all of them are at 0.
    ratio = scale / np.sqrt(np.where(variance > 0, variance, 1.0)) + (variance == 0)
    tilt = np.exp(-((ratio * _WIDE_NODES) ** 2) / 2 - y / 2 - variance / 8)
    tilt *= 0.1 * ratio / math.sqrt(2 * math.pi)
    e = expit(y)
    # d/dv of E F(N(-v/2, v)) is E(F'' - F') / 2, with F = expit^2, F' = 2 e^2 (1 - e), F'' = F' (2 - 3 e).
    return (e**2 * tilt).sum(-1), (e**2 * (1 - e) * (1 - 3 * e) * tilt).sum(-1)


def repulsion(s: ArrayLike, radius: float, sigma: float) -> Array:
    """Return f(s) = E expit(z)^2, z ~ N(-v / 2, v), v = 2 (R / sigma)^2 (1 - s), sigma the components' deviation.

    Source: annealed VI paper, eq. C.19 for equal components.
    """
    return _repulsion_of_variance(2 * (radius / sigma) ** 2 * (1 - np.asarray(s, np.float64)))[0]


def _pull_and_slope(m: ArrayLike, radius: float, sigma: float, heavy_weight: float) -> tuple[Array, Array]:
    """Return g and dg/dm.

    For a hot student g's integrand in x is a step of width 1 / (R sigma). It falls between the nodes of Gauss-Hermite
    quadrature, which loses the slope. Integrated by parts, the step becomes the weight sech^2 and the rest is smooth:
    E tanh(b + tau x) = (1/2) int erf((b - u) / (sqrt2 ... )) sech^2(u) du, up to the sign of u, for every tau.
    """
    center = radius**2 * (np.asarray(m, np.float64) + bias(radius, heavy_weight))
    tau = radius * sigma
    if tau >= 1:
        scaled = (center[..., None] - _SECH_NODES) / (math.sqrt(2) * tau)
        value = 0.5 * (erf(scaled) @ _SECH_WEIGHTS)
        slope = np.exp(-(scaled**2)) @ _SECH_WEIGHTS / (math.sqrt(2 * math.pi) * tau)
    else:  # tanh varies slowly over so narrow a Gaussian
        height = np.tanh(center[..., None] + tau * _NORMAL_NODES)
        value, slope = height @ _NORMAL_WEIGHTS, (1 - height**2) @ _NORMAL_WEIGHTS
    return -value, -(radius**2) * slope


def pull(m: ArrayLike, radius: float, sigma: float, heavy_weight: float) -> Array:
    """Return g(m) = -E tanh(R^2 (m + epsilon) + R sigma x), x ~ N(0, 1): negative where the heavy mode attracts.

    Source: annealed VI paper, eq. C.19.
    """
    return _pull_and_slope(m, radius, sigma, heavy_weight)[0]


def pull_slope(m: ArrayLike, radius: float, sigma: float, heavy_weight: float) -> Array:
    """Return dg/dm of `pull`."""
    return _pull_and_slope(m, radius, sigma, heavy_weight)[1]


def variance_lags(betas: ArrayLike, step_size: float, variance: Variance = "quasi_static") -> Array:
    """Return x = beta(t) sigma(t)^2 at every step, of the shape of `betas`, (T,).

    Variances follow beta only as fast as their learning rate allows. To leading order in d a step takes x to
    rate x (1 - eta / 2 (1 - 1 / x))^2, rate the growth of beta in the step, with the fixed point
    x = 1 / (1 - 2 (1 - rate^(-1/2)) / eta).

    Args:
        variance: "quasi_static": 1, the paper's assumption 3.1. "integrated": the recursion, from 1.
    """
    betas = np.asarray(betas, np.float64)
    lags = np.ones_like(betas)
    if variance == "integrated":
        for step, rate in enumerate(betas[1:] / betas[:-1]):
            x = lags[step]
            lags[step + 1] = rate * x * (1 - step_size * 0.5 * (1 - 1 / x)) ** 2
    return lags


@dataclass(frozen=True)
class OrderParameters:
    """The three numbers that describe each of N runs: m1, m2 and s, (N,) each."""

    m1: Array
    m2: Array
    s: Array


def random_starts(count: int, dimension: int, seed: int = 0) -> OrderParameters:
    """Return order parameters of N pairs of independent uniform directions in d >= 3 dimensions, drawn exactly.

    In a frame of mu*, the rest of mu_1, and the rest of mu_2, the two directions need three normal and two chi-squared
    numbers, and no d-vectors.
    """
    generator = np.random.default_rng(seed)
    first, second, along = generator.standard_normal((3, count))
    rest, across = generator.chisquare(dimension - 1, count), generator.chisquare(dimension - 2, count)
    length_1 = np.sqrt(first**2 + rest)
    length_2 = np.sqrt(second**2 + along**2 + across)
    s = (first * second + np.sqrt(rest) * along) / (length_1 * length_2)
    return OrderParameters(first / length_1, second / length_2, s)


@dataclass(frozen=True)
class Flow:
    """The end of the flow, and the path to it: (len(steps), 3, N) m1, m2 and s before each of the recorded steps."""

    end: OrderParameters
    steps: list[int]
    path: Array


def integrate(
    starts: OrderParameters,
    schedule: Schedule,
    *,
    steps: int,
    radius: float,
    heavy_weight: float,
    step_size: float = 0.05,
    variance: Variance = "quasi_static",
    record_every: int = 0,
) -> Flow:
    """Return the flow of all starts by Euler steps of length eta, the limit of stochastic steps with many samples.

    With x = beta sigma^2: dm1 = -[(m2 - m1 s) f(s) / x + (1 - m1^2) g(m1) / 2], m2 likewise,
    ds = -[2 (1 - s^2) f(s) / x + (m2 - m1 s) g(m1) / 2 + (m1 - m2 s) g(m2) / 2]. f and g are tabulated at every step
    with their slopes and read off by cubic interpolation, for all starts alike.

    Source: annealed VI paper, eq. 3.4 for equal components.
    """
    betas = np.array([schedule(float(t)) for t in range(max(steps, 1))])
    lags = variance_lags(betas, step_size, variance)
    spread = np.linspace(0, min(_LARGEST_VARIANCE, 4 * radius**2 * betas.max()), 1025)
    # Imported here: it takes half a second, which `--help` of the plans does not have.
    from scipy.interpolate import CubicHermiteSpline

    force = CubicHermiteSpline(spread, *_repulsion_of_variance(spread))
    grid = np.linspace(-1, 1, 129)
    m1, m2, s = (np.array(values, np.float64) for values in (starts.m1, starts.m2, starts.s))
    recorded: list[int] = []
    path: list[Array] = []
    for step in range(steps + 1):
        if record_every and step % record_every == 0:
            recorded.append(step)
            path.append(np.stack([m1, m2, s]))
        if step == steps:
            break
        beta, x = betas[step], lags[step]
        variances = 2 * radius**2 * beta / x * (1 - s)
        f = np.where(variances <= spread[-1], force(np.minimum(variances, spread[-1])), 0.0) / x
        table = CubicHermiteSpline(grid, *_pull_and_slope(grid, radius, math.sqrt(x / beta), heavy_weight))
        g1, g2 = 0.5 * table(m1), 0.5 * table(m2)
        d1, d2 = m2 - m1 * s, m1 - m2 * s
        new_m1 = m1 - step_size * (d1 * f + (1 - m1**2) * g1)
        new_m2 = m2 - step_size * (d2 * f + (1 - m2**2) * g2)
        s = np.clip(s - step_size * (2 * (1 - s**2) * f + d1 * g1 + d2 * g2), -1, 1)
        m1, m2 = np.clip(new_m1, -1, 1), np.clip(new_m2, -1, 1)
    return Flow(OrderParameters(m1, m2, s), recorded, np.array(path))


def collapsed(end: OrderParameters, radius: float, heavy_weight: float) -> NDArray[np.bool_]:
    """Return whether both means of each run are on the same side of m = -epsilon, (N,) bool."""
    epsilon = bias(radius, heavy_weight)
    return (end.m1 + epsilon > 0) == (end.m2 + epsilon > 0)
