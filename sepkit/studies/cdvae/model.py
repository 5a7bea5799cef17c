"""The continuously deep variational autoencoder, and its discrete counterpart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.choices import check_bounds
from sepkit.errors import UserError
from sepkit.models.maskers.continuous_depth import check_depth_steps
from sepkit.models.saved import SavedModel
from sepkit.objectives.rates import elementwise_rate
from sepkit.studies.cdvae.config import KIND, ImageVAEConfig
from sepkit.studies.cdvae.levels import (
    FAMILY,
    BrownianPath,
    ConvBlock,
    ConvDrift,
    DeterministicLevel,
    DiffusionBlock,
    DiscreteLevel,
    LearnedDiffusion,
    gaussian,
)

_HALF_LOG_2PI = 0.9189385332046727
_LEAST_DEVIATION = 1e-3

Source = Literal["posterior", "prior", "top"]
"""Source of the latents: all from the image, none, or only the first state."""


@dataclass
class ImageELBO:
    """The parts of minus the evidence lower bound of B images.

    Args:
        distortion: (B,) minus the log likelihood given the sampled latents, nats.
        initial_rate: (B, C, H W) of every element of the first state, nats.
        path_rates: one a level, (B, C, H W) of every element of the state, nats.
        log_ratio: (B,) log density of the sampled latents under the posterior over that under the prior, nats.
    """

    distortion: Tensor
    initial_rate: Tensor
    path_rates: list[Tensor]
    log_ratio: Tensor

    @property
    def log_weight(self) -> Tensor:
        """(B,) log p(x, z) - log q(z | x): its mean of exponentials over samples bounds the evidence more tightly."""
        return -self.distortion - self.log_ratio


class Noise:
    """The latent noise of a batch: the same for every number of steps."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self._initial: Tensor | None = None
        self._paths: dict[int, BrownianPath] = {}

    def initial(self, like: Tensor) -> Tensor:
        """Return standard normal values; the same at every call."""
        if self._initial is None:
            self._initial = torch.empty_like(like).normal_(generator=self.generator)
        return self._initial

    def path(self, level: int, like: Tensor) -> BrownianPath:
        """Return the Brownian motion of a level; the same at every call."""
        if level not in self._paths:
            self._paths[level] = BrownianPath(like, self.generator)
        return self._paths[level]


class ImageVAE(SavedModel):
    """A hierarchy of latent stochastic differential equations over resolutions, coarse to fine.

    The image goes bottom-up through residual blocks and pooling, which gives a context at each resolution. The coarsest
    one gives the posterior of the first state, whose prior is N(0, 1). On each level the state follows a posterior
    process that sees the level's context; the state at its end, upsampled, is where the next level starts. The state
    at the end of the last level is decoded.

    Source: thesis, part C, figures 1 and 2, appendix A.1.
    """

    kind = KIND
    config_type = ImageVAEConfig

    def __init__(self, config: ImageVAEConfig) -> None:
        super().__init__()
        _check(config)
        self.config = config
        self._chosen: int | None = None
        channels, width = config.latent_channels, config.width
        sizes = [config.size // 2**place for place in range(config.levels)]
        self.input = nn.Conv2d(1, width, 3, padding=1)
        self.bottom_up = nn.ModuleList(
            nn.Sequential(*(ConvBlock(width, width, width, size, residual=True) for _ in range(config.blocks)))
            for size in sizes
        )
        self.top = nn.Conv2d(width, 2 * channels, 1)
        self.levels = nn.ModuleList(_level(config, size) for size in reversed(sizes))
        self.expand = nn.Conv2d(channels, width, 1)
        self.decoder = nn.Sequential(
            *(ConvBlock(width, width, width, config.size, residual=True) for _ in range(config.decoder_blocks))
        )
        self.output = nn.Conv2d(width, 2 if config.likelihood == "gaussian" else 1, 1)

    @property
    def steps(self) -> int | None:
        """Steps of each level in the next call: as set, or as in training; None: discrete blocks."""
        return None if self.config.discrete else self._chosen or self.config.depth_steps

    def set_steps(self, steps: int | None) -> None:
        """Set how many steps the model takes from now on; None: those of the configuration. Discrete blocks refuse
        it."""
        if steps is not None and self.config.discrete:
            raise UserError(f"--depth-steps: found {steps}, but this model has discrete blocks: its depth is fixed")
        self._chosen = None if steps is None else check_depth_steps(steps)

    def diffusions(self) -> list[LearnedDiffusion]:
        """Return the diffusion of each level; none for discrete blocks."""
        return [level.diffusion for level in self.levels if isinstance(level, DiffusionBlock)]

    def contexts(self, images: Tensor) -> list[Tensor]:
        """Return features of the images (B, 1, H, W) at each resolution, (B, width, H, W), coarse to fine."""
        x = self.input(images)
        found = []
        for place, blocks in enumerate(self.bottom_up):
            x = blocks(functional.avg_pool2d(x, 2) if place else x)
            found.append(x)
        return found[::-1]

    def first_state(self, context: Tensor, noise: Noise) -> tuple[Any, Tensor]:
        """Return the posterior of the first state given the coarsest context, and a sample of it, (B, C, H W)."""
        posterior: Any = gaussian(self.top(context))
        return posterior, posterior.mean + posterior.deviation * noise.initial(posterior.mean)

    def forward(self, images: Tensor, noise: Noise | None = None) -> ImageELBO:
        """Return the parts of minus the evidence lower bound of images (B, 1, H, W); the noise may serve several
        calls."""
        noise = noise or Noise()
        contexts = self.contexts(images)
        posterior, start = self.first_state(contexts[0], noise)
        rate = elementwise_rate(posterior, FAMILY.standard_prior(), None, "analytic")
        prior_density = -0.5 * start.square() - _HALF_LOG_2PI
        log_ratio = (posterior.log_prob(start) - prior_density).flatten(1).sum(1)
        start = start.view(len(images), -1, *contexts[0].shape[2:])
        state, rates, ratio = self._descend(start, contexts, noise)
        return ImageELBO(self._nll(images, self.decode(state)), rate, rates, log_ratio + ratio)

    def sample(
        self,
        images: Tensor | None = None,
        count: int = 1,
        source: Source = "prior",
        noise: Noise | None = None,
        draw: bool = False,
    ) -> Tensor:
        """Return the likelihood's mean, (B, 1, H, W): with the posterior's latents, reconstructions, with "top" the
        first state is the image's and the rest the prior's. `draw` samples the likelihood."""
        noise = noise or Noise()
        contexts = None if source == "prior" or images is None else self.contexts(images)
        if contexts is None:
            coarsest = self.config.size // 2 ** (self.config.levels - 1)
            start = noise.initial(self.expand.weight.new_zeros(count, self.config.latent_channels, coarsest, coarsest))
        else:
            _, start = self.first_state(contexts[0], noise)
            start = start.view(len(start), -1, *contexts[0].shape[2:])
        state, _, _ = self._descend(start, contexts if source == "posterior" else None, noise)
        raw = self.decode(state)
        if self.config.likelihood == "bernoulli":
            mean = raw.sigmoid()
            return torch.bernoulli(mean, generator=noise.generator) if draw else mean
        mean, deviation = _pixel_moments(raw)
        return mean + deviation * torch.empty_like(mean).normal_(generator=noise.generator) if draw else mean

    def decode(self, state: Tensor) -> Tensor:
        """Return the raw parameters of the likelihood, (B, 1 or 2, H, W), for the last state (B, C, H, W)."""
        return self.output(functional.gelu(self.decoder(self.expand(state))))

    def _descend(
        self, state: Tensor, contexts: list[Tensor] | None, noise: Noise
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return the last state, the path rate of each level and the log ratio (B,); without contexts the prior's."""
        rates, log_ratio = [], state.new_zeros(len(state))
        for place, level in enumerate(self.levels):
            if place:
                state = functional.interpolate(state, scale_factor=2, mode="nearest")
            context = None if contexts is None else contexts[place]
            if context is not None and self.config.ode_like:
                context = torch.zeros_like(context)
            if isinstance(level, DiffusionBlock):
                path, steps = noise.path(place, state), self.steps or 0
                state, rate, ratio = level(state, context, steps=steps, noise=path, follow_prior=context is None)
            else:
                state, rate, ratio = level(state, context, noise.generator)
            rates.append(rate.flatten(2))
            log_ratio = log_ratio + ratio.flatten(1).sum(1)
        return state, rates, log_ratio

    def _nll(self, images: Tensor, raw: Tensor) -> Tensor:
        if self.config.likelihood == "bernoulli":
            nll = functional.binary_cross_entropy_with_logits(raw, images, reduction="none")
        else:
            mean, deviation = _pixel_moments(raw)
            nll = 0.5 * ((images - mean) / deviation).square() + deviation.log() + _HALF_LOG_2PI
        return nll.flatten(1).sum(1)


def _pixel_moments(raw: Tensor) -> tuple[Tensor, Tensor]:
    mean, raw_deviation = raw.chunk(2, dim=1)
    return mean, functional.softplus(raw_deviation) + _LEAST_DEVIATION


def _level(config: ImageVAEConfig, resolution: int) -> nn.Module:
    channels, hidden = config.latent_channels, config.drift_width
    if config.one_level:
        return DeterministicLevel(config.discrete, channels, hidden, resolution)
    if config.discrete:
        return DiscreteLevel(config.discrete, channels, config.width, hidden, resolution)
    return DiffusionBlock(
        ConvDrift(channels, 0, hidden, resolution),
        ConvDrift(channels, config.width, hidden, resolution),
        LearnedDiffusion(config.initial_diffusion),
    )


def _check(config: ImageVAEConfig) -> None:
    check_bounds(config, "model")
    multiple = 2 ** (config.levels - 1)
    if config.size % multiple:
        raise UserError(
            f"model.size: found {config.size}, expected a multiple of {multiple} for {config.levels} levels"
        )
    if config.one_level and not config.discrete:
        raise UserError("model.one_level: found true without discrete blocks; expected model.discrete of at least 1")
    if config.ode_like and config.discrete:
        raise UserError("model.ode_like: found true with discrete blocks; expected one of the two")
