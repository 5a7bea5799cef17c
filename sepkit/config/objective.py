"""The objective: costs, assignments, and the weights of its terms."""

from dataclasses import dataclass, field
from typing import Literal

from sepkit.choices import Choice
from sepkit.config.schedules import ConstantConfig, ScheduleConfig, TruncatedExponentialConfig
from sepkit.numbers import Finite, Natural, NotNegative, Positive


class CostConfig(Choice):
    """The distance of an estimate from a source, for every pair."""


@dataclass
class NegSISDRConfig(CostConfig, name="neg_si_sdr"):
    """Negative scale-invariant signal-to-distortion ratio, dB.

    Args:
        zero_mean: Whether to remove the means first.
        eps: Constant that keeps the cost of silence finite.
        max_db: SI-SDR that the cost approaches for perfect estimates, so that training attends to worse ones (Wisdom
            et al., "Unsupervised sound separation using mixture invariant training", 2020); null: no limit.
    """

    zero_mean: bool = True
    eps: NotNegative = 1e-8
    max_db: Positive | None = None


@dataclass
class NegSNRConfig(CostConfig, name="neg_snr"):
    """Negative signal-to-noise ratio, dB: levels matter.

    Args:
        zero_mean: Whether to remove the means first.
        eps: Constant that keeps the cost of silence finite.
    """

    zero_mean: bool = True
    eps: NotNegative = 1e-8


@dataclass
class MSEConfig(CostConfig, name="mse"):
    """Mean squared error."""


@dataclass
class LogMSEConfig(CostConfig, name="log_mse"):
    """10 log10 of the mean squared error, dB.

    Args:
        eps: Keeps perfect estimates finite.
    """

    eps: NotNegative = 1e-8


@dataclass
class BLRConfig(CostConfig, name="blr_nll"):
    """Negative log evidence of a Bayesian linear regression of source on estimate, nats: scale-invariant.

    Args:
        a0: Shape of the inverse gamma prior of the noise variance.
        b0: Scale of the inverse gamma prior of the noise variance, relative to the training signals' variance.
        mu0: Prior mean of the gain.
        lambda0: Prior precision of the gain, relative to the noise's.
    """

    a0: Positive = 1.0
    b0: Positive = 1e-3
    mu0: Finite = 0.0
    lambda0: Positive = 1e-6


@dataclass
class CauchyConfig(CostConfig, name="cauchy_nll"):
    """Negative log density of a multivariate Cauchy around the estimate, nats.

    Args:
        scale: Deviation, relative to the training signals', where the decoder makes none of its own.
    """

    scale: Positive = 1.0


class AssignmentConfig(Choice):
    """The matching of hypotheses to sources."""


@dataclass
class PITConfig(AssignmentConfig, name="pit"):
    """Permutation invariant training: the best one-to-one matching."""


@dataclass
class MCLConfig(AssignmentConfig, name="mcl"):
    """Multiple choice learning: each source trains its best hypothesis."""


@dataclass
class RelaxedWTAConfig(AssignmentConfig, name="relaxed_wta"):
    """The winner takes 1 - epsilon, the others share epsilon.

    Args:
        epsilon: Weight of all that did not win, 0 to 1; a schedule.
    """

    epsilon: ScheduleConfig = field(default_factory=lambda: ConstantConfig(0.05))


@dataclass
class AnnealedMCLConfig(AssignmentConfig, name="amcl"):
    """Annealed MCL: softmin over hypotheses at a falling temperature.

    Args:
        temperature: Temperature of the softmin; a schedule.
        unit: Unit of the temperature. cost: that of the cost (dB). spread: multiples of the spread of the training
            data, which is measured before training.
        floor: Temperature (in the cost's unit) at and below which the best hypothesis takes all.
    """

    temperature: ScheduleConfig = field(
        default_factory=lambda: TruncatedExponentialConfig(initial=5.0, decay=0.9, end=100.0)
    )
    unit: Literal["cost", "spread"] = "cost"
    floor: NotNegative = 1e-4


@dataclass
class SinkhornConfig(AssignmentConfig, name="sinkhorn"):
    """Entropic optimal transport.

    Args:
        regularization: Weight of the entropy, in the cost's unit; a schedule.
    """

    regularization: ScheduleConfig = field(default_factory=lambda: ConstantConfig(1.0))


@dataclass
class ScoringLossConfig:
    """The training of scores, if the model has them (model.scoring).

    Args:
        weight: Weight of this term relative to the separation loss.
    """

    weight: NotNegative = 0.1


@dataclass
class RateConfig:
    """One of the rates in the objective, if its latents are variational.

    Args:
        weight: Beta, a schedule. With a likelihood and beta = 1, the objective is the negative evidence lower bound.
        free_nats: Lowest rate in the loss, nats; a rate below it is not reduced further.
        free_nats_over: Groups with free nats: every element, all dimensions (and hypotheses) of a frame, or a whole
            utterance.
    """

    weight: ScheduleConfig = field(default_factory=ConstantConfig)
    free_nats: NotNegative = 0.0
    free_nats_over: Literal["element", "frame", "utterance"] = "utterance"


@dataclass
class SteeringConfig:
    """Weights of rates that are adapted after every step until the rates meet their targets.

    Args:
        total: Target of the sum of all rates, with one weight for all, nats.
        encoding: Target of the encoding's rate alone, with a weight of its own, nats.
        masks: Target of the masks' rate alone (of all hypotheses), with a weight of its own, nats.
        per: Unit of targets and of recorded rates: nats per frame, per sample or per utterance.
        initial_weight: Initial value of the weights; 1e-9 in the thesis's long trainings.
        change: Relative change of a weight in each step; 1e-4 in the thesis's long trainings.
        tolerance: Relative distance from the target within which a rate leaves its weight unchanged.
        warn_after_epochs: Epochs between reports of rates more than 10 % off their target; 0: no reports.
    """

    total: Positive | None = None
    encoding: Positive | None = None
    masks: Positive | None = None
    per: Literal["frame", "sample", "utterance"] = "frame"
    initial_weight: Positive = 1e-6
    change: Positive = 0.01
    tolerance: Positive = 0.01
    warn_after_epochs: Natural = 20


@dataclass
class RatesConfig:
    """The rates of variational latents.

    Args:
        encoding: Rate of the encoding.
        masks: Rate of the masks of all hypotheses.
        estimator: analytic: the closed form. sample: the log ratio of the densities at the drawn sample. auto: the
            closed form if there is one, otherwise sample.
        steering: Weights that adapt until the rates reach their targets; they multiply the scheduled weights.
    """

    encoding: RateConfig = field(default_factory=RateConfig)
    masks: RateConfig = field(default_factory=RateConfig)
    estimator: Literal["auto", "analytic", "sample"] = "auto"
    steering: SteeringConfig | None = None


@dataclass
class AutoencodingConfig:
    """Encodings are also decoded without masks, by the same decoder (thesis, fig. 6); 0: they are not.

    Args:
        sources: Weight of the distance between the sources and their decoded encodings.
        mixtures: Weight of the distance between the mixture and its decoded encoding; mixtures without sources count,
            too.
    """

    sources: NotNegative = 0.0
    mixtures: NotNegative = 0.0


@dataclass
class SilenceConfig:
    """Hypotheses without a source are driven to silence; for mixtures with fewer speakers than hypotheses.

    Args:
        weight: Weight of the level (dB) of hypotheses without a source, relative to the separation loss; 0: none.
        threshold_db: Level below the mixture's at which a hypothesis is quiet enough.
    """

    weight: NotNegative = 0.0
    threshold_db: Positive = 30.0


@dataclass
class ObjectiveConfig:
    """The loss and its terms.

    Args:
        cost: Distance of an estimate from a source.
        assignment: Matching of hypotheses to sources.
        floor: Least separation loss of an utterance, below which it has no gradient (SepFormer: -30); none: no floor.
        schedule_by: epoch: schedules are constant within an epoch, as in the aMCL paper. step: they advance with every
            step.
        scoring: The loss of scores, if the model has them.
        rates: Nats that variational latents carry.
        autoencoding: Encodings decoded without masks.
        silence: Hypotheses without a source.
        margin_weight: Weight of the mean of max(|u| - 1, 0)^2 over the standardized estimates u. It keeps them within
            their range.
    """

    cost: CostConfig = field(default_factory=NegSISDRConfig)
    assignment: AssignmentConfig = field(default_factory=PITConfig)
    floor: Finite | None = None
    schedule_by: Literal["epoch", "step"] = "epoch"
    scoring: ScoringLossConfig = field(default_factory=ScoringLossConfig)
    rates: RatesConfig = field(default_factory=RatesConfig)
    autoencoding: AutoencodingConfig = field(default_factory=AutoencodingConfig)
    silence: SilenceConfig = field(default_factory=SilenceConfig)
    margin_weight: NotNegative = 0.0
