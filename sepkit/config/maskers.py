"""Maskers: the network between encoder and decoder."""

from dataclasses import dataclass
from typing import Annotated, Literal

from sepkit.choices import Choice
from sepkit.errors import Bounds
from sepkit.limits import DEPTH_STEPS, DILATED_BLOCKS, LAYER_SIZE
from sepkit.numbers import Dropout, SampleRate, Size, SizeOrNone


class MaskerConfig(Choice):
    """The network between encoder and decoder."""


Norm = Literal["global_layer_norm", "cumulative_layer_norm", "channel_layer_norm", "batch_norm"]


@dataclass
class ConvTasNetConfig(MaskerConfig, name="conv_tasnet"):
    """Temporal convolutional masker (Luo & Mesgarani 2019).

    Args:
        bottleneck_channels: Channels between blocks (B in the paper).
        hidden_channels: Channels inside a block (H).
        skip_channels: Channels of the skip path (Sc); 0: no skip path, masks come from the last residual sum.
        kernel_size: Frames that a depthwise convolution sees (P).
        blocks: Blocks in a repeat (X); block b has dilation 2^b.
        repeats: Repeats of all blocks (R).
        norm: Norm of the features, and inside the blocks.
        causal: Whether masks depend on no later frames; needs a norm other than global_layer_norm.
        normalize_skip_sum: Whether to divide the sum of skip outputs by the number of blocks (thesis; not in asteroid).
    """

    bottleneck_channels: Size = 128
    hidden_channels: Size = 512
    skip_channels: SizeOrNone = 128
    kernel_size: Size = 3
    blocks: Annotated[int, Bounds(ge=1, le=DILATED_BLOCKS, note="; add repeats")] = 8
    repeats: Size = 3
    norm: Norm = "global_layer_norm"
    causal: bool = False
    normalize_skip_sum: bool = False


@dataclass
class DualPathRNNConfig(MaskerConfig, name="dual_path_rnn"):
    """Dual-path recurrent masker (Luo et al. 2020).

    Args:
        bottleneck_channels: Channels of the chunks.
        hidden_channels: Units of each direction of a recurrent network.
        chunk_size: Frames in a chunk.
        hop_size: Frames between chunks, at most chunk_size.
        repeats: Dual-path blocks.
        rnn: Kind of the recurrent networks.
        num_layers: Layers of each recurrent network.
        dropout: Probability, between layers.
        bidirectional: Whether networks across chunks are bidirectional; those inside chunks always are.
        norm: Any but cumulative_layer_norm.
    """

    bottleneck_channels: Size = 128
    hidden_channels: Size = 128
    chunk_size: Size = 100
    hop_size: Size = 50
    repeats: Size = 6
    rnn: Literal["lstm", "gru"] = "lstm"
    num_layers: Size = 1
    dropout: Dropout = 0.0
    bidirectional: bool = True
    norm: Norm = "global_layer_norm"


@dataclass
class SuDoRMRFConfig(MaskerConfig, name="sudormrf"):
    """Successive down- and upsampling of multi-resolution features (Tzinis et al. 2020), the first version.

    Args:
        bottleneck_channels: Channels between blocks.
        hidden_channels: Channels inside a block.
        blocks: Number of blocks, one after the other.
        upsampling_depth: Resolutions in a block, each half the one before.
    """

    bottleneck_channels: Size = 128
    hidden_channels: Size = 512
    blocks: Size = 16
    upsampling_depth: Size = 4


@dataclass
class ImprovedSuDoRMRFConfig(SuDoRMRFConfig, name="improved_sudormrf"):
    """SuDoRM-RF with global layer norms and a linear output convolution (Tzinis et al. 2022).

    Args:
        bottleneck_channels: Channels between the blocks.
        hidden_channels: Channels inside a block.
        blocks: Number of blocks, one after the other.
        upsampling_depth: Resolutions in a block, each half the one before.
    """


@dataclass
class RecurrentConfig(MaskerConfig, name="recurrent"):
    """Stacked bidirectional LSTM or GRU (the first TasNet); with the STFT it trains fastest on CPUs.

    Args:
        rnn: Kind of the network.
        hidden_size: Units of each direction.
        num_layers: Layers, one on the other.
        bidirectional: Run over time both ways.
        dropout: Probability, between layers.
        norm: Norm of the features.
    """

    rnn: Literal["lstm", "gru"] = "gru"
    hidden_size: Size = 256
    num_layers: Size = 3
    bidirectional: bool = True
    dropout: Dropout = 0.0
    norm: Norm = "channel_layer_norm"


@dataclass
class GatedRecurrenceConfig(MaskerConfig, name="gated_recurrence"):
    """Residual blocks of a gated linear recurrence (SRU, minGRU) and a feed-forward layer; learns fastest on CPUs.

    Args:
        model_dim: Values in a frame, or in a band of one, between the blocks.
        hidden_size: Units of each direction of a recurrence.
        feedforward_dim: Units of the feed-forward layers.
        num_layers: Blocks.
        bands: Parts that a frame is cut into; above 1, blocks have a recurrence over bands too. 1: full-band.
        bidirectional: Whether the recurrence over time is bidirectional; the one over bands always is.
        dropout: Probability, behind every recurrence and feed-forward layer.
        norm: Norm of the features.
    """

    model_dim: Size = 256
    hidden_size: Size = 256
    feedforward_dim: Size = 512
    num_layers: Size = 4
    bands: Size = 1
    bidirectional: bool = True
    dropout: Dropout = 0.0
    norm: Norm = "channel_layer_norm"


@dataclass
class ContinuousDepthConfig(MaskerConfig, name="continuous_depth"):
    """One gated recurrence block, with weights shared over depth: the number of steps is chosen when it is used.

    Args:
        model_dim: Values in a frame of the state.
        hidden_size: Units of each direction of the recurrence.
        feedforward_dim: Units of the feed-forward layer.
        depth_steps: Steps from the first depth to the last, in training and by default; --depth-steps of sepkit
            separate and evaluate takes another number.
        bidirectional: Whether the recurrence over time is bidirectional.
        norm: Norm of the features.
    """

    model_dim: Size = 128
    hidden_size: Size = 128
    feedforward_dim: Size = 256
    depth_steps: Annotated[int, Bounds(ge=1, le=DEPTH_STEPS)] = 8
    bidirectional: bool = True
    norm: Norm = "channel_layer_norm"


@dataclass
class SepFormerConfig(MaskerConfig, name="sepformer"):
    """SepFormer, a dual-path transformer (Subakan et al. 2021).

    Args:
        model_dim: Channels of the transformers, an even multiple of num_heads.
        num_layers: Dual-path blocks.
        chunk_size: Frames in a chunk, 2 to 2500.
        transformer_layers: Layers in each intra- and inter-chunk transformer.
        num_heads: Attention heads.
        feedforward_dim: Units of the feed-forward layers.
        dropout: Probability.
    """

    model_dim: Size = 256
    num_layers: Size = 2
    chunk_size: Annotated[int, Bounds(ge=2, le=2500)] = 250
    transformer_layers: Size = 8
    num_heads: Size = 8
    feedforward_dim: Size = 1024
    dropout: Dropout = 0.0


@dataclass
class SepReformerConfig(MaskerConfig, name="sepreformer"):
    """SepReformer (Shin et al. 2024): a U-shaped transformer that splits the speakers early. Its output is the encoding
    of the estimates: set mapping: true of the free filterbank, and linear masks.

    Args:
        channels: Values in a frame between the blocks, a multiple of num_heads (64 in T, 128 in B, 256 in L).
        num_stages: Stages of the encoder and of the decoder; each halves or doubles the number of frames.
        num_heads: Attention heads.
        kernel_size: Frames that a local block sees, an odd number.
        max_distance: Largest distance that attention distinguishes, frames of the coarsest stage.
        dropout: Probability.
    """

    channels: Size = 128
    num_stages: Annotated[int, Bounds(ge=1, le=16)] = 4
    num_heads: Size = 8
    kernel_size: Size = 65
    max_distance: Size = 2000
    dropout: Dropout = 0.05


@dataclass
class TFLocoformerConfig(MaskerConfig, name="tf_locoformer"):
    """TF-Locoformer (Saijo et al. 2024): attention and convolutions over frequency and over time. For the STFT with
    features: real_imaginary, compression: 1 and mapping: true, and linear masks; give the model input_norm: mixture.

    Args:
        channels: Values in a bin between the blocks (D), a multiple of norm_groups (96 in S, 128 in M).
        num_layers: Blocks over frequency, each followed by one over time (4 in S, 6 in M).
        num_heads: Attention heads.
        attention_dim: Values of all heads together, an even multiple of num_heads.
        feedforward_dim: Units of the feed-forward networks (128 in S, 384 in M).
        kernel_size: Bins, or frames, that a layer of a feed-forward network sees (8 in S, 4 in M).
        norm_groups: Groups of channels that are normalized by themselves.
        dropout: Probability.
        edge_frames: Frames at either end that are not seen, for weights whose training did not have them (torch.stft's
            frames).
    """

    channels: Size = 128
    num_layers: Size = 6
    num_heads: Size = 4
    attention_dim: Size = 128
    feedforward_dim: Size = 384
    kernel_size: Size = 4
    norm_groups: Size = 4
    dropout: Dropout = 0.0
    edge_frames: SizeOrNone = 0


@dataclass
class SRCorrNetConfig(MaskerConfig, name="sr_corrnet"):
    """SR-CorrNet (Shin & Park 2026): attention over frequency, time and speakers; it can count the speakers. For the
    STFT with features: real_imaginary, compression: 1 and mapping: true, and linear masks; give the model input_norm:
    mixture.

    Args:
        channels: Values in a bin between the blocks, an even multiple of num_heads (192 in L).
        encoder_layers: Blocks over frequency and time before the speakers are split (3 in L).
        decoder_layers: Blocks over frequency, time and speakers after it (5 in L).
        num_heads: Attention heads.
        feedforward_dim: Units of the feed-forward networks over frequency and time (512 in L).
        speaker_dim: Units of those of the blocks over speakers (768 in L).
        kernel_size: Bins, or frames, that a layer of a feed-forward network sees.
        bin_taps: Bins on either side that correlations and filters take in.
        frame_taps: Frames on either side (3 for reverberation).
        count_speakers: The number of speakers varies from mixture to mixture, up to the hypotheses: each has a score.
    """

    channels: Annotated[int, Bounds(ge=8, le=LAYER_SIZE)] = 128
    encoder_layers: Size = 2
    decoder_layers: Size = 4
    num_heads: Size = 4
    feedforward_dim: Size = 384
    speaker_dim: Size = 512
    kernel_size: Size = 3
    bin_taps: SizeOrNone = 1
    frame_taps: SizeOrNone = 1
    count_speakers: bool = False


@dataclass
class TIGERConfig(MaskerConfig, name="tiger"):
    """TIGER (Xu et al. 2025): one block over bands and frames, applied again and again; small, for 16 kHz. For the STFT
    with kernel_size: 640, features: real_imaginary, compression: 1 and mapping: true, and linear masks.

    Args:
        sample_rate: Sample rate that the bands are made for, Hz; that of the model.
        channels: Values in a band of a frame, between the blocks; a multiple of num_heads and of the hypotheses.
        hidden_channels: Channels of the networks over several resolutions.
        iterations: Number of times that the block is applied (8 in the large model).
        scales: Resolutions, each half of the one before; 3 or more.
        num_heads: Attention heads.
        head_channels: Channels of queries and keys in each head.
        edge_frames: Frames at either end that are not seen, for weights whose training did not have them (torch.stft's
            frames).
    """

    sample_rate: SampleRate = 16000
    channels: Size = 128
    hidden_channels: Size = 256
    iterations: Size = 4
    scales: Annotated[int, Bounds(ge=3, le=LAYER_SIZE)] = 5
    num_heads: Size = 4
    head_channels: Size = 4
    edge_frames: SizeOrNone = 0
