"""The learning rate at a step: warm-up, and a decay that ends with the budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, Trainer
from torch.optim import Optimizer

from sepkit.config import TrainerConfig


def rate_factor(config: TrainerConfig, steps: int, progress: float, epoch: int = 0) -> float:
    """Return the factor of the learning rate.

        min(1, (steps + 1) / warmup_steps) * (1 - (1 - final_rate_share) * share of the decay that has passed)
            * decay_factor ** number of decay_epochs that have passed

    The decay is a line over the last `decay_share` of the budget.

    Args:
        steps: number of steps before this one.
        progress: share of the budget that is used up.
        epoch: number of epochs before this one.
    """
    warm = min(1.0, (steps + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    for step in config.decay_epochs:
        if epoch >= step:
            warm *= config.decay_factor
    if not config.decay_share:
        return warm
    passed = max(0.0, min(1.0, 1 - (1 - progress) / config.decay_share))
    return warm * (1 - (1 - config.final_rate_share) * passed)


class RateSchedule(Callback):
    """Set the learning rate before every step.

    The budget is used up when `trainer.max_minutes` or `trainer.max_epochs` is, whichever comes first. A decay by time
    differs between runs; one by epochs does not.

    Args:
        seconds: returns the time spent in training, earlier runs included.
    """

    def __init__(self, config: TrainerConfig, seconds: Callable[[], float]) -> None:
        self.config = config
        self.seconds = seconds

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        """Set the rate for the step that this batch belongs to."""
        config, position = self.config, pl_module.position
        if not (config.warmup_steps or config.decay_share or config.decay_epochs):
            return
        progress = (position.epoch + position.batches_done / position.batches_per_epoch) / config.max_epochs
        if config.max_minutes is not None:
            progress = max(progress, self.seconds() / (60 * config.max_minutes))
            if trainer.world_size > 1:
                # Clocks differ between ranks, and different rates would lead to different weights.
                progress = trainer.strategy.broadcast(progress)
        set_factor(trainer.optimizers[0], rate_factor(config, position.steps, progress, position.epoch))


def set_factor(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rates to a factor times their value after halvings on plateaus.

    Args:
        optimizer: its groups keep the rate after halvings as "plateau_lr".
    """
    for group in optimizer.param_groups:
        group["lr"] = factor * group.setdefault("plateau_lr", group["lr"])


def halve(optimizer: Optimizer) -> None:
    """Halve the learning rates permanently."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
        if "plateau_lr" in group:
            group["plateau_lr"] *= 0.5
