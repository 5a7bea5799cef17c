"""The training of a model, and the top of a configuration: the task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from sepkit.choices import Choice
from sepkit.config.data import DataConfig
from sepkit.config.model import ModelConfig
from sepkit.config.objective import ObjectiveConfig
from sepkit.errors import UserError, shown
from sepkit.limits import BATCH_SIZE, EPOCH_MIXTURES, HYPOTHESES, LARGEST_RATE, PROCESSES, SEED, SEGMENT_SECONDS


@dataclass
class GrowthConfig:
    """More hypotheses while training goes on: one is split in two, which then drift apart.

    Source: CCLVQ paper, section 4.1.
    """

    epochs: list[int] = field(default_factory=list)
    """After how many epochs the model grows, rising, each less than max_epochs."""
    hypotheses: list[int] | None = None
    """Number of hypotheses after each growth, rising, the first above model.hypotheses; none: one more each time."""
    by: Literal["distortion", "sources"] = "distortion"
    """Which hypothesis is split: the one with the largest share of the distortion, or the best one of most sources."""
    jitter: float = 0.01
    """Deviation of the noise on the new hypothesis's rows, in units of the root mean square of each row tensor."""


@dataclass
class TrainerConfig:
    """The optimization of the model."""

    max_epochs: int = 200
    """Passes over the training set, at most."""
    max_minutes: float | None = None
    """Wall-clock budget, minutes; none: no limit."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """adamw: Adam with decoupled weight decay. sgd: stochastic gradient descent with momentum."""
    learning_rate: float = 1e-3
    """At its highest, before any decay or halving."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of adam and adamw: decay rates of the running means of gradients and of squared gradients."""
    momentum: float = 0.9
    """Of sgd."""
    weight_decay: float = 0.0
    """Added to the gradient as a multiple of the weights; with adamw it shrinks the weights instead."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises to its value."""
    decay_share: float = 0.0
    """Last share of the budget (max_minutes or max_epochs, whichever ends first) over which the learning rate falls
    along a line; 0: no decay. With a decay, the rate is not halved on plateaus."""
    final_rate_share: float = 0.02
    """Share of the learning rate that is left at the end of the decay."""
    decay_epochs: list[int] = field(default_factory=list)
    """Epochs after which the learning rate is multiplied by decay_factor, rising; the rate is then not halved on
    plateaus either."""
    decay_factor: float = 0.1
    """Of each step of decay_epochs."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, 0.995 to 0.9999. The averaged weights are validated and
    saved."""
    gradient_clip_norm: float = 5.0
    """Largest norm of the gradient; 0: no clipping."""
    halve_patience: int = 5
    """Validations without a better score before the learning rate is halved."""
    early_stop_patience: int = 30
    """Validations without a better score before training stops; 0: never."""
    monitor: Literal["auto", "pit", "mcl", "loss"] = "auto"
    """The score that picks the best model and halves the learning rate. pit: SI-SDR on dev under hard one-to-one
    matching. mcl: SI-SDR on dev of each source's best hypothesis. auto: mcl if an assignment of the MCL family is
    trained with another number of hypotheses than of sources, otherwise pit; of other tasks, the task's own score.
    loss: the training loss on dev, at the current temperature (as in aMCL's reference code)."""
    validate_every_epochs: int = 1
    """Epochs between validations."""
    precision: Literal["auto", "32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true"
    """auto: bf16-mixed on GPUs and processors that compute in it (AVX512_BF16, AMX), otherwise 32-true."""
    tf32: bool = False
    """Multiply float32 matrices in TF32 on GPUs that have it; the objective stays in float32."""
    compile: bool = False
    """Compile the model with torch.compile, for GPUs. On CPUs it turns off the fast ways of Conv-TasNet and DPRNN."""
    gradient_checkpointing: bool = False
    """Keep only the input of each block and compute the block again in the backward pass, for long segments. Gradients
    stay the same, memory shrinks, and steps take about a third longer. Conv-TasNet on CPUs always does so, at no
    cost."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: a GPU if torch sees one, else the CPU."""
    devices: int = 1
    """Number of devices, or of processes on a CPU, on each node."""
    num_nodes: int = 1
    """Machines that train together."""
    sync_batchnorm: bool = False
    """With several GPUs: normalize over the batches of all devices. Without it, models with batch normalization are
    refused."""
    accumulate_batches: int = 1
    """Batches whose gradients are averaged before a step."""
    checkpoint_every_steps: int = 500
    """A killed run repeats at most this many steps."""
    max_bad_steps: int = 10
    """Stop after this many steps in a row with a non-finite loss or gradient."""
    seed: int = 0
    """Of initial weights, data and latent noise."""
    growth: GrowthConfig | None = None
    """Growing numbers of hypotheses, for separation; none: the number stays."""


class TaskConfig(Choice, key="task", default="separation"):
    """The kind of training.

    The dataclass of a task has the fields `model`, `data` (with at least `batch_size` and `workers`), `trainer` and
    `init_from`, and others of its own.
    """

    model: Any
    data: Any
    trainer: TrainerConfig
    init_from: str | None

    def check(self) -> None:
        """Raise UserError if a number is outside its range, or something necessary is missing."""
        least = {
            "data.batch_size": 1,
            "data.workers": 0,
            "trainer.max_epochs": 1,
            "trainer.gradient_clip_norm": 0,
            "trainer.halve_patience": 1,
            "trainer.early_stop_patience": 0,
            "trainer.validate_every_epochs": 1,
            "trainer.devices": 1,
            "trainer.num_nodes": 1,
            "trainer.accumulate_batches": 1,
            "trainer.checkpoint_every_steps": 1,
            "trainer.max_bad_steps": 1,
            "trainer.warmup_steps": 0,
            "trainer.weight_decay": 0,
            "trainer.seed": 0,
        }
        for key, bound in least.items():
            value = self._value(key)
            if not value >= bound:
                raise UserError(f"{key}: found {shown(value)}, expected at least {bound}")
        most: dict[str, float] = {"data.batch_size": BATCH_SIZE, "trainer.seed": SEED}
        most |= dict.fromkeys(("trainer.learning_rate", "trainer.weight_decay"), LARGEST_RATE)
        most |= dict.fromkeys(("data.workers", "trainer.devices", "trainer.num_nodes"), PROCESSES)
        self._check_most(most)
        self._check_positive("trainer.learning_rate", "trainer.max_minutes")
        for key in ("trainer.decay_share", "trainer.final_rate_share"):
            if not 0 <= self._value(key) <= 1:
                raise UserError(f"{key}: found {self._value(key)}, expected 0 to 1")
        if not 0 < self.trainer.decay_factor <= 1:
            raise UserError(f"trainer.decay_factor: found {self.trainer.decay_factor}, expected more than 0, at most 1")
        steps = self.trainer.decay_epochs
        if any(b <= a for a, b in pairwise([0, *steps])):
            raise UserError(f"trainer.decay_epochs: found {steps}, expected rising numbers, the first at least 1")
        below_one = {"ema": [self.trainer.ema or 0.0], "betas": self.trainer.betas, "momentum": [self.trainer.momentum]}
        for name, values in below_one.items():
            if not all(0 <= value < 1 for value in values):
                raise UserError(f"trainer.{name}: found {values}, expected 0 or more and less than 1")

    def _check_most(self, most: Mapping[str, float]) -> None:
        for key, bound in most.items():
            if (self._value(key) or 0) > bound:
                raise UserError(f"{key}: found {shown(self._value(key))}, expected at most {bound}")

    def _check_positive(self, *keys: str) -> None:
        for key in keys:
            value = self._value(key)
            if value is not None and not value > 0:
                raise UserError(f"{key}: found {value}, expected more than 0")

    def _value(self, key: str) -> Any:
        section, name = key.split(".")
        return getattr(getattr(self, section), name)


@dataclass
class TrainConfig(TaskConfig, name="separation"):
    """Train an encoder-masker-decoder to separate mixtures."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """The encoder-masker-decoder."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """The loss and its terms."""
    data: DataConfig = field(default_factory=DataConfig)
    """The mixtures that it learns from."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """Optimization, budget and devices."""
    init_from: str | None = None
    """MODEL whose weights training starts from."""

    def check(self) -> None:
        """Raise UserError if a number is outside its range, or there is no training manifest."""
        super().check()
        self._check_most({"model.hypotheses": HYPOTHESES, "data.mixtures_per_epoch": EPOCH_MIXTURES})
        if not 0 < self.data.segment_seconds <= SEGMENT_SECONDS:
            found = self.data.segment_seconds
            raise UserError(f"data.segment_seconds: found {found}, expected more than 0, at most {SEGMENT_SECONDS:.0f}")
        weight = self.objective.scoring.weight
        if not weight >= 0:
            raise UserError(f"objective.scoring.weight: found {weight}, expected 0 or more")
        if self.data.train is None:
            raise UserError(
                "data.train: no manifest given, expected the train.jsonl that `sepkit prepare` wrote "
                "(--data.train FILE)"
            )
        if self.trainer.growth is not None:
            self._check_growth(self.trainer.growth)

    def _check_growth(self, growth: GrowthConfig) -> None:
        epochs, counts, before = growth.epochs, growth.hypotheses, self.model.hypotheses
        if not epochs or epochs[0] < 1 or any(b <= a for a, b in pairwise(epochs)):
            raise UserError(f"trainer.growth.epochs: found {epochs}, expected rising numbers, the first at least 1")
        if epochs[-1] >= self.trainer.max_epochs:
            raise UserError(
                f"trainer.growth.epochs: found {epochs[-1]}, expected less than trainer.max_epochs,"
                f" {self.trainer.max_epochs}; a model that has grown must be trained"
            )
        if counts is not None and (len(counts) != len(epochs) or any(b <= a for a, b in pairwise([before, *counts]))):
            raise UserError(
                f"trainer.growth.hypotheses: found {counts}, expected {len(epochs)} rising numbers, one for each"
                f" growth, the first above model.hypotheses, {before}; a model never loses hypotheses"
            )
        if counts is not None and counts[-1] > HYPOTHESES:
            raise UserError(f"trainer.growth.hypotheses: found {shown(counts[-1])}, expected at most {HYPOTHESES}")
        if not 0 < growth.jitter < math.inf:
            raise UserError(f"trainer.growth.jitter: found {growth.jitter}, expected more than 0")
        if self.trainer.devices * self.trainer.num_nodes > 1:
            raise UserError("trainer.growth: models grow on one device only; set trainer.devices to 1, or leave it out")
