"""Train continuously deep variational autoencoders of images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.config import RateConfig
from sepkit.objectives.rates import total_rate
from sepkit.registry import build, register
from sepkit.studies.cdvae.config import CDVAETaskConfig, ImagesOptions
from sepkit.studies.cdvae.data import ImageSet, prepare_images, read_images
from sepkit.studies.cdvae.model import ImageELBO, ImageVAE, Noise
from sepkit.training.task import Task, checkpoint_blocks
from sepkit.training.task_definition import Monitor, rows_of
from sepkit.types import Losses

BOUNDS = {False: "negative_elbo_nats", True: "distortion_and_initial_rate_nats"}
"""Whether a model is ODE-like -> name of its loss."""

_DEV_SEED = 2**31


@register(CDVAETaskConfig)
class CDVAETask(Task):
    """Minimizes distortion + weighted rates with free nats; validates by minus the evidence lower bound itself."""

    model_type = ImageVAE
    examples = "images"
    config: CDVAETaskConfig

    def __init__(self, config: CDVAETaskConfig, out: Path, resuming: bool = False) -> None:
        self._weights = {name: build(getattr(config.objective, name).weight) for name in ("initial", "path")}
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
    def scheduled(self) -> dict[str, float]:
        """Weights of the rates now."""
        return {f"{name}_rate_weight": schedule(self.progress) for name, schedule in self._weights.items()}

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
        statistics = {name: value.detach() for name, value in parts_of(parts).items()}
        clamped = sum(diffusion.clamped for diffusion in model.diffusions())
        statistics["clamped_diffusions"] = torch.full_like(loss.detach(), float(clamped))
        return Losses(loss, statistics=statistics)

    def on_fit_start(self) -> None:
        """Refuse gradient checkpointing, which these models have no use for."""
        if self.config.trainer.gradient_checkpointing:
            checkpoint_blocks(self.model)

    def after_epoch(self, means: Mapping[str, float]) -> list[str]:
        """Return a warning about diffusions at a bound."""
        count = means.get("clamped_diffusions", 0)
        return [f"{count:.3g} diffusions (mean of the epoch) were clamped to a bound"] if count > 0 else []

    def scores(self, model: ImageVAE, batch: Tensor) -> list[dict[str, Any]]:
        """Return the parts of minus the evidence lower bound of each image, with the same noise at every validation."""
        parts = parts_of(model(batch, Noise(torch.Generator(batch.device).manual_seed(_DEV_SEED))))
        return rows_of(parts | bound_of(parts, self.config.model.ode_like))

    def choose_monitor(self) -> Monitor | None:
        """Choose minus the bound on dev."""
        super().choose_monitor()
        return Monitor(f"dev_{BOUNDS[self.config.model.ode_like]}", larger_is_better=False)

    @classmethod
    def shrink(cls, config: Any, folder: Path) -> Any:
        """Cut batches and widths; without training data, make a few images."""
        config = super().shrink(config, folder)
        model = config.model
        model.shrink()
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


def bound_of(parts: Mapping[str, Tensor], ode_like: bool) -> dict[str, Tensor]:
    """Return minus the evidence lower bound of each image by its name, (B,) nats.

    Args:
        parts: Parts of the bound, see `parts_of`.
        ode_like: Whether the path rate does not count, so that the sum is no bound.
    """
    total = parts["distortion_nats"] + parts["initial_rate_nats"]
    return {BOUNDS[ode_like]: total if ode_like else total + parts["path_rate_nats"]}


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
