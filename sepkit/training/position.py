"""The position of a run: epochs, batches, steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class TrainingDiverged(RuntimeError):
    """Too many steps in a row had a non-finite loss or gradient."""


class Monitor(NamedTuple):
    """The dev score that picks the best model."""

    name: str
    larger_is_better: bool = True


@dataclass
class Position:
    """The position of a run: the part of exact resume that is not weights or optimizer.

    Args:
        epoch: epochs begun before this one.
        batches_done: batches of this epoch already used.
        batches_per_epoch: batches in an epoch when this was saved.
        batch_size: examples in a batch of all devices then; 0 in states of older versions.
        batches: batches used since the beginning.
        attempts: optimizer steps tried, skipped ones included.
        steps: optimizer steps taken; schedules advance with these.
        bad_in_a_row: steps skipped since the last one taken.
        sums: sums over this epoch's examples, for its means.
    """

    epoch: int = 0
    batches_done: int = 0
    batches_per_epoch: int = 0
    batch_size: int = 0
    batches: int = 0
    attempts: int = 0
    steps: int = 0
    bad_in_a_row: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def enter_epoch(self) -> None:
        """Go to the next epoch if this one is complete."""
        if self.batches_per_epoch and self.batches_done >= self.batches_per_epoch:
            self.epoch, self.batches_done, self.sums = self.epoch + 1, 0, {}
