"""Distributions of latents and priors: sample, log density, and rate in closed form.

torch.distributions is not used: its objects validate and broadcast at each construction, and take no generator. All
classes satisfy `sepkit.types.Latent`. Parameters broadcast against each other, so that a prior may be a distribution of
scalars.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class _OfTwoParameters:
    """A distribution with two parameters, whose shapes broadcast."""

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample."""
        # torch.broadcast_shapes imports 500 modules of torch's compiler at its first call, most of a second.
        return torch.broadcast_tensors(*vars(self).values())[0].shape


@dataclass(frozen=True)
class NormalDistribution(_OfTwoParameters):
    """N(mean, deviation^2), elementwise.

    Args:
        mean: any shape.
        deviation: > 0, of a shape that broadcasts with `mean`.
    """

    mean: Tensor
    deviation: Tensor

    @property
    def variance(self) -> Tensor:
        """deviation^2."""
        return self.deviation.square()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return mean + deviation * noise."""
        dtype, device = self.mean.dtype, self.mean.device
        return self.mean + self.deviation * torch.randn(self.shape, generator=generator, dtype=dtype, device=device)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the elementwise log density in nats."""
        return -0.5 * ((value - self.mean) / self.deviation).square() - self.deviation.log() - _HALF_LOG_2PI

    def kl(self, prior: Any) -> Tensor:
        """Return the elementwise log(s'/s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2 to a prior N(m', s'^2), nats."""
        prior = _same_kind(self, prior)
        squares = (self.deviation.square() + (self.mean - prior.mean).square()) / (2 * prior.deviation.square())
        return squares - self.deviation.log() + (prior.deviation.log() - 0.5)


@dataclass(frozen=True)
class LogNormalDistribution(_OfTwoParameters):
    """The distribution of exp(u), u ~ N(location, deviation^2), elementwise.

    Args:
        location: any shape.
        deviation: > 0, of a shape that broadcasts with `location`.
    """

    location: Tensor
    deviation: Tensor

    @property
    def logarithm(self) -> NormalDistribution:
        """The distribution of the logarithm."""
        return NormalDistribution(self.location, self.deviation)

    @property
    def mean(self) -> Tensor:
        """exp(location + deviation^2 / 2)."""
        return (self.location + self.deviation.square() / 2).exp()

    @property
    def median(self) -> Tensor:
        """exp(location)."""
        return self.location.exp()

    @property
    def variance(self) -> Tensor:
        """(exp(deviation^2) - 1) exp(2 location + deviation^2)."""
        return self.deviation.square().expm1() * self.mean.square()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return exp(location + deviation * noise)."""
        return self.logarithm.sample(generator).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the elementwise log density in nats."""
        logarithm = value.clamp_min(_tiny(value)).log()
        return self.logarithm.log_prob(logarithm) - logarithm

    def kl(self, prior: Any) -> Tensor:
        """Return the elementwise KL to a log-normal prior, that of the logarithms, nats."""
        return self.logarithm.kl(_same_kind(self, prior).logarithm)


@dataclass(frozen=True)
class GammaDistribution(_OfTwoParameters):
    """Density rate^c x^(c - 1) exp(-rate x) / Gamma(c), elementwise.

    Args:
        concentration: c > 0, any shape.
        rate: > 0, of a shape that broadcasts with `concentration`.
    """

    concentration: Tensor
    rate: Tensor

    @property
    def mean(self) -> Tensor:
        """concentration / rate."""
        return self.concentration / self.rate

    @property
    def variance(self) -> Tensor:
        """concentration / rate^2."""
        return self.concentration / self.rate.square()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A sample with implicit gradient to the concentration. Underflow gives the smallest normal number.

        Source: Figurnov et al., "Implicit reparameterization gradients", 2018.
        """
        concentration = self.concentration.expand(self.shape)
        drawn = torch._standard_gamma(concentration, generator)  # type: ignore[attr-defined]
        return drawn.clamp_min(_tiny(drawn)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the elementwise log density in nats."""
        logarithm = value.clamp_min(_tiny(value)).log()
        constant = self.concentration * self.rate.log() - torch.lgamma(self.concentration)
        return (self.concentration - 1) * logarithm - self.rate * value + constant

    def kl(self, prior: Any) -> Tensor:
        """Return the elementwise KL to a gamma prior (c', r'), nats.

        (c - c') psi(c) - log Gamma(c) + log Gamma(c') + c' log(r / r') + c (r' / r - 1)
        """
        prior = _same_kind(self, prior)
        mine, other = self.concentration, prior.concentration
        return (
            (mine - other) * torch.digamma(mine)
            - torch.lgamma(mine)
            + torch.lgamma(other)
            + other * (self.rate / prior.rate).log()
            + mine * (prior.rate / self.rate - 1)
        )


@dataclass(frozen=True)
class BetaDistribution(_OfTwoParameters):
    """Density x^(alpha - 1) (1 - x)^(beta - 1) / B(alpha, beta) on (0, 1), elementwise.

    Args:
        alpha: > 0; the larger, the closer to one.
        beta: > 0; the larger, the closer to zero. Of a shape that broadcasts with `alpha`.
    """

    alpha: Tensor
    beta: Tensor

    @property
    def mean(self) -> Tensor:
        """alpha / (alpha + beta)."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def variance(self) -> Tensor:
        """alpha beta / ((alpha + beta)^2 (alpha + beta + 1))."""
        return self.mean * (1 - self.mean) / (self.alpha + self.beta + 1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return sigmoid(log a - log b) of gamma samples a, b; strictly inside (0, 1).

        The gammas are drawn as logarithms of Gamma(c + 1) U^(1 / c). For small concentrations these neither underflow
        nor lose their gradient.
        """
        first, second = (_log_gamma_sample(part, self.shape, generator) for part in (self.alpha, self.beta))
        logit = first - second
        return logit.sigmoid().clamp(_tiny(logit), 1 - torch.finfo(logit.dtype).eps)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the elementwise log density in nats."""
        inside = value.clamp(_tiny(value), 1 - torch.finfo(value.dtype).eps)
        return (self.alpha - 1) * inside.log() + (self.beta - 1) * torch.log1p(-inside) - self._log_normalizer()

    def kl(self, prior: Any) -> Tensor:
        """Return the elementwise KL to a beta prior (alpha', beta'), nats.

        log B(alpha', beta') - log B(alpha, beta) + (alpha - alpha') psi(alpha) + (beta - beta') psi(beta)
        - (alpha - alpha' + beta - beta') psi(alpha + beta)
        """
        prior = _same_kind(self, prior)
        more_ones, more_zeros = self.alpha - prior.alpha, self.beta - prior.beta
        return (
            prior._log_normalizer()
            - self._log_normalizer()
            + more_ones * torch.digamma(self.alpha)
            + more_zeros * torch.digamma(self.beta)
            - (more_ones + more_zeros) * torch.digamma(self.alpha + self.beta)
        )

    def _log_normalizer(self) -> Tensor:
        return torch.lgamma(self.alpha) + torch.lgamma(self.beta) - torch.lgamma(self.alpha + self.beta)


Distribution = NormalDistribution | LogNormalDistribution | GammaDistribution | BetaDistribution


def _same_kind(posterior: Any, prior: Any) -> Any:
    if type(prior) is not type(posterior):
        raise TypeError(
            f"the rate of a {type(posterior).__name__} from a {type(prior).__name__} has no closed form here;"
            " estimate it from a sample (estimator: sample)"
        )
    return prior


def _log_gamma_sample(concentration: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Return the logarithm of a sample of Gamma(concentration, 1), reparameterized."""
    concentration = concentration.expand(shape)
    boosted = torch._standard_gamma(concentration + 1, generator).log()  # type: ignore[attr-defined]
    uniform = torch.rand(shape, generator=generator, dtype=concentration.dtype, device=concentration.device)
    return boosted + uniform.clamp_min(_tiny(uniform)).log() / concentration


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
