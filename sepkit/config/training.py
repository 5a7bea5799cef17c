"""The training of a model, and the top of a configuration: the task."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

from sepkit.choices import Choice, check_bounds
from sepkit.config.data import DataConfig
from sepkit.config.model import ModelConfig
from sepkit.config.objective import ObjectiveConfig
from sepkit.errors import Bounds, UserError
from sepkit.limits import BATCH_SIZE, HYPOTHESES, LARGEST_RATE, PROCESSES
from sepkit.numbers import Count, Counts, Dropout, Natural, NotNegative, Positive, Seed, Share


@dataclass
class GrowthConfig:
    """More hypotheses while training goes on: one is split in two, which then drift apart.

    Source: CCLVQ paper, section 4.1.

    Args:
        epochs: Epochs after which the model grows, rising, each less than max_epochs.
        hypotheses: Number of hypotheses after each growth, rising, the first above model.hypotheses; none: one more
            each time.
        by: Choice of the hypothesis to split: the one with the largest share of the distortion, or the best one of most
            sources.
        jitter: Deviation of the noise on the new hypothesis's rows, in units of the root mean square of each row
            tensor.
    """

    epochs: Counts = field(default_factory=list)
    hypotheses: Annotated[list[int] | None, Bounds(ge=1, le=HYPOTHESES)] = None
    by: Literal["distortion", "sources"] = "distortion"
    jitter: Positive = 0.01


@dataclass
class TrainerConfig:
    """The optimization of the model.

    Args:
        max_epochs: Passes over the training set, at most.
        max_minutes: Wall-clock budget, minutes, validation included; none: no limit. Training stops as much earlier as
            the last validation took, at most by half of the budget.
        optimizer: adamw: Adam with decoupled weight decay. sgd: stochastic gradient descent with momentum.
        learning_rate: Highest learning rate, before any decay or halving.
        betas: Decay rates (adam and adamw) of the running means of gradients and of squared gradients.
        momentum: Momentum of sgd.
        weight_decay: Multiple of the weights added to the gradient; with adamw, it shrinks the weights instead.
        warmup_steps: Steps over which the learning rate rises to its value.
        decay_share: Last share of the budget (max_minutes or max_epochs, whichever ends first) over which the learning
            rate falls along a line; 0: no decay. With a decay, the rate is not halved on plateaus.
        final_rate_share: Share of the learning rate that is left at the end of the decay.
        decay_epochs: Epochs after which the learning rate is multiplied by decay_factor, rising; the rate is then not
            halved on plateaus either.
        decay_factor: Factor of each step of decay_epochs.
        ema: Decay of an exponential moving average of the weights, 0.995 to 0.9999. The averaged weights are validated
            and saved.
        gradient_clip_norm: Largest norm of the gradient; 0: no clipping.
        halve_patience: Validations without a better score before the learning rate is halved.
        halve_from_epoch: Epochs over which the learning rate stays, before validations count toward halving it.
        early_stop_patience: Validations without a better score before training stops; 0: never.
        monitor: The score that picks the best model and halves the learning rate. pit: SI-SDR on dev under hard
            one-to-one matching. mcl: SI-SDR on dev of each source's best hypothesis. auto: mcl if an assignment of the
            MCL family is trained with another number of hypotheses than of sources, otherwise pit; of other tasks, the
            task's own score. loss: the training loss on dev, at the current temperature (as in aMCL's reference code).
        validate_every_epochs: Epochs between validations.
        precision: auto: bf16-mixed on GPUs and CPUs that compute in it (AVX512_BF16, AMX), otherwise 32-true.
        tf32: Whether to multiply float32 matrices in TF32 on GPUs that have it; the objective stays in float32.
        compile: Whether to use torch.compile, for GPUs; on CPUs it turns off faster code for
            Conv-TasNet and DPRNN.
        gradient_checkpointing: Whether to keep only the input of each block and recompute the block in the backward
            pass, for long segments. Gradients stay the same, memory shrinks, and steps take about a third longer.
            Conv-TasNet on CPUs always does so, at no cost.
        accelerator: Kind of device; auto: a GPU if torch finds one, else the CPU.
        devices: Number of devices, or of processes on a CPU, on each node. With several, models with batch
            normalization are refused.
        num_nodes: Machines that train together.
        accumulate_batches: Batches whose gradients are averaged before a step.
        checkpoint_every_steps: Steps between checkpoints, the most that a killed run repeats.
        max_bad_steps: Consecutive steps with a non-finite loss or gradient after which training stops.
        seed: Seed of initial weights, data and latent noise.
        growth: Growing numbers of hypotheses, for separation; none: the number stays.
    """

    max_epochs: Count = 200
    max_minutes: Annotated[float | None, Bounds(gt=0)] = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: Annotated[float, Bounds(gt=0, le=LARGEST_RATE)] = 1e-3
    betas: Annotated[tuple[float, float], Bounds(ge=0, lt=1)] = (0.9, 0.999)
    momentum: Dropout = 0.9
    weight_decay: Annotated[float, Bounds(ge=0, le=LARGEST_RATE)] = 0.0
    warmup_steps: Natural = 0
    decay_share: Share = 0.0
    final_rate_share: Share = 0.02
    decay_epochs: Counts = field(default_factory=list)
    decay_factor: Annotated[float, Bounds(gt=0, le=1)] = 0.1
    ema: Annotated[float | None, Bounds(ge=0, lt=1)] = None
    gradient_clip_norm: NotNegative = 5.0
    halve_patience: Count = 5
    halve_from_epoch: Natural = 0
    early_stop_patience: Natural = 30
    monitor: Literal["auto", "pit", "mcl", "loss"] = "auto"
    validate_every_epochs: Count = 1
    precision: Literal["auto", "32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true"
    tf32: bool = False
    compile: bool = False
    gradient_checkpointing: bool = False
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Annotated[int, Bounds(ge=1, le=PROCESSES)] = 1
    num_nodes: Annotated[int, Bounds(ge=1, le=PROCESSES)] = 1
    accumulate_batches: Count = 1
    checkpoint_every_steps: Count = 500
    max_bad_steps: Count = 10
    seed: Seed = 0
    growth: GrowthConfig | None = None


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
        check_bounds(self)
        # Data of tasks that users define may have no bounds.
        Bounds(ge=1, le=BATCH_SIZE).check("data.batch_size", self.data.batch_size)
        Bounds(ge=0, le=PROCESSES).check("data.workers", self.data.workers)
        steps = self.trainer.decay_epochs
        if any(b <= a for a, b in pairwise([0, *steps])):
            raise UserError(f"trainer.decay_epochs: found {steps}, expected rising numbers, the first at least 1")


@dataclass
class TrainConfig(TaskConfig, name="separation"):
    """Train an encoder-masker-decoder to separate mixtures.

    Args:
        model: The encoder-masker-decoder.
        objective: The loss and its terms.
        data: The mixtures that it learns from.
        trainer: Optimization, budget and devices.
        init_from: MODEL whose weights training starts from.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    init_from: str | None = None

    def check(self) -> None:
        """Raise UserError if a number is outside its range, or there is no training manifest."""
        super().check()
        if self.data.train is None:
            raise UserError(
                "data.train: no manifest given, expected the train.jsonl that `sepkit prepare` wrote "
                "(--data.train FILE)"
            )
        if self.data.speeds and self.data.dynamic_mixing.enabled:
            raise UserError(
                f"data.speeds: found {self.data.speeds} with data.dynamic_mixing.enabled, whose speeds are its own;"
                " set data.speeds to [], and data.dynamic_mixing.speed_range"
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
        if self.trainer.devices * self.trainer.num_nodes > 1:
            raise UserError("trainer.growth: models grow on one device only; set trainer.devices to 1, or leave it out")
