"""The definition of a task: its model, data, losses and scores, and changes during training."""

import math
import os
import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import default_collate
from tqdm import tqdm

from sepkit.errors import UserError
from sepkit.models.saved import SavedModel
from sepkit.types import Losses


def is_first_process() -> bool:
    """Whether this process prints for all ranks."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def log(line: str) -> None:
    """Write a line to standard error, above the progress bar if there is one; ranks other than the first are silent."""
    if is_first_process():
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


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


def rows_of(columns: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return a row for each example; columns are (B,) each, by name; they move to the host together."""
    first = next(iter(columns.values()))
    values = torch.stack([column.to(first) for column in columns.values()], dim=1).tolist()
    return [dict(zip(columns, row, strict=True)) for row in values]


def mean(values: Iterable[float]) -> float:
    """Return the mean of one or more values, independent of their order."""
    values = list(values)
    return math.fsum(values) / len(values)


class TaskDefinition(LightningModule):
    """The methods that define a task; `sepkit.training.task.Task` calls them and trains.

    Only the first two are necessary:

    * `make_data_sets`: the training set and the dev set. An item is `data[epoch, index]`.
    * `losses`: the losses of a batch.
    * `scores` and `summarize`: the dev scores of a batch, and of a whole validation.
    * `begin`: work that a new run does once.
    * `before_epoch`, `before_step`, `after_step`, `after_epoch`: changes during training.
    """

    model_type: ClassVar[type[SavedModel]]
    """The class of the model, made from `config.model`."""
    examples: ClassVar[str] = "examples"
    """Name of the items of the data sets in printed lines and records."""
    grows: ClassVar[bool] = False
    """Whether the model may change its number of hypotheses (`trainer.growth`)."""
    config: Any
    """Configuration of the task."""
    model: Any
    """The trained model."""
    position: Position
    """Progress of the training."""

    @abstractmethod
    def make_data_sets(self) -> tuple[Any, Any | None]:
        """Return the training set and the dev set (None: no validation), with items `data[epoch, index]`."""

    @abstractmethod
    def losses(self, model: Any, batch: Any) -> Losses:
        """Return the losses of each example of a batch.

        Args:
            model: the one that is trained, or the one that is validated.
        """

    @staticmethod
    def collate(items: Sequence[Any]) -> Any:
        """Return a batch, in a data worker, which has no task: tensors, or a dataclass, mapping or list of them."""
        return default_collate(list(items))

    def begin(self) -> None:
        """Do the work that only a new run does, such as measuring the training set."""
        self.load_initial_weights()

    def load_initial_weights(self) -> Any:
        """Load the weights of `init_from`, and return the printed `LoadReport`; None: no weights are named."""
        if self.config.init_from is None:
            return None
        from sepkit.models import load_weights_into

        report = load_weights_into(self.model, self.config.init_from)
        log(str(report))
        return report

    def before_epoch(self) -> None:
        """Prepare for an epoch (`position.epoch`), or for the rest of one that a resumed run continues."""

    @property
    def stage(self) -> int:
        """Return a number that changes when the model becomes another one, with which old scores do not compare."""
        return 0

    @property
    def more_stages(self) -> bool:
        """Return whether the model will become another one, for which training has to go on."""
        return False

    def before_step(self) -> None:
        """Prepare for a batch: set values that follow from progress (`position.epoch`, `progress`)."""

    def after_step(self, means: Mapping[str, float]) -> None:
        """React to a completed step."""

    def after_epoch(self, means: Mapping[str, float]) -> list[str]:
        """Return warnings about an epoch, each one line."""
        return []

    def scores(self, model: Any, batch: Any) -> list[dict[str, Any]]:
        """Return plain scores of each example of a dev batch, by name; by default the losses."""
        result = self.losses(model, batch)
        return rows_of({"loss": result.loss} | result.statistics | (result.terms if len(result.terms) > 1 else {}))

    def summarize(self, rows: list[dict[str, Any]]) -> dict[str, float]:
        """Return dev scores, named `dev_...`; by default the means of columns that every row has."""
        names = set.intersection(*(set(row) for row in rows)) if rows else set()
        return {f"dev_{name}": mean(row[name] for row in rows) for name in (rows[0] if rows else ()) if name in names}

    def recent(self) -> dict[str, float]:
        """Return scores of the last training batch, for progress bar and records."""
        return {}

    @property
    def scheduled(self) -> dict[str, float]:
        """The present value of everything that changes during training, by name."""
        return {}

    def choose_monitor(self) -> Monitor | None:
        """Return the dev score that picks the best model and halves the learning rate; None: the last model is best."""
        if self.config.trainer.monitor not in ("auto", "loss"):
            found = self.config.trainer.monitor
            raise UserError(f"trainer.monitor: found {found}, expected auto or loss for task {self.config.name}")
        return Monitor("dev_loss", larger_is_better=False)

    def describe_batch(self) -> str:
        """Return a description of a batch of one device."""
        return f"{self.config.data.batch_size} {self.examples}"

    def describe(self, scores: Mapping[str, float]) -> str:
        """Return a description of dev scores, for the line that is printed after an epoch."""
        return ", ".join(f"{name} {value:.4g}" for name, value in scores.items())

    @classmethod
    def shrink(cls, config: Any, folder: Path) -> Any:
        """Return a configuration on a small scale, for `sepkit smoke`.

        Args:
            config: may be changed in place.
            folder: a temporary one, which may hold data.
        """
        config.data.batch_size = min(config.data.batch_size, 2)
        return config

    @classmethod
    def try_out(cls, model: Any) -> None:
        """Raise RuntimeError if a trained and reloaded model does not work, for `sepkit smoke`."""
