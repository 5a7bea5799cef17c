"""The model: filterbank, latents, priors, and the encoder-masker-decoder made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sepkit.choices import Choice
from sepkit.config.maskers import ConvTasNetConfig, MaskerConfig


class FilterbankConfig(Choice):
    """The maps from waveforms to encodings and back."""


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
    mapping: bool = False
    """The masker's output is the estimates' encoding, not a mask of the mixture's; for linear or tanh masks."""


@dataclass
class STFTFilterbankConfig(FilterbankConfig, name="stft"):
    """Short-time Fourier transform; a mask scales real and imaginary part alike, or is complex."""

    kernel_size: int = 256
    """Samples in a window."""
    stride: int = 64
    """Samples between frames."""
    compression: float = 0.3
    """The masker sees magnitudes raised to this power; 0 means log(1e-4 + magnitude)."""
    deviation: Literal["per_bin", "predicted"] = "per_bin"
    """With gaussian encodings, whose mean is the coefficient: one learned deviation a bin, or one predicted from what
    the masker sees."""
    initial_deviation: float = 0.1
    """Deviation of gaussian encodings when training starts, for signals of unit deviation."""
    features: Literal["magnitude", "real_imaginary"] = "magnitude"
    """The masker sees compressed magnitudes, or real and imaginary parts with compressed magnitudes, which take much
    longer to learn from."""
    complex_masks: bool = False
    """Two mask values a bin, a real and an imaginary one, that multiply the complex coefficient; else one real value.
    For linear or tanh masks, deterministic or gaussian."""
    mapping: bool = False
    """The masker's output is the estimates' coefficients, not a mask of the mixture's; needs complex_masks and
    features: real_imaginary."""
    like_torch: bool = False
    """A Hann window and the scale of torch.stft, for weights that were trained with it; else a square-root Hann window
    and a scale that keeps energies."""
    like_sr_corrnet: bool = False
    """For weights of SR-CorrNet: a Hann window where the stride is a quarter of it, and a first and a last bin that
    are not halved, so that decoding makes them twice as loud."""
    synthesis_size: int = 0
    """Samples of synthesis windows, which are the end of a window, stride + 1 to 2 * stride; 0: all of it. They are the
    latency of a causal model."""


class LatentConfig(Choice):
    """The family that the encoding or the masks are drawn from, and their activation."""


@dataclass
class DeterministicConfig(LatentConfig, name="deterministic"):
    """Points: the usual network."""

    activation: Literal["linear", "relu", "sigmoid", "softmax", "softplus", "exp", "tanh", "gelu"] = "relu"
    """Function from raw network output to value; softmax runs over the hypotheses."""


@dataclass
class GaussianConfig(LatentConfig, name="gaussian"):
    """Normal distributions with modeled deviation."""

    activation: Literal["linear", "relu", "sigmoid", "softmax", "softplus", "exp", "tanh", "gelu"] = "linear"
    """Function from raw network output to mean."""


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
    extra `flow`)."""

    of_encodings_only: ClassVar[bool] = True
    transforms: int = 6
    """Masked networks in a row; every other one goes through the dimensions backwards."""
    hidden_features: int = 1024
    """Width of their hidden layers."""
    hidden_layers: int = 2
    """Hidden layers of each network."""


@dataclass
class ScoringConfig:
    """A head that scores hypotheses: which of them are speakers, if their number is not known."""

    hidden_size: int = 128
    """Width of the layer between the masks and the scores."""
    loss: Literal["binary", "cross_entropy"] = "binary"
    """What scores say. binary: for each hypothesis, whether it is a speaker. cross_entropy: a distribution over the
    hypotheses, each one's share of the sources."""


@dataclass
class ModelConfig:
    """An encoder-masker-decoder."""

    sample_rate: int = 8000
    """Hz. Part of the model: input at other rates is resampled and comes back at its own."""
    hypotheses: int = 2
    """Number of estimates (n)."""
    filterbank: FilterbankConfig = field(default_factory=FreeFilterbankConfig)
    """Encoder and decoder."""
    encoding: LatentConfig = field(default_factory=lambda: DeterministicConfig(activation="linear"))
    """Latent family of the encoding; deterministic: a point."""
    masker: MaskerConfig = field(default_factory=ConvTasNetConfig)
    """The network between encoder and decoder."""
    masks: LatentConfig = field(default_factory=lambda: DeterministicConfig(activation="relu"))
    """Latent family of the masks, with their activation; deterministic: points."""
    encoding_prior: PriorConfig = field(default_factory=StandardPriorConfig)
    """Prior of variational encodings."""
    mask_prior: PriorConfig = field(default_factory=StandardPriorConfig)
    """Prior of variational masks."""
    estimate_scales: bool = False
    """The decoder also makes a scale for every sample, for the Cauchy likelihood."""
    scoring: ScoringConfig | None = None
    """A score for every hypothesis. Without scores, the number of speakers is the number of hypotheses."""
    input_norm: Literal["training", "mixture"] = "training"
    """training: mixtures are divided by the deviation of the training mixtures. mixture: each by its own."""
    pad: Literal["full", "asteroid"] = "full"
    """full: no sample is lost at either end. asteroid: trim as asteroid does, for parity."""
