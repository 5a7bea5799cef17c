"""Isotropic Gaussian mixtures, learned by annealed variational inference: many replicas in one tensor.

A student mixture q is fitted to a target pi ** beta by stochastic gradient steps on E_q[log q - beta log pi]. The steps
are those of a JKO scheme: plain on means, multiplicative on variances. Every sample here has all its d coordinates;
`reduced` computes the same at the cost of three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sepkit.schedules import Schedule

# Most numbers in the samples of replicas that are stepped together.
_CHUNK_NUMBERS = 4_000_000


@dataclass(frozen=True)
class Mixture:
    """A mixture of isotropic Gaussians sum_k w_k N(mu_k, sigma_k^2 I), or S replicas of one.

    Args:
        means: (..., K, d).
        variances: (..., K), > 0.
        weights: (K,), > 0, their sum is 1. They are never learned.
    """

    means: Tensor
    variances: Tensor
    weights: Tensor

    @property
    def dimension(self) -> int:
        """d."""
        return self.means.shape[-1]

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density at x, (..., n, d), as (..., n) nats."""
        squared = (x.unsqueeze(-2) - self.means.unsqueeze(-3)).square().sum(-1)
        variances = self.variances.unsqueeze(-2)
        normalizer = 0.5 * self.dimension * (2 * math.pi * variances).log()
        return (self.weights.log() - squared / (2 * variances) - normalizer).logsumexp(-1)

    def place(self, noise: Tensor, components: Tensor) -> Tensor:
        """Return samples mu_k + sigma_k noise of components k, (..., n) int, from noise, as (..., n, d)."""
        means = self.means.gather(-2, components.unsqueeze(-1).expand(*components.shape, self.dimension))
        return means + self.variances.gather(-1, components).sqrt().unsqueeze(-1) * noise


def bimodal_target(dimension: int, radius: float, heavy_weight: float, dtype: torch.dtype = torch.float64) -> Mixture:
    """Return the target w* N(mu*, I) + (1 - w*) N(-mu*, I), mu* of length R along the first axis.

    Source: annealed VI paper, eq. 2.1.
    """
    mean = torch.zeros(dimension, dtype=dtype)
    mean[0] = radius
    weights = torch.tensor([heavy_weight, 1 - heavy_weight], dtype=dtype)
    return Mixture(torch.stack([mean, -mean]), torch.ones(2, dtype=dtype), weights)


def random_student(
    replicas: int,
    dimension: int,
    radius: float,
    variance: float,
    *,
    components: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Mixture:
    """Return S replicas of a student of equal components whose means have uniform directions and length R. Their
    variance is 1 (vanilla), 10 R^2 (covering) or 1 / beta_i (annealed)."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(replicas, components, dimension, generator=generator, dtype=torch.float64)
    means = radius * torch.nn.functional.normalize(directions, dim=-1)
    variances = torch.full((replicas, components), float(variance), dtype=dtype)
    return Mixture(means.to(dtype), variances, torch.full((components,), 1 / components, dtype=dtype))


@dataclass(frozen=True)
class Gradient:
    """The gradient of KL(q | pi^beta), up to log Z_beta the mean of log q - beta log pi, for one draw of samples."""

    means: Tensor
    variances: Tensor
    loss: Tensor


@torch.no_grad()
def reverse_kl_gradient(student: Mixture, target: Mixture, beta: float, noise: Tensor, components: Tensor) -> Gradient:
    """Return the loss's gradient on samples x = mu_k + sigma_k noise, where k is fixed and x moves with the student.

    The noise (..., n, d) is standard normal, k (..., n) int. With r_jk the posterior of component k for sample j, and
    v_j = (d log q - beta d log pi) / dx at x_j, the gradient of mu_k is the mean over samples of 1{k_j = k} v_j + r_jk
    (x_j - mu_k) / sigma_k^2. The second part, the score of q's own parameters, has mean zero; it is kept, as in the
    reference code.

    Source: annealed VI paper, eq. 2.2.
    """
    x = student.place(noise, components)
    count, dimension = x.shape[-2:]
    log_q, posterior = _with_posterior(student, x)
    log_pi, target_posterior = _with_posterior(target, x)
    precision = 1 / student.variances
    weighted = posterior * precision.unsqueeze(-2)
    target_weighted = target_posterior / target.variances
    pull = (
        weighted @ student.means
        - weighted.sum(-1, keepdim=True) * x
        - beta * (target_weighted @ target.means - target_weighted.sum(-1, keepdim=True) * x)
    )
    own = torch.nn.functional.one_hot(components, student.means.shape[-2]).to(x.dtype)
    # The score of mu_k needs sum_j r_jk (x_j - mu_k). One matrix product avoids a tensor of all differences.
    score = precision.unsqueeze(-1) * (posterior.mT @ x - posterior.sum(-2).unsqueeze(-1) * student.means)
    squared = _squared_distances(student, x)
    along = (own * (pull * noise).sum(-1, keepdim=True)).sum(-2)
    spread = (posterior * (squared * precision.unsqueeze(-2) - dimension)).sum(-2)
    return Gradient(
        means=(own.mT @ pull + score) / count,
        variances=0.5 * (along * precision.sqrt() + spread * precision) / count,
        loss=(log_q - beta * log_pi).mean(-1),
    )


def _squared_distances(mixture: Mixture, x: Tensor) -> Tensor:
    """Return (..., n, K) |x - mu_k|^2, by products if the means are much shorter than the rest of x."""
    cross = x @ mixture.means.mT
    return x.square().sum(-1, keepdim=True) - 2 * cross + mixture.means.square().sum(-1).unsqueeze(-2)


def _with_posterior(mixture: Mixture, x: Tensor) -> tuple[Tensor, Tensor]:
    variances = mixture.variances.unsqueeze(-2)
    normalizer = 0.5 * mixture.dimension * (2 * math.pi * variances).log()
    joint = mixture.weights.log() - _squared_distances(mixture, x) / (2 * variances) - normalizer
    log_density = joint.logsumexp(-1)
    return log_density, (joint - log_density.unsqueeze(-1)).exp()


def jko_step(student: Mixture, gradient: Gradient, step_size: float, radius: float) -> Mixture:
    """Return the student one step later.

    mu <- mu - step gradient, then back to length R; sigma^2 <- sigma^2 (1 - 2 step / d gradient)^2. The step is eta /
    beta in the annealed VI paper, which makes the speed of the means independent of beta.

    Source: annealed VI paper, appendix A (A.1, A.2); reference code annealed_vi_gmms.
    """
    means = radius * torch.nn.functional.normalize(student.means - step_size * gradient.means, dim=-1)
    variances = student.variances * (1 - 2 * step_size / student.dimension * gradient.variances).square()
    return replace(student, means=means, variances=variances)


@dataclass(frozen=True)
class Failure:
    """A replica, and the first step whose loss is no longer finite. It keeps its last finite state."""

    replica: int
    step: int

    def __str__(self) -> str:
        return f"replica {self.replica} ends at step {self.step}: its loss is not finite"


@dataclass
class MixtureRun:
    """The record of `fit_mixtures`: the student at the end, and the state before each recorded step.

    Args:
        overlaps: (len(steps), S, K) m_k = <mu_k, mu*> / R^2.
        similarity: (len(steps), S) s = <mu_1, mu_2> / R^2 of the first two components.
    """

    student: Mixture
    steps: list[int] = field(default_factory=list)
    overlaps: list[Tensor] = field(default_factory=list)
    similarity: list[Tensor] = field(default_factory=list)
    variances: list[Tensor] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


@torch.no_grad()
def fit_mixtures(
    student: Mixture,
    target: Mixture,
    schedule: Schedule,
    *,
    steps: int,
    samples: int,
    step_size: float = 0.05,
    record_every: int = 0,
    seed: int = 0,
) -> MixtureRun:
    """Take `steps` stochastic steps of S replicas on the reverse KL divergence from pi ** beta(t); return the record.

    The schedule is beta; a step is eta / beta(t) long and draws fresh samples. The target's first mean is mu*, whose
    length the student's means keep. Order parameters are recorded every `record_every` steps; 0: never.

    Source: annealed VI paper, section 2.
    """
    generator = torch.Generator().manual_seed(seed)
    run = MixtureRun(student)
    radius = float(target.means[0].norm())
    ended = torch.zeros(student.means.shape[0], dtype=torch.bool)
    for step in range(steps + 1):
        if record_every and step % record_every == 0:
            _record(run, target, step)
        if step == steps or bool(ended.all()):
            return run
        beta = schedule(float(step))
        stepped = []
        for part in _chunks(run.student, samples):
            noise_of, components = _draw(part, samples, generator)
            gradient = reverse_kl_gradient(part, target, beta, noise_of, components)
            moved = jko_step(part, gradient, step_size / beta, radius)
            stepped.append((moved.means, moved.variances, gradient.loss))
        means, variances, loss = (torch.cat(parts) for parts in zip(*stepped, strict=True))
        finite = loss.isfinite() & means.isfinite().all(-1).all(-1) & variances.isfinite().all(-1)
        run.failures += [Failure(int(r), step) for r in (~finite & ~ended).nonzero()[:, 0].tolist()]
        ended |= ~finite
        run.student = replace(
            run.student,
            means=torch.where(ended[:, None, None], run.student.means, means),
            variances=torch.where(ended[:, None], run.student.variances, variances),
        )
    return run


def _chunks(student: Mixture, samples: int) -> list[Mixture]:
    size = max(1, _CHUNK_NUMBERS // (samples * student.dimension))
    parts = zip(student.means.split(size), student.variances.split(size), strict=True)
    return [Mixture(means, variances, student.weights) for means, variances in parts]


def _draw(student: Mixture, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    replicas, dimension = student.means.shape[0], student.dimension
    components = torch.multinomial(
        student.weights.float().expand(replicas, -1), samples, replacement=True, generator=generator
    )
    noise = torch.randn(replicas, samples, dimension, generator=generator, dtype=student.means.dtype)
    return noise, components


def _record(run: MixtureRun, target: Mixture, step: int) -> None:
    means = run.student.means
    squared_radius = target.means[0].square().sum()
    run.steps.append(step)
    run.overlaps.append(means @ target.means[0] / squared_radius)
    # A student of one component is compared with itself.
    run.similarity.append((means[:, 0] * means[:, min(1, means.shape[1] - 1)]).sum(-1) / squared_radius)
    run.variances.append(run.student.variances)
