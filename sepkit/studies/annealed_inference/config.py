"""The configuration of the annealed VI paper's experiments. No torch.

`temperatures` are 1 / beta_i, `steps` t0 and `after` the steps after it, `samples` the n of a step, `starts` and
`replicas` those of each cell, `dimension` d, `radius` R, `heavy_weight` w*, and `step_size` eta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sepkit.choices import from_dict
from sepkit.errors import UserError
from sepkit.files import read_yaml


@dataclass
class FormulasConfig:
    """The flow of the order parameters against the closed forms."""

    temperatures: list[float] = field(default_factory=lambda: [18.0, 90.0, 900.0, 9000.0])
    steps: list[int] = field(default_factory=lambda: [100, 200, 300, 500, 700, 1000])
    starts: int = 2000
    after: int = 200


@dataclass
class AgreementConfig:
    """The reduced update against the full one."""

    dimensions: list[int] = field(default_factory=lambda: [32, 128])
    temperatures: list[float] = field(default_factory=lambda: [90.0, 900.0])
    steps: list[int] = field(default_factory=lambda: [100, 200])
    replicas: int = 400
    samples: int = 64


@dataclass
class PhaseDiagramConfig:
    """Figures 2, 5 and 7: the probability of collapse over initial temperature and annealing time."""

    temperatures: list[float] = field(default_factory=lambda: [18.0, 45.0, 90.0, 300.0, 900.0, 9000.0])
    steps: list[int] = field(default_factory=lambda: [100, 200, 300, 500, 700, 1000])
    replicas: int = 100
    samples: int = 1024
    row_steps: int = 300
    """t0 of the row that is also run with other numbers of samples."""
    row_samples: list[int] = field(default_factory=lambda: [128, 8192])


@dataclass
class RunsConfig:
    """Figures 1, 3 and 6: single runs of five strategies."""

    seeds: int = 20
    samples: int = 1024
    temperature: float = 90.0
    """1 / beta_i of annealing, and the variance of the covering start."""
    steps: int = 500
    plain_steps: int = 300


@dataclass
class FlowsConfig:
    """Figure 4: a RealNVP student."""

    dimension: int = 16
    couplings: int = 4
    hidden: int = 64
    samples: int = 256
    replicas: int = 8
    """Of each cell; they are trained at once."""
    temperatures: list[float] = field(default_factory=lambda: [9.0, 90.0, 900.0])
    steps: list[int] = field(default_factory=lambda: [100, 300, 600])
    after: int = 100
    """Steps after t0, and all steps of the cell without annealing together with the longest t0."""
    learning_rate: float = 1e-3
    threshold: float = 1.6
    """A student whose standard deviation along mu* is below this has collapsed."""


@dataclass
class AnnealedInferenceConfig:
    """The setting, and one section for each experiment."""

    radius: float = 3.0
    heavy_weight: float = 0.8
    dimension: int = 512
    """d of the mixtures."""
    step_size: float = 0.05
    after: int = 150
    """Steps after t0, before it is asked whether the means have collapsed."""
    seed: int = 0
    """Of starts and samples; every cell has a seed of its own that follows from it."""
    formulas: FormulasConfig = field(default_factory=FormulasConfig)
    agreement: AgreementConfig = field(default_factory=AgreementConfig)
    phase_diagram: PhaseDiagramConfig = field(default_factory=PhaseDiagramConfig)
    runs: RunsConfig = field(default_factory=RunsConfig)
    flows: FlowsConfig = field(default_factory=FlowsConfig)


def read_config(path: str | Path) -> AnnealedInferenceConfig:
    """Return the configuration in a YAML file."""
    config = from_dict(AnnealedInferenceConfig, read_yaml(path, "give a YAML file") or {}, str(path))
    if not 0 < config.heavy_weight < 1:
        raise UserError(f"{path}: heavy_weight: found {config.heavy_weight:g}, expected a number between 0 and 1")
    for name, value in _numbers(config):
        if name != "seed" and not 0 < value < math.inf:
            raise UserError(f"{path}: {name}: found {value:g}, expected a positive number")
        if name.endswith(("temperature", "temperatures")) and value <= 1:
            raise UserError(f"{path}: {name}: found {value:g}, expected more than 1, the final temperature")
    return config


def _numbers(config: Any, prefix: str = "") -> list[tuple[str, float]]:
    numbers: list[tuple[str, float]] = []
    for known in fields(config):
        value, name = getattr(config, known.name), prefix + known.name
        if isinstance(value, list):
            numbers += [(name, float(number)) for number in value]
        elif isinstance(value, int | float):
            numbers.append((name, float(value)))
        else:
            numbers += _numbers(value, f"{name}.")
    return numbers
