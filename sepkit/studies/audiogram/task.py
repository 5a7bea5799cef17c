"""Train partial VAEs, one alone or a stack together, with the same result for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.errors import UserError
from sepkit.objectives.rates import Steering
from sepkit.registry import build, register
from sepkit.studies.audiogram import data as masks
from sepkit.studies.audiogram.config import AudiogramOptions, AudiogramTaskConfig, MissingnessConfig
from sepkit.studies.audiogram.data import Audiograms, read_audiograms
from sepkit.studies.audiogram.model import PartialVAE
from sepkit.studies.audiogram.network import latent_draws
from sepkit.studies.audiogram.prepare import prepare_audiograms
from sepkit.studies.audiogram.simulation import low_elbos
from sepkit.training.task import Task
from sepkit.training.task_definition import Monitor
from sepkit.types import Losses

# Seed of the masks of validation, the same for all trainings.
_DEV_SEED = 2**31
_LOW_ELBO_DATA, _LOW_ELBO_SAMPLES = 1024, 8


@dataclass
class StackedBatch:
    """A batch for each of G seeds of a stack, or 1 for all: values (G, B, D), NaN where missing, and what models may
    see."""

    values: Tensor
    observed: Tensor


class PartialData:
    """Data with a part hidden: item (epoch, place) is the datum at that place in the epoch's order, for each seed.
    Steps are (D,) widths of dequantization, 0: none."""

    def __init__(
        self,
        data: Audiograms,
        missingness: MissingnessConfig,
        steps: np.ndarray,
        seeds: Sequence[int],
        shuffle: bool = True,
    ) -> None:
        self.values = data.values.astype(np.float32)
        self.missingness = missingness
        self.steps = steps
        self.seeds = list(seeds)
        self.shuffle = shuffle
        self._epoch = lru_cache(maxsize=1)(self._make_epoch)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        epoch, place = key
        values, observed = self._epoch(epoch)
        return values[:, place], observed[:, place]

    def _make_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (G, N, D) values and which of them are observed, in the order of the epoch."""
        count, dimensions = self.values.shape
        values = np.empty((len(self.seeds), count, dimensions), np.float32)
        observed = np.empty(values.shape, bool)
        for place, seed in enumerate(self.seeds):
            order = masks.order_of(count, seed, epoch) if self.shuffle else np.arange(count)
            values[place] = self.values[order]
            if self.steps.any():
                values[place] += masks.dequantization(self.steps, count, seed, epoch)[order]
            observed[place] = masks.observed_in(self.missingness, count, dimensions, seed, epoch)[order]
        return values, observed & ~np.isnan(values)


@register(AudiogramTaskConfig)
class AudiogramTask(Task):
    """Trains a stack of partial VAEs: minus the partial ELBO, summed over models, each with its own seed and beta.

    A model learns the same in a stack as alone: order, masks, dequantization and latent noise follow from its own seed,
    and Adam works elementwise. By default gradients are not clipped, because their norm would be shared.
    """

    model_type = PartialVAE
    examples = "audiograms"

    def __init__(self, config: AudiogramTaskConfig, out: Path, resuming: bool = False) -> None:
        self.seeds = config.stack.seeds or [config.trainer.seed] * config.model.models
        self.distinct = list(dict.fromkeys(self.seeds))
        self._steering = _steerings(config)
        self._schedule = build(config.objective.rate_weight)
        self._lowered = False
        super().__init__(config, out, resuming)
        self._of_model = torch.tensor([self.distinct.index(seed) for seed in self.seeds])

    # ----------------------------------------------------------------------------------------------- data and model

    def make_data_sets(self) -> tuple[PartialData, PartialData | None]:
        """Return training data with a part hidden, and validation data with the same part always hidden."""
        config = self.config
        dimensions, missing = config.model.dimensions, config.data.missingness
        steps = np.array([d.step for d in dimensions]) * missing.dequantize
        train = read_audiograms(config.data.train, dimensions)
        dev = None
        if config.data.dev is not None:
            fixed = MissingnessConfig("static", missing.nothing_observed, missing.everything_observed, False)
            data = read_audiograms(config.data.dev, dimensions)
            dev = PartialData(data, fixed, np.zeros(len(dimensions)), [_DEV_SEED], shuffle=False)
        return PartialData(train, missing, steps, self.distinct), dev

    def begin(self) -> None:
        """Draw each model's weights from its own seed, and measure the training set."""
        self.model.draw(self.seeds)
        super().begin()
        values = self.train_data.values
        center, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        for name, width in zip([d.name for d in self.config.model.dimensions], scale, strict=True):
            if not width > 0:
                raise UserError(f"{self.config.data.train}: {name} is the same for all, expected values that differ")
        self.model.set_statistics(center, scale)

    @staticmethod
    def collate(items: Sequence[tuple[np.ndarray, np.ndarray]]) -> StackedBatch:
        """Return the batch of some items."""
        values, observed = zip(*items, strict=True)
        return StackedBatch(torch.from_numpy(np.stack(values, axis=1)), torch.from_numpy(np.stack(observed, axis=1)))

    def _make_sampler(self, data: Any, shuffle: bool) -> Any:
        # The data set makes each model's own order from its seed.
        return super()._make_sampler(data, shuffle=False)

    # ----------------------------------------------------------------------------------------------------- objective

    @property
    def weights(self) -> list[float]:
        """Beta of each model now."""
        if self._steering:
            return [steering.weight for steering in self._steering]
        return [self._schedule(self.progress)] * len(self.model)

    @property
    def scheduled(self) -> dict[str, float]:
        """Beta of the model, or the mean over the stack."""
        return {"rate_weight": sum(self.weights) / len(self.weights)}

    def before_step(self) -> None:
        """Lower the learning rate when it is due."""
        config = self.config
        if not self._lowered and self.progress >= config.lower_after * config.trainer.max_epochs:
            self._lowered = True
            optimizer = self.optimizers()
            assert not isinstance(optimizer, list)
            for group in optimizer.param_groups:
                group["lr"] *= config.lower_to

    def losses(self, model: Any, batch: StackedBatch) -> Losses:
        """Return minus the partial ELBO with weighted rates, summed over the models of the stack."""
        rows, latent = batch.values.shape[1], self.config.model.latent
        noise = np.stack([masks.latent_noise(rows, latent, seed, self.position.batches) for seed in self.distinct])
        values, observed, noise = map(self._for_models, (batch.values, batch.observed, torch.from_numpy(noise)))
        parts = model(values, observed, noise.to(values))
        beta = torch.tensor(self.weights, dtype=parts.rate.dtype, device=parts.rate.device)
        statistics: dict[str, Tensor] = {}
        for name, part in (("rate_nats", parts.rate), ("distortion_nats", parts.distortion)):
            statistics |= dict(zip(_names(name, len(self.model)), part.detach(), strict=True))
        return Losses((parts.distortion + beta[:, None] * parts.rate).sum(0), statistics=statistics)

    def _for_models(self, values: Tensor) -> Tensor:
        """Return (S, ...) or (1, ...) for values of each distinct seed."""
        if len(values) == 1 or len(self.seeds) == len(self.distinct):
            return values
        return values[self._of_model.to(values.device)]

    def after_step(self, means: Mapping[str, float]) -> None:
        """Steer each model's beta."""
        for steering in self._steering:
            steering.after_step(means)

    def after_epoch(self, means: Mapping[str, float]) -> list[str]:
        """Return warnings about targets that are not reached."""
        found = (steering.warning(means, self.position.epoch + 1) for steering in self._steering)
        return [line for line in found if line is not None]

    # ---------------------------------------------------------------------------------------------------- validation

    def scores(self, model: Any, batch: StackedBatch) -> list[dict[str, Any]]:
        """Return distortion, rate and minus the partial ELBO of each datum, means over the stack, with fixed noise."""
        rows, latent = batch.values.shape[1], self.config.model.latent
        noise = torch.from_numpy(masks.latent_noise(rows, latent, _DEV_SEED, 0))[None].to(batch.values)
        parts = model(batch.values, batch.observed, noise)
        columns = {"distortion_nats": parts.distortion, "rate_nats": parts.rate}
        columns["negative_elbo_nats"] = parts.distortion + parts.rate
        rows_of_models = torch.stack([column.mean(0) for column in columns.values()], dim=1).tolist()
        return [dict(zip(columns, row, strict=True)) for row in rows_of_models]

    def summarize(self, rows: list[dict[str, Any]]) -> dict[str, float]:
        """Return dev scores; also store in the model which partial ELBOs are usual in training."""
        values = self.train_data.values
        some = values[~np.isnan(values).any(1)][:_LOW_ELBO_DATA]
        if len(some):
            draws = latent_draws(self.config.model.latent, _LOW_ELBO_SAMPLES)
            self.kept_model.set_low_elbo(np.stack([low_elbos(vae, some, draws) for vae in self.kept_model.trained()]))
        return super().summarize(rows)

    def choose_monitor(self) -> Monitor | None:
        """Choose minus the partial ELBO on dev; None if rates are steered, as only the last model meets the target."""
        super().choose_monitor()
        return None if self._steering else Monitor("dev_negative_elbo_nats", larger_is_better=False)

    @classmethod
    def shrink(cls, config: Any, folder: Path) -> Any:
        """Cut the stack to at most two models in small batches; without training data, make synthetic audiograms."""
        config = super().shrink(config, folder)
        config.model.models = min(config.model.models, 2)
        config.stack.seeds = config.stack.seeds[: config.model.models]
        config.stack.target_rates = config.stack.target_rates[: config.model.models]
        steering = config.objective.steering
        if steering is not None and steering.total is None and not config.stack.target_rates:
            steering.total = 1.0
        if config.data.train is None:
            made = prepare_audiograms(AudiogramOptions(out=folder / "audiograms", examples=32))
            config.data.train, config.data.dev = str(made / "train.csv"), str(made / "dev.csv")
        return config

    # ------------------------------------------------------------------------------------------------------ resuming

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the steered weights."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["partial_vae"] = {"weights": self.weights if self._steering else [], "lowered": self._lowered}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the saved position and weights."""
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint["partial_vae"]
        self._lowered = saved["lowered"]
        for steering, weight in zip(self._steering, saved["weights"], strict=True):
            steering.weight = weight


def _names(name: str, models: int) -> list[str]:
    return [f"{name}_{place}" for place in range(models)] if models > 1 else [name]


def _steerings(config: AudiogramTaskConfig) -> list[Steering]:
    steering, models = config.objective.steering, config.model.models
    if steering is not None and steering.total is None and not config.stack.target_rates:
        raise UserError("objective.steering.total: found none, expected a target in nats; or train with --target-rates")
    targets = config.stack.target_rates or ([] if steering is None else [steering.total or 0.0] * models)
    names = _names("rate_nats", models)
    return [Steering((n,), rate, config.steered_to(rate)) for n, rate in zip(names, targets, strict=bool(targets))]
