"""How a model is trained, and the top of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sepkit.config.data import DataConfig
from sepkit.config.model import ModelConfig
from sepkit.config.objective import ObjectiveConfig


@dataclass
class TrainerConfig:
    """How it is optimised."""

    max_epochs: int = 200
    max_minutes: float | None = None
    """Wall-clock budget, minutes; none: no limit."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """adamw: Adam with decoupled weight decay."""
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the running means of gradients and of squared gradients."""
    weight_decay: float = 0.0
    warmup_steps: int = 0
    """Steps over which the learning rate rises to its value."""
    decay_share: float = 0.0
    """Last share of the budget (max_minutes or max_epochs, whichever ends first) over which the learning rate falls
    along a line; 0 means no decay. With it the rate is not halved on plateaus."""
    final_rate_share: float = 0.02
    """What the decay leaves of the learning rate."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, 0.995 to 0.9999; its weights are validated and kept."""
    gradient_clip_norm: float = 5.0
    """0 means no clipping."""
    halve_patience: int = 5
    """Validations without a better score before the learning rate is halved."""
    early_stop_patience: int = 30
    """Validations without a better score before training stops; 0 means never."""
    monitor: Literal["auto", "pit", "mcl", "loss"] = "auto"
    """What picks the best model and halves the learning rate: SI-SDR on dev under hard one-to-one matching (pit) or of
    each source's best hypothesis (mcl); auto: mcl where the MCL family trains another number of hypotheses than of
    sources, else pit. loss: the training loss on dev, at the temperature of the day (aMCL's reference code)."""
    validate_every_epochs: int = 1
    """Epochs between validations."""
    keep_every_epochs: int = 0
    """Epochs between models kept in EXP/models, for `sepkit separate --hierarchy`; 0 means none."""
    precision: Literal["auto", "32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true"
    """auto: bf16-mixed on GPUs and processors that compute in it (AVX512_BF16, AMX), else 32-true."""
    tf32: bool = False
    """Products of float32 matrices in TF32, on GPUs that have it; the objective stays in float32."""
    compile: bool = False
    """Compile the model with torch.compile: for GPUs. On CPUs it turns Conv-TasNet's and DPRNN's own fast paths off."""
    gradient_checkpointing: bool = False
    """For long segments: keep only the input of each block of the masker, and do the block again in the backward
    pass. Same gradients, less memory, about a third more time. Conv-TasNet on CPUs does so anyway, at no cost."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = 1
    num_nodes: int = 1
    sync_batchnorm: bool = False
    """With several GPUs: batch normalisation over the batches of all; without it such models are refused."""
    accumulate_batches: int = 1
    """Batches whose gradients are averaged before a step."""
    checkpoint_every_steps: int = 500
    """A killed run repeats at most this many steps."""
    max_bad_steps: int = 10
    """Stop after this many steps in a row with a non-finite loss or gradient."""
    seed: int = 0


@dataclass
class TrainConfig:
    """Everything `sepkit train` needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    init_from: str | None = None
    """MODEL whose weights training starts from."""
