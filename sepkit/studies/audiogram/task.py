"""The partial VAE in torch, and its training: a stack of models learns together, each as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sepkit.errors import UserError
from sepkit.models.latents import Gaussian
from sepkit.models.saved import SavedModel
from sepkit.models.stacked import StackedLinear, uniform
from sepkit.objectives.rates import elementwise_rate
from sepkit.registry import build, register
from sepkit.studies.audiogram import data as masks
from sepkit.studies.audiogram import model as network
from sepkit.studies.audiogram.config import (
    KIND,
    AudiogramOptions,
    AudiogramTaskConfig,
    MissingnessConfig,
    PartialVAEConfig,
    StackConfig,
)
from sepkit.studies.audiogram.data import Audiograms, prepare_audiograms, read_audiograms
from sepkit.training.task import Task
from sepkit.training.task_definition import Monitor
from sepkit.types import Losses

# Seed of the masks of validation, the same for all trainings.
_DEV_SEED = 2**31
_LOW_ELBO_DATA, _LOW_ELBO_SAMPLES = 1024, 8


class PartialELBO(NamedTuple):
    """The two parts of minus the partial ELBO, (S, B) nats each: distortion D_p, minus the log density of the observed
    values at a sample of z, and rate R = KL(q(z | x_O) || N(0, 1))."""

    distortion: Tensor
    rate: Tensor


class PartialVAE(SavedModel):
    """S partial VAEs of one shape; a single model is a stack of one.

    Args:
        config: Shape of the models.
        seeds: Seed of each model's first weights; None: all 0.

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
        count, dimensions = config.models, len(config.dimensions)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds or [0] * count]
        # The descriptors of each dimension: e_d and b_d.
        self.embedding = nn.Module()
        self.embedding.values = nn.Parameter(uniform((dimensions, config.embedding), 1.0, generators))
        self.embedding.bias = nn.Parameter(uniform((dimensions, 1), 1.0, generators))
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

    def facts(self) -> dict[str, Any]:
        """Return the names of the dimensions."""
        return {"dimensions": [dimension.name for dimension in self.config.dimensions]}

    def set_statistics(self, center: np.ndarray, scale: np.ndarray) -> None:
        """Set the mean and the deviation of the training data.

        Args:
            center: (D,) means, in the dimensions' units.
            scale: (D,) standard deviations, in the same units.
        """
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

    def trained(self) -> list[network.TrainedVAE]:
        """Return each model of the stack, ready for use."""
        state = {name: tensor.detach().cpu().numpy() for name, tensor in self.state_dict().items()}
        return network.TrainedVAE.from_stack(self.config, state)


class PartialData:
    """Data with a part hidden: item (epoch, place) is the datum at that place in the epoch's order, for each seed.

    Args:
        data: All of the data, N of D dimensions.
        missingness: Hidden values of each datum.
        steps: (D,) widths of dequantization, in the dimensions' units; 0: none.
        seeds: Seeds of orders, masks and dequantization.
        shuffle: Whether each epoch has an order and masks of its own.
    """

    def __init__(
        self, data: Audiograms, missingness: MissingnessConfig, steps: np.ndarray, seeds: Sequence[int], shuffle: bool
    ) -> None:
        self.values = data.values.astype(np.float32)
        self.missingness = missingness
        self.steps = steps
        self.seeds = seeds
        self.shuffle = shuffle
        self._epoch = lru_cache(maxsize=1)(self._make_epoch)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        epoch, place = key
        values, observed = self._epoch(epoch)
        return values[place], observed[place]

    def _make_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (N, G, D) values for G seeds and which of them are observed, in the order of the epoch."""
        count, dimensions = self.values.shape
        values = np.empty((count, len(self.seeds), dimensions), np.float32)
        observed = np.empty(values.shape, bool)
        for place, seed in enumerate(self.seeds):
            order = masks.order_of(count, seed, epoch) if self.shuffle else np.arange(count)
            values[:, place] = self.values[order]
            if self.steps.any():
                values[:, place] += masks.dequantization(self.steps, count, seed, epoch)[order]
            observed[:, place] = masks.observed_in(self.missingness, count, dimensions, seed, epoch * self.shuffle)[
                order
            ]
        return values, observed & ~np.isnan(values)


@register(AudiogramTaskConfig)
class AudiogramTask(Task):
    """Trains a stack of partial VAEs: minus the partial ELBO, summed over models, each with its own seed.

    A model learns the same in a stack as alone: order, masks, dequantization and latent noise follow from its own seed,
    and Adam works elementwise. By default gradients are not clipped, because their norm would be shared.
    """

    model_type = PartialVAE
    examples = "audiograms"

    def __init__(self, config: AudiogramTaskConfig, out: Path, resuming: bool = False) -> None:
        self.seeds = config.seeds
        self._names = [f"_{place}" for place in range(len(self.seeds))] if len(self.seeds) > 1 else [""]
        self._schedule = build(config.objective.rate_weight)
        super().__init__(config, out, resuming)

    # ----------------------------------------------------------------------------------------------- data and model

    def make_data_sets(self) -> tuple[PartialData, PartialData | None]:
        """Return training data with a part hidden, and validation data with the same part always hidden."""
        config = self.config
        dimensions, missing = config.model.dimensions, config.data.missingness
        steps = np.array([d.step for d in dimensions])
        train = read_audiograms(config.data.train, dimensions)
        dev = None
        if config.data.dev is not None:
            dev = PartialData(read_audiograms(config.data.dev, dimensions), missing, 0 * steps, [_DEV_SEED], False)
        return PartialData(train, missing, steps, self.seeds, True), dev

    def begin(self) -> None:
        """Draw each model's weights from its own seed, and measure the training set."""
        fresh = PartialVAE(self.config.model, self.seeds)
        self.model.load_state_dict(dict(fresh.named_parameters()), strict=False)
        super().begin()
        values = self.train_data.values
        center, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        if not scale.all():
            name = self.config.model.dimensions[int(scale.argmin())].name
            raise UserError(f"{self.config.data.train}: {name} is the same for all, expected values that differ")
        self.model.set_statistics(center, scale)

    def _make_sampler(self, data: Any, shuffle: bool) -> Any:
        # The data set makes each model's own order from its seed.
        return super()._make_sampler(data, shuffle=False)

    # ----------------------------------------------------------------------------------------------------- objective

    @property
    def scheduled(self) -> dict[str, float]:
        """Beta now."""
        return {"rate_weight": self._schedule(self.progress)}

    def losses(self, model: Any, batch: Sequence[Tensor]) -> Losses:
        """Return minus the partial ELBO with weighted rates, summed over the models of the stack.

        Args:
            model: The stack of S models.
            batch: Values and which of them are observed, (B, S, D) each.
        """
        rows, latent, step = len(batch[0]), self.config.model.latent, self.position.batches
        noise = [torch.from_numpy(masks.latent_noise(rows, latent, seed, step)) for seed in self.seeds]
        values, observed = (part.movedim(0, 1) for part in batch)
        parts = model(values, observed, torch.stack(noise).to(values))
        statistics: dict[str, Tensor] = {}
        for name, part in (("rate_nats", parts.rate), ("distortion_nats", parts.distortion)):
            statistics |= {f"{name}{own}": row for own, row in zip(self._names, part.detach(), strict=True)}
        return Losses((parts.distortion + self._schedule(self.progress) * parts.rate).sum(0), statistics=statistics)

    # ---------------------------------------------------------------------------------------------------- validation

    def scores(self, model: Any, batch: Sequence[Tensor]) -> list[dict[str, Any]]:
        """Return distortion, rate and minus the partial ELBO of each datum, means over the stack, with fixed noise."""
        values, observed = (part.movedim(0, 1) for part in batch)
        noise = masks.latent_noise(values.shape[1], self.config.model.latent, _DEV_SEED, 0)
        distortion, rate = (part.mean(0) for part in model(values, observed, torch.from_numpy(noise)[None].to(values)))
        names = ("distortion_nats", "rate_nats", "negative_elbo_nats")
        rows = torch.stack([distortion, rate, distortion + rate], dim=1).tolist()
        return [dict(zip(names, row, strict=True)) for row in rows]

    def summarize(self, rows: list[dict[str, Any]]) -> dict[str, float]:
        """Return dev scores; also store in the model which partial ELBOs are usual in training."""
        values, model = self.train_data.values, self.kept_model
        some = values[~np.isnan(values).any(1)][:_LOW_ELBO_DATA]
        if len(some):
            draws = network.latent_draws(self.config.model.latent, _LOW_ELBO_SAMPLES)
            low = np.stack([network.low_elbos(vae, some, draws) for vae in model.trained()])
            model.low_elbo.copy_(torch.as_tensor(low, dtype=model.low_elbo.dtype))
        return super().summarize(rows)

    def choose_monitor(self) -> Monitor | None:
        """Choose minus the partial ELBO on dev."""
        super().choose_monitor()
        return Monitor("dev_negative_elbo_nats", larger_is_better=False)

    @classmethod
    def shrink(cls, config: Any, folder: Path) -> Any:
        """Cut the stack to at most two models in small batches; without training data, make synthetic audiograms."""
        config = super().shrink(config, folder)
        config.stack = StackConfig(config.stack.seeds[:2])
        if config.data.train is None:
            made = prepare_audiograms(AudiogramOptions(out=folder / "audiograms", examples=32))
            config.data.train, config.data.dev = str(made / "train.csv"), str(made / "dev.csv")
        return config
