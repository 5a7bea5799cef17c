"""Maskers with global layer norm on CPUs, with no extra pass over memory for any norm: for evaluation.

A global layer norm (gLN) of x (C, F) has one mean and one variance for all values, and is affine in them:

    gLN(x)[c, f] = s[c] x[c, f] + b[c],    s = gamma / sqrt(variance + eps),    b = beta - mean s

Only its two sums need all of x. The affine map can be folded into the linear map that follows. Let h be the activations
before a norm, and the map after it be

* a 1x1 convolution: W (s h + b) + v = (W diag(s)) h + (W b + v).
* a depthwise convolution with taps w[c, j] at offsets o[j], whose padding is zeros *behind* the norm:
  sum_j w[c, j] (s[c] h[c, f + o[j]] + b[c]) over those j for which 0 <= f + o[j] < F. Taps are multiplied by s. Frames
  inside get the constant b[c] sum_j w[c, j]. At either end b[c] w[c, j] is subtracted for each tap that falls outside,
  so that the result is exact everywhere.
* a sum over resolutions (SuDoRM-RF): the constants of all terms add up to one constant.

The folded weights belong to one utterance, as its statistics do, so a batch is a loop. Trained weights do not change.

Constants of residual and skip sums are carried beside them as vectors, so that no pass adds them. The two 1x1
convolutions of a block of Conv-TasNet are one product that accumulates in place.

Features are laid out as (F, C). Factors of channels are then contiguous, a depthwise convolution is a few multiply-adds
of shifted rows, and a product with a 1x1 convolution's matrix needs no copy. Everything is computed in tiles of about a
thousand frames, which stay in the cache from one operation to the next. The largest buffer is (F, hidden channels).

Sums are float32 inside a tile and float64 across tiles, because E[h^2] - E[h]^2 in float32 drifts with length. If the
variance is so small relative to the squared mean that the difference loses digits, squares are summed again about the
mean. Silence, NaN and a single frame give the same result as the modules.

In low precision the factors of products are rounded to bfloat16, and so is each product before it is added to sums or
biases. These, norms, activations and depthwise convolutions stay in float32.

Result: that of the modules of `conv_tasnet` and, in `folded_sudormrf`, of `sudormrf`, except for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.models.maskers.conv_tasnet import ConvTasNetMasker, TemporalBlock
from sepkit.models.maskers.replaceable import in_evaluation, replaces
from sepkit.models.norms import GlobalLayerNorm
from sepkit.models.onednn import linear, uses_onednn

# Frames in a tile: with 512 channels of float32 these are 2 MB, which stay in a cache.
_TILE = 1024
# A variance below this share of the squared mean has lost too many digits in E[h^2] - E[h]^2.
LEAST_RELATIVE_VARIANCE = 1e-2


@replaces(ConvTasNetMasker.trunk, when=in_evaluation(ConvTasNetMasker, TemporalBlock))
def conv_tasnet_trunk(masker: ConvTasNetMasker, features: Tensor) -> Tensor:
    """Return what `ConvTasNetMasker.trunk` does, (B, C, F)."""
    return of_each(features, lambda utterance: _conv_tasnet(masker, utterance))


def of_each(features: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return (B, C, F) of what a function makes of each utterance, (F, C), which is also the layout in memory."""
    return torch.stack([function(utterance) for utterance in features]).transpose(1, 2)


def _conv_tasnet(masker: ConvTasNetMasker, features: Tensor) -> Tensor:
    """(F, C) of features (K, F)."""
    channels = masker.bottleneck_channels
    # Torch's containers have no types for their modules; the guard has checked them.
    blocks: list[Any] = list(masker.blocks)
    hidden_channels = blocks[0].depthwise.out_channels
    frames = features.shape[-1]
    # Residual and skip sums side by side, and the constants still to be added to every frame.
    sums = features.new_zeros(frames, channels + masker.skip_channels)
    carried = features.new_zeros(channels + masker.skip_channels)
    norm: Any = masker.norm
    folded_bottleneck(norm, masker.bottleneck, features, sums[:, :channels])
    hidden = features.new_empty(frames, hidden_channels)
    moments = Moments()
    low = masker.low_precision
    for rows in tiles(frames):
        _expand(blocks[0], sums[rows, :channels], carried[:channels], hidden[rows], moments, low)
    for index, block in enumerate(blocks):
        moments = _depthwise_block(block, hidden, moments)
        matrix, constant = _folded_pointwise(block.output, *moments.affine(block.norm, hidden))
        carried += constant
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        # Of the last block, only the skip output enters the masks.
        used = slice(channels if following is None and masker.skip_channels else 0, None)
        moments = Moments()
        for rows in tiles(frames):
            accumulate(sums[rows, used], hidden[rows], matrix[:, used], low)
            if following is not None:
                _expand(following, sums[rows, :channels], carried[:channels], hidden[rows], moments, low)
    if masker.skip_channels:
        return (sums[:, channels:] + carried[channels:]).mul_(masker.skip_scale)
    return sums + carried


def _expand(block: TemporalBlock, x: Tensor, constant: Tensor, out: Tensor, moments: Moments, low: bool) -> None:
    """The block's activated expansion of x + constant, before its norm."""
    parts: Any = block.expand
    widen, activation, _ = parts
    pointwise(widen, x, constant, out, low)
    activate(activation, out, out)
    moments.add(out)


def _depthwise_block(block: TemporalBlock, hidden: Tensor, moments: Moments) -> Moments:
    """Norm, depthwise convolution and activation in place, before the second norm; the moments of the result."""
    parts: Any = block
    scale, shift = moments.affine(parts.expand[2], hidden)
    activated = Moments()
    for rows, tile in depthwise(parts.depthwise, hidden, scale, shift, len(hidden)):
        activate(parts.activation, tile, hidden[rows])
        activated.add(hidden[rows])
    return activated


# --------------------------------------------------------------------------------------------------------------- parts


@dataclass
class Moments:
    """Sums over values that come tile by tile, for a norm's mean and variance."""

    total: float = 0.0
    squares: float = 0.0
    count: int = 0

    def add(self, tile: Tensor) -> None:
        """Add the values of a contiguous tile."""
        values = tile.view(-1)
        self.total += float(values.sum())
        self.squares += float(torch.dot(values, values))
        self.count += values.numel()

    def affine(self, norm: GlobalLayerNorm, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale and shift (C,) of the norm as an affine map; `values` (F, C) are all values that were added."""
        mean = self.total / self.count
        variance = self.squares / self.count - mean**2
        if math.isfinite(mean) and variance < LEAST_RELATIVE_VARIANCE * mean**2:
            centered = (float((tile - mean).square().sum(dtype=torch.float64)) for tile in values.split(_TILE))
            variance = sum(centered) / self.count
        scale = norm.gamma * (variance + norm.eps) ** -0.5
        return scale, norm.beta - mean * scale


def tiles(frames: int) -> Iterator[slice]:
    """Return the rows of each tile."""
    return (slice(start, min(start + _TILE, frames)) for start in range(0, frames, _TILE))


def activate(activation: nn.PReLU, x: Tensor, out: Tensor) -> None:
    """PReLU of x (F, C).

    Args:
        activation: The PReLU.
        x: Input, (F, C).
        out: Buffer of the output, which may be the input.
    """
    slope = activation.weight
    if slope.numel() == 1:
        torch.ops.aten.leaky_relu.out(x, float(slope), out=out)
    else:
        out.copy_(torch.prelu(x, slope))


def accumulate(sums: Tensor, x: Tensor, matrix: Tensor, low: bool = False) -> None:
    """Add x @ matrix to sums in place.

    Args:
        sums: Sums that are changed, (F, C').
        x: Input, (F, C).
        matrix: Matrix, (C, C').
        low: Whether factors are rounded to bfloat16.
    """
    if low:
        sums.add_(x.bfloat16() @ matrix.bfloat16())
    elif uses_onednn(x):
        sums.add_(linear(x, matrix.t()))
    else:
        sums.addmm_(x, matrix)


def pointwise(layer: nn.Conv1d, x: Tensor, constant: Tensor | None, out: Tensor, low: bool = False) -> None:
    """A 1x1 convolution of x + constant, (F, C).

    Args:
        layer: The 1x1 convolution.
        x: Input, (F, C).
        constant: Vector that is added to every frame, (C,); None: zero.
        out: Buffer of the output, (F, C').
        low: Whether factors are rounded to bfloat16.
    """
    matrix = layer.weight[..., 0]
    bias = layer.bias
    if constant is not None:
        bias = matrix @ constant if bias is None else torch.addmv(bias, matrix, constant)
    if low:
        product = x.bfloat16() @ matrix.bfloat16().t()
        if bias is None:
            out.copy_(product)
        else:
            torch.add(product, bias, out=out)
    elif uses_onednn(x):
        out.copy_(linear(x, matrix, bias))
    elif bias is None:
        torch.mm(x, matrix.t(), out=out)
    else:
        torch.addmm(bias, x, matrix.t(), out=out)


def _folded_pointwise(layer: nn.Conv1d, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Matrix (C, C') and constant (C',) of a 1x1 convolution of scale * x + shift."""
    matrix = layer.weight[..., 0]
    constant = matrix @ shift
    return (matrix * scale).t(), constant if layer.bias is None else constant.add_(layer.bias)


def folded_bottleneck(norm: GlobalLayerNorm, layer: nn.Conv1d, features: Tensor, out: Tensor) -> None:
    """The 1x1 convolution of normalized features (K, F), as (F, C)."""
    moments, values = Moments(), features.contiguous()
    for rows in values.split(max(1, _TILE * len(values) // values.shape[-1])):
        moments.add(rows)
    matrix, constant = _folded_pointwise(layer, *moments.affine(norm, values))
    torch.addmm(constant, values.t(), matrix, out=out)


def depthwise(
    layer: nn.Conv1d, source: Tensor, scale: Tensor | None, shift: Tensor | None, frames: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the output of a depthwise convolution of scale * source + shift (F, C): rows, and their values (F', C).

    The caller may overwrite the rows of a yielded tile in a source of the same length. A tile is valid until the next.

    Args:
        layer: The depthwise convolution.
        source: Input, (F, C).
        scale: Factor of each channel, (C,); None: 1.
        shift: Offset of each channel, (C,); None: 0.
        frames: Frames of the output.
    """
    stride, dilation, padding = layer.stride[0], layer.dilation[0], int(layer.padding[0])
    taps = layer.weight[:, 0].t()
    constant = torch.zeros_like(taps[0]) if layer.bias is None else layer.bias
    outside = None
    if scale is not None and shift is not None:
        outside = taps * shift
        taps, constant = taps * scale, constant + outside.sum(0)
    taps = taps.contiguous()
    offsets = [tap * dilation - padding for tap in range(len(taps))]
    # Taps that reach every frame go first: they need no start value.
    order = sorted(range(len(taps)), key=lambda tap: abs(offsets[tap]))
    reach = max(0, -offsets[0]) if stride == 1 else 0
    step = max(_TILE, reach)
    buffer = source.new_empty(min(step, frames), source.shape[1])
    past = source[:0]
    for start in range(0, frames, step):
        rows = slice(start, min(start + step, frames))
        tile = buffer[: rows.stop - start]
        begun = False
        for tap in order:
            offset = offsets[tap]
            # For output frames from `first` to `last` the tap lies within the source. From `kept` on it does not lie
            # in rows of the source that the caller may have overwritten.
            first = min(max(start, -(offset // stride)), rows.stop)
            last = max(min(rows.stop, (len(source) - 1 - offset) // stride + 1), first)
            kept = min(max(-((offset - start * stride) // stride), first), last) if stride == 1 else first
            if not begun:
                begun = True
                if (first, kept, last) == (start, start, rows.stop):
                    torch.addcmul(constant, _rows(source, start, last, stride, offset), taps[tap], out=tile)
                    continue
                tile.copy_(constant.expand_as(tile))
            if kept > first:
                shifted = offset - start + len(past)
                tile[first - start : kept - start].addcmul_(past[first + shifted : kept + shifted], taps[tap])
            if last > kept:
                tile[kept - start : last - start].addcmul_(_rows(source, kept, last, stride, offset), taps[tap])
            if outside is not None:
                tile[: first - start].sub_(outside[tap])
                tile[last - start :].sub_(outside[tap])
        if reach and rows.stop < frames:
            past = source[rows.stop - reach : rows.stop].clone()
        yield rows, tile


def _rows(source: Tensor, first: int, last: int, stride: int, offset: int) -> Tensor:
    return source[first * stride + offset : (last - 1) * stride + offset + 1 : stride]
