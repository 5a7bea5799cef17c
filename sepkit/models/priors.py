"""Priors of latents: fixed, convolved from the sources' posteriors, or learned.

A prior is a module, because it may have weights that are trained and stored with the model. Called with the encodings
of the sources, if they are known, it returns a density (`sepkit.types.Density`). Latents do not depend on their prior.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

from sepkit.config import AdaptivePriorConfig, FlowPriorConfig, StandardPriorConfig
from sepkit.errors import UserError
from sepkit.models.distributions import Distribution, GammaDistribution, NormalDistribution
from sepkit.models.latents import Gaussian, VariationalFamily
from sepkit.registry import register
from sepkit.types import Density, Latent


class Prior(nn.Module, ABC):
    """The reference from which the rate of an encoding or of masks is measured."""

    needs_sources: ClassVar[bool] = False
    """Whether the density depends on the encodings of the sources."""

    @abstractmethod
    def forward(self, sources: Latent | None = None, active: Tensor | None = None) -> Density:
        """The density of the encoding of a mixture.

        Args:
            sources: posteriors over the encodings of its sources, samples (B, m, K, F); None: not known.
        """

    def of_sources(self) -> Density:
        """The density of the encoding of a single source."""
        return self()


class FixedPrior(Prior):
    """The same distribution of scalars for every dimension, frame and hypothesis.

    Args:
        distribution: parameters without dimensions.
    """

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        self.distribution = distribution

    def forward(self, sources: Latent | None = None, active: Tensor | None = None) -> Distribution:
        """The distribution, whatever the sources."""
        return self.distribution


class AdaptivePrior(Prior):
    """The convolution of the posteriors over the encodings of the sources: the distribution of the sum of encodings.

    Gradients reach the sources' posteriors. If no source is known, it is the prior of a single source.

    Args:
        single: the prior of a single source's encoding.

    Source: thesis, eq. 5 and appendix F.
    """

    needs_sources = True

    def __init__(self, single: Distribution) -> None:
        super().__init__()
        if not isinstance(single, NormalDistribution | GammaDistribution):
            raise UserError(
                "model.encoding_prior: adaptive needs gaussian or gamma encodings, whose sums are of the same family"
            )
        self.single = single

    def forward(self, sources: Latent | None = None, active: Tensor | None = None) -> Distribution:
        """The convolution, samples (B, K, F), or the prior of a single source."""
        return self.single if sources is None else convolution(sources, active, self.single)

    def of_sources(self) -> Distribution:
        """The prior of a single source's encoding."""
        return self.single


def convolution(sources: Latent, active: Tensor | None, otherwise: Distribution) -> Distribution:
    """The distribution of the sum of the active sources' latents.

    It is N(sum of means, sum of variances), or Gamma(sum of concentrations, rate) if all have the same rate.

    Args:
        sources: normal or gamma, parameters (B, m, K, F).
        otherwise: the distribution if no source is active; of the same kind, and, if gamma, of the same rate.

    Raises:
        TypeError: neither normal nor gamma distributions.

    Source: thesis, appendix F.
    """

    def summed(values: Tensor, empty: Tensor) -> Tensor:
        if active is None:
            return values.sum(1)
        total = values.where(active[..., None, None], 0.0).sum(1)
        return total.where(active.any(1)[:, None, None], empty.to(total))

    if isinstance(sources, NormalDistribution) and isinstance(otherwise, NormalDistribution):
        variance = summed(sources.deviation.square(), otherwise.deviation.square())
        return NormalDistribution(summed(sources.mean, otherwise.mean), variance.sqrt())
    if isinstance(sources, GammaDistribution) and isinstance(otherwise, GammaDistribution):
        return GammaDistribution(summed(sources.concentration, otherwise.concentration), sources.rate)
    raise TypeError(f"found {type(sources).__name__}, expected normal or gamma distributions")


class FlowPrior(Prior):
    """A learned prior of the dimensions of a frame: each network adds a function of the earlier dimensions to each one.

    The noise before the first network is N(0, 1). Frames are independent and share the networks. These only
    shift, so that the log-determinant is zero.

    Args:
        encoding_dim: K_full, at least 2.

    Source: thesis, appendix J (its sizes are a guess from the number of parameters); Germain et al., "MADE", 2015.
    """

    def __init__(
        self, encoding_dim: int, transforms: int = 6, hidden_features: int = 1024, hidden_layers: int = 2
    ) -> None:
        super().__init__()
        if encoding_dim < 2:
            raise UserError("model.encoding_prior: a flow shifts dimensions by each other; expected at least 2 of them")
        try:
            from zuko.flows import MaskedAutoregressiveTransform
            from zuko.transforms import AdditiveTransform
        except ImportError:
            raise UserError("model.encoding_prior: flow needs zuko; pip install 'sepkit[flow]'") from None
        # zuko needs the values of its masks, which the meta device (`storage.layout`) does not have.
        with torch.device("cpu") if torch.empty(0).is_meta else nullcontext():
            forwards = torch.arange(encoding_dim)
            self.transforms = nn.ModuleList(
                MaskedAutoregressiveTransform(
                    encoding_dim,
                    order=forwards if number % 2 == 0 else forwards.flip(0),  # type: ignore[arg-type]
                    univariate=AdditiveTransform,
                    shapes=[torch.Size([])],
                    hidden_features=[hidden_features] * hidden_layers,
                )
                for number in range(transforms)
            )

    def forward(self, sources: Latent | None = None, active: Tensor | None = None) -> FlowPrior:
        """Return the density, whatever the sources."""
        return self

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log densities of the noise of each dimension, (..., K, F); their sum over K is that of the frame."""
        return -0.5 * self.noise(value).square() - 0.5 * math.log(2 * math.pi)

    def noise(self, value: Tensor) -> Tensor:
        """Return the noise that encodings come from, (..., K, F)."""
        value = value.transpose(-1, -2)
        for transform in self.transforms:
            value = transform()(value)
        return value.transpose(-1, -2)


# ------------------------------------------------------------------------------------------- from configurations


@register(StandardPriorConfig)
def _standard(family: VariationalFamily, encoding_dim: int) -> FixedPrior:
    return FixedPrior(family.standard_prior())


@register(AdaptivePriorConfig)
def _adaptive(family: VariationalFamily, encoding_dim: int) -> AdaptivePrior:
    return AdaptivePrior(family.standard_prior())


@register(FlowPriorConfig)
def _flow(family: VariationalFamily, encoding_dim: int, **sizes: int) -> FlowPrior:
    if not isinstance(family, Gaussian):
        raise UserError(
            f"model.encoding_prior: flow is a density of real numbers, but encodings are {family!r}; use gaussian ones"
        )
    return FlowPrior(encoding_dim, **sizes)
