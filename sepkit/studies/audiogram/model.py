"""The partial VAE in torch: a stack of models that are trained together, each as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sepkit.models.latents import Gaussian
from sepkit.models.saved import SavedModel
from sepkit.models.stacked import StackedLinear, split, uniform
from sepkit.objectives.rates import elementwise_rate
from sepkit.studies.audiogram import network
from sepkit.studies.audiogram.config import KIND, PartialVAEConfig
from sepkit.studies.audiogram.network import TrainedVAE


@dataclass
class PartialELBO:
    """The two parts of minus the partial ELBO, (S, B) nats each: distortion D_p, minus the log density of the observed
    values at a sample of z, and rate R = KL(q(z | x_O) || N(0, 1))."""

    distortion: Tensor
    rate: Tensor


class _Embedding(nn.Module):
    """The descriptors of each dimension: e_d and b_d."""

    def __init__(self, dimensions: int, width: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.values = nn.Parameter(uniform((dimensions, width), 1.0, generators))
        self.bias = nn.Parameter(uniform((dimensions, 1), 1.0, generators))


class PartialVAE(SavedModel):
    """S partial VAEs of one shape; a single model is a stack of one.

    Args:
        seeds: of each model's first weights; None: all 0.

    Source: Ma et al. 2018 and 2019 (PointNet-plus); thesis, part A, section 3.2.
    """

    kind = KIND
    config_type = PartialVAEConfig

    center: Tensor
    scale: Tensor
    noise: Tensor
    low_elbo: Tensor

    def __init__(self, config: PartialVAEConfig, seeds: Sequence[int] | None = None) -> None:
        super().__init__()
        config.check()
        self.config = config
        seeds = [0] * config.models if seeds is None else seeds
        count, dimensions = config.models, len(config.dimensions)
        if len(seeds) != count:
            raise ValueError(f"found {len(seeds)} seeds for {count} models")
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.embedding = _Embedding(dimensions, config.embedding, generators)
        self.shared = StackedLinear(config.embedding + 2, config.features, generators)
        into = [config.features, *config.hidden, 2 * config.latent]
        out = [config.latent, *reversed(config.hidden), 2 * dimensions]
        self.encoder = nn.ModuleList(StackedLinear(a, b, generators) for a, b in pairwise(into))
        self.decoder = nn.ModuleList(StackedLinear(a, b, generators) for a, b in pairwise(out))
        self.family = Gaussian(activation="linear")
        noise = torch.tensor([dimension.noise for dimension in config.dimensions])
        self.register_buffer("center", torch.zeros(count, 1, dimensions))
        self.register_buffer("scale", torch.ones(count, 1, dimensions))
        self.register_buffer("noise", noise.expand(count, 1, dimensions).clone())
        self.register_buffer("low_elbo", torch.full((count, dimensions + 1), torch.nan))

    @classmethod
    def from_config(cls, config: PartialVAEConfig) -> PartialVAE:
        """Return a new stack of models."""
        return cls(config)

    def facts(self) -> dict[str, Any]:
        """Return the names of the dimensions."""
        return {"dimensions": [dimension.name for dimension in self.config.dimensions]}

    def __len__(self) -> int:
        return len(self.center)

    def draw(self, seeds: Sequence[int]) -> None:
        """Draw the weights of each of S models anew, from S seeds."""
        fresh = PartialVAE(self.config, seeds)
        self.load_state_dict(dict(fresh.named_parameters()), strict=False)

    def set_statistics(self, center: np.ndarray, scale: np.ndarray) -> None:
        """Set the mean and the deviation of the training data, in their units, (D,) each."""
        for buffer, values in ((self.center, center), (self.scale, scale)):
            buffer.copy_(torch.as_tensor(values, dtype=buffer.dtype).expand_as(buffer))

    def forward(self, values: Tensor, observed: Tensor, noise: Tensor | None = None) -> PartialELBO:
        """Return the parts of the partial ELBO.

        Args:
            values: (S or 1, B, D) in the data's units; anything, NaN too, where not observed.
            observed: (S or 1, B, D) bool.
            noise: (S or 1, B, L) standard normal numbers that sample z; None: its mean.
        """
        weights = dict(self.named_parameters())
        seen = observed.to(self.center.dtype)
        known = values.where(observed, self.center)
        mean, deviation = network.encode(weights, (known - self.center) / self.scale, seen, torch)
        posterior = self.family.posterior(torch.stack([mean, deviation], dim=-2).unsqueeze(-1))
        z = posterior.mean if noise is None else posterior.mean + posterior.deviation * noise.unsqueeze(-1)
        means, deviations = network.decode(weights, z.squeeze(-1), self.noise / self.scale, torch)
        deviations = deviations * self.scale
        residuals = (known - (means * self.scale + self.center)) / deviations
        nll = 0.5 * residuals.square() + deviations.log() + network.HALF_LOG_2PI
        rate = elementwise_rate(posterior, self.family.standard_prior(), None, "analytic")
        return PartialELBO((nll * seen).sum(-1), rate.sum((-2, -1)))

    def unstack(self) -> list[PartialVAE]:
        """Return each model as a stack of one."""
        models = []
        for state in split(self.state_dict()):
            model = PartialVAE(replace(self.config, models=1))
            model.load_state_dict(state)
            models.append(model)
        return models

    def set_low_elbo(self, values: np.ndarray) -> None:
        """Set the partial ELBOs that 1 % of the training data are below, (S, D + 1) nats, see `TrainedVAE`."""
        self.low_elbo.copy_(torch.as_tensor(values, dtype=self.low_elbo.dtype))

    def trained(self) -> list[TrainedVAE]:
        """Return each model of the stack, ready for use."""
        single = replace(self.config, models=1)
        states = split({name: tensor.detach().cpu() for name, tensor in self.state_dict().items()})
        return [TrainedVAE.from_arrays(single, {k: tensor.numpy() for k, tensor in state.items()}) for state in states]
