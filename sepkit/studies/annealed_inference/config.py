"""The configuration of the annealed VI paper's experiments. No torch.

`temperatures` are 1 / beta_i, `steps` t0 and `after` the steps after it, `samples` the n of a step, `starts` and
`replicas` those of each cell, `dimension` d, `radius` R, `heavy_weight` w*, and `step_size` eta.
"""

from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated

from sepkit.choices import from_dict
from sepkit.errors import Bounds
from sepkit.files import read_yaml
from sepkit.numbers import Between, Items, Positive, Seed

Temperature = Annotated[float, Bounds(gt=1, lt=inf)]
"""1 / beta_i: more than 1, the final temperature."""
Temperatures = Annotated[list[float], Bounds(gt=1, lt=inf)]


@dataclass
class FormulasConfig:
    """The flow of the order parameters against the closed forms."""

    temperatures: Temperatures = field(default_factory=lambda: [18.0, 90.0, 900.0, 9000.0])
    steps: list[Items] = field(default_factory=lambda: [100, 200, 300, 500, 700, 1000])
    starts: Items = 2000
    after: Items = 200


@dataclass
class PhaseDiagramConfig:
    """Figures 2, 5 and 7: the probability of collapse over initial temperature and annealing time."""

    temperatures: Temperatures = field(default_factory=lambda: [18.0, 45.0, 90.0, 300.0, 900.0, 9000.0])
    steps: list[Items] = field(default_factory=lambda: [100, 200, 300, 500, 700, 1000])
    replicas: Items = 100
    samples: Items = 1024
    row_steps: Items = 300
    """t0 of the row that is also run with other numbers of samples."""
    row_samples: list[Items] = field(default_factory=lambda: [128, 8192])


@dataclass
class RunsConfig:
    """Figures 1, 3 and 6: single runs of five strategies."""

    seeds: Items = 20
    samples: Items = 1024
    temperature: Temperature = 90.0
    """1 / beta_i of annealing, and the variance of the covering start."""
    steps: Items = 500
    plain_steps: Items = 300


@dataclass
class FlowsConfig:
    """Figure 4: a RealNVP student."""

    dimension: Items = 16
    couplings: Items = 4
    hidden: Items = 64
    samples: Items = 256
    replicas: Items = 8
    """Replicas of each cell, trained in parallel."""
    temperatures: Temperatures = field(default_factory=lambda: [9.0, 90.0, 900.0])
    steps: list[Items] = field(default_factory=lambda: [100, 300, 600])
    after: Items = 100
    """Steps after t0, and all steps of the cell without annealing together with the longest t0."""
    learning_rate: Positive = 1e-3
    threshold: Positive = 1.6
    """A student whose standard deviation along mu* is below this has collapsed."""


@dataclass
class AnnealedInferenceConfig:
    """The setting, and one section for each experiment."""

    radius: Positive = 3.0
    heavy_weight: Between = 0.8
    dimension: Items = 512
    """d of the mixtures."""
    step_size: Positive = 0.05
    after: Items = 150
    """Steps after t0, before it is asked whether the means have collapsed."""
    seed: Seed = 0
    """Seed of starts and samples; each cell's own seed follows from it."""
    formulas: FormulasConfig = field(default_factory=FormulasConfig)
    phase_diagram: PhaseDiagramConfig = field(default_factory=PhaseDiagramConfig)
    runs: RunsConfig = field(default_factory=RunsConfig)
    flows: FlowsConfig = field(default_factory=FlowsConfig)


def read_config(path: str | Path) -> AnnealedInferenceConfig:
    """Return the configuration in a YAML file.

    Raises:
        UserError: the file cannot be read, or a number is out of range.
    """
    return from_dict(AnnealedInferenceConfig, read_yaml(path, "give a YAML file") or {}, str(path))
