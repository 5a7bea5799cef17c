"""Train continuously deep variational autoencoders of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.config import RateConfig
from sepkit.objectives.rates import Steering, total_rate
from sepkit.registry import build, register
from sepkit.studies.cdvae.config import CDVAETaskConfig, ImagesOptions
from sepkit.studies.cdvae.data import ImageSet, prepare_images, read_images
from sepkit.studies.cdvae.latent_sde import NonFiniteStateError
from sepkit.studies.cdvae.model import ImageELBO, ImageVAE, Noise
from sepkit.training.task import Task, checkpoint_blocks
from sepkit.training.task_definition import Monitor, log, rows_of
from sepkit.types import Losses

_DEV_SEED = 2**31


@register(CDVAETaskConfig)
class CDVAETask(Task):
    """Minimizes distortion + weighted rates with free nats; validates by minus the evidence lower bound itself."""

    model_type = ImageVAE
    examples = "images"
    config: CDVAETaskConfig

    def __init__(self, config: CDVAETaskConfig, out: Path, resuming: bool = False) -> None:
        self._weights = {name: build(getattr(config.objective, name).weight) for name in ("initial", "path")}
        steering, rates = config.objective.steering, ("initial_rate_nats", "path_rate_nats")
        self._steering = None if steering is None else Steering(rates, steering.total or 0.0, steering)
        super().__init__(config, out, resuming)

    def make_data_sets(self) -> tuple[ImageSet, ImageSet | None]:
        """Return training and validation images."""
        model, data = self.config.model, self.config.data
        binary = model.likelihood == "bernoulli"
        assert data.train is not None
        dev = None if data.dev is None else read_images(data.dev, model.size, binary)
        return read_images(data.train, model.size, binary), dev

    @staticmethod
    def collate(items: Sequence[np.ndarray]) -> Tensor:
        """Return the batch (B, 1, H, W)."""
        return torch.from_numpy(np.stack(items))

    @property
    def factor(self) -> float:
        """The steered factor on all rates; 1 without steering."""
        return 1.0 if self._steering is None else self._steering.weight

    @property
    def scheduled(self) -> dict[str, float]:
        """Weights of the rates now."""
        return {
            f"{name}_rate_weight": self.factor * schedule(self.progress) for name, schedule in self._weights.items()
        }

    def losses(self, model: ImageVAE, batch: Tensor) -> Losses:
        """Return distortion plus weighted rates, with free nats."""
        parts = model(batch)
        weights = self.scheduled
        loss = parts.distortion + weights["initial_rate_weight"] * _total(
            parts.initial_rate, self.config.objective.initial
        )
        if not self.config.model.ode_like:
            for rate in parts.path_rates:
                loss = loss + weights["path_rate_weight"] * _total(rate, self.config.objective.path)
        if not bool(loss.isfinite().all()):
            self._name_step(model, batch)
        statistics = {name: value.detach() for name, value in parts_of(parts).items()}
        clamped = sum(diffusion.clamped for diffusion in model.diffusions())
        statistics["clamped_diffusions"] = torch.full_like(loss.detach(), float(clamped))
        return Losses(loss, statistics=statistics)

    def _name_step(self, model: ImageVAE, batch: Tensor) -> None:
        """Say at which step a state ceases to be finite; the batch is saved as for every task."""
        try:
            with torch.no_grad():
                model(batch, check=True)
        except NonFiniteStateError as error:
            log(f"warning: batch {self.position.batches_done} of epoch {self.position.epoch + 1}: {error}")

    def on_fit_start(self) -> None:
        """Refuse gradient checkpointing, which these models have no use for."""
        if self.config.trainer.gradient_checkpointing:
            checkpoint_blocks(self.model)

    def after_step(self, means: Mapping[str, float]) -> None:
        """Steer the weight of the rates."""
        if self._steering is not None:
            self._steering.after_step(means)

    def after_epoch(self, means: Mapping[str, float]) -> list[str]:
        """Return warnings about a target that is not reached, and diffusions at a bound."""
        found = [] if self._steering is None else [self._steering.warning(means, self.position.epoch + 1)]
        if means.get("clamped_diffusions", 0) > 0:
            found.append(f"{means['clamped_diffusions']:.3g} diffusions (mean of the epoch) were clamped to a bound")
        return [line for line in found if line is not None]

    def scores(self, model: ImageVAE, batch: Tensor) -> list[dict[str, Any]]:
        """Return the parts of minus the evidence lower bound of each image, with the same noise at every validation."""
        generator = torch.Generator(batch.device).manual_seed(_DEV_SEED)
        parts = parts_of(model(batch, Noise(generator)))
        if self.config.model.ode_like:
            parts["distortion_and_initial_rate_nats"] = parts["distortion_nats"] + parts["initial_rate_nats"]
        else:
            rates = parts["initial_rate_nats"] + parts["path_rate_nats"]
            parts["negative_elbo_nats"] = parts["distortion_nats"] + rates
        return rows_of(parts)

    def choose_monitor(self) -> Monitor | None:
        """Choose minus the bound on dev; the last model if a rate is steered."""
        super().choose_monitor()
        name = "distortion_and_initial_rate_nats" if self.config.model.ode_like else "negative_elbo_nats"
        return None if self._steering is not None else Monitor(f"dev_{name}", larger_is_better=False)

    @classmethod
    def shrink(cls, config: Any, folder: Path) -> Any:
        """Cut batches and widths; without training data, make a few images."""
        config = super().shrink(config, folder)
        model = config.model
        model.width, model.drift_width = min(model.width, 8), min(model.drift_width, 8)
        model.depth_steps = min(model.depth_steps, 2)
        if config.data.train is None:
            made = prepare_images(ImagesOptions(kind="poisson", out=folder / "images", images=40, size=model.size))
            if model.likelihood == "bernoulli":
                _binarize(made)
            config.data.train, config.data.dev = str(made / "train.npz"), str(made / "dev.npz")
        return config

    @classmethod
    def try_out(cls, model: ImageVAE) -> None:
        """Sample an image from the prior."""
        with torch.no_grad():
            image = model.sample()
        size = model.config.size
        if image.shape != (1, 1, size, size) or not image.isfinite().all():
            raise RuntimeError(f"the saved model samples images of shape {tuple(image.shape)}, or not finite ones")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the steered factor."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["steered_factor"] = self.factor

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the saved position and factor."""
        super().on_load_checkpoint(checkpoint)
        if self._steering is not None:
            self._steering.weight = checkpoint["steered_factor"]


def parts_of(parts: ImageELBO) -> dict[str, Tensor]:
    """Return distortion, initial rate and path rate of each image, (B,) nats, by name, without free nats."""
    path = torch.stack([rate.flatten(1).sum(1) for rate in parts.path_rates]).sum(0)
    return {
        "distortion_nats": parts.distortion,
        "initial_rate_nats": parts.initial_rate.flatten(1).sum(1),
        "path_rate_nats": path,
    }


def _total(rate: Tensor, config: RateConfig) -> Tensor:
    frames = torch.full((len(rate),), rate.shape[-1], device=rate.device)
    return total_rate(rate, frames, config.free_nats, config.free_nats_over)


def _binarize(folder: Path) -> None:
    from sepkit.studies.cdvae.data import write_images

    for path in folder.glob("*.npz"):
        with np.load(path) as content:
            images = content["images"]
        write_images(path, ImageSet((images > images.mean()).astype(np.float32), "mnist", None))
