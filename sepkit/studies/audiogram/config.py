"""Configurations and options of the study; imports nothing heavy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from sepkit.choices import check_bounds
from sepkit.config import LinearWarmupConfig, ScheduleConfig, TaskConfig, TrainerConfig
from sepkit.errors import Bounds, UserError
from sepkit.limits import EPOCH_MIXTURES, LAYER_SIZE
from sepkit.numbers import BatchSize, NotNegative, Positive, Seed, Share, Size, Workers

Level = Annotated[float, Bounds(ge=-1e9, le=1e9)]

EARS = ("right", "left")
FREQUENCIES_HZ = (500, 1000, 2000, 3000, 4000, 6000, 8000)
AGE = "age"
KIND = "audiogram"
"""Kind of the models in `model.yaml`."""


@dataclass
class DimensionConfig:
    """One number of a datum, such as the threshold of one ear at one frequency.

    Args:
        name: Its column in the CSV file.
        noise: Standard deviation of one measurement; the decoder's deviation is never below it.
        step: Distance of the values that an instrument gives; 0: any value.
        lowest: The least value that is possible.
        highest: The largest value that is possible.
        known: Whether it is given from the beginning (age), and so is never the next to be measured.
        unit: Unit, for messages.
    """

    name: str = ""
    noise: Positive = 5.0
    step: NotNegative = 5.0
    lowest: Level = -10.0
    highest: Level = 120.0
    known: bool = False
    unit: str = "dB"


def threshold_name(ear: str, frequency_hz: int) -> str:
    """Return the name of a threshold: `right_1000`."""
    return f"{ear}_{frequency_hz}"


THRESHOLDS = tuple(threshold_name(ear, hz) for ear in EARS for hz in FREQUENCIES_HZ)


def audiogram_dimensions() -> list[DimensionConfig]:
    """The 15 dimensions of an audiogram: age, and the thresholds of both ears from 500 Hz to 8 kHz, dB HL."""
    age = DimensionConfig(AGE, noise=5.0, step=0.0, lowest=0.0, highest=120.0, known=True, unit="years")
    return [age, *map(DimensionConfig, THRESHOLDS)]


@dataclass
class PartialVAEConfig:
    """A variational autoencoder of data of which any part may be missing (Ma et al. 2019, PointNet-plus encoder).

    Args:
        dimensions: Measured quantities, in order.
        latent: Dimensions of the latent variable.
        embedding: Learned values that describe each dimension (e_d).
        features: Size of the layer that all observed dimensions share, whose outputs are summed (K).
        hidden: Sizes of the hidden layers of the encoder; the decoder has them in reverse order.
        models: Models whose weights are stacked; `stack` of the task sets it.
    """

    dimensions: list[DimensionConfig] = field(default_factory=audiogram_dimensions)
    latent: Size = 4
    embedding: Size = 16
    features: Size = 20
    hidden: list[Size] = field(default_factory=lambda: [64, 64])
    models: Size = 1

    def check(self) -> None:
        """Raise UserError for dimensions or widths that no model can have."""
        names = [dimension.name for dimension in self.dimensions]
        if len(set(names)) < len(names) or not all(names):
            raise UserError(f"model.dimensions: found the names {', '.join(names)}; expected different ones")
        if all(dimension.known for dimension in self.dimensions):
            raise UserError("model.dimensions: found none that can be measured, expected at least one")
        for d in self.dimensions:
            check_bounds(d, f"model.dimensions: {d.name}")
            if not d.lowest < d.highest:
                raise UserError(f"model.dimensions: {d.name}: found {d.lowest} to {d.highest}, expected a range")
        check_bounds(self, "model")


@dataclass
class MissingnessConfig:
    """Which values training hides, drawn anew every epoch (thesis, 3.1).

    Each is hidden with probability rho, and rho ~ U(0, 1) for each datum.

    Args:
        nothing_observed: Share of data of which everything is hidden.
        everything_observed: Share of data of which nothing is hidden.
    """

    nothing_observed: Share = 0.1
    everything_observed: Share = 0.1


@dataclass
class AudiogramDataConfig:
    """Training and validation data.

    Args:
        train: CSV file of training data (train.csv).
        dev: CSV file of validation data; none: no validation.
        batch_size: Data in a batch, of each model.
        workers: Processes that load data; the data are in memory, so that more only cost time.
        missingness: Hidden values of each datum in training.
    """

    train: str | None = None
    dev: str | None = None
    batch_size: BatchSize = 64
    workers: Workers = 0
    missingness: MissingnessConfig = field(default_factory=MissingnessConfig)


@dataclass
class AudiogramObjectiveConfig:
    """The partial evidence lower bound: distortion of the observed values plus beta times the rate.

    Args:
        rate_weight: Beta. Where it is 1 from the beginning, latent dimensions are given up before the decoder can use
            them.
    """

    rate_weight: ScheduleConfig = field(default_factory=lambda: LinearWarmupConfig(1.0, 24.0))


@dataclass
class StackConfig:
    """Models that are trained together, each from its own seed. Ten cost about as much time as two.

    Args:
        seeds: Seeds of the models; empty: `trainer.seed` alone.
    """

    seeds: list[Seed] = field(default_factory=list)


@dataclass
class AudiogramTaskConfig(TaskConfig, name=KIND):
    """Train partial VAEs of audiograms, one or a stack of them.

    Args:
        model: The partial VAE.
        objective: The rate's weight.
        data: The data that it learns from.
        trainer: Optimization, budget and devices.
        init_from: MODEL whose weights training starts from.
        stack: Seeds of models that are trained together.
    """

    model: PartialVAEConfig = field(default_factory=PartialVAEConfig)
    objective: AudiogramObjectiveConfig = field(default_factory=AudiogramObjectiveConfig)
    data: AudiogramDataConfig = field(default_factory=AudiogramDataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    init_from: str | None = None
    stack: StackConfig = field(default_factory=StackConfig)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the models of the stack."""
        return self.stack.seeds or [self.trainer.seed]

    def check(self) -> None:
        """Count the models of the stack; raise UserError if a number is out of range, or there is no training data."""
        super().check()
        self.model.models = len(self.seeds)
        if self.data.train is None:
            raise UserError(
                "data.train: no file given, expected the train.csv that `sepkit prepare audiograms` wrote "
                "(--data.train FILE)"
            )
        if self.data.missingness.nothing_observed + self.data.missingness.everything_observed > 1:
            raise UserError("data.missingness: expected shares whose sum is at most 1")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError("stack.seeds: expected different ones")


@dataclass(frozen=True, kw_only=True)
class AudiogramOptions:
    """Make synthetic audiograms with their noise-free truth, or divide your own, as train.csv, dev.csv and test.csv.

    Example:
        sepkit prepare audiograms --out data/audiograms

    Args:
        out: folder of the files
        csv: your audiograms, with the columns id, age, right_500 ... left_8000 and, if you like, split; of the options
            below, only --seed then has an effect
        examples: number of audiograms
        archetypes: number of audiograms that all others are weighted averages of
        spread_db: standard deviation of a threshold over archetypes
        noise_db: standard deviation of a measurement (years, for age)
        seed: seed of everything; with --csv, of the division into splits where the file has none
    """

    out: Path
    csv: Path | None = None
    examples: Annotated[int, Bounds(ge=10, le=EPOCH_MIXTURES)] = 4096
    archetypes: Annotated[int, Bounds(ge=2, le=LAYER_SIZE)] = 5
    spread_db: NotNegative = 45.0
    noise_db: NotNegative = 5.0
    seed: Seed = 0
