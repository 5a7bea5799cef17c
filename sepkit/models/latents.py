"""Latent families: how raw network output becomes a posterior over encodings or masks.

A family owns the activation from raw values to parameters, and says how many raw values it needs for each latent
dimension (P). The family `Deterministic` has points as posteriors: the usual network. A family is a plain object
without weights of its own; its `posterior` satisfies `sepkit.types.Latent`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from sepkit.config import BetaConfig, DeterministicConfig, GammaConfig, GaussianConfig, LogNormalConfig
from sepkit.errors import UserError
from sepkit.models.distributions import (
    BetaDistribution,
    Distribution,
    GammaDistribution,
    LogNormalDistribution,
    NormalDistribution,
)
from sepkit.models.runtime import at_least_float32
from sepkit.registry import register
from sepkit.types import Latent

FLOOR = 1e-6
"""The least value of a positive parameter (thesis, appendix J)."""


class LatentFamily(ABC):
    """How raw network output becomes a posterior.

    Attributes:
        values_per_dimension: Raw values that the network makes for each latent dimension (P).
        activation: Name of the map from the first raw value to the (mean or median) value.
        variational: Whether posteriors have a width: they are sampled in training, and have a rate.
    """

    values_per_dimension: ClassVar[int]
    variational: ClassVar[bool]
    activation: str

    @abstractmethod
    def posterior(self, raw: Tensor) -> Any:
        """Return the posterior for raw values, with samples of shape (..., K, F), float32 at least.

        Args:
            raw: Network output, (..., P, K, F).

        Raises:
            ValueError: The values axis (-3) does not have length P.
        """

    def at_test(self, posterior: Latent) -> Tensor:
        """Return the value that represents a posterior if nothing is sampled: its mean."""
        return posterior.mean

    def value(self, raw: Tensor) -> Tensor:
        """Return what `at_test` does of the posterior for raw values, and compute no more than that needs.

        Args:
            raw: Network output, (..., P, K, F).
        """
        return self.at_test(self.posterior(raw))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(activation={self.activation!r})"


# Nothing that cannot be pickled, as a lambda, because models are sent to other processes.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": torch.nn.Identity(),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=-3),
    "softplus": torch.nn.functional.softplus,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
}


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in _ACTIVATIONS:
        raise UserError(f"activation: found {name!r}, expected one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


@dataclass(frozen=True)
class Point:
    """The posterior that puts all its mass on one value; value is (..., K, F)."""

    value: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample."""
        return self.value.shape

    @property
    def mean(self) -> Tensor:
        """The value."""
        return self.value

    @property
    def variance(self) -> Tensor:
        """Zeros."""
        return torch.zeros_like(self.value)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """The value; nothing is drawn."""
        return self.value

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the elementwise log probability mass in nats: 0 where the point is, -inf elsewhere."""
        return torch.zeros_like(self.value).where(value == self.value, torch.full_like(self.value, -torch.inf))

    def kl(self, prior: Any) -> Tensor:
        """Return elementwise zeros: a point carries no rate term."""
        return torch.zeros_like(self.value)


@register(DeterministicConfig)
class Deterministic(LatentFamily):
    """The family of points: value = activation(raw), one raw value per dimension, rate 0.

    Args:
        activation: Name of the activation, such as "relu", "linear" or "sigmoid".
    """

    values_per_dimension = 1
    variational = False

    def __init__(self, activation: str = "relu") -> None:
        self._to_value = _activation(activation)
        self.activation = activation

    def posterior(self, raw: Tensor) -> Point:
        """Return the point of shape (..., K, F) at activation(raw).

        Args:
            raw: (..., 1, K, F) network output; (B, n, 1, K, F) for masks.

        Raises:
            ValueError: the values axis (-3) does not have length 1.
        """
        return Point(self._to_value(*_values(raw, 1)))


class VariationalFamily(LatentFamily):
    """A family whose posteriors have a width, and therefore a rate.

    Attributes:
        distribution: Type of the posteriors.
        standard_parameters: Parameters of the family's default prior.
    """

    variational = True
    distribution: ClassVar[type[Distribution]]
    standard_parameters: ClassVar[tuple[float, ...]]

    def standard_prior(self) -> Distribution:
        """Return the family's default prior, of scalars."""
        return self.distribution(*map(_scalar, self.standard_parameters))


@register(GaussianConfig)
class Gaussian(VariationalFamily):
    """N(activation(raw_0), softplus(raw_1)^2); prior N(0, 1).

    Args:
        activation: Name of the activation of the mean.

    Source: thesis, eq. 3 and appendix J (floor of 1e-6 under the deviation).
    """

    values_per_dimension = 2
    distribution = NormalDistribution
    standard_parameters = (0.0, 1.0)

    def __init__(self, activation: str = "linear") -> None:
        self.activation = activation
        self._to_mean = _activation(activation)

    def posterior(self, raw: Tensor) -> NormalDistribution:
        """Return the normal distributions of raw means and deviations.

        Args:
            raw: Values of the masker or encoder, (..., 2, K, F).
        """
        mean, deviation = _values(raw, 2)
        return NormalDistribution(self._to_mean(mean), _positive(deviation))

    def value(self, raw: Tensor) -> Tensor:
        """Return the activation of the first raw value: mean and median.

        Args:
            raw: Values of the masker or encoder, (..., 2, K, F).
        """
        mean, _ = _values(raw, 2)
        return self._to_mean(mean)


@register(LogNormalConfig)
class LogNormal(VariationalFamily):
    """exp(u), u ~ N(raw_0, softplus(raw_1)^2); prior LN(0, 1). Its median is exp(raw_0): the activation is exp.

    Source: thesis, eq. 4 and 42; the prior is that of appendix F (eq. 35 has a location of 0.9).
    """

    values_per_dimension = 2
    activation = "exp"
    distribution = LogNormalDistribution
    standard_parameters = (0.0, 1.0)

    def posterior(self, raw: Tensor) -> LogNormalDistribution:
        """Return the log-normal distributions of raw locations and deviations.

        Args:
            raw: Values of the masker or encoder, (..., 2, K, F).
        """
        location, deviation = _values(raw, 2)
        return LogNormalDistribution(location, _positive(deviation))

    def at_test(self, posterior: Latent) -> Tensor:
        """Return the posterior's median.

        Args:
            posterior: Result of `posterior`.
        """
        assert isinstance(posterior, LogNormalDistribution)
        return posterior.median


@register(GammaConfig)
class Gamma(VariationalFamily):
    """Gamma(softplus(raw), 1), one raw value for each dimension; prior Gamma(1/2, 1). Its activation is softplus.

    Source: thesis, eq. 40.
    """

    values_per_dimension = 1
    activation = "softplus"
    distribution = GammaDistribution
    standard_parameters = (0.5, 1.0)

    def posterior(self, raw: Tensor) -> GammaDistribution:
        """Return the gamma distributions of raw concentrations.

        Args:
            raw: Values of the masker or encoder, (..., 1, K, F).
        """
        (concentration,) = _values(raw, 1)
        return GammaDistribution(_positive(concentration), _scalar(1.0))


@register(BetaConfig)
class Beta(VariationalFamily):
    """Beta(softplus(raw_0), softplus(raw_1)) on (0, 1); prior Beta(1, 1).

    The first value pulls masks to one and the second to zero. This is equation 41 in the usual order of a beta
    distribution's parameters, Beta(alpha, beta). The thesis's text below that equation says the opposite; the two
    readings differ only in the names of the network's outputs.

    Source: thesis, eq. 41.
    """

    values_per_dimension = 2
    activation = "softplus"
    distribution = BetaDistribution
    standard_parameters = (1.0, 1.0)

    def posterior(self, raw: Tensor) -> BetaDistribution:
        """Return the beta distributions of raw concentrations.

        Args:
            raw: Values of the masker or encoder, (..., 2, K, F).
        """
        alpha, beta = _values(raw, 2)
        return BetaDistribution(_positive(alpha), _positive(beta))


def _values(raw: Tensor, count: int) -> tuple[Tensor, ...]:
    """Return the `count` raw values of every dimension, each (..., K, F), in float32 at least."""
    if raw.ndim < 3 or raw.shape[-3] != count:
        raise ValueError(f"raw values have shape {tuple(raw.shape)}, expected (..., {count}, K, F)")
    return (at_least_float32(raw) if count > 1 else raw).unbind(-3)


def _positive(raw: Tensor) -> Tensor:
    return torch.nn.functional.softplus(at_least_float32(raw)).clamp_min(FLOOR)


def _scalar(value: float) -> Tensor:
    # A tensor without dimensions takes on the precision and device of its partner in an operation.
    return torch.tensor(value, dtype=torch.float64)
