"""The dual-path transformer masker SepFormer."""

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import SepFormerConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import FramewiseEnd, checked, require_multiple
from sepkit.models.onednn import Linear, linear
from sepkit.models.runtime import is_traced
from sepkit.registry import register

_POSITIONS = 2500
"""Of the table that models hold: no transformer sees a longer sequence."""


@register(SepFormerConfig)
class SepFormerMasker(FramewiseEnd):
    """Transformers inside chunks of frames and across them, in turn, then a gate for each hypothesis.

        x = chunks(linear(norm(features))),   Q frames each, half-overlapping             (B, S, Q, C)
        x = x + norm(transformer inside chunks(x));   x = x + norm(transformer across chunks(x))
        h_i = linear_i(overlap-add(PReLU(x)));   values_i = linear(tanh(linear(h_i)) * sigmoid(linear(h_i)))

    Every transformer adds sines and cosines of the position to its input and has its norms before its layers. Unlike
    in speechbrain, whose names the weights have, no relu follows the values.

    Attributes:
        max_frames: Longest input, frames.

    Args:
        encoding_dim: Values per frame, K.
        hypotheses: Number of estimates, n.
        values_per_dimension: Parameters of the mask's posterior for each entry, P (1 for a point).
        **fields: Fields of `SepFormerConfig`.

    Source: C. Subakan et al., "Attention Is All You Need In Speech Separation", ICASSP 2021. Same numbers as
    speechbrain, by the same authors.
    """

    hypothesis_layers = ("network.conv2d",)

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(SepFormerConfig(**fields))
        model_dim, heads, chunk_size = config.model_dim, config.num_heads, config.chunk_size
        require_multiple("model_dim", model_dim, math.lcm(2, heads), f"an even multiple of num_heads {heads}")
        self.chunk_size = chunk_size
        # Every chunk_size frames make two chunks.
        self.max_frames = chunk_size * (_POSITIONS // 2) - chunk_size // 2 - 1
        self.network: Any = nn.ModuleDict(
            {
                "norm": nn.GroupNorm(1, encoding_dim, eps=1e-8),
                "conv1d": nn.Conv1d(encoding_dim, model_dim, 1, bias=False),
                "dual_mdl": nn.Sequential(*(DualPathTransformers(config) for _ in range(config.num_layers))),
                "conv2d": nn.Conv2d(model_dim, hypotheses * model_dim, 1),
                "end_conv1x1": nn.Conv1d(model_dim, values_per_dimension * encoding_dim, 1, bias=False),
                "prelu": nn.PReLU(),
                "output": nn.Sequential(nn.Conv1d(model_dim, model_dim, 1), nn.Tanh()),
                "output_gate": nn.Sequential(nn.Conv1d(model_dim, model_dim, 1), nn.Sigmoid()),
            }
        )

    @property
    def blocks(self) -> nn.Module:
        """The dual-path blocks."""
        return self.network.dual_mdl

    def trunk(self, features: Tensor) -> Tensor:
        """Return sums of processed chunks, (B, C, F).

        Args:
            features: The masker's view of the encoding, (B, K, F).
        """
        frames = features.shape[-1]
        # In a graph the number of frames is no number yet.
        if not is_traced() and frames > self.max_frames:
            raise UserError(
                f"the masker sepformer takes at most {self.max_frames} frames, found {frames}; "
                "separate the recording in shorter pieces"
            )
        net = self.network
        chunks = net.dual_mdl(_segment(net.conv1d(net.norm(features)).transpose(1, 2), self.chunk_size))
        return _overlap_add(net.prelu(chunks.movedim(-1, 1)).movedim(1, -1), frames).transpose(1, 2)

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values, (B, n, P, K, F').

        Args:
            summary: Result of `trunk`, (B, C, F').
        """
        net = self.network
        # The hypotheses' convolution is linear, and cheaper after the sum. Every frame lies in two chunks, which count
        # its bias twice.
        spread = net.conv2d(summary.unsqueeze(-1)).squeeze(-1) + net.conv2d.bias[:, None]
        x = spread.unflatten(1, (self.hypotheses, -1)).flatten(0, 1)
        raw = net.end_conv1x1(net.output(x) * net.output_gate(x))
        return raw.unflatten(0, (-1, self.hypotheses)).unflatten(2, (self.values_per_dimension, self.encoding_dim))


class DualPathTransformers(nn.Module):
    """A transformer inside the chunks, then one across them, each with a norm and a residual connection."""

    def __init__(self, config: SepFormerConfig) -> None:
        super().__init__()
        self.intra_mdl, self.inter_mdl = Transformer(config), Transformer(config)
        self.intra_norm, self.inter_norm = (nn.GroupNorm(1, config.model_dim, eps=1e-8) for _ in range(2))

    def forward(self, chunks: Tensor) -> Tensor:
        """Return chunks of the same shape; `chunks` are (B, S, Q, C)."""
        batch, count, size = chunks.shape[:3]
        inside = self.intra_mdl(chunks.flatten(0, 1)).unflatten(0, (batch, count))
        chunks = chunks + self.intra_norm(inside.movedim(-1, 1)).movedim(1, -1)
        across = self.inter_mdl(chunks.transpose(1, 2).flatten(0, 1)).unflatten(0, (batch, size))
        # (B, Q, S, C) -> (B, C, S, Q)
        return chunks + self.inter_norm(across.permute(0, 3, 2, 1)).movedim(1, -1)


class Transformer(nn.Module):
    """Layers of attention and feed-forward networks with norms before them, and a norm at the end."""

    def __init__(self, config: SepFormerConfig) -> None:
        super().__init__()
        layers = (TransformerLayer(config) for _ in range(config.transformer_layers))
        self.mdl = _named(layers=nn.Sequential(*layers), norm=_layer_norm(config.model_dim))
        self.pos_enc = Positions(config.model_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`; x is (B, L, C)."""
        return self.mdl(x + self.pos_enc(x.shape[1]))


class TransformerLayer(nn.Module):
    """x = x + attention(norm(x));   x = x + linear(relu(linear(norm(x))))."""

    def __init__(self, config: SepFormerConfig) -> None:
        super().__init__()
        size, units, dropout = config.model_dim, config.feedforward_dim, config.dropout
        self.self_att = _named(att=Attention(size, config.num_heads, dropout))
        network = nn.Sequential(Linear(size, units), nn.ReLU(), nn.Dropout(dropout), Linear(units, size))
        self.pos_ffn = _named(ffn=network)
        self.norm1, self.norm2 = _layer_norm(size), _layer_norm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`; x is (B, L, C)."""
        x = x + self.dropout(self.self_att(self.norm1(x)))
        return x + self.dropout(self.pos_ffn(self.norm2(x)))


class Attention(nn.MultiheadAttention):
    """Multi-head self-attention, with torch's weights."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return the output, (B, L, C); x is (B, L, C)."""
        inputs = linear(x, self.in_proj_weight, self.in_proj_bias)
        query, key, value = inputs.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0
        )
        return linear(attended.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)


class Positions(nn.Module):
    """Positions p as sin(p 10000^(-2 k / C)) and cos(p 10000^(-2 k / C)), k = 0 ... C / 2 - 1, in turn."""

    pe: Tensor

    def __init__(self, model_dim: int) -> None:
        super().__init__()
        table = torch.empty(_POSITIONS, model_dim)
        if not table.is_meta:  # where functions of tensors would import torch's compiler
            frequencies = torch.exp(torch.arange(0, model_dim, 2).float() * (-math.log(10000.0) / model_dim))
            angles = torch.arange(_POSITIONS).float().unsqueeze(1) * frequencies
            table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        self.register_buffer("pe", table.unsqueeze(0))

    def forward(self, length: int) -> Tensor:
        """Return the first positions, (1, length, C)."""
        return self.pe[:, :length]


def _named(**layers: nn.Module) -> nn.Sequential:
    """Return layers one after another, under speechbrain's names."""
    return nn.Sequential(OrderedDict(layers))


def _layer_norm(channels: int) -> nn.Sequential:
    return _named(norm=nn.LayerNorm(channels, eps=1e-6))


def _segment(x: Tensor, chunk_size: int) -> Tensor:
    """Return x (B, F, C), with half a chunk of zeros and more at its ends, cut into chunks (B, S, Q, C).

    Even chunks lie side by side, and so do odd ones, which begin half a chunk later.
    """
    half, frames = chunk_size // 2, x.shape[1]
    # 1 to chunk_size frames fill the last chunk. Padded too far and then cut: a graph has no other way.
    total = 2 * half + frames + chunk_size - (half + frames % chunk_size) % chunk_size
    padded = nn.functional.pad(x, (0, 0, half, half + chunk_size))[:, :total]
    pairs = [part.unflatten(1, (-1, chunk_size)) for part in (padded[:, :-half], padded[:, half:])]
    return torch.stack(pairs, dim=2).flatten(1, 2)


def _overlap_add(chunks: Tensor, frames: int) -> Tensor:
    """Return the sum (B, F, C) of chunks (B, S, Q, C), as `_segment` cut them."""
    half = chunks.shape[2] // 2
    even, odd = (part.flatten(1, 2) for part in chunks.unflatten(1, (-1, 2)).unbind(2))
    return (even[:, half:] + odd[:, :-half])[:, :frames]
