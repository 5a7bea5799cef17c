"""Options of `sepkit prepare images`, and the configuration of a model of them and its training; torch-free."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from sepkit.config import RateConfig, SigmoidWarmupConfig, TaskConfig, TrainerConfig
from sepkit.errors import Bounds, UserError
from sepkit.limits import DEPTH_STEPS, EPOCH_MIXTURES, LAYER_SIZE
from sepkit.numbers import BatchSize, Positive, Seed, Size, SizeOrNone, Workers

KIND = "cdvae"
"""Kind of the models in `model.yaml`."""


@dataclass(frozen=True, kw_only=True)
class ImagesOptions:
    """Write images as train.npz, dev.npz and test.npz: solutions of a Poisson equation, or binarized MNIST of yours.

    Example:
        sepkit prepare images --kind poisson --out data/poisson

    Args:
        kind: poisson: noisy solutions of the Poisson equation, made here; mnist: binarized MNIST, from --source
        out: folder of the files
        source: source of mnist: an .npz file with packed bits or images by split (train, valid, test), or a folder of
            text files (binarized_mnist_train.amat ...)
        images: number of images of poisson: 80 % for training, 10 % for dev and 10 % for test
        size: height and width of poisson, pixels
        noise: standard deviation of the noise of poisson, before all pixels are divided by their standard deviation
        seed: seed of poisson
    """

    kind: Literal["poisson", "mnist"]
    out: Path
    source: Path | None = None
    images: Annotated[int, Bounds(ge=10, le=EPOCH_MIXTURES)] = 1024
    size: Annotated[int, Bounds(ge=2, le=LAYER_SIZE)] = 16
    noise: Positive = 5e-3
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.kind == "mnist" and self.source is None:
            raise UserError("--source: nothing given, expected the file or folder of binarized MNIST")


@dataclass
class ImageVAEConfig:
    """A hierarchy of latent variables for images: stochastic differential equations, or discrete blocks.

    Args:
        size: Height and width of the images, pixels.
        likelihood: Likelihood of a pixel: gaussian with a modeled deviation, or bernoulli for binary images.
        levels: Number of resolutions, each twice as fine as the one before.
        latent_channels: Channels of the latent state, the same at all resolutions.
        width: Channels of the bottom-up network and of the decoder.
        drift_width: Channels inside the drifts, or inside the networks of discrete blocks.
        blocks: Residual blocks of the bottom-up network at each resolution.
        decoder_blocks: Residual blocks between the last latent state and the likelihood.
        depth_steps: Steps of each level in training, and by default afterwards.
        initial_diffusion: Deviation of the noise over a level when training starts; one learned number a level.
        discrete: Stochastic blocks a level, with weights of their own, in place of the equations (VD-VAE); 0:
            equations.
        one_level: Only the first state is a latent variable: the discrete blocks have none, as in an ordinary
            variational autoencoder with one level of Gaussian latents.
        ode_like: The comparison of the thesis: drifts do not see the image, and the path rate costs nothing. The sum of
            its distortion and its initial rate is then no bound on the evidence.
    """

    size: Size = 16
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    levels: Annotated[int, Bounds(ge=1, le=16)] = 3
    latent_channels: Size = 4
    width: Size = 128
    drift_width: Size = 128
    blocks: Size = 1
    decoder_blocks: Size = 3
    depth_steps: Annotated[int, Bounds(ge=1, le=DEPTH_STEPS)] = 10
    initial_diffusion: Positive = 0.5
    discrete: SizeOrNone = 0
    one_level: bool = False
    ode_like: bool = False

    def shrink(self) -> None:
        """Cut widths and steps, for a trial of the configuration."""
        self.width, self.drift_width = min(self.width, 8), min(self.drift_width, 8)
        self.depth_steps = min(self.depth_steps, 2)


@dataclass
class ImageDataConfig:
    """Training and validation data.

    Args:
        train: File of training images (train.npz) that `sepkit prepare images` wrote.
        dev: File of validation images; none: no validation.
        batch_size: Images in a batch, each device.
        workers: Processes that load data; the data are in memory, so that more only cost time.
    """

    train: str | None = None
    dev: str | None = None
    batch_size: BatchSize = 128
    workers: Workers = 0


def _warmed() -> RateConfig:
    return RateConfig(SigmoidWarmupConfig(1.0, 10.0), 1.0)


@dataclass
class ImageObjectiveConfig:
    """Minus the evidence lower bound, with weighted rates and free nats; reported bounds have neither.

    Args:
        initial: Rate of the first latent state, given at the coarsest resolution.
        path: Rate of each level's path; free nats are those of each level.
    """

    initial: RateConfig = field(default_factory=_warmed)
    path: RateConfig = field(default_factory=_warmed)


@dataclass
class CDVAETaskConfig(TaskConfig, name=KIND):
    """Train a continuously deep variational autoencoder of images.

    Args:
        model: The variational autoencoder.
        objective: Weights and free nats of the rates.
        data: The images that it learns from.
        trainer: Optimization, budget and devices.
        init_from: MODEL whose weights training starts from.
    """

    model: ImageVAEConfig = field(default_factory=ImageVAEConfig)
    objective: ImageObjectiveConfig = field(default_factory=ImageObjectiveConfig)
    data: ImageDataConfig = field(default_factory=ImageDataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    init_from: str | None = None

    def check(self) -> None:
        """Raise UserError if a number is outside its range, or there is no training data."""
        super().check()
        if self.data.train is None:
            raise UserError(
                "data.train: no file given, expected the train.npz that `sepkit prepare images` wrote "
                "(--data.train FILE)"
            )
