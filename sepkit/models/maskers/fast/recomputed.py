"""The blocks of Conv-TasNet on CPUs, with gradients and with no extra pass over memory for any norm: for training.

For the backward pass autograd keeps six tensors of the hidden channels per block: gigabytes in a step, and getting that
memory costs more time than the arithmetic. Here the blocks are one function. It keeps only each block's input, which
has the few bottleneck channels, and each norm's mean and deviation. The rest is computed again, utterance by utterance,
in buffers that stay in the cache. One product of nine is therefore computed twice.

Forward, as in `folded`, with the notation there: a block takes x (C, F) through

    u = W x + w,    p = PReLU(u),    d = D(s p + b) + v,    q = PReLU(d),    y = O (s' q + b') + o.

Backward, for the gradient g of y, with G the sum of g over frames. All sums follow from products needed anyway, so no
norm needs a pass of its own here either:

* 1x1 convolution behind a norm. Its gradient is (g q^T) diag(s') + G b'^T. That of the norm's output, z = O^T g, has
  for each channel the sums  h = sum_f z = O^T G  and  r = sum_f z q = sum over outputs of O * (g q^T).
* gLN with mean m, deviation's inverse t, and N values: the gradients are h for beta, t (r - m h) for gamma, and with
  A = sum gamma h  and  E = sum gamma t (r - m h)  over the channels,

      t gamma z + k q + k',    k = -t^2 E / N,    k' = -t A / N - k m        for its input;

  t gamma goes into the matrix O^T, and the product accumulates on k q + k'.
* depthwise convolution with taps w[c, j] at offsets o[j], g now the gradient of d. With

      R[c, j] = sum_f g[c, f] p[c, f + o[j]],    H[c, j] = sum_f g[c, f],    over the frames f whose f + o[j] exists,

  the gradient of its taps is s R + b H, and for the norm before it  h = sum_j w H,  r = sum_j w R;  t gamma w are the
  taps of its transpose.
* PReLU: the gradient of its slope is the product of the gradient of p with min(u, 0).

Source of the layers: see `conv_tasnet`. Result and gradients: those of the modules, except for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from sepkit.models.maskers.conv_tasnet import ConvTasNetMasker, TemporalBlock
from sepkit.models.maskers.fast.folded import LEAST_RELATIVE_VARIANCE
from sepkit.models.maskers.replaceable import plain, replaces
from sepkit.models.norms import GlobalLayerNorm

# Squares are summed in float32 over this many values, and those sums in float64.
_SUMMED_IN_FLOAT32 = 512
_PARAMETERS_A_BLOCK = 12


_is_plain = plain(ConvTasNetMasker, TemporalBlock)


def is_recomputable(masker: ConvTasNetMasker, x: Tensor) -> bool:
    """Whether gradients are recorded and `temporal_blocks` equals the masker's own blocks.

    `x` is (B, C, F), the output of the bottleneck.
    """
    if not torch.is_grad_enabled() or not _is_plain(masker, x) or not x.numel():
        return False
    if not x.requires_grad and not any(weight.requires_grad for weight in masker.blocks.parameters()):
        return False
    return all(map(_is_usual, masker.blocks))


def _is_usual(block: nn.Module) -> bool:
    """Whether the block's layers stand in their original order, with biases and scalar slopes."""
    parts: Any = block
    layers = [*parts.expand, parts.depthwise, parts.activation, parts.norm, parts.output]
    types = [nn.Conv1d, nn.PReLU, GlobalLayerNorm] * 2 + [nn.Conv1d]
    return [type(layer) for layer in layers] == types and all(
        layer.bias is not None if isinstance(layer, nn.Conv1d) else layer.num_parameters == 1
        for layer in layers
        if not isinstance(layer, GlobalLayerNorm)
    )


@replaces(ConvTasNetMasker.process, when=is_recomputable)
def temporal_blocks(masker: ConvTasNetMasker, x: Tensor) -> Tensor:
    """Return what `ConvTasNetMasker.process` does, (B, C', F).

    Gradients are recorded, once: gradients of gradients are refused.

    Args:
        masker: one for which `is_recomputable` is true.
    """
    blocks: list[Any] = list(masker.blocks)
    shapes = [
        _Shape(block.depthwise.dilation[0], block.depthwise.padding[0], block.expand[2].eps, block.norm.eps)
        for block in blocks
    ]
    parameters = [parameter for block in blocks for parameter in _parameters(block)]
    summary = _TemporalBlocks.apply(x, shapes, masker.skip_channels, *parameters)
    return summary * masker.skip_scale if masker.skip_scale != 1 and masker.skip_channels else summary


def _parameters(block: TemporalBlock) -> list[Tensor]:
    # Torch's containers have no types for their modules; `is_recomputable` has checked them.
    parts: Any = block
    widen, activation, norm = parts.expand
    depthwise, output_activation, output_norm, output = parts.depthwise, parts.activation, parts.norm, parts.output
    return [
        *(widen.weight, widen.bias, activation.weight, norm.gamma, norm.beta),
        *(depthwise.weight, depthwise.bias, output_activation.weight, output_norm.gamma, output_norm.beta),
        *(output.weight, output.bias),
    ]


@dataclass(frozen=True)
class _Shape:
    """A block's constants beside its parameters.

    Args:
        dilation, padding: Dilation and initial padding of the depthwise convolution; its output is cut to F frames.
        eps, output_eps: Epsilon of the first and the second norm.
    """

    dilation: int
    padding: int
    eps: float
    output_eps: float


class _Block:
    """A block's parameters, as matrices and vectors, in the order of `_parameters`."""

    def __init__(self, shape: _Shape, parameters: Sequence[Tensor]) -> None:
        widen, self.widen_bias, slope, gamma, beta = parameters[:5]
        depthwise, self.depthwise_bias, output_slope, output_gamma, output_beta = parameters[5:10]
        output, self.output_bias = parameters[10:]
        self.widen, self.output = widen[..., 0], output[..., 0]
        self.slope, self.output_slope = float(slope), float(output_slope)
        self.norm, self.output_norm = _Norm(gamma, beta, shape.eps), _Norm(output_gamma, output_beta, shape.output_eps)
        self.taps = depthwise[:, 0]
        self.offsets = [tap * shape.dilation - shape.padding for tap in range(self.taps.shape[1])]

    def forward(self, sums: Tensor, p: Tensor, d: Tensor, scratch: Tensor) -> tuple[_Moments, _Moments]:
        """Add the output to residual and skip sums (C + C', F); return the statistics of both norms.

        Args:
            sums: the first C channels are the block's input.
            p, d, scratch: buffers (H, F).
        """
        torch.addmm(self.widen_bias[:, None], self.widen, sums[: self.widen.shape[1]], out=p)
        nn.functional.leaky_relu_(p, self.slope)
        moments = _Moments.of(p, self.norm.eps, scratch)
        self.convolve(p, moments, out=d)
        nn.functional.leaky_relu_(d, self.output_slope)
        output_moments = _Moments.of(d, self.output_norm.eps, scratch)
        scale, shift = self.output_norm.affine(output_moments)
        sums.addmm_(self.output * scale, d).add_(torch.addmv(self.output_bias, self.output, shift)[:, None])
        return moments, output_moments

    def convolve(self, p: Tensor, moments: _Moments, out: Tensor) -> None:
        """Write the depthwise convolution of the normalized p, (H, F), to `out`."""
        scale, shift = self.norm.affine(moments)
        outside = self.taps * shift[:, None]
        taps = self.taps * scale[:, None]
        constant = outside.sum(1).add_(self.depthwise_bias)
        begun = None
        if 0 in self.offsets:
            begun = self.offsets.index(0)
            torch.mul(p, taps[:, begun, None], out=out).add_(constant[:, None])
        else:
            out.copy_(constant[:, None].expand_as(out))
        for tap, first, last, offset in self.spans(p.shape[1]):
            if tap == begun:
                continue
            out[:, first:last].addcmul_(p[:, first + offset : last + offset], taps[:, tap, None])
            out[:, :first].sub_(outside[:, tap, None])
            out[:, last:].sub_(outside[:, tap, None])

    def spans(self, frames: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield each tap's number, the first and last output frames for which its input exists, and its offset."""
        for tap, offset in enumerate(self.offsets):
            first = min(max(0, -offset), frames)
            yield tap, first, max(min(frames, frames - offset), first), offset

    def backward(
        self, x: Tensor, moments: _Moments, output_moments: _Moments, sums: Tensor, buffers: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return gradients of the parameters; add that of the block's input to the first channels of `sums`.

        Args:
            x: the block's input (C, F).
            moments: Moments of the block's first norm.
            output_moments: Moments of the block's second norm.
            sums: the gradient of residual and skip sums, (C + C', F).
            buffers: five (H, F).
        """
        u, p, d, q, scratch = buffers
        torch.addmm(self.widen_bias[:, None], self.widen, x, out=u)
        torch.ops.aten.leaky_relu.out(u, self.slope, out=p)
        self.convolve(p, moments, out=d)
        torch.ops.aten.leaky_relu.out(d, self.output_slope, out=q)

        of_output_bias = sums.sum(1)
        product = sums @ q.t()
        scale, shift = self.output_norm.affine(output_moments)
        of_output = torch.addr(product * scale, of_output_bias, shift)
        of_output_norm, gain, linear, constant = self.output_norm.backward(
            output_moments, self.output.t() @ of_output_bias, (self.output * product).sum(0), q.numel()
        )
        q.mul_(linear).add_(constant).addmm_((self.output * gain).t(), sums)
        gradient, of_output_slope = _activation_backward(q, d, self.output_slope, scratch)

        of_depthwise_bias = gradient.sum(1)
        products, counted = torch.empty_like(self.taps), torch.empty_like(self.taps)
        frames = x.shape[1]
        for tap, first, last, offset in self.spans(frames):
            span = torch.mul(gradient[:, first:last], p[:, first + offset : last + offset], out=d[:, first:last])
            products[:, tap] = span.sum(1)
            counted[:, tap] = of_depthwise_bias - gradient[:, :first].sum(1) - gradient[:, last:].sum(1)
        scale, shift = self.norm.affine(moments)
        of_taps = products * scale[:, None] + counted * shift[:, None]
        of_norm, gain, linear, constant = self.norm.backward(
            moments, (self.taps * counted).sum(1), (self.taps * products).sum(1), p.numel()
        )
        p.mul_(linear).add_(constant)
        taps = self.taps * gain[:, None]
        for tap, first, last, offset in self.spans(frames):
            p[:, first + offset : last + offset].addcmul_(gradient[:, first:last], taps[:, tap, None])
        gradient, of_slope = _activation_backward(p, u, self.slope, scratch)
        sums[: len(x)].addmm_(self.widen.t(), gradient)
        return [
            *(gradient @ x.t(), gradient.sum(1), of_slope, *of_norm),
            *(of_taps, of_depthwise_bias, of_output_slope, *of_output_norm),
            *(of_output, of_output_bias),
        ]


@dataclass(frozen=True)
class _Moments:
    """Statistics of a norm's input.

    Args:
        mean: Mean of all values.
        scale: 1 / deviation.
    """

    mean: float
    scale: float

    @classmethod
    def of(cls, values: Tensor, eps: float, scratch: Tensor) -> _Moments:
        """Return those of contiguous values (H, F); `scratch` has their shape."""
        flat = values.view(-1)
        mean = float(values.sum(1).sum(dtype=torch.float64)) / len(flat)
        variance = _sum_of_squares(flat) / len(flat) - mean**2
        if math.isfinite(mean) and variance < LEAST_RELATIVE_VARIANCE * mean**2:
            variance = _sum_of_squares(torch.sub(values, mean, out=scratch).view(-1)) / len(flat)
        return cls(mean, (variance + eps) ** -0.5)


def _sum_of_squares(values: Tensor) -> float:
    parts = values[: len(values) // _SUMMED_IN_FLOAT32 * _SUMMED_IN_FLOAT32].view(-1, _SUMMED_IN_FLOAT32)
    rest = values[parts.numel() :]
    return float(torch.linalg.vector_norm(parts, dim=1).double().square().sum() + rest.double().square().sum())


@dataclass(frozen=True)
class _Norm:
    """Global layer norm: gain (C,), offset (C,), and eps of the variance."""

    gamma: Tensor
    beta: Tensor
    eps: float

    def affine(self, moments: _Moments) -> tuple[Tensor, Tensor]:
        """Scale and shift (C,) of the norm as an affine map."""
        scale = self.gamma * moments.scale
        return scale, self.beta - scale * moments.mean

    def backward(
        self, moments: _Moments, sums: Tensor, products: Tensor, count: int
    ) -> tuple[tuple[Tensor, Tensor], Tensor, float, float]:
        """Return gradients of gamma and beta; and gain (C,), factor and constant of the input's gradient, see above.

        Args:
            moments: Moments of the input.
            sums: gradient of its output, summed over frames, (C,).
            products: Products of that gradient with the input, summed over frames, (C,).
            count: number of values in the input.
        """
        of_gamma = (products - sums * moments.mean) * moments.scale
        total, turned = (float((self.gamma * part).sum(dtype=torch.float64)) for part in (sums, of_gamma))
        linear = -(moments.scale**2) * turned / count
        constant = -moments.scale * total / count - linear * moments.mean
        return (of_gamma, sums), self.gamma * moments.scale, linear, constant


def _activation_backward(gradient: Tensor, x: Tensor, slope: float, scratch: Tensor) -> tuple[Tensor, Tensor]:
    """Overwrite the gradient of a PReLU's output with that of its input x; return it and that of the slope (1,)."""
    below = torch.clamp(x, max=0.0, out=scratch)
    of_slope = torch.dot(gradient.view(-1), below.view(-1))
    torch.ops.aten.leaky_relu_backward.grad_input(gradient, x, slope, False, grad_input=gradient)
    return gradient, of_slope[None]


class _TemporalBlocks(Function):
    """Forward and backward as in the module's docstring."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shapes: list[_Shape], skip_channels: int, *parameters: Tensor) -> Tensor:
        """Sum of skip outputs, or of residuals."""
        blocks = _blocks(shapes, parameters)
        batch, channels, frames = x.shape
        inputs = x.new_empty(len(blocks), *x.shape)
        sums = x.new_empty(channels + skip_channels, frames)
        buffers = x.new_empty(3, len(blocks[0].widen), frames).unbind()
        result = x.new_empty(batch, skip_channels or channels, frames)
        moments = []
        for index in range(batch):
            sums[channels:].zero_()
            sums[:channels] = x[index]
            for block, kept in zip(blocks, inputs, strict=True):
                kept[index] = sums[:channels]
                moments.append(block.forward(sums, *buffers))
            result[index] = sums[channels:] if skip_channels else sums
        ctx.save_for_backward(inputs, *parameters)
        ctx.shapes, ctx.skip_channels, ctx.moments = shapes, skip_channels, moments
        return result

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradients of x and of all parameters."""
        (gradient,) = gradients
        inputs, *parameters = ctx.saved_tensors
        blocks = _blocks(ctx.shapes, parameters)
        _, batch, channels, frames = inputs.shape
        sums = inputs.new_empty(channels + ctx.skip_channels, frames)
        buffers = inputs.new_empty(5, len(blocks[0].widen), frames).unbind()
        of_x = torch.empty_like(inputs[0])
        of_parameters = [torch.zeros_like(parameter) for parameter in parameters]
        for index in range(batch):
            sums[:channels].zero_()
            sums[channels if ctx.skip_channels else 0 :] = gradient[index]
            for number in reversed(range(len(blocks))):
                moments, output_moments = ctx.moments[index * len(blocks) + number]
                parts = blocks[number].backward(inputs[number, index], moments, output_moments, sums, buffers)
                into = of_parameters[number * _PARAMETERS_A_BLOCK : (number + 1) * _PARAMETERS_A_BLOCK]
                for total, part in zip(into, parts, strict=True):
                    total.view(part.shape).add_(part)
            of_x[index] = sums[:channels]
        return of_x, None, None, *of_parameters


def _blocks(shapes: list[_Shape], parameters: Sequence[Tensor]) -> list[_Block]:
    size = _PARAMETERS_A_BLOCK
    return [_Block(shape, parameters[size * number : size * (number + 1)]) for number, shape in enumerate(shapes)]
