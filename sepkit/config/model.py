"""The model: filterbank, latents, priors, and the encoder-masker-decoder made of them."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from sepkit.choices import Choice
from sepkit.config.maskers import ConvTasNetConfig, MaskerConfig
from sepkit.errors import Bounds
from sepkit.limits import HYPOTHESES, PADDED_SAMPLES, WINDOW_SAMPLES
from sepkit.numbers import NotNegative, Positive, SampleRate, Size, SizeOrNone


class FilterbankConfig(Choice):
    """The maps from waveforms to encodings and back."""


@dataclass
class FreeFilterbankConfig(FilterbankConfig, name="free"):
    """Learned, bias-free analysis and synthesis filters (TasNet).

    Args:
        num_filters: Encoding dimensions K.
        kernel_size: Samples in a filter.
        stride: Samples between frames.
        padding: Zeros the convolution adds at both ends (SuDoRM-RF: half its kernel).
        output_padding: Extra samples at the decoder's right end (SuDoRM-RF: stride - 1).
        multiple: Number of samples; the input is padded on the right to a multiple of it (SuDoRM-RF: 80).
        init_range: Range of the initial filters, uniform in +-N; 0: Xavier-normal.
        mapping: Whether the masker outputs the estimates' encodings instead of masks; for linear or tanh masks.
        together: Number of hypotheses, if the decoder makes each estimate of the masked encodings of all, as that of
            SuDoRM-RF's authors does; 0: each estimate is of its own.
    """

    num_filters: Size = 512
    kernel_size: Size = 16
    stride: Size = 8
    padding: SizeOrNone = 0
    output_padding: SizeOrNone = 0
    multiple: Annotated[int, Bounds(ge=1, le=PADDED_SAMPLES)] = 1
    init_range: NotNegative = 0.0
    mapping: bool = False
    together: SizeOrNone = 0


@dataclass
class STFTFilterbankConfig(FilterbankConfig, name="stft"):
    """Short-time Fourier transform; a mask scales real and imaginary part alike, or is complex.

    Args:
        kernel_size: Samples in a window.
        stride: Samples between frames.
        compression: The masker sees magnitudes raised to this power.
        deviation: Learned deviation per bin, for gaussian encodings, whose mean is the coefficient.
        initial_deviation: Deviation of gaussian encodings when training starts, for signals of unit deviation.
        features: The masker sees compressed magnitudes, or real and imaginary parts with compressed magnitudes, which
            take much longer to learn from.
        complex_masks: Two mask values per bin, a real and an imaginary one, that multiply the complex coefficient; else
            one real value. For linear or tanh masks, deterministic or gaussian.
        mapping: The masker's output is the estimates' coefficients, not a mask of the mixture's; needs complex_masks
            and features: real_imaginary.
        like_torch: A Hann window and the scale of torch.stft, for weights that were trained with it; else a square-root
            Hann window and a scale that keeps energies.
        like_sr_corrnet: For weights of SR-CorrNet: a Hann window where the stride is a quarter of it, and a first and a
            last bin that are not halved, so that decoding makes them twice as loud.
        synthesis_size: Samples of synthesis windows, which are the end of a window, stride + 1 to 2 * stride; 0: all of
            it. They are the latency of a causal model.
    """

    kernel_size: Annotated[int, Bounds(ge=2, le=WINDOW_SAMPLES)] = 256
    stride: Size = 64
    compression: Positive = 0.3
    deviation: Literal["per_bin"] = "per_bin"
    initial_deviation: Positive = 0.1
    features: Literal["magnitude", "real_imaginary"] = "magnitude"
    complex_masks: bool = False
    mapping: bool = False
    like_torch: bool = False
    like_sr_corrnet: bool = False
    synthesis_size: SizeOrNone = 0


class LatentConfig(Choice):
    """The family that the encoding or the masks are drawn from, and their activation."""


@dataclass
class DeterministicConfig(LatentConfig, name="deterministic"):
    """Points: the usual network.

    Args:
        activation: Function from raw network output to value; softmax runs over the hypotheses.
    """

    activation: Literal["linear", "relu", "sigmoid", "softmax", "softplus", "exp", "tanh", "gelu"] = "relu"


@dataclass
class GaussianConfig(LatentConfig, name="gaussian"):
    """Normal distributions with modeled deviation.

    Args:
        activation: Function from raw network output to mean.
    """

    activation: Literal["linear", "relu", "sigmoid", "softmax", "softplus", "exp", "tanh", "gelu"] = "linear"


@dataclass
class LogNormalConfig(LatentConfig, name="log_normal"):
    """Exponentials of normal distributions: positive, as relu masks are."""


@dataclass
class GammaConfig(LatentConfig, name="gamma"):
    """Gamma distributions with modeled concentration and a rate of 1: positive, one value for each dimension."""


@dataclass
class BetaConfig(LatentConfig, name="beta"):
    """Beta distributions: between 0 and 1, as sigmoid masks are."""


class PriorConfig(Choice):
    """The reference distribution for the rates of posteriors."""

    of_encodings_only: ClassVar[bool] = False
    needs_rate: ClassVar[bool] = True
    """Whether it is a mistake with deterministic latents, which have no rate."""


@dataclass
class StandardPriorConfig(PriorConfig, name="standard"):
    """The standard of the family: N(0, 1), LN(0, 1), Gamma(1/2, 1) or Beta(1, 1)."""

    needs_rate: ClassVar[bool] = False


@dataclass
class AdaptivePriorConfig(PriorConfig, name="adaptive"):
    """Of encodings: the convolution of the sources' posteriors, as though encodings added up (thesis, eq. 5). Where
    sources are not known, and for the sources themselves, it is the standard prior."""

    of_encodings_only: ClassVar[bool] = True


@dataclass
class FlowPriorConfig(PriorConfig, name="flow"):
    """Of gaussian encodings: a learned autoregressive flow that shifts each dimension by the ones before it (needs the
    extra `flow`).

    Args:
        transforms: Masked networks in a row; every other one goes through the dimensions backwards.
        hidden_features: Width of their hidden layers.
        hidden_layers: Hidden layers of each network.
    """

    of_encodings_only: ClassVar[bool] = True
    transforms: Size = 6
    hidden_features: Size = 1024
    hidden_layers: Size = 2


@dataclass
class ScoringConfig:
    """A head that scores hypotheses: which are speakers, if their number is unknown.

    Args:
        hidden_size: Width of the layer between the masks and the scores.
        loss: Meaning of scores. binary: per hypothesis, whether it is a speaker. cross_entropy: a distribution over
            the hypotheses, each one's share of the sources.
    """

    hidden_size: Size = 128
    loss: Literal["binary", "cross_entropy"] = "binary"


@dataclass
class ModelConfig:
    """An encoder-masker-decoder.

    Args:
        sample_rate: Sample rate of the model, Hz; other input is resampled, and output has the input's rate.
        hypotheses: Number of estimates (n).
        filterbank: Encoder and decoder.
        encoding: Latent family of the encoding; deterministic: a point.
        masker: The network between encoder and decoder.
        masks: Latent family of the masks, with their activation; deterministic: points.
        encoding_prior: Prior of variational encodings.
        mask_prior: Prior of variational masks.
        estimate_scales: Whether the decoder also outputs a scale for every sample, for the Cauchy likelihood.
        scoring: A score for every hypothesis. Without scores, the number of speakers is the number of hypotheses.
        input_norm: training: mixtures are divided by the deviation of the training mixtures. mixture: each by its own.
        pad: full: no sample is lost at either end. asteroid: trim as asteroid does, for parity.
    """

    sample_rate: SampleRate = 8000
    hypotheses: Annotated[int, Bounds(ge=1, le=HYPOTHESES)] = 2
    filterbank: FilterbankConfig = field(default_factory=FreeFilterbankConfig)
    encoding: LatentConfig = field(default_factory=lambda: DeterministicConfig(activation="linear"))
    masker: MaskerConfig = field(default_factory=ConvTasNetConfig)
    masks: LatentConfig = field(default_factory=lambda: DeterministicConfig(activation="relu"))
    encoding_prior: PriorConfig = field(default_factory=StandardPriorConfig)
    mask_prior: PriorConfig = field(default_factory=StandardPriorConfig)
    estimate_scales: bool = False
    scoring: ScoringConfig | None = None
    input_norm: Literal["training", "mixture"] = "training"
    pad: Literal["full", "asteroid"] = "full"
