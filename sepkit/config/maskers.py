"""Maskers: the network between encoder and decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sepkit.choices import Choice


class MaskerConfig(Choice):
    """The network between encoder and decoder."""


Norm = Literal["global_layer_norm", "cumulative_layer_norm", "channel_layer_norm", "batch_norm"]


@dataclass
class ConvTasNetConfig(MaskerConfig, name="conv_tasnet"):
    """Temporal convolutional masker (Luo & Mesgarani 2019)."""

    bottleneck_channels: int = 128
    """Channels between blocks (B in the paper)."""
    hidden_channels: int = 512
    """Channels inside a block (H)."""
    skip_channels: int = 128
    """Channels of the skip path (Sc); 0: no skip path, masks come from the last residual sum."""
    kernel_size: int = 3
    """Frames that a depthwise convolution sees (P)."""
    blocks: int = 8
    """Blocks in a repeat (X); block b has dilation 2^b."""
    repeats: int = 3
    """Repeats of all blocks (R)."""
    norm: Norm = "global_layer_norm"
    """Of the features, and inside the blocks."""
    causal: bool = False
    """See no later frames; needs a norm other than global_layer_norm."""
    normalize_skip_sum: bool = False
    """Divide the sum of skip outputs by the number of blocks (thesis); off as in asteroid."""


@dataclass
class DualPathRNNConfig(MaskerConfig, name="dual_path_rnn"):
    """Dual-path recurrent masker (Luo et al. 2020)."""

    bottleneck_channels: int = 128
    """Channels of the chunks."""
    hidden_channels: int = 128
    """Units of each direction of a recurrent network."""
    chunk_size: int = 100
    """Frames in a chunk."""
    hop_size: int = 50
    """Frames between chunks, at most chunk_size."""
    repeats: int = 6
    """Dual-path blocks."""
    rnn: Literal["lstm", "gru"] = "lstm"
    """Kind of the recurrent networks."""
    num_layers: int = 1
    """Layers of each recurrent network."""
    dropout: float = 0.0
    """Probability, between layers."""
    bidirectional: bool = True
    """Of the networks across chunks; those inside chunks always are."""
    norm: Norm = "global_layer_norm"
    """Any but cumulative_layer_norm."""


@dataclass
class SuDoRMRFConfig(MaskerConfig, name="sudormrf"):
    """Successive down- and upsampling of multi-resolution features (Tzinis et al. 2020), the first version."""

    bottleneck_channels: int = 128
    """Channels between blocks."""
    hidden_channels: int = 512
    """Channels inside a block."""
    blocks: int = 16
    """Number of blocks, one after the other."""
    upsampling_depth: int = 4
    """Resolutions in a block, each half the one before."""


@dataclass
class ImprovedSuDoRMRFConfig(SuDoRMRFConfig, name="improved_sudormrf"):
    """SuDoRM-RF with global layer norms and a linear output convolution (Tzinis et al. 2022)."""


@dataclass
class RecurrentConfig(MaskerConfig, name="recurrent"):
    """Stacked bidirectional LSTM or GRU (the first TasNet); with the STFT it trains fastest on CPUs."""

    rnn: Literal["lstm", "gru"] = "gru"
    """Kind of the network."""
    hidden_size: int = 256
    """Units of each direction."""
    num_layers: int = 3
    """Layers, one on the other."""
    bidirectional: bool = True
    """Run over time both ways."""
    dropout: float = 0.0
    """Probability, between layers."""
    norm: Norm = "channel_layer_norm"
    """Of the features."""


@dataclass
class GatedRecurrenceConfig(MaskerConfig, name="gated_recurrence"):
    """Residual blocks of a gated linear recurrence (SRU, minGRU) and a feed-forward layer; learns fastest on CPUs."""

    model_dim: int = 256
    """Values in a frame, or in a band of one, between the blocks."""
    hidden_size: int = 256
    """Units of each direction of a recurrence."""
    feedforward_dim: int = 512
    """Units of the feed-forward layers."""
    num_layers: int = 4
    """Blocks."""
    bands: int = 1
    """Parts that a frame is cut into; above 1, blocks have a recurrence over bands too. 1: full-band."""
    bidirectional: bool = True
    """Of the recurrence over time; the one over bands always is."""
    dropout: float = 0.0
    """Probability, behind every recurrence and feed-forward layer."""
    norm: Norm = "channel_layer_norm"
    """Of the features."""


@dataclass
class ContinuousDepthConfig(MaskerConfig, name="continuous_depth"):
    """One gated recurrence block, with weights shared over depth: the number of steps is chosen when it is used."""

    model_dim: int = 128
    """Values in a frame of the state."""
    hidden_size: int = 128
    """Units of each direction of the recurrence."""
    feedforward_dim: int = 256
    """Units of the feed-forward layer."""
    depth_steps: int = 8
    """Steps from the first depth to the last, in training and by default; --depth-steps of sepkit separate and evaluate
    takes another number."""
    bidirectional: bool = True
    """Of the recurrence over time."""
    norm: Norm = "channel_layer_norm"
    """Of the features."""


@dataclass
class SepFormerConfig(MaskerConfig, name="sepformer"):
    """SepFormer, a dual-path transformer (Subakan et al. 2021)."""

    model_dim: int = 256
    """Channels of the transformers, an even multiple of num_heads."""
    num_layers: int = 2
    """Dual-path blocks."""
    chunk_size: int = 250
    """Frames in a chunk, 2 to 2500."""
    transformer_layers: int = 8
    """Layers in each intra- and inter-chunk transformer."""
    num_heads: int = 8
    """Attention heads."""
    feedforward_dim: int = 1024
    """Units of the feed-forward layers."""
    dropout: float = 0.0
    """Probability."""


@dataclass
class SepReformerConfig(MaskerConfig, name="sepreformer"):
    """SepReformer (Shin et al. 2024): a U-shaped transformer that splits the speakers early. Its output is the encoding
    of the estimates: set mapping: true of the free filterbank, and linear masks."""

    channels: int = 128
    """Values in a frame between the blocks, a multiple of num_heads (64 in T, 128 in B, 256 in L)."""
    num_stages: int = 4
    """Stages of the encoder and of the decoder; each halves or doubles the number of frames."""
    num_heads: int = 8
    """Attention heads."""
    kernel_size: int = 65
    """Frames that a local block sees, an odd number."""
    max_distance: int = 2000
    """Frames of the coarsest stage that attention tells apart; farther ones count as so far."""
    dropout: float = 0.05
    """Probability."""


@dataclass
class TFLocoformerConfig(MaskerConfig, name="tf_locoformer"):
    """TF-Locoformer (Saijo et al. 2024): attention and convolutions over frequency and over time. For the STFT with
    features: real_imaginary, compression: 1 and mapping: true, and linear masks; give the model input_norm: mixture."""

    channels: int = 128
    """Values in a bin between the blocks (D), a multiple of norm_groups (96 in S, 128 in M)."""
    num_layers: int = 6
    """Blocks over frequency, each followed by one over time (4 in S, 6 in M)."""
    num_heads: int = 4
    """Attention heads."""
    attention_dim: int = 128
    """Values of all heads together, an even multiple of num_heads."""
    feedforward_dim: int = 384
    """Units of the feed-forward networks (128 in S, 384 in M)."""
    kernel_size: int = 4
    """Bins, or frames, that a layer of a feed-forward network sees (8 in S, 4 in M)."""
    norm_groups: int = 4
    """Groups of channels that are normalized by themselves."""
    dropout: float = 0.0
    """Probability."""
    edge_frames: int = 0
    """Frames at either end that are not seen, for weights whose training did not have them (torch.stft's frames)."""


@dataclass
class SRCorrNetConfig(MaskerConfig, name="sr_corrnet"):
    """SR-CorrNet (Shin & Park 2026): attention over frequency, time and speakers; it can count the speakers. For the
    STFT with features: real_imaginary, compression: 1 and mapping: true, and linear masks; give the model input_norm:
    mixture."""

    channels: int = 128
    """Values in a bin between the blocks, an even multiple of num_heads (192 in L)."""
    encoder_layers: int = 2
    """Blocks over frequency and time before the speakers are split (3 in L)."""
    decoder_layers: int = 4
    """Blocks over frequency, time and speakers after it (5 in L)."""
    num_heads: int = 4
    """Attention heads."""
    feedforward_dim: int = 384
    """Units of the feed-forward networks over frequency and time (512 in L)."""
    speaker_dim: int = 512
    """Units of those of the blocks over speakers (768 in L)."""
    kernel_size: int = 3
    """Bins, or frames, that a layer of a feed-forward network sees."""
    bin_taps: int = 1
    """Bins on either side that correlations and filters take in."""
    frame_taps: int = 1
    """Frames on either side (3 for reverberation)."""
    count_speakers: bool = False
    """The number of speakers varies from mixture to mixture, up to the hypotheses: each has a score."""


@dataclass
class TIGERConfig(MaskerConfig, name="tiger"):
    """TIGER (Xu et al. 2025): one block over bands and frames, applied again and again; small, for 16 kHz. For the STFT
    with kernel_size: 640, features: real_imaginary, compression: 1 and mapping: true, and linear masks."""

    sample_rate: int = 16000
    """Hz, for which the bands are laid out; that of the model."""
    channels: int = 128
    """Values in a band of a frame, between the blocks; a multiple of num_heads and of the hypotheses."""
    hidden_channels: int = 256
    """Channels of the networks over several resolutions."""
    iterations: int = 4
    """How often the block is applied (8 in the large model)."""
    scales: int = 5
    """Resolutions, each half of the one before; 3 or more."""
    num_heads: int = 4
    """Attention heads."""
    head_channels: int = 4
    """Channels of queries and keys in each head."""
    edge_frames: int = 0
    """Frames at either end that are not seen, for weights whose training did not have them (torch.stft's frames)."""
