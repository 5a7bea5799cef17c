"""Options of `sepkit prepare images`, and the configuration of a model of them and its training; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sepkit.config import RateConfig, SigmoidWarmupConfig, SteeringConfig, TaskConfig, TrainerConfig
from sepkit.errors import UserError

KIND = "cdvae"
"""Kind of the models in `model.yaml`."""


@dataclass(frozen=True, kw_only=True)
class ImagesOptions:
    """Write images as train.npz, dev.npz and test.npz: solutions of a Poisson equation, or binarized MNIST of yours.

    Args:
        kind: poisson: noisy solutions of the Poisson equation, made here; mnist: binarized MNIST, from --source
        out: folder of the files
        source: of mnist: an .npz file with packed bits or images by split (train, valid, test), or a folder of text
            files (binarized_mnist_train.amat ...)
        images: of poisson: number of images, of which 80 % are for training, 10 % for dev and 10 % for test
        size: of poisson: height and width, pixels
        noise: of poisson: standard deviation of the noise, before scaling
        grid: of poisson: cells: pixels are centers of cells; edges: the first and last pixels are on the boundary
        scaling: of poisson: deviation: divide by the standard deviation of all pixels; none: leave values as they are
        seed: of poisson
    """

    kind: Literal["poisson", "mnist"]
    out: Path
    source: Path | None = None
    images: int = 1024
    size: int = 16
    noise: float = 5e-3
    grid: Literal["cells", "edges"] = "cells"
    scaling: Literal["deviation", "none"] = "deviation"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind == "mnist" and self.source is None:
            raise UserError("--source: nothing given, expected the file or folder of binarized MNIST")
        for name, least in (("images", 10), ("size", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--{name}: found {getattr(self, name)}, expected at least {least}")
        if not self.noise > 0:
            raise UserError(f"--noise: found {self.noise}, expected more than 0")


@dataclass
class ImageVAEConfig:
    """A hierarchy of latent variables for images: stochastic differential equations, or discrete blocks."""

    size: int = 16
    """Height and width of the images, pixels."""
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    """Of a pixel: gaussian with a modeled deviation, or bernoulli for binary images."""
    levels: int = 3
    """Resolutions, each twice as fine as the one before."""
    latent_channels: int = 4
    """Channels of the latent state, the same at all resolutions."""
    width: int = 128
    """Channels of the bottom-up network and of the decoder."""
    drift_width: int = 128
    """Channels inside the drifts, or inside the networks of discrete blocks."""
    blocks: int = 1
    """Residual blocks of the bottom-up network at each resolution."""
    decoder_blocks: int = 3
    """Residual blocks between the last latent state and the likelihood."""
    depth_steps: int = 10
    """Steps of each level in training, and by default afterwards."""
    initial_diffusion: float = 0.5
    """Deviation of the noise over a level when training starts; one learned number a level."""
    discrete: int = 0
    """Stochastic blocks a level, with weights of their own, in place of the equations (VD-VAE); 0: equations."""
    one_level: bool = False
    """Only the first state is a latent variable: the discrete blocks have none, as in an ordinary variational
    autoencoder with one level of Gaussian latents."""
    ode_like: bool = False
    """The comparison of the thesis: drifts do not see the image, and the path rate costs nothing. The sum of its
    distortion and its initial rate is then no bound on the evidence."""


@dataclass
class ImageDataConfig:
    """Training and validation data."""

    train: str | None = None
    """File of training images (train.npz) that `sepkit prepare images` wrote."""
    dev: str | None = None
    """File of validation images; none: no validation."""
    batch_size: int = 128
    """Images in a batch, each device."""
    workers: int = 0
    """Processes that load data; the data are in memory, so that more only cost time."""


@dataclass
class ImageObjectiveConfig:
    """Minus the evidence lower bound, with weighted rates and free nats; reported bounds have neither."""

    initial: RateConfig = field(default_factory=lambda: RateConfig(SigmoidWarmupConfig(1.0, 10.0), 1.0))
    """Of the first latent state, given at the coarsest resolution."""
    path: RateConfig = field(default_factory=lambda: RateConfig(SigmoidWarmupConfig(1.0, 10.0), 1.0))
    """Of each level's path; free nats are those of each level."""
    steering: SteeringConfig | None = None
    """Adapts a factor on both weights until the sum of all rates meets `total`, nats an image."""


@dataclass
class CDVAETaskConfig(TaskConfig, name=KIND):
    """Train a continuously deep variational autoencoder of images."""

    model: ImageVAEConfig = field(default_factory=ImageVAEConfig)
    """The variational autoencoder."""
    objective: ImageObjectiveConfig = field(default_factory=ImageObjectiveConfig)
    """Weights, targets and free nats of the rates."""
    data: ImageDataConfig = field(default_factory=ImageDataConfig)
    """The images that it learns from."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """Optimization, budget and devices."""
    init_from: str | None = None
    """MODEL whose weights training starts from."""

    def check(self) -> None:
        """Raise UserError if a number is outside its range, or there is no training data."""
        super().check()
        if self.data.train is None:
            raise UserError(
                "data.train: no file given, expected the train.npz that `sepkit prepare images` wrote "
                "(--data.train FILE)"
            )
        for name in ("initial", "path"):
            free = getattr(self.objective, name).free_nats
            if not 0 <= free < float("inf"):
                raise UserError(f"objective.{name}.free_nats: found {free}, expected 0 or more")
        steering = self.objective.steering
        if steering is not None and (steering.total is None or not 0 < steering.total < float("inf")):
            raise UserError(f"objective.steering.total: found {steering.total}, expected a target of more than 0 nats")
