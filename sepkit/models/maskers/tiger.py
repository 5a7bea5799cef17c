"""TIGER: one small block over bands and over frames, applied again and again, and masks that sum to one."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import TIGERConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import Masker, checked, require_coefficients, require_multiple
from sepkit.models.norms import ChannelLayerNorm, GlobalLayerNorm
from sepkit.registry import register

# (number of bands, width in Hz) from the lowest on; one more band has the bins above.
_LAYOUT = ((40, 25), (10, 100), (8, 250), (8, 500))
_KERNEL = 5
# Probability in the network between the scales, in training.
_DROPOUT = 0.1


@register(TIGERConfig)
class TIGERMasker(Masker):
    """Band split; a block over bands, then one over frames, with the same weights in every iteration; complex masks.

        x_k = convolution_k(norm(X_k))                              X_k: the coefficients of band k; x: (B, N, bands, F)
        y = block over frames(block over bands(x))
        y = block over frames(block over bands(PReLU(w (x + y) + b)))                        iterations - 1 times
        m_i = a_i sigmoid(b_i),   a, b = convolution_k(PReLU(y_k)),   m_i = m_i - (sum_j m_j - 1) / n

    Each block is x + norm(attention(scales(x))). `scales` is a convolutional network that halves the resolution and
    puts what all scales have in common back into each. Attention compares all values of a band, or of a frame.

    Networks that halve the resolution depend on where frames begin. So `edge_frames` at either end, which training did
    not have, are not seen, and shared equally.

    Values are m X: it is made for features that are the coefficients themselves, and for mapping. They sum to the
    mixture.

    Attributes:
        maps: values are the estimates' coefficients.

    Source: M. Xu et al., "TIGER: Time-frequency Interleaved Gain Extraction and Reconstruction for Efficient Speech
    Separation", ICLR 2025. Same numbers as the authors' code, which makes a global part for the coarsest scale that
    nothing uses.
    """

    maps = True

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(TIGERConfig(**fields))
        self.edge_frames, self.sample_rate, self.iterations = config.edge_frames, config.sample_rate, config.iterations
        self.widths = _band_widths(encoding_dim, config.sample_rate)
        channels = config.channels
        for field, divisor in (("num_heads", config.num_heads), ("the hypotheses", hypotheses)):
            require_multiple("channels", channels, divisor, f"a multiple of {field}, {divisor}")
        eps = torch.finfo(torch.float32).eps
        self.inputs = nn.ModuleList(
            nn.Sequential(GlobalLayerNorm(2 * width, eps), nn.Conv1d(2 * width, channels, 1)) for width in self.widths
        )
        self.over_bands, self.over_frames = _AxisBlock(config), _AxisBlock(config)
        self.again = nn.Sequential(nn.Conv2d(channels, channels, 1, groups=channels), nn.PReLU())
        count = 4 * hypotheses * values_per_dimension
        self.outputs = nn.ModuleList(
            nn.Sequential(nn.PReLU(), nn.Conv1d(channels, count * width, 1, groups=hypotheses)) for width in self.widths
        )

    def forward(self, features: Tensor) -> Tensor:
        """Raw values (B, n, P, K, F) of features (B, K, F), real parts before imaginary parts along K."""
        inner = features[..., self.edge_frames : features.shape[-1] - self.edge_frames]
        bands = inner.unflatten(1, (2, -1)).split(self.widths, dim=2)
        x = torch.stack([layer(band.flatten(1, 2)) for layer, band in zip(self.inputs, bands, strict=True)], dim=2)
        y = self._iteration(x)
        for _ in range(self.iterations - 1):
            y = self._iteration(self.again(x + y))
        parts = []
        for layer, band, width in zip(self.outputs, y.unbind(2), self.widths, strict=True):
            value, gate = layer(band).unflatten(1, (2, 2, self.hypotheses, self.values_per_dimension, width)).unbind(1)
            parts.append(value * gate.sigmoid())
        # (B, 2, n, P, bins, F)
        masks = nn.functional.pad(torch.cat(parts, dim=4), (self.edge_frames, self.edge_frames))
        real, imaginary = (masks - masks.mean(2, keepdim=True)).unbind(1)
        real = real + 1 / self.hypotheses
        x_real, x_imaginary = features[:, None, None].chunk(2, dim=-2)
        return torch.cat([real * x_real - imaginary * x_imaginary, real * x_imaginary + imaginary * x_real], dim=-2)

    def _iteration(self, x: Tensor) -> Tensor:
        """(B, N, bands, F) -> the same shape."""
        x = self.over_bands(x.transpose(2, 3)).transpose(2, 3)
        return self.over_frames(x)


class _AxisBlock(nn.Module):
    """x + norm(attention(scales(x))), (B, N, other axis, axis) -> the same shape, along `axis`."""

    def __init__(self, config: TIGERConfig) -> None:
        super().__init__()
        self.scales = MultiScale(config.channels, config.hidden_channels, config.scales)
        self.attention = PlaneAttention(config.channels, config.num_heads, config.head_channels)
        self.norm = ChannelLayerNorm(config.channels, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.scales(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)
        return x + self.norm(self.attention(y))


class MultiScale(nn.Module):
    """Residual network over several resolutions, each half of the one before.

        y_0 = convolution(PReLU(norm(convolution(x)))),   y_(k + 1) = convolution with stride 2 of y_k
        g = MLP(sum_k y_k, averaged to the coarsest resolution);   z_k = inject_k(y_k, g)
        x + convolution(merge_0(z_0, merge_1(z_1, ... merge_(K - 2)(z_(K - 2), z_(K - 3)))))

    The K-th resolution has a part in g alone, as in the authors' code.

    Args:
        channels: N.
        hidden: channels of y.
        scales: K.
    """

    def __init__(self, channels: int, hidden: int, scales: int) -> None:
        super().__init__()
        self.expand = _conv_norm(channels, hidden, 1, activation=True)
        strides = [1] + [2] * (scales - 1)
        self.down = nn.ModuleList(_conv_norm(hidden, hidden, _KERNEL, stride, hidden) for stride in strides)
        self.mlp = nn.Sequential(
            _conv_norm(hidden, hidden, 1, bias=False),
            nn.Conv1d(hidden, hidden, _KERNEL, padding=_KERNEL // 2, groups=hidden),
            nn.ReLU(),
            nn.Dropout(_DROPOUT),
            _conv_norm(hidden, hidden, 1, bias=False),
            nn.Dropout(_DROPOUT),
        )
        self.inject = nn.ModuleList(Injection(hidden, 1) for _ in range(scales - 1))
        self.merge = nn.ModuleList(Injection(hidden, _KERNEL) for _ in range(scales - 1))
        self.output = nn.Conv1d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, N, L); x is (B, N, L)."""
        y, levels = self.expand(x), []
        for layer in self.down:
            y = layer(y)
            levels.append(y)
        common = self.mlp(sum(nn.functional.adaptive_avg_pool1d(level, y.shape[-1]) for level in levels))
        *finer, z = [inject(level, common) for inject, level in zip(self.inject, levels[:-1], strict=True)]
        z = self.merge[-1](z, finer[-1])
        for merge, level in zip(reversed(self.merge[:-1]), reversed(finer), strict=True):
            z = merge(level, z)
        return x + self.output(z)


class Injection(nn.Module):
    """norm(convolution(x)) * sigmoid(norm(convolution(g))) + norm(convolution(g)), depthwise, g stretched to x."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.local, self.common, self.gate = (
            _conv_norm(channels, channels, kernel_size, groups=channels, bias=False) for _ in range(3)
        )

    def forward(self, x: Tensor, g: Tensor) -> Tensor:
        """Return the output, (B, C, L); x is (B, C, L), g (B, C, L')."""
        gate, common = (
            nn.functional.interpolate(part, size=x.shape[-1]) for part in (self.gate(g).sigmoid(), self.common(g))
        )
        return self.local(x) * gate + common


class PlaneAttention(nn.Module):
    """x + projection(attention(x)) over the last axis; what is compared are the values of all channels and places.

    Args:
        channels: N, a multiple of the heads.
        head_channels: Channels of queries and keys in each head.
    """

    def __init__(self, channels: int, num_heads: int, head_channels: int) -> None:
        super().__init__()
        self.queries, self.keys = (
            nn.ModuleList(_projection(channels, head_channels) for _ in range(num_heads)) for _ in range(2)
        )
        self.values = nn.ModuleList(_projection(channels, channels // num_heads) for _ in range(num_heads))
        self.output = _projection(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, N, other axis, axis); x is (B, N, other axis, axis)."""
        # (B, heads, axis, channels of a head * other axis)
        query, key, value = (
            torch.stack([layer(x) for layer in layers], dim=1).flatten(2, 3).transpose(2, 3)
            for layers in (self.queries, self.keys, self.values)
        )
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.output(attended.transpose(2, 3).unflatten(2, (-1, x.shape[2])).flatten(1, 2))


def _projection(channels: int, outputs: int) -> nn.Sequential:
    """(B, C, *, *) -> (B, C', *, *): norm(PReLU(1 x 1 convolution))."""
    layers = {"conv": nn.Conv2d(channels, outputs, 1), "act": nn.PReLU(), "norm": ChannelLayerNorm(outputs, eps=1e-5)}
    return nn.Sequential(OrderedDict(layers))


def _conv_norm(
    channels: int,
    outputs: int,
    kernel_size: int,
    stride: int = 1,
    groups: int = 1,
    bias: bool = True,
    activation: bool = False,
) -> nn.Sequential:
    """(B, C, L) -> (B, C', L / stride): norm(convolution), with a PReLU if there is an activation."""
    conv = nn.Conv1d(channels, outputs, kernel_size, stride, padding=kernel_size // 2, groups=groups, bias=bias)
    layers: dict[str, nn.Module] = {"conv": conv, "norm": GlobalLayerNorm(outputs)}
    return nn.Sequential(OrderedDict(layers | ({"act": nn.PReLU()} if activation else {})))


def _band_widths(encoding_dim: int, sample_rate: int) -> list[int]:
    """Return the bins of each band; raise UserError where a band would have none."""
    bins = encoding_dim // 2
    require_coefficients("tiger", encoding_dim)
    widths = [int(2 * hz * bins / sample_rate) for count, hz in _LAYOUT for _ in range(count)]
    widths.append(bins - sum(widths))
    if min(widths) < 1:
        raise UserError(
            f"model.masker.sample_rate: found {sample_rate} with {bins} bins, which bands of 25 to 500 Hz and one"
            " above 8 kHz do not fit; use 16000 and model.filterbank.kernel_size 640"
        )
    return widths
