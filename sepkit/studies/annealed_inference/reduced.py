"""The stochastic update of two equal components in three coordinates, for any dimension d.

A student mixture q is fitted to a target pi ** beta by stochastic gradient steps on E_q[log q - beta log pi]. The steps
are those of a JKO scheme: plain on means, which stay on the sphere of radius R, multiplicative on variances.

The K = 2 means and mu* span K + 1 axes. Samples enter only through their coordinates there and through |z_perp|^2 in
the other d - K - 1 dimensions, which is chi-squared. Outside the frame the gradient adds sum_j c_jk z_perp,j to the
means: K vectors of which only the Gram matrix matters. Given the norms, the directions of the z_perp,j are uniform.
Their sum over n samples is therefore Gaussian up to terms of order 1 / n, and the Gram matrix has a Wishart
distribution. It is drawn by Bartlett's decomposition, and the means are written in a new frame.

d = 512 costs the same as d = 8.

Source: annealed VI paper, section 2 and appendix A; reference code annealed_vi_gmms.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepkit.errors import Bounds
from sepkit.schedules import Schedule
from sepkit.studies.annealed_inference.order_parameters import OrderParameters

Array = NDArray[np.float64]

_WEIGHTS = np.array([0.5, 0.5])
# Most samples of replicas that are stepped together: their arrays stay in the CPU's cache.
_CHUNK_SAMPLES = 16_384


class Failure(NamedTuple):
    """A replica, and the first step at which it is no longer finite. It keeps its last finite state."""

    replica: int
    step: int

    def __str__(self) -> str:
        """Return the line of a table."""
        return f"replica {self.replica} ends at step {self.step}: its loss is not finite"


@dataclass(frozen=True)
class Problem:
    """The learning problem: target w* N(mu*, I) + (1 - w*) N(-mu*, I), |mu*| = R, in d dimensions.

    Args:
        dimension: d, at least 5.
        radius: R.
        heavy_weight: w*.
        samples: n, fresh at every step. Fewer samples mean more noise, which moves the means while they are hot.
        step_size: eta.
    """

    dimension: int
    radius: float
    heavy_weight: float
    samples: int
    step_size: float = 0.05


@dataclass
class ReducedRun:
    """The record of `fit_reduced`.

    Args:
        means: (S, K, K + 1) at the end, the first axis along mu*.
        variances: (S, K) at the end.
        radius: R.
        steps: Recorded steps.
        overlaps: (S, K) m_k = <mu_k, mu*> / R^2 before each recorded step.
        similarity: (S,) s = <mu_1, mu_2> / R^2 before each recorded step.
        variance_path: (S, K) variances before each recorded step.
        failures: Replicas that ended.
    """

    means: Array
    variances: Array
    radius: float
    steps: list[int] = field(default_factory=list)
    overlaps: list[Array] = field(default_factory=list)
    similarity: list[Array] = field(default_factory=list)
    variance_path: list[Array] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def order_parameters(self) -> OrderParameters:
        """m1, m2 and s now."""
        scaled = self.means / self.radius
        return OrderParameters(scaled[:, 0, 0], scaled[:, 1, 0], (scaled[:, 0] * scaled[:, 1]).sum(-1))

    def record(self, step: int) -> None:
        """Keep the present state as that before a step."""
        now = self.order_parameters
        self.steps.append(step)
        self.overlaps.append(np.stack([now.m1, now.m2], -1))
        self.similarity.append(now.s)
        self.variance_path.append(self.variances.copy())


def random_means(replicas: int, dimension: int, radius: float, generator: np.random.Generator) -> Array:
    """Return pairs of independent uniform directions of length R in their own frame, (S, K, K + 1), drawn exactly."""
    means = np.zeros((replicas, 2, 3))
    means[..., 0] = generator.standard_normal((replicas, 2))
    means[..., 1:] = _bartlett(replicas, dimension - 1, generator)
    return radius * means / np.linalg.norm(means, axis=-1, keepdims=True)


def fit_reduced(
    problem: Problem,
    schedule: Schedule,
    *,
    replicas: int,
    steps: int,
    initial_variance: float,
    learn_means: bool = True,
    learn_variances: bool = True,
    means: Array | None = None,
    record_every: int = 0,
    seed: int = 0,
) -> ReducedRun:
    """Take stochastic steps of S replicas, equal in law to steps with all d coordinates; return the record.

    Args:
        problem: Problem to learn.
        schedule: beta of the step, which is eta / beta(t) long.
        replicas: S.
        steps: Number of steps.
        initial_variance: Variance of both components at the start.
        learn_means: Whether the means move.
        learn_variances: Whether the variances move.
        means: (S, K, K + 1) at the start; None: uniform directions.
        record_every: Steps between records; 0: never.
        seed: Seed of starts and samples.

    Raises:
        UserError: there are fewer than 5 dimensions.
    """
    Bounds(ge=5).check("dimension", problem.dimension)
    generator = np.random.default_rng(seed)
    if means is None:
        means = random_means(replicas, problem.dimension, problem.radius, generator)
    means, variances = np.array(means, np.float64), np.full((replicas, 2), float(initial_variance))
    run = ReducedRun(means, variances, problem.radius)
    chunk = max(1, _CHUNK_SAMPLES // problem.samples)
    alive = np.arange(replicas)
    for step in range(steps + 1):
        if record_every and step % record_every == 0:
            run.record(step)
        if step == steps or not len(alive):
            break
        beta = schedule(float(step))
        ended: list[int] = []
        for part in np.split(alive, range(chunk, len(alive), chunk)):
            with np.errstate(all="ignore"):  # replicas that are not finite end here
                inside, outside, of_variances = _gradient(means[part], variances[part], problem, beta, generator)
                rate = problem.step_size / beta
                new_means, new_variances = means[part], variances[part]
                if learn_means:
                    new_means = _retract(new_means - rate * inside, rate**2 * outside, problem, generator)
                if learn_variances:
                    new_variances = new_variances * (1 - 2 * rate / problem.dimension * of_variances) ** 2
            # A loss is finite exactly if its gradient is.
            finite = np.isfinite([inside, new_means]).all((0, 2, 3)) & np.isfinite([of_variances, new_variances]).all(
                (0, 2)
            )
            means[part[finite]], variances[part[finite]] = new_means[finite], new_variances[finite]
            ended += part[~finite].tolist()
        run.failures += [Failure(replica, step) for replica in ended]
        alive = np.setdiff1d(alive, ended)
    return run


def _gradient(
    means: Array, variances: Array, problem: Problem, beta: float, generator: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Return the gradient of E_q[log q - beta log pi]: of means in the frame, (S, K, K + 1), the covariance of each
    coordinate outside of it, (S, K, K), and of variances, (S, K).

    With r_jk the posterior of component k for sample x_j = mu_k + sigma_k noise_j, and v_j = (d log q - beta d log pi)
    / dx at x_j, the gradient of mu_k is the mean over samples of 1{k_j = k} v_j + r_jk (x_j - mu_k) / sigma_k^2. The
    second part, the score of q's own parameters, has mean zero; it is kept, as in the reference code.

    Arrays of samples are float32 and end in n: their rounding is far below the noise of drawing n samples. The large
    term that all samples share, d / 2 log sigma_k^2, is subtracted in float64 before.
    """
    replicas, _, axes = means.shape
    n, outer = problem.samples, problem.dimension - axes
    # Only the number of samples of each component matters.
    last = np.cumsum(generator.multinomial(n, _WEIGHTS, size=replicas), 1)[..., None]
    place = np.arange(n)
    own = ((place < last) & (place >= np.concatenate([0 * last[:, :1], last[:, :-1]], 1))).astype(np.float32)
    noise = generator.standard_normal((replicas, axes, n), dtype=np.float32)
    outer_noise = 2 * generator.standard_gamma(outer / 2, (replicas, n), dtype=np.float32)

    normalizer = np.log(_WEIGHTS) - 0.5 * problem.dimension * np.log(variances)
    centers, widths = means.astype(np.float32), variances.astype(np.float32)
    sigma = (np.sqrt(widths)[:, None] @ own)[:, 0]
    x = centers.mT @ own + sigma[:, None] * noise
    outer_squared = sigma * sigma * outer_noise
    length = np.einsum("san,san->sn", x, x) + outer_squared

    scaled = (length[:, None] - 2 * (centers @ x) + np.float32(problem.radius**2)) / widths[..., None]
    joint = (normalizer - normalizer[:, :1]).astype(np.float32)[..., None] - 0.5 * scaled
    joint -= joint.max(1, keepdims=True)
    posterior = np.exp(joint, out=joint)
    posterior /= posterior.sum(1, keepdims=True)

    # log pi = -(|x|^2 + R^2) / 2 + log(w e^{R x1} + (1 - w) e^{-R x1}) + constant; the slope along mu* is R tanh.
    half_odds = 0.5 * math.log(problem.heavy_weight / (1 - problem.heavy_weight))
    weighted = posterior / widths[..., None]
    # v = d(log q - beta log pi)/dx = sum_k r_k / sigma_k^2 mu_k + (beta - sum_k r_k / sigma_k^2) x - beta tanh mu*
    stretch = np.float32(beta) - weighted.sum(1)
    v = centers.mT @ weighted + stretch[:, None] * x
    v[:, 0] -= np.float32(beta * problem.radius) * np.tanh(np.float32(problem.radius) * x[:, 0] + np.float32(half_odds))

    inside = (own @ v.mT + weighted @ x.mT - weighted.sum(-1)[..., None] * centers) / n
    coefficient = own * stretch[:, None] + weighted
    outside = (coefficient * outer_squared[:, None]) @ coefficient.mT / (outer * n**2)
    # v . noise: the coordinates of the frame, and stretch * sigma |noise_perp|^2 for the others.
    product = np.einsum("san,san->sn", v, noise) + stretch * sigma * outer_noise
    along = (own @ product[..., None])[..., 0] / np.sqrt(variances)
    spread = np.einsum("skn,skn->sk", posterior, scaled - np.float32(problem.dimension)) / widths
    return inside.astype(np.float64), outside.astype(np.float64), 0.5 * (along + spread).astype(np.float64) / n


def _retract(inside: Array, covariance: Array, problem: Problem, generator: np.random.Generator) -> Array:
    """Return means on the sphere, (S, K, K + 1), in a frame that holds what they have outside the old one.

    `inside` has their coordinates in the old frame, `covariance` (S, K, K) is that of each orthogonal coordinate.
    """
    replicas, _, axes = inside.shape
    outside = _cholesky(covariance) @ _bartlett(replicas, problem.dimension - axes, generator)
    rest = inside[..., 1:]
    means = np.empty_like(inside)
    means[..., 0] = inside[..., 0]
    means[..., 1:] = _cholesky(rest @ rest.mT + outside @ outside.mT)
    return problem.radius * means / np.linalg.norm(means, axis=-1, keepdims=True)


def _bartlett(replicas: int, freedom: int, generator: np.random.Generator) -> Array:
    """Draw lower triangular A (S, 2, 2) with A A^T ~ Wishart(identity, freedom)."""
    lower = np.tril(generator.standard_normal((replicas, 2, 2)), -1)
    for k in range(2):
        lower[:, k, k] = np.sqrt(generator.chisquare(freedom - k, replicas))
    return lower


def _cholesky(gram: Array) -> Array:
    """Return lower triangular L with L L^T = gram, (S, 2, 2). Pivots that rounding makes negative are 0."""
    lower = np.zeros_like(gram)
    pivot = lower[:, 0, 0] = np.sqrt(np.maximum(gram[:, 0, 0], 0.0))
    np.divide(gram[:, 1, 0], pivot, out=lower[:, 1, 0], where=pivot > 0)
    lower[:, 1, 1] = np.sqrt(np.maximum(gram[:, 1, 1] - lower[:, 1, 0] ** 2, 0.0))
    return lower
