"""TF-Locoformer: transformers with convolutional feed-forward networks, over frequency and over time in turn."""

from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import TFLocoformerConfig
from sepkit.models.maskers.base import Masker, checked, require_coefficients, require_multiple
from sepkit.models.onednn import Linear
from sepkit.models.runtime import at_least_float32
from sepkit.registry import register

_EPS = 1e-5


@register(TFLocoformerConfig)
class TFLocoformerMasker(Masker):
    """Residual blocks along frequency and along time in turn, between two 3 x 3 convolutions.

        x = norm(convolution(real and imaginary parts))                        (B, F, bins, D)
        x = block over bins(x);   x = block over frames(x)                     num_layers times
        values = transposed convolution(x)

    Every block is, along its axis,

        x = x + feed-forward(norm(x));   x = x + attention(norm(x));   x = x + feed-forward(norm(x))

    It is made for features that are the coefficients themselves and for mapping: the values are the coefficients of
    the estimates. `edge_frames` at either end, which training did not have, are not seen, and shared equally.

    Source: K. Saijo et al., "TF-Locoformer: Transformer with Local Modeling by Convolution for Speech Separation and
    Enhancement", IWAENC 2024. Same numbers as the authors' code, which leaves out the paper's factor of 1/2 before
    both feed-forward networks.
    """

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(TFLocoformerConfig(**fields))
        require_coefficients("tf_locoformer", encoding_dim)
        channels, groups, heads = config.channels, config.norm_groups, config.num_heads
        require_multiple("channels", channels, groups, f"a multiple of norm_groups {groups}")
        require_multiple("attention_dim", config.attention_dim, 2 * heads, f"an even multiple of num_heads {heads}")
        self.edge_frames = config.edge_frames
        self.input = nn.Conv2d(2, channels, 3, padding=1)
        self.norm = nn.GroupNorm(1, channels, eps=_EPS)
        self.over_bins = nn.ModuleList(LocoformerBlock(config) for _ in range(config.num_layers))
        self.over_frames = nn.ModuleList(LocoformerBlock(config) for _ in range(config.num_layers))
        self.output = nn.ConvTranspose2d(channels, 2 * hypotheses * values_per_dimension, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """Raw values (B, n, P, K, F) of features (B, K, F), real parts before imaginary parts along K."""
        edge, frames = self.edge_frames, features.shape[-1]
        # (B, 2 bins, F) -> (B, 2, F, bins)
        spectrum = features[..., edge : frames - edge].unflatten(1, (2, -1)).transpose(2, 3)
        x = self.norm(self.input(spectrum)).movedim(1, -1)
        for over_bins, over_frames in zip(self.over_bins, self.over_frames, strict=True):
            x = over_bins(x)
            x = over_frames(x.transpose(1, 2)).transpose(1, 2)
        values = self.output(x.movedim(-1, 1))
        values = values.unflatten(1, (self.hypotheses, self.values_per_dimension, 2)).transpose(-1, -2).flatten(3, 4)
        if not edge:
            return values
        shared = (features[:, None, None] / self.hypotheses).expand(*values.shape[:-1], -1)
        return torch.cat([shared[..., :edge], values, shared[..., frames - edge :]], dim=-1)


class LocoformerBlock(nn.Module):
    """Residual feed-forward network, attention and feed-forward network along the last dimension but one.

    Args:
        config: Sizes of the networks.
    """

    def __init__(self, config: TFLocoformerConfig) -> None:
        super().__init__()
        channels, groups, dropout = config.channels, config.norm_groups, config.dropout
        network = (channels, config.feedforward_dim, config.kernel_size, dropout)
        self.first_norm = RMSGroupNorm(channels, groups)
        self.first = ConvolutionalFeedForward(*network)
        self.attention_norm = RMSGroupNorm(channels, groups)
        self.attention = RotaryAttention(channels, config.num_heads, config.attention_dim, dropout)
        self.second_norm = RMSGroupNorm(channels, groups)
        self.second = ConvolutionalFeedForward(*network)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`; x is (B, other axis, axis, D); the block runs along `axis`."""
        other = x.shape[1]
        x = x.flatten(0, 1)
        x = x + self.first(self.first_norm(x))
        x = x + self.attention(self.attention_norm(x))
        x = x + self.second(self.second_norm(x))
        return x.unflatten(0, (-1, other))


class RMSGroupNorm(nn.Module):
    """Values divided by their root mean square within each of some groups of channels, with a gain for each channel.

        y = gain * x / (rms + eps)

    Args:
        channels: a multiple of the groups.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return normalized values, (..., D); statistics are in float32 at least; x is (..., D)."""
        groups = at_least_float32(x).unflatten(-1, (self.groups, -1))
        rms = torch.linalg.vector_norm(groups, dim=-1, keepdim=True) * groups.shape[-1] ** -0.5
        return ((groups / (rms + _EPS)).flatten(-2) * self.gamma).to(x.dtype)


class ConvolutionalFeedForward(nn.Module):
    """Gated feed-forward network whose layers are convolutions: transposed convolution(a * SiLU(b)).

    Args:
        channels: D.
        hidden: channels of a and b.
        kernel_size: Kernel size of both convolutions.
    """

    def __init__(self, channels: int, hidden: int, kernel_size: int, dropout: float) -> None:
        super().__init__()
        # Every position is seen by as many of the hidden ones as the kernel is long, also at both ends.
        self.expand = nn.Conv1d(channels, 2 * hidden, kernel_size, padding=kernel_size - 1)
        self.contract = nn.ConvTranspose1d(hidden, channels, kernel_size, padding=kernel_size - 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, L, D); x is (B, L, D)."""
        value, gate = self.expand(x.transpose(1, 2)).chunk(2, dim=1)
        return self.dropout(self.contract(self.dropout(value * nn.functional.silu(gate))).transpose(1, 2))


class RotaryAttention(nn.Module):
    """Multi-head self-attention without offsets; queries and keys are rotated by their position.

    Pairs of neighboring values turn by an angle of position * frequency, with frequencies 10000^(-2 k / d) for the
    k-th of the d / 2 pairs of a head.

    Args:
        channels: D.
        attention_dim: values of all heads, an even multiple of the heads.
    """

    frequencies: Tensor

    def __init__(self, channels: int, num_heads: int, attention_dim: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.inputs = Linear(channels, 3 * attention_dim, bias=False)
        self.output = Linear(attention_dim, channels, bias=False)
        self.dropout = nn.Dropout(dropout)
        size = attention_dim // num_heads
        # On torch's meta device a power would import its compiler.
        pairs = torch.arange(0, size, 2, device="cpu").float()
        self.register_buffer("frequencies", 10000.0 ** (-pairs / size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, L, D); x is (B, L, D)."""
        query, key, value = self.inputs(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = self._rotated(query), self._rotated(key)
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout.p if self.training else 0.0
        )
        return self.dropout(self.output(attended.transpose(1, 2).flatten(2)))

    def _rotated(self, x: Tensor) -> Tensor:
        """(B, heads, L, d) -> the same shape, rotated in float32 at least."""
        wide = torch.promote_types(x.dtype, torch.float32)
        angles = torch.arange(x.shape[-2], device=x.device, dtype=wide).unsqueeze(1) * self.frequencies.to(wide)
        cosine, sine = angles.cos(), angles.sin()
        first, second = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        return turned.flatten(-2).to(x.dtype)
