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
