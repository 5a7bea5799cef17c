"""The stochastic update of `mixtures` for two equal components in three coordinates, for any dimension d.

The K = 2 means and mu* span K + 1 axes. Samples enter only through their coordinates there and through |z_perp|^2 in
the other d - K - 1 dimensions, which is chi-squared. Outside the frame the gradient adds sum_j c_jk z_perp,j to the
means: K vectors of which only the Gram matrix matters. Given the norms, the directions of the z_perp,j are uniform.
Their sum over n samples is therefore Gaussian up to terms of order 1 / n, and the Gram matrix has a Wishart
distribution. It is drawn by Bartlett's decomposition, and the means are written in a new frame.

d = 512 costs the same as d = 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sepkit.errors import UserError
from sepkit.schedules import Schedule
from sepkit.studies.annealed_inference.mixtures import Failure
from sepkit.studies.annealed_inference.order_parameters import OrderParameters

Array = NDArray[np.float64]

_WEIGHTS = np.array([0.5, 0.5])
# Most samples of replicas that are stepped together: their arrays stay in the processor's cache.
_CHUNK_SAMPLES = 16_384


@dataclass
class ReducedRun:
    """The record of `fit_reduced`.

    Args:
        means: (S, K, K + 1) at the end, the first axis along mu*.
        overlaps: (len(steps), S, K) m_k at each recorded step, before it.
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
        """m1, m2 and s of the first two components at the end."""
        m = self.means[..., 0] / self.radius
        return OrderParameters(m[:, 0], m[:, 1], _similarity(self.means, self.radius))


def random_means(replicas: int, dimension: int, radius: float, generator: np.random.Generator) -> Array:
    """Return pairs of independent uniform directions of length R in their own frame, (S, K, K + 1), drawn exactly."""
    means = np.zeros((replicas, 2, 3))
    means[..., 0] = generator.standard_normal((replicas, 2))
    means[..., 1:] = _bartlett(replicas, 2, dimension - 1, generator)
    return radius * means / np.linalg.norm(means, axis=-1, keepdims=True)


def fit_reduced(
    schedule: Schedule,
    *,
    replicas: int,
    steps: int,
    samples: int,
    dimension: int,
    radius: float,
    heavy_weight: float,
    initial_variance: float,
    step_size: float = 0.05,
    learn_means: bool = True,
    learn_variances: bool = True,
    means: Array | None = None,
    record_every: int = 0,
    seed: int = 0,
) -> ReducedRun:
    """Take `steps` stochastic steps of S replicas on the sphere, equal in law to `fit_mixtures`; return the record.

    Args:
        schedule: beta of the step, which is eta / beta(t) long.
        samples: n, fresh at every step. Fewer samples mean more noise, which moves the means while they are hot.
        dimension: d, at least 5.
        means: (S, K, K + 1) at the start; None: uniform directions.
    """
    if dimension < 5:
        raise UserError(f"dimension: found {dimension}, expected 5 or more")
    generator = np.random.default_rng(seed)
    if means is None:
        means = random_means(replicas, dimension, radius, generator)
    state = _State(np.array(means, np.float64), np.full((replicas, 2), float(initial_variance)))
    run = ReducedRun(state.means, state.variances, radius)
    problem = _Problem(dimension, radius, heavy_weight, samples)
    chunk = max(1, _CHUNK_SAMPLES // samples)
    alive = np.arange(replicas)
    for step in range(steps + 1):
        if record_every and step % record_every == 0:
            _record(run, state, step)
        if step == steps or not len(alive):
            break
        beta = schedule(float(step))
        ended: list[int] = []
        for part in np.split(alive, range(chunk, len(alive), chunk)):
            moved, finite = _step(
                state.of(part), problem, beta, step_size / beta, generator, learn_means, learn_variances
            )
            kept = part[finite]
            state.means[kept], state.variances[kept] = moved.means[finite], moved.variances[finite]
            ended += part[~finite].tolist()
        if ended:
            run.failures += [Failure(replica, step) for replica in ended]
            alive = np.setdiff1d(alive, ended)
    run.means, run.variances = state.means, state.variances
    return run


@dataclass
class _State:
    means: Array
    variances: Array

    def of(self, replicas: NDArray[np.intp]) -> _State:
        return _State(self.means[replicas], self.variances[replicas])


@dataclass(frozen=True)
class _Problem:
    dimension: int
    radius: float
    heavy_weight: float
    samples: int


def _step(
    state: _State,
    problem: _Problem,
    beta: float,
    rate: float,
    generator: np.random.Generator,
    learn_means: bool,
    learn_variances: bool,
) -> tuple[_State, NDArray[np.bool_]]:
    means, variances = state.means, state.variances
    with np.errstate(all="ignore"):  # the caller stops replicas that are not finite
        gradient = _gradient(state, problem, beta, generator)
        # A loss is finite exactly if its gradient is.
        finite = np.isfinite(gradient.inside).all((1, 2)) & np.isfinite(gradient.variances).all(1)
        if learn_means:
            means = _retract(means - rate * gradient.inside, rate**2 * gradient.outside, problem, generator)
        if learn_variances:
            variances = variances * (1 - 2 * rate / problem.dimension * gradient.variances) ** 2
    finite &= np.isfinite(means).all((1, 2)) & np.isfinite(variances).all(1)
    return _State(means, variances), np.asarray(finite)


@dataclass(frozen=True)
class _ReducedGradient:
    """(S, K, K + 1) in the frame, (S, K, K) covariance of each orthogonal coordinate, (S, K) of variances."""

    inside: Array
    outside: Array
    variances: Array


def _gradient(state: _State, problem: _Problem, beta: float, generator: np.random.Generator) -> _ReducedGradient:
    """Return the gradient of `mixtures.reverse_kl_gradient`, with the part outside the frame as a covariance.

    Arrays of samples are float32 and end in n: their rounding is far below the noise of drawing n samples. The large
    term that all samples share, d / 2 log sigma_k^2, is subtracted in float64 before.
    """
    replicas, _, axes = state.means.shape
    n, outer = problem.samples, problem.dimension - axes
    # Only the number of samples of each component matters.
    last = np.cumsum(generator.multinomial(n, _WEIGHTS, size=replicas), 1)[..., None]
    place = np.arange(n)
    own = ((place < last) & (place >= np.concatenate([0 * last[:, :1], last[:, :-1]], 1))).astype(np.float32)
    noise = generator.standard_normal((replicas, axes, n), dtype=np.float32)
    outer_noise = 2 * generator.standard_gamma(outer / 2, (replicas, n), dtype=np.float32)

    means, variances = state.means.astype(np.float32), state.variances.astype(np.float32)
    sigma = (np.sqrt(variances)[:, None] @ own)[:, 0]
    x = means.mT @ own + sigma[:, None] * noise
    outer_squared = sigma * sigma * outer_noise
    length = np.einsum("san,san->sn", x, x) + outer_squared

    squared = length[:, None] - 2 * (means @ x) + np.float32(problem.radius**2)
    scaled = squared / variances[..., None]
    normalizer = np.log(_WEIGHTS) - 0.5 * problem.dimension * np.log(state.variances)
    joint = (normalizer - normalizer[:, :1]).astype(np.float32)[..., None] - 0.5 * scaled
    joint -= joint.max(1, keepdims=True)
    posterior = np.exp(joint, out=joint)
    posterior /= posterior.sum(1, keepdims=True)

    # log pi = -(|x|^2 + R^2) / 2 + log(w e^{R x1} + (1 - w) e^{-R x1}) + constant; the slope along mu* is R tanh.
    half_odds = 0.5 * math.log(problem.heavy_weight / (1 - problem.heavy_weight))
    weighted = posterior / variances[..., None]
    # v = d(log q - beta log pi)/dx = sum_k r_k / sigma_k^2 mu_k + (beta - sum_k r_k / sigma_k^2) x - beta tanh mu*
    stretch = np.float32(beta) - weighted.sum(1)
    v = means.mT @ weighted + stretch[:, None] * x
    v[:, 0] -= np.float32(beta * problem.radius) * np.tanh(np.float32(problem.radius) * x[:, 0] + np.float32(half_odds))

    score = weighted @ x.mT - weighted.sum(-1)[..., None] * means
    inside = (own @ v.mT + score) / n
    coefficient = own * stretch[:, None] + weighted
    outside = (coefficient * outer_squared[:, None]) @ coefficient.mT / (outer * n**2)
    # v . noise: the coordinates of the frame, and stretch * sigma |noise_perp|^2 for the others.
    product = np.einsum("san,san->sn", v, noise) + stretch * sigma * outer_noise
    along = (own @ product[..., None])[..., 0] / np.sqrt(variances)
    spread = np.einsum("skn,skn->sk", posterior, scaled - np.float32(problem.dimension)) / variances
    return _ReducedGradient(*(part.astype(np.float64) for part in (inside, outside, 0.5 * (along + spread) / n)))


def _retract(inside: Array, covariance: Array, problem: _Problem, generator: np.random.Generator) -> Array:
    """Return means on the sphere, (S, K, K + 1), in a frame that holds what they have outside the old one.

    `inside` has their coordinates in the old frame, `covariance` (S, K, K) is that of each orthogonal coordinate.
    """
    replicas, components, axes = inside.shape
    factor = _cholesky(covariance)
    outside = factor @ _bartlett(replicas, components, problem.dimension - axes, generator)
    rest = inside[..., 1:]
    means = np.empty_like(inside)
    means[..., 0] = inside[..., 0]
    means[..., 1:] = _cholesky(rest @ rest.mT + outside @ outside.mT)
    return problem.radius * means / np.linalg.norm(means, axis=-1, keepdims=True)


def _bartlett(replicas: int, components: int, freedom: int, generator: np.random.Generator) -> Array:
    """Draw lower triangular A (S, K, K) with A A^T ~ Wishart(identity, freedom)."""
    lower = np.tril(generator.standard_normal((replicas, components, components)), -1)
    for k in range(components):
        lower[:, k, k] = np.sqrt(generator.chisquare(freedom - k, replicas))
    return lower


def _cholesky(gram: Array) -> Array:
    """Return lower triangular L with L L^T = gram, (S, K, K). Pivots that rounding makes negative are 0."""
    size = gram.shape[-1]
    lower = np.zeros_like(gram)
    for k in range(size):
        rest = gram[:, k:, k] - (lower[:, k:, :k] @ lower[:, k, :k, None])[..., 0]
        pivot = np.sqrt(np.maximum(rest[:, 0], 0.0))
        lower[:, k, k] = pivot
        np.divide(rest[:, 1:], pivot[:, None], out=lower[:, k + 1 :, k], where=pivot[:, None] > 0)
    return lower


def _similarity(means: Array, radius: float) -> Array:
    return (means[:, 0] * means[:, 1]).sum(-1) / radius**2


def _record(run: ReducedRun, state: _State, step: int) -> None:
    run.steps.append(step)
    run.overlaps.append(state.means[..., 0] / run.radius)
    run.similarity.append(_similarity(state.means, run.radius))
    run.variance_path.append(state.variances.copy())
