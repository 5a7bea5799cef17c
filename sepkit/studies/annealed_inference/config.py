"""The configuration of the annealed VI paper's experiments. No torch."""

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
    """1 / beta_i."""
    steps: list[int] = field(default_factory=lambda: [100, 200, 300, 500, 700, 1000])
    """t0."""
    starts: int = 2000
    """Random starts of each cell."""
    after: int = 200
    """Steps after t0."""


@dataclass
class AgreementConfig:
    """The reduced update against the full one."""

    dimensions: list[int] = field(default_factory=lambda: [32, 128])
    """d."""
    temperatures: list[float] = field(default_factory=lambda: [90.0, 900.0])
    """1 / beta_i."""
    steps: list[int] = field(default_factory=lambda: [100, 200])
    """t0."""
    replicas: int = 400
    """Of either update, in each cell."""
    samples: int = 64
    """n, of a step."""
    cost_dimension: int = 512
    """d of the cell whose cost is compared."""
    cost_samples: int = 1024
    """n of that cell."""
    cost_replicas: int = 100
    """Replicas of that cell."""
    cost_steps: int = 4
    """Number of timed steps."""


@dataclass
class PhaseDiagramConfig:
    """Figures 2, 5 and 7: the probability of collapse over initial temperature and annealing time."""

    temperatures: list[float] = field(default_factory=lambda: [18.0, 45.0, 90.0, 300.0, 900.0, 9000.0])
    """1 / beta_i."""
    steps: list[int] = field(default_factory=lambda: [100, 200, 300, 500, 700, 1000])
    """t0."""
    replicas: int = 100
    """Of each cell."""
    samples: int = 1024
    """n, of a step."""
    row_steps: int = 300
    """t0 of the row that is also run with other numbers of samples."""
    row_samples: list[int] = field(default_factory=lambda: [128, 8192])
    """Those numbers."""


@dataclass
class RunsConfig:
    """Figures 1, 3 and 6: single runs of five strategies."""

    seeds: int = 20
    """Runs of each strategy."""
    samples: int = 1024
    """n, of a step."""
    temperature: float = 90.0
    """1 / beta_i of annealing, and the variance of the covering start."""
    steps: int = 500
    """t0."""
    plain_steps: int = 300
    """Steps without annealing."""


@dataclass
class FlowsConfig:
    """Figure 4: a RealNVP student."""

    dimension: int = 16
    """d."""
    couplings: int = 4
    """Affine couplings."""
    hidden: int = 64
    """Width of their networks."""
    samples: int = 256
    """n, of a step."""
    replicas: int = 8
    """Of each cell; they are trained at once."""
    temperatures: list[float] = field(default_factory=lambda: [9.0, 90.0, 900.0])
    """1 / beta_i."""
    steps: list[int] = field(default_factory=lambda: [100, 300, 600])
    """t0."""
    after: int = 100
    """Steps after t0, and all steps of the cell without annealing together with the longest t0."""
    learning_rate: float = 1e-3
    """Of Adam."""
    threshold: float = 1.6
    """A student whose standard deviation along mu* is below this has collapsed."""


@dataclass
class AnnealedInferenceConfig:
    """The setting, and one section for each experiment."""

    radius: float = 3.0
    """R."""
    heavy_weight: float = 0.8
    """w*."""
    dimension: int = 512
    """d of the mixtures."""
    step_size: float = 0.05
    """eta."""
    after: int = 150
    """Steps after t0, before it is asked whether the means have collapsed."""
    seed: int = 0
    """Of starts and samples; every cell has a seed of its own that follows from it."""
    formulas: FormulasConfig = field(default_factory=FormulasConfig)
    """Flows of the means, and closed forms."""
    agreement: AgreementConfig = field(default_factory=AgreementConfig)
    """The full update against the reduced one."""
    phase_diagram: PhaseDiagramConfig = field(default_factory=PhaseDiagramConfig)
    """Collapse over initial temperature and annealing time."""
    runs: RunsConfig = field(default_factory=RunsConfig)
    """Single runs of several strategies."""
    flows: FlowsConfig = field(default_factory=FlowsConfig)
    """Normalizing flows as students."""


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
