"""The objective: costs, assignments, and the weights of its terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from sepkit.choices import Choice
from sepkit.config.schedules import ConstantConfig, ScheduleConfig, TruncatedExponentialConfig
from sepkit.errors import Bounds

Weight = Annotated[float, Bounds(ge=0, lt=math.inf)]
Positive = Annotated[float, Bounds(gt=0, lt=math.inf)]


class CostConfig(Choice):
    """The distance of an estimate from a source, for every pair."""


@dataclass
class NegSISDRConfig(CostConfig, name="neg_si_sdr"):
    """Negative scale-invariant signal-to-distortion ratio, dB."""

    zero_mean: bool = True
    """Remove the means first."""
    eps: float = 1e-8
    """Keeps silence finite."""


@dataclass
class NegSNRConfig(CostConfig, name="neg_snr"):
    """Negative signal-to-noise ratio, dB: levels matter."""

    zero_mean: bool = True
    """Remove the means first."""
    eps: float = 1e-8
    """Keeps silence finite."""


@dataclass
class MSEConfig(CostConfig, name="mse"):
    """Mean squared error."""


@dataclass
class LogMSEConfig(CostConfig, name="log_mse"):
    """10 log10 of the mean squared error, dB."""

    eps: float = 1e-8
    """Keeps perfect estimates finite."""


@dataclass
class BLRConfig(CostConfig, name="blr_nll"):
    """Negative log evidence of a Bayesian linear regression of source on estimate, nats: scale-invariant."""

    a0: float = 1.0
    """Shape of the inverse gamma prior of the noise variance."""
    b0: float = 1e-3
    """Scale of the inverse gamma prior of the noise variance, relative to the training signals' variance."""
    mu0: float = 0.0
    """Prior mean of the gain."""
    lambda0: float = 1e-6
    """Prior precision of the gain, relative to the noise's."""


@dataclass
class CauchyConfig(CostConfig, name="cauchy_nll"):
    """Negative log density of a multivariate Cauchy around the estimate, nats."""

    scale: float = 1.0
    """Deviation, relative to the training signals', where the decoder makes none of its own."""


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
    """The winner takes 1 - epsilon, the others share epsilon."""

    epsilon: ScheduleConfig = field(default_factory=lambda: ConstantConfig(0.05))
    """Weight of all that did not win, 0 to 1; a schedule."""


@dataclass
class AnnealedMCLConfig(AssignmentConfig, name="amcl"):
    """Annealed MCL: softmin over hypotheses at a falling temperature."""

    temperature: ScheduleConfig = field(
        default_factory=lambda: TruncatedExponentialConfig(initial=5.0, decay=0.9, end=100.0)
    )
    """Of the softmin; a schedule."""
    unit: Literal["cost", "spread"] = "cost"
    """Unit of the temperature. cost: that of the cost (dB). spread: multiples of the spread of the training data, which
    is measured before training."""
    floor: float = 1e-4
    """At or below this temperature (in the cost's unit), the best hypothesis takes all."""


@dataclass
class SinkhornConfig(AssignmentConfig, name="sinkhorn"):
    """Entropic optimal transport."""

    regularization: ScheduleConfig = field(default_factory=lambda: ConstantConfig(1.0))
    """Weight of the entropy, in the cost's unit; a schedule."""


@dataclass
class ScoringLossConfig:
    """The training of scores, if the model has them (model.scoring)."""

    weight: Weight = 0.1
    """Weight of this term relative to the separation loss."""


@dataclass
class RateConfig:
    """One of the rates in the objective, if its latents are variational."""

    weight: ScheduleConfig = field(default_factory=ConstantConfig)
    """Beta, a schedule. With a likelihood and beta = 1, the objective is the negative evidence lower bound."""
    free_nats: Weight = 0.0
    """A rate below this costs as much as this, so it is not reduced further."""
    free_nats_over: Literal["element", "frame", "utterance"] = "utterance"
    """Groups with free nats: every element, all dimensions (and hypotheses) of a frame, or a whole utterance."""


@dataclass
class SteeringConfig:
    """Weights of rates that are adapted after every step until the rates meet their targets."""

    total: Positive | None = None
    """Target of the sum of all rates, with one weight for all, nats."""
    encoding: Positive | None = None
    """Target of the encoding's rate alone, with a weight of its own, nats."""
    masks: Positive | None = None
    """Target of the masks' rate alone (of all hypotheses), with a weight of its own, nats."""
    per: Literal["frame", "sample", "utterance"] = "frame"
    """Unit of targets and of recorded rates: nats per frame, per sample or per utterance."""
    initial_weight: Positive = 1e-6
    """Initial value of the weights; 1e-9 in the thesis's long trainings."""
    change: Positive = 0.01
    """Each step multiplies or divides a weight by 1 + this; 1e-4 in the thesis's long trainings."""
    tolerance: Positive = 0.01
    """A weight does not change while its rate is within this share of the target."""
    warn_after_epochs: int = 20
    """Report rates more than 10 % off their target every N epochs; 0: never."""


@dataclass
class RatesConfig:
    """The rates of variational latents."""

    encoding: RateConfig = field(default_factory=RateConfig)
    """Of the encoding."""
    masks: RateConfig = field(default_factory=RateConfig)
    """Of the masks of all hypotheses."""
    estimator: Literal["auto", "analytic", "sample"] = "auto"
    """analytic: the closed form. sample: the log ratio of the densities at the drawn sample. auto: the closed form if
    there is one, otherwise sample."""
    steering: SteeringConfig | None = None
    """Weights that adapt until the rates reach their targets; they multiply the scheduled weights."""


@dataclass
class AutoencodingConfig:
    """Encodings are also decoded without masks, by the same decoder (thesis, fig. 6); 0: they are not."""

    sources: Weight = 0.0
    """Weight of the distance between the sources and their decoded encodings."""
    mixtures: Weight = 0.0
    """Weight of the distance between the mixture and its decoded encoding; mixtures without sources count, too."""


@dataclass
class SilenceConfig:
    """Hypotheses without a source are driven to silence; for mixtures with fewer speakers than hypotheses."""

    weight: Weight = 0.0
    """Weight of their level in dB relative to the separation loss; 0: no such term."""
    threshold_db: Positive = 30.0
    """Hypotheses this far below the mixture are quiet enough."""


@dataclass
class ObjectiveConfig:
    """The loss and its terms."""

    cost: CostConfig = field(default_factory=NegSISDRConfig)
    """Distance of an estimate from a source."""
    assignment: AssignmentConfig = field(default_factory=PITConfig)
    """Matching of hypotheses to sources."""
    schedule_by: Literal["epoch", "step"] = "epoch"
    """epoch: schedules are constant within an epoch, as in the aMCL paper. step: they advance with every step."""
    scoring: ScoringLossConfig = field(default_factory=ScoringLossConfig)
    """The loss of scores, if the model has them."""
    rates: RatesConfig = field(default_factory=RatesConfig)
    """Nats that variational latents carry."""
    autoencoding: AutoencodingConfig = field(default_factory=AutoencodingConfig)
    """Encodings decoded without masks."""
    silence: SilenceConfig = field(default_factory=SilenceConfig)
    """Hypotheses without a source."""
    margin_weight: Weight = 0.0
    """Weight of the mean of max(|u| - 1, 0)^2 over the standardized estimates u. It keeps them within their range."""
