"""Every choice a user can make, as typed dataclasses without torch.

The command line, YAML files and checkpoints are made from these.

A *choice* is a dataclass picked by `name` ("conv_tasnet", "pit"). In YAML it is a mapping with that name and the
choice's own parameters:

    model:
      masker: {name: conv_tasnet, bottleneck_channels: 128}

`sepkit.choices` has the way to plain data and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sepkit.choices import Choice as Choice
from sepkit.choices import field_types as field_types
from sepkit.choices import from_dict as from_dict
from sepkit.choices import pick as pick
from sepkit.choices import to_dict as to_dict

# ---------------------------------------------------------------------------------------------------------- model


class FilterbankConfig(Choice):
    """How waveforms become encodings and come back."""


@dataclass
class FreeFilterbankConfig(FilterbankConfig, name="free"):
    """Learned, bias-free analysis and synthesis filters (TasNet)."""

    num_filters: int = 512
    """Encoding dimensions K."""
    kernel_size: int = 16
    """Samples in a filter."""
    stride: int = 8
    """Samples between frames."""
    padding: int = 0
    """Zeros the convolution adds at both ends (SuDoRM-RF: half its kernel)."""
    output_padding: int = 0
    """Extra samples at the decoder's right end (SuDoRM-RF: stride - 1)."""
    multiple: int = 1
    """The input is padded on the right to a multiple of this many samples (SuDoRM-RF: 80)."""
    init_range: float = 0.0
    """Filters start uniform in +-this; 0 means Xavier-normal."""


@dataclass
class STFTFilterbankConfig(FilterbankConfig, name="stft"):
    """Short-time Fourier transform; a mask scales real and imaginary part alike."""

    kernel_size: int = 256
    """Samples in a window."""
    stride: int = 64
    """Samples between frames."""
    compression: float = 0.3
    """The masker sees magnitudes raised to this power; 0 means log(1e-4 + magnitude)."""
    deviation: Literal["per_bin", "predicted"] = "per_bin"
    """With gaussian encodings, whose mean is the coefficient: one learnt deviation a bin, or one predicted from what
    the masker sees."""
    initial_deviation: float = 0.1
    """Of gaussian encodings when training starts, for signals of unit deviation."""


class LatentConfig(Choice):
    """What family the encoding or the masks are drawn from, and their link."""


@dataclass
class DeterministicConfig(LatentConfig, name="deterministic"):
    """Points: the usual network."""

    link: Literal["linear", "relu", "sigmoid", "softmax", "softplus", "exp", "tanh"] = "relu"
    """From raw network output to value; softmax runs over the hypotheses."""


@dataclass
class GaussianConfig(LatentConfig, name="gaussian"):
    """Normal distributions with modelled deviation."""

    link: Literal["linear", "relu", "sigmoid", "softmax", "softplus", "exp", "tanh"] = "linear"
    """From raw network output to mean."""
    at_test: Literal["mean", "median"] = "mean"
    """What stands for a posterior outside training; here they are the same."""


@dataclass
class LogNormalConfig(LatentConfig, name="log_normal"):
    """Exponentials of normal distributions: positive, as relu masks are."""

    at_test: Literal["mean", "median"] = "median"
    """What stands for a posterior outside training."""


@dataclass
class GammaConfig(LatentConfig, name="gamma"):
    """Gamma distributions with modelled concentration and a rate of 1: positive, one value for each dimension."""

    at_test: Literal["mean", "median"] = "mean"
    """What stands for a posterior outside training; the median takes long."""


@dataclass
class BetaConfig(LatentConfig, name="beta"):
    """Beta distributions: between 0 and 1, as sigmoid masks are."""

    at_test: Literal["mean", "median"] = "mean"
    """What stands for a posterior outside training; the median takes long."""


class PriorConfig(Choice):
    """What the posteriors' rates are measured from."""


@dataclass
class StandardPriorConfig(PriorConfig, name="standard"):
    """What goes with the family: N(0, 1), LN(0, 1), Gamma(1/2, 1) or Beta(1, 1)."""


@dataclass
class GaussianPriorConfig(PriorConfig, name="gaussian"):
    """A normal distribution."""

    mean: float = 0.0
    deviation: float = 1.0


@dataclass
class LogNormalPriorConfig(PriorConfig, name="log_normal"):
    """The exponential of a normal distribution."""

    location: float = 0.0
    deviation: float = 1.0


@dataclass
class GammaPriorConfig(PriorConfig, name="gamma"):
    """A gamma distribution."""

    concentration: float = 0.5
    rate: float = 1.0


@dataclass
class BetaPriorConfig(PriorConfig, name="beta"):
    """A beta distribution."""

    alpha: float = 1.0
    beta: float = 1.0


@dataclass
class AdaptivePriorConfig(PriorConfig, name="adaptive"):
    """Of encodings: the convolution of the sources' posteriors, as though encodings added up (thesis, eq. 5). Where
    sources are not known, and for the sources themselves, it is the standard prior."""


@dataclass
class FlowPriorConfig(PriorConfig, name="flow"):
    """Of gaussian encodings: a learnt autoregressive flow that shifts each dimension by the ones before it (needs the
    extra `flow`)."""

    transforms: int = 6
    """Masked networks in a row; every other one goes through the dimensions backwards."""
    hidden_features: int = 1024
    """Width of their hidden layers."""
    hidden_layers: int = 2


class MaskerConfig(Choice):
    """The network between encoder and decoder."""


Norm = Literal["global_layer_norm", "cumulative_layer_norm", "channel_layer_norm", "batch_norm"]


@dataclass
class ConvTasNetConfig(MaskerConfig, name="conv_tasnet"):
    """Temporal convolutional masker (Luo & Mesgarani 2019)."""

    bottleneck_channels: int = 128
    hidden_channels: int = 512
    skip_channels: int = 128
    kernel_size: int = 3
    blocks: int = 8
    """Blocks in a repeat; block b has dilation 2^b."""
    repeats: int = 3
    norm: Norm = "global_layer_norm"
    causal: bool = False
    """Look only backwards in time; asks for a norm other than global_layer_norm."""
    normalize_skip_sum: bool = False
    """Divide the sum of skip outputs by the number of blocks (thesis); off as in asteroid."""


@dataclass
class DualPathRNNConfig(MaskerConfig, name="dual_path_rnn"):
    """Dual-path recurrent masker (Luo et al. 2020)."""

    bottleneck_channels: int = 128
    hidden_channels: int = 128
    chunk_size: int = 100
    """Frames in a chunk."""
    hop_size: int = 50
    """Frames between chunks."""
    repeats: int = 6
    rnn: Literal["lstm", "gru"] = "lstm"
    num_layers: int = 1
    dropout: float = 0.0
    bidirectional: bool = True
    """Of the inter-chunk network; the intra-chunk one always is."""
    norm: Norm = "global_layer_norm"


@dataclass
class SuDoRMRFConfig(MaskerConfig, name="sudormrf"):
    """Successive down- and upsampling of multi-resolution features (Tzinis et al. 2020), the first version."""

    bottleneck_channels: int = 128
    hidden_channels: int = 512
    blocks: int = 16
    upsampling_depth: int = 4


@dataclass
class ImprovedSuDoRMRFConfig(MaskerConfig, name="improved_sudormrf"):
    """SuDoRM-RF with global layer norms and a linear output convolution (Tzinis et al. 2022)."""

    bottleneck_channels: int = 128
    hidden_channels: int = 512
    blocks: int = 16
    upsampling_depth: int = 4


@dataclass
class RecurrentConfig(MaskerConfig, name="recurrent"):
    """Stacked bidirectional LSTM or GRU (the first TasNet); with the STFT it trains fastest on CPUs."""

    rnn: Literal["lstm", "gru"] = "gru"
    hidden_size: int = 256
    num_layers: int = 3
    bidirectional: bool = True
    dropout: float = 0.0
    norm: Norm = "channel_layer_norm"


@dataclass
class SepFormerConfig(MaskerConfig, name="sepformer"):
    """Dual-path transformer (Subakan et al. 2021), standing on speechbrain's Dual_Path_Model."""

    model_dim: int = 256
    num_layers: int = 2
    """Dual-path blocks."""
    chunk_size: int = 250
    transformer_layers: int = 8
    """Layers in each intra- and inter-chunk transformer."""
    num_heads: int = 8
    feedforward_dim: int = 1024
    dropout: float = 0.0


@dataclass
class ScoringConfig:
    """A head that scores hypotheses: which of them are speakers, where their number is not known."""

    hidden_size: int = 128
    """Width of the layer between the masks and the scores."""


@dataclass
class ModelConfig:
    """An encoder-masker-decoder."""

    sample_rate: int = 8000
    """Hz. Part of the model: input at other rates is resampled and comes back at its own."""
    hypotheses: int = 2
    """How many estimates the model makes (n)."""
    filterbank: FilterbankConfig = field(default_factory=FreeFilterbankConfig)
    encoding: LatentConfig = field(default_factory=lambda: DeterministicConfig(link="linear"))
    masker: MaskerConfig = field(default_factory=ConvTasNetConfig)
    masks: LatentConfig = field(default_factory=lambda: DeterministicConfig(link="relu"))
    encoding_prior: PriorConfig = field(default_factory=StandardPriorConfig)
    """Of variational encodings."""
    mask_prior: PriorConfig = field(default_factory=StandardPriorConfig)
    """Of variational masks."""
    estimate_scales: bool = False
    """Whether the decoder also makes a scale for every sample, for the Cauchy likelihood."""
    scoring: ScoringConfig | None = None
    """A score for every hypothesis; none: no scores, and the number of speakers is that of hypotheses."""
    pad: Literal["full", "asteroid"] = "full"
    """full: no sample is lost at either end; asteroid: its trimming, for parity."""


# ------------------------------------------------------------------------------------------------------ objective


class ScheduleConfig(Choice):
    """A value as a pure function of progress t, in epochs."""


@dataclass
class ConstantConfig(ScheduleConfig, name="constant"):
    """The same value always."""

    value: float = 1.0


@dataclass
class TruncatedLinearConfig(ScheduleConfig, name="truncated_linear"):
    """initial * (1 - t / end), zero from `end` on (aMCL paper, eq. 43)."""

    initial: float = 1.0
    end: float = 100.0
    """Epochs."""


@dataclass
class TruncatedExponentialConfig(ScheduleConfig, name="truncated_exponential"):
    """initial * decay ** t, zero from `end` on (aMCL paper, eq. 44)."""

    initial: float = 1.0
    decay: float = 0.9
    end: float = float("inf")
    """Epochs; inf: never cut."""


@dataclass
class SigmoidWarmupConfig(ScheduleConfig, name="sigmoid_warmup"):
    """Rises from about 0 to `value` along a sigmoid that ends at `end`."""

    value: float = 1.0
    end: float = 10.0
    """Epochs."""


@dataclass
class LinearWarmupConfig(ScheduleConfig, name="linear_warmup"):
    """Rises from 0 to `value` along a line that ends at `end`."""

    value: float = 1.0
    end: float = 10.0
    """Epochs."""


@dataclass
class InverseTemperatureConfig(ScheduleConfig, name="inverse_temperature"):
    """min(initial ** (1 - t / end), 1)."""

    initial: float = 0.01
    end: float = 100.0
    """Epochs."""


@dataclass
class LinearInverseTemperatureConfig(ScheduleConfig, name="linear_inverse_temperature"):
    """Rises from `initial` to 1 along a line that ends at `end`."""

    initial: float = 0.01
    end: float = 100.0
    """Epochs."""


@dataclass
class SaturatingInverseTemperatureConfig(ScheduleConfig, name="saturating_inverse_temperature"):
    """initial + (1 - initial) * (1 - exp(-t / time))."""

    initial: float = 0.01
    time: float = 100.0
    """Epochs."""


@dataclass
class StepInverseTemperatureConfig(ScheduleConfig, name="step_inverse_temperature"):
    """`initial` before `end`, 1 from there on."""

    initial: float = 0.01
    end: float = 100.0
    """Epochs."""


class CostConfig(Choice):
    """How far an estimate is from a source, for every pair."""


@dataclass
class NegSISDRConfig(CostConfig, name="neg_si_sdr"):
    """Negative scale-invariant signal-to-distortion ratio, dB."""

    zero_mean: bool = True
    """Remove the means first."""
    eps: float = 1e-8


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


@dataclass
class AutoencodingConfig:
    """Encodings that are decoded without masks too, by the same decoder (thesis, fig. 6); 0 means not."""

    sources: float = 0.0
    """Weight of how far decoded encodings of the sources are from these."""
    mixtures: float = 0.0
    """Weight of how far the decoded encoding of the mixture is from it; mixtures without sources count too."""


@dataclass
class ObjectiveConfig:
    """What is minimised."""

    cost: CostConfig = field(default_factory=NegSISDRConfig)
    assignment: AssignmentConfig = field(default_factory=PITConfig)
    schedule_by: Literal["epoch", "step"] = "epoch"
    """Schedules are constant within an epoch, as in the aMCL paper, or move on with every step."""
    scoring: ScoringLossConfig = field(default_factory=ScoringLossConfig)
    rates: RatesConfig = field(default_factory=RatesConfig)
    autoencoding: AutoencodingConfig = field(default_factory=AutoencodingConfig)
    margin_weight: float = 0.0
    """Of the mean of max(|u| - 1, 0)^2 over the standardised estimates u, which keeps them within their range."""


# ----------------------------------------------------------------------------------------------------------- data


@dataclass
class DynamicMixingConfig:
    """New mixtures every epoch from the training manifest's own recordings."""

    enabled: bool = False
    gain_range_db: float = 2.5
    """Each source's gain is uniform in +-this, relative to equal loudness of the sources."""
    speed_range: float = 0.0
    """Each source is played 1 +- up to this much faster (0.05: 95 to 105 %)."""
    noise_probability: float = 1.0
    """Share of mixtures that get noise, where `noise` is given."""
    noise: str | None = None
    """Folder of noise recordings; none: no noise beyond what the manifest has."""
    noise_snr_db: tuple[float, float] = (0.0, 15.0)
    """Range of the speech-to-noise ratio."""
    reverberation_probability: float = 0.0
    """Share of mixtures in simulated rooms (needs the extra `reverb`)."""
    reverberation_cache: str | None = None
    """Folder of simulated impulse responses; made on first use."""
    overlap_probability: float = 1.0
    """Share of mixtures whose sources overlap fully; the others start at a random offset."""


@dataclass
class DataConfig:
    """What the model learns from."""

    train: str | None = None
    """Manifest of the training mixtures (train.jsonl)."""
    dev: str | None = None
    """Manifest of the validation mixtures."""
    segment_seconds: float = 3.0
    """Length of training segments, seconds; shorter utterances are padded."""
    batch_size: int = 6
    """Mixtures in a batch, each device."""
    workers: int = 2
    """Processes that load data, each device."""
    mixtures_per_epoch: int | None = None
    """With dynamic mixing: how many mixtures make an epoch; none: as many as the manifest has."""
    dynamic_mixing: DynamicMixingConfig = field(default_factory=DynamicMixingConfig)


# -------------------------------------------------------------------------------------------------------- trainer


@dataclass
class TrainerConfig:
    """How it is optimised."""

    max_epochs: int = 200
    max_minutes: float | None = None
    """Wall-clock budget, minutes; none: no limit."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    gradient_clip_norm: float = 5.0
    """0 means no clipping."""
    halve_patience: int = 5
    """Validations without a better score before the learning rate is halved."""
    early_stop_patience: int = 30
    """Validations without a better score before training stops; 0 means never."""
    monitor: Literal["auto", "pit", "mcl", "loss"] = "auto"
    """What picks the best model and halves the learning rate: SI-SDR on dev under hard one-to-one matching (pit) or of
    each source's best hypothesis (mcl); auto: mcl where the MCL family trains another number of hypotheses than of
    sources, else pit. loss: the training loss on dev, at the temperature of the day (aMCL's reference code)."""
    validate_every_epochs: int = 1
    """Epochs between validations."""
    keep_every_epochs: int = 0
    """Epochs between models kept in EXP/models, for `sepkit separate --hierarchy`; 0 means none."""
    precision: Literal["auto", "32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true"
    """auto: bf16-mixed on GPUs that compute in it, else 32-true."""
    tf32: bool = False
    """Products of float32 matrices in TF32, on GPUs that have it; the objective stays in float32."""
    compile: bool = False
    """Compile the model with torch.compile: for GPUs. On CPUs it turns Conv-TasNet's and DPRNN's own fast paths off."""
    gradient_checkpointing: bool = False
    """For long segments: keep only the input of each block of the masker, and do the block again in the backward
    pass. Same gradients, less memory, about a third more time. Conv-TasNet on CPUs does so anyway, at no cost."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = 1
    num_nodes: int = 1
    sync_batchnorm: bool = False
    """With several GPUs: batch normalisation over the batches of all; without it such models are refused."""
    accumulate_batches: int = 1
    """Batches whose gradients are averaged before a step."""
    checkpoint_every_steps: int = 500
    """A killed run repeats at most this many steps."""
    max_bad_steps: int = 10
    """Stop after this many steps in a row with a non-finite loss or gradient."""
    seed: int = 0


@dataclass
class TrainConfig:
    """Everything `sepkit train` needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    init_from: str | None = None
    """MODEL whose weights training starts from."""
