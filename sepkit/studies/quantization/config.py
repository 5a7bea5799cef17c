"""What the experiments can be asked for. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from sepkit.choices import from_dict
from sepkit.errors import UserError
from sepkit.files import read_yaml

T = TypeVar("T")


@dataclass
class UCIConfig:
    """Regression on UCI sets.

    Source: aMCL paper, section 5.1 and appendix D; reference code annealed_mcl.
    """

    hypotheses: int = 5
    """n."""
    hidden: int = 50
    """Width of the hidden layer."""
    hidden_large: int = 100
    """The same for protein."""
    epochs: int = 1000
    """Of training."""
    batch_size: int = 1024
    """Rows of a step; smaller training parts are one batch."""
    learning_rate: float = 0.01
    """Of Adam."""
    initial_temperature: float = 0.5
    """T0 of both annealed methods."""
    decay: float = 0.95
    """Of the exponential temperature in an epoch."""
    floor: float = 5e-4
    """Temperature from which on matching is hard."""
    initial_epsilon: float = 0.5
    """Of relaxed WTA with annealed epsilon, which ends with training."""
    score_weight: float = 1.0
    """Of the scores' cross-entropy."""
    held_out_share: float = 0.2
    """Of the training rows, for `--select held_out`."""
    check_every: int = 10
    """Epochs between the checkpoints that selection chooses from."""
    check_every_mcl: int = 1
    """The same for MCL under `--select reference`, as in the reference code."""
    seed: int = 0
    """Of initial weights, order and held-out rows."""


def read_section(cls: type[T], path: str | Path | None) -> T:
    """The configuration of one experiment from a YAML file; the defaults without one.

    Raises:
        UserError: unreadable, an unknown key, or a number out of its range.
    """
    if path is None:
        return cls()
    config = from_dict(cls, read_yaml(path, "give a YAML file") or {}, str(path))
    for name, value in numbers_of(config):
        if name.rpartition(".")[2] != "seed" and not 0 <= value < math.inf:
            raise UserError(f"{path}: {name}: found {value:g}, expected a number that is not negative")
        if name.rpartition(".")[2] == "decay" and not 0 < value < 1:
            raise UserError(f"{path}: {name}: found {value:g}, expected a number between 0 and 1")
    return config


def numbers_of(config: Any, prefix: str = "") -> list[tuple[str, float]]:
    """Every number of a configuration with its name."""
    numbers: list[tuple[str, float]] = []
    for known in fields(config):
        value, name = getattr(config, known.name), prefix + known.name
        if isinstance(value, list):
            numbers += [(name, float(number)) for number in value if isinstance(number, int | float)]
        elif isinstance(value, int | float):
            numbers.append((name, float(value)))
    return numbers
