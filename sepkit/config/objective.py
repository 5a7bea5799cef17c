"""The objective: costs, assignments, and the weights of its terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sepkit.choices import Choice
from sepkit.config.schedules import ConstantConfig, ScheduleConfig, TruncatedExponentialConfig


class CostConfig(Choice):
    """How far an estimate is from a source, for every pair."""


@dataclass
class NegSISDRConfig(CostConfig, name="neg_si_sdr"):
    """Negative scale-invariant signal-to-distortion ratio, dB."""

    zero_mean: bool = True
    """Remove the means first."""
    eps: float = 1e-8
    limit_db: float = float("inf")
    """Ratios approach this and gain nothing beyond it, so that easy mixtures (one speaker) do not drown the others."""


@dataclass
class NegSNRConfig(CostConfig, name="neg_snr"):
    """Negative signal-to-noise ratio, dB: levels matter."""

    zero_mean: bool = True
    eps: float = 1e-8


@dataclass
class MSEConfig(CostConfig, name="mse"):
    """Mean squared error."""


@dataclass
class LogMSEConfig(CostConfig, name="log_mse"):
    """10 log10 of the mean squared error, dB."""

    eps: float = 1e-8


@dataclass
class BLRConfig(CostConfig, name="blr_nll"):
    """Negative log evidence of a Bayesian linear regression of source on estimate, nats: scale-invariant."""

    a0: float = 1.0
    b0: float = 1e-3
    mu0: float = 0.0
    lambda0: float = 1e-6


@dataclass
class CauchyConfig(CostConfig, name="cauchy_nll"):
    """Negative log density of a multivariate Cauchy around the estimate, nats."""

    scale: float = 1.0


class AssignmentConfig(Choice):
    """How hypotheses are matched to sources."""


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


@dataclass
class AnnealedMCLConfig(AssignmentConfig, name="amcl"):
    """Annealed MCL: softmin over hypotheses at a falling temperature."""

    temperature: ScheduleConfig = field(
        default_factory=lambda: TruncatedExponentialConfig(initial=5.0, decay=0.9, end=100.0)
    )
    unit: Literal["cost", "spread"] = "cost"
    """Of the temperature: the cost's own (dB), or multiples of the spread of the training data, measured beforehand."""
    floor: float = 1e-4
    """Up to this temperature (in the cost's unit) the minimum is hard."""


@dataclass
class SinkhornConfig(AssignmentConfig, name="sinkhorn"):
    """Entropic optimal transport."""

    regularization: ScheduleConfig = field(default_factory=lambda: ConstantConfig(1.0))


@dataclass
class ScoringLossConfig:
    """How scores are trained, where the model has them (model.scoring)."""

    kind: Literal["binary", "cross_entropy"] = "binary"
    """binary: has this hypothesis won a source or more; cross_entropy: whose share of the sources is how large."""
    weight: float = 0.1
    """Of this term beside the separation."""


@dataclass
class RateConfig:
    """How one of the rates enters the objective, where its latents are variational."""

    weight: ScheduleConfig = field(default_factory=ConstantConfig)
    """Beta, a schedule; 1 with a likelihood makes the objective the negative evidence lower bound."""
    free_nats: float = 0.0
    """A rate below this costs no more than this, and so is not reduced."""
    free_nats_over: Literal["element", "tick", "utterance"] = "utterance"
    """What has that many nats free: every element, all dimensions (and hypotheses) of a tick, or a whole utterance."""


@dataclass
class SteeringConfig:
    """Weights of rates that are adapted after every step until the rates meet their targets."""

    total: float | None = None
    """Target of the sum of both rates, with one weight for both, nats."""
    encoding: float | None = None
    """Target of the encoding's rate alone, with a weight of its own, nats."""
    masks: float | None = None
    """Target of the masks' rate alone (of all hypotheses), with a weight of its own, nats."""
    per: Literal["tick", "sample", "utterance"] = "tick"
    """What targets, and recorded rates, are nats of."""
    initial_weight: float = 1e-6
    """Where weights start; 1e-9 in the thesis's long trainings."""
    change: float = 0.01
    """A weight is multiplied or divided by 1 + this at a step; 1e-4 in the thesis's long trainings."""
    tolerance: float = 0.01
    """A rate within this share of its target changes nothing."""
    warn_after_epochs: int = 20
    """Every so many epochs, a rate more than 10 % off its target is reported; 0 means never."""


@dataclass
class RatesConfig:
    """The rates of variational latents."""

    encoding: RateConfig = field(default_factory=RateConfig)
    masks: RateConfig = field(default_factory=RateConfig)
    estimator: Literal["auto", "analytic", "sample"] = "auto"
    """In closed form, or as the log ratio of the densities at the sample at hand; auto: in closed form wherever there
    is one."""
    steering: SteeringConfig | None = None
    """Weights that lead the rates to targets; they multiply the scheduled ones."""
    tempering: ScheduleConfig | None = None
    """Inverse temperature: a schedule that rises to 1, such as inverse_temperature. It multiplies the whole log joint,
    likelihood and prior, and leaves the entropy of the posteriors as it is; the cost must be a likelihood."""


@dataclass
class AutoencodingConfig:
    """Encodings that are decoded without masks too, by the same decoder (thesis, fig. 6); 0 means not."""

    sources: float = 0.0
    """Weight of how far decoded encodings of the sources are from these."""
    mixtures: float = 0.0
    """Weight of how far the decoded encoding of the mixture is from it; mixtures without sources count too."""


@dataclass
class SilenceConfig:
    """Hypotheses without a source are driven to silence; for mixtures with fewer speakers than hypotheses."""

    weight: float = 0.0
    """Weight of their level in dB relative to the separation loss; 0: no such term."""
    threshold_db: float = 30.0
    """How far below the mixture they are quiet enough."""


@dataclass
class ObjectiveConfig:
    """What is minimized."""

    cost: CostConfig = field(default_factory=NegSISDRConfig)
    assignment: AssignmentConfig = field(default_factory=PITConfig)
    schedule_by: Literal["epoch", "step"] = "epoch"
    """Schedules are constant within an epoch, as in the aMCL paper, or move on with every step."""
    scoring: ScoringLossConfig = field(default_factory=ScoringLossConfig)
    rates: RatesConfig = field(default_factory=RatesConfig)
    autoencoding: AutoencodingConfig = field(default_factory=AutoencodingConfig)
    silence: SilenceConfig = field(default_factory=SilenceConfig)
    margin_weight: float = 0.0
    """Of the mean of max(|u| - 1, 0)^2 over the standardized estimates u, which keeps them within their range."""
