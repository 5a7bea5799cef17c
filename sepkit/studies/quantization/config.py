"""What the experiments can be asked for. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from sepkit.choices import from_dict
from sepkit.errors import UserError
from sepkit.files import read_yaml

T = TypeVar("T")

SECTIONS = {"gaussians", "free", "sines", "flows", "digits", "generators"}
"""Of the configuration files of recipes with several experiments."""

_POSITIVE = {
    "hypotheses", "hidden", "hidden_large", "seeds", "epochs", "steps_per_epoch", "batch_size", "check_every",
    "check_every_mcl", "record_every", "test_points", "probe_points", "points", "split_points", "split_hypotheses",
    "split_seeds", "lloyd_inputs", "experts", "examples", "test_examples", "steps", "couplings", "samples",
    "transport_samples", "channels", "classifier_channels", "masked_rows", "window", "generators", "latent",
    "discriminator_steps", "manifold_samples", "neighbors", "most_steps",
}  # fmt: skip


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


@dataclass
class GaussiansConfig:
    """Networks on three Gaussians, at fixed places and moving with the input.

    Source: aMCL paper, figures 1, 3, 4 and 5, appendix D; reference code annealed_mcl.
    """

    methods: list[str] = field(
        default_factory=lambda: ["mcl", "relaxed_wta_0.1", "relaxed_wta_annealed", "amcl_exponential", "amcl_linear"]
    )
    """Ways of matching."""
    hypotheses: int = 49
    """n."""
    hidden: list[int] = field(default_factory=lambda: [256, 256])
    """Widths of the layers."""
    seeds: int = 3
    """Networks of each method, trained as one stack."""
    epochs: int = 1000
    """Of training; temperatures and epsilon change by the epoch."""
    steps_per_epoch: int = 2
    """Batches of fresh points in an epoch."""
    batch_size: int = 512
    """Points of a step; 65,536 in the paper."""
    learning_rate: float = 0.01
    """Of SGD for fixed places, of Adam for moving ones."""
    initial_temperature_exponential: float = 0.6
    """T0 of exponential cooling, figure 1."""
    decay: float = 0.99
    """Of the temperature in an epoch."""
    initial_temperature_linear: float = 1.0
    """T0 of linear cooling, figures 3 and 4."""
    initial_epsilon: float = 0.98
    """Of relaxed WTA with annealed epsilon, figure 5."""
    score_weight: float = 1.0
    """Of the scores' cross-entropy."""
    deviation: float = 0.1
    """Of each Gaussian."""
    probes: list[float] = field(default_factory=lambda: [0.3, 0.6, 0.9, 1.0])
    """Inputs at which hypotheses are watched."""
    probe_points: int = 250
    """Targets drawn at each of them."""
    record_every: int = 10
    """Epochs between records."""
    test_points: int = 10_000
    """Of the final distortion; a hypothesis is used if it is the nearest of one of them or more."""
    lloyd_inputs: int = 10
    """Inputs over which the floor of the moving case is averaged."""
    seed: int = 0
    """Of everything."""


@dataclass
class FreeConfig:
    """Free hypotheses: rate and distortion of a Gaussian, and the delay of splits."""

    hypotheses: int = 25
    """n on the rate-distortion curve."""
    points: int = 4000
    """Quantiles that stand for N(0, 1)."""
    temperatures: list[float] = field(default_factory=lambda: [1.3, 0.9, 0.7, 0.5, 0.35])
    """Where rate and distortion are compared with the bound."""
    annealed_hypotheses: int = 6
    """n of deterministic annealing on three Gaussians."""
    split_points: int = 600
    """Of the three Gaussians."""
    split_hypotheses: int = 9
    """n that descend the gradient."""
    step_size: float = 0.05
    """eta, of one hypothesis."""
    start_spread: float = 1e-3
    """Deviation of hypotheses around the mean at the start."""
    seen_spread: float = 0.02
    """Deviation along the first axis at which they count as parted."""
    split_seeds: int = 5
    """Starts of each schedule."""
    linear: list[list[float]] = field(default_factory=lambda: [[0.6, 200], [0.6, 1000], [0.6, 5000], [1.0, 1000]])
    """Linear schedules: T0 and epochs."""
    exponential: list[list[float]] = field(default_factory=lambda: [[0.6, 0.9], [0.6, 0.99], [0.6, 0.999], [1.0, 0.99]])
    """Exponential schedules: T0 and decay."""
    seed: int = 0
    """Of points and starts."""


@dataclass
class SinesConfig:
    """Experts on a mixture of three sines: which ways of training find all modes.

    Source: CCLVQ paper, section 5.1; where it is silent, the choices are ours.
    """

    kinds: list[str] = field(default_factory=lambda: ["plain", "noisy", "split", "annealed"])
    """Ways of training."""
    targets: list[str] = field(default_factory=lambda: ["raw", "standardized"])
    """Whether targets are divided by their deviation."""
    experts: int = 3
    """n."""
    hidden: int = 20
    """Width of the one layer of experts and classifier, tanh."""
    seeds: int = 10
    """Runs of each kind, trained as one stack."""
    examples: int = 10_000
    """Of the training set, its own for each seed."""
    test_examples: int = 5000
    """Fresh ones, the same for all."""
    deviation: float = 0.3
    """Of the noise; its square is the least distortion."""
    steps: int = 3000
    """Of training."""
    batch_size: int = 256
    """Examples of a step."""
    learning_rate: float = 0.01
    """Of Adam, for experts and classifier."""
    reduction: Literal["sum", "mean"] = "sum"
    """Over the samples of a batch."""
    noise: float = 1.0
    """noisy: deviation in units of the median winner cost, until the free phase ends."""
    initial_temperature: float = 4.0
    """annealed: T0 in units of the targets' variance."""
    end_ratio: float = 0.005
    """annealed: last temperature before matching is hard, over T0."""
    free_share: float = 0.7
    """Share of the steps with noise or a temperature."""
    growth_share: float = 0.6
    """split: share of the steps when the last expert wakes; phases before are equal."""
    split_by: Literal["distortion", "samples"] = "distortion"
    """split: which expert is doubled."""
    jitter: float = 0.01
    """split: size of the push, in units of the RMS of each tensor."""
    seed: int = 0
    """Of everything."""


@dataclass
class FlowsConfig:
    """A mixture of RealNVPs on modes in the plane, trained by hard assignment.

    Source: CCLVQ paper, section 5.3; where it is silent, the choices are ours.
    """

    targets: list[str] = field(default_factory=lambda: ["ring"])
    """ring: 8 Gaussians on a circle of radius 4; grid: 25 Gaussians, 2 apart."""
    experts: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    """n."""
    seeds: int = 5
    """Runs of each n, trained as one stack."""
    deviation: float = 0.3
    """Of each mode."""
    couplings: int = 4
    """Affine couplings."""
    hidden: int = 32
    """Width of their networks."""
    steps: int = 1500
    """Of training, for every n."""
    batch_size: int = 256
    """Examples of a step."""
    learning_rate: float = 1e-3
    """Of Adam."""
    log_share: bool = False
    """Whether the logarithm of an expert's share is added to its likelihood when who wins is decided."""
    samples: int = 5000
    """Drawn from each trained mixture."""
    transport_samples: int = 1000
    """Of the transport distance."""
    seed: int = 0
    """Of everything."""


@dataclass
class DigitsConfig:
    """Experts that restore digits: binarized MNIST with missing pixels or noise.

    Source: CCLVQ paper, section 5.2 and appendix B.1; where it is silent, the choices are ours.
    """

    tasks: list[str] = field(default_factory=lambda: ["upper", "noise"])
    """upper: upper rows are missing; window: a square at a random place is missing; noise: Gaussian noise."""
    experts: list[int] = field(default_factory=lambda: [1, 2, 4])
    """n."""
    independent: int = 4
    """Independent networks of which the best counts; 0: none."""
    seeds: int = 3
    """Runs of each."""
    training: Literal["plain", "noisy", "split"] = "split"
    """plain: all experts from the start; noisy: the same with noise in the assignment; split: grown from one expert."""
    examples: int = 20_000
    """Training images, drawn from all."""
    test_examples: int = 2000
    """Unseen images, drawn from all."""
    masked_rows: int = 20
    """upper: missing rows, of 28."""
    window: int = 14
    """window: side of the square, pixels."""
    noise: float = 1.0
    """noise: deviation."""
    channels: list[int] = field(default_factory=lambda: [32, 64])
    """Of an expert's first convolution and of its bottleneck."""
    classifier_channels: list[int] = field(default_factory=lambda: [16, 32, 64])
    """Of the classifier's three stages."""
    norm: Literal["group", "batch"] = "group"
    """Group norm sees one image; batch norm the images of a batch that an expert has won."""
    steps: int = 1000
    """Of training, whatever n."""
    batch_size: int = 128
    """Images of a step."""
    learning_rate: float = 1e-3
    """Of Adam, for experts and classifier."""
    assignment_noise: float = 0.3
    """noisy: deviation in units of the median winner cost."""
    growth_start: float = 0.4
    """split: share of the steps when the second expert wakes; a split is useful once there is something to share."""
    growth_share: float = 0.7
    """split: share of the steps when the last expert wakes; phases between are equal."""
    split_by: Literal["distortion", "samples"] = "distortion"
    """split: which expert is doubled."""
    jitter: float = 0.01
    """split: size of the push, in units of the RMS of each tensor."""
    shown: int = 8
    """Images in the figures."""
    seed: int = 0
    """Of everything."""


@dataclass
class GeneratorsConfig:
    """Several generators under one hinge discriminator; the one it believes most learns from each latent.

    Source: CCLVQ paper, section 5.4; where it is silent, the choices are ours.
    """

    targets: list[str] = field(default_factory=lambda: ["ring", "grid"])
    """ring, grid: Gaussians in the plane; digits: binarized MNIST (--images)."""
    generators: list[int] = field(default_factory=lambda: [1, 2, 4])
    """n."""
    independent: int = 2
    """Generators with a discriminator each, sampled in equal parts; 0: none."""
    seeds: int = 5
    """Runs of each, trained as one stack."""
    deviation: float = 0.3
    """Of each mode in the plane."""
    latent: int = 2
    """Dimension of the latents."""
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    """Widths of all networks in the plane, of the classifier everywhere."""
    channels: list[int] = field(default_factory=lambda: [64, 32])
    """digits: of the generators' two inner layers; of the discriminator's, in reverse."""
    steps: int = 2000
    """Batches that each generator learns from; with n generators, training goes on until each has had that many."""
    most_steps: float = 1.5
    """Training ends after n times this times `steps`, if a generator still lacks some."""
    batch_size: int = 128
    """Latents of a step, and real samples."""
    learning_rate: float = 5e-4
    """Of Adam, for generators, discriminator and classifier."""
    first_decay: float = 0.5
    """Of Adam's first moments, for generators and discriminator."""
    discriminator_steps: int = 2
    """Of each step of the generators."""
    choice: Literal["classifier", "uniform"] = "classifier"
    """Which generator makes a sample: drawn from the classifier's distribution given the latent, or any."""
    samples: int = 5000
    """Drawn from each trained run."""
    manifold_samples: int = 2000
    """Real and generated samples of precision and recall."""
    neighbors: int = 3
    """k of precision and recall."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where networks are trained; latents and samples are drawn on the CPU."""
    seed: int = 0
    """Of everything."""


def read_section(cls: type[T], path: str | Path | None, section: str | None = None) -> T:
    """The configuration of one experiment from a YAML file; the defaults without one.

    Args:
        cls: of the configuration.
        path: of the file.
        section: key below which it stands; None: it is all of the file.

    Raises:
        UserError: unreadable, an unknown key, or a number out of its range.
    """
    if path is None:
        return cls()
    data = read_yaml(path, "give a YAML file") or {}
    prefix = ""
    if section is not None:
        if not isinstance(data, dict) or set(data) - SECTIONS:
            found = ", ".join(map(str, sorted(set(data) - SECTIONS))) if isinstance(data, dict) else "no sections"
            raise UserError(f"{path}: found {found}, expected the sections {', '.join(sorted(SECTIONS))}")
        data, prefix = data.get(section) or {}, f"{section}."
    config = from_dict(cls, data, f"{path}: {section}" if section else str(path))
    for name, value in numbers_of(config):
        if not 0 <= value < math.inf:
            raise UserError(f"{path}: {prefix}{name}: found {value:g}, expected a number that is not negative")
        if name == "decay" and not 0 < value < 1:
            raise UserError(f"{path}: {prefix}{name}: found {value:g}, expected a number between 0 and 1")
        if value == 0 and name in _POSITIVE:
            raise UserError(f"{path}: {prefix}{name}: found 0, expected 1 or more")
    return config


def numbers_of(config: Any) -> list[tuple[str, float]]:
    """Every number of a configuration with its name.

    Args:
        config: any of the dataclasses here.
    """
    numbers: list[tuple[str, float]] = []
    for known in fields(config):
        value = getattr(config, known.name)
        values = value if isinstance(value, list) else [value]
        numbers += [(known.name, float(number)) for number in values if isinstance(number, int | float)]
    return numbers
