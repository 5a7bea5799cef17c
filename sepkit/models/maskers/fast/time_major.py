"""The dual-path recurrent masker on CPUs, with few passes over memory.

The features of the chunks are laid out as (time, B, other axis, C), with the time axis of the next recurrent network
first. The network and the linear layer then read their inputs without a copy. The update u of a path goes through the
global layer norm (gLN) and the residual sum, which is written with the axes exchanged for the next path:

    y[d, b, a, c] = x[a, b, d, c] + gamma[c] (u[a, b, d, c] - mean[b]) r[b] + beta[c],   r = 1 / sqrt(variance + eps)

The mean is subtracted before squares are summed, and sums of rows are added in float64, so long inputs lose no digits.
With g = dL/dy, its axes exchanged back, v = (u - mean) r, and means over everything but the batch,

    dL/dx = g,    dL/dbeta = sum g,    dL/dgamma = sum g v,    dL/du = r (gamma g - mean(gamma g) - v mean(gamma g v))

All sums follow from sum g and sum g u of each channel, so that the backward pass needs only u.

The end of the masker, in evaluation: chunks are added, and everything between the PReLU and the gate is linear. The
hypotheses' 1x1 convolution W, w can follow the sum over the k[f] chunks that hold a frame f, and can be folded into the
1x1 convolutions V, v after it:

    V sum_chunks (W p + w) + v = (V W) sum_chunks p + k[f] V w + v

Source of the layers: see `dual_path_rnn`. Result: that of the modules, except for rounding.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sepkit.models.maskers.dual_path_rnn import DualPathBlock, DualPathRNNMasker, Path
from sepkit.models.maskers.replaceable import in_evaluation, plain, replaces
from sepkit.models.onednn import Linear

_OWN = (DualPathRNNMasker, DualPathBlock, Path, nn.LSTM, nn.GRU, Linear, nn.Conv2d, nn.Tanh, nn.Sigmoid)


@replaces(DualPathRNNMasker.process, when=plain(*_OWN))
def dual_path_blocks(masker: DualPathRNNMasker, x: Tensor) -> Tensor:
    """Return what `DualPathRNNMasker.process` does, with gradients, (Q, B, S, C)."""
    for path in _paths(masker):
        x = _AddNormalized.apply(x, path.update(x), path.norm.gamma, path.norm.beta, path.norm.eps)  # type: ignore[assignment]
    return x


def _paths(masker: DualPathRNNMasker) -> Iterator[Path]:
    for block in masker.blocks:
        yield block.intra  # type: ignore[misc]
        yield block.inter  # type: ignore[misc]


class _AddNormalized(torch.autograd.Function):
    """x + gLN(update), each (A, B, D, C), with the axes exchanged: (D, B, A, C), contiguous.

    Keeps the update and two numbers an utterance for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        """See the module; eps is added to the variance."""
        out = x.new_empty(x.shape[2], x.shape[1], x.shape[0], x.shape[3])
        mean, scale = _add_normalized(x, update.detach().clone(), gamma, beta, eps, out)
        ctx.save_for_backward(update, gamma, mean, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        """Gradients of x, the update, gamma and beta."""
        update, gamma, mean, scale = ctx.saved_tensors
        grad = grad.transpose(0, 2).contiguous()
        # Rows of one position are summed in their own type, positions in float64: (B, C) each.
        sums = grad.sum(2).sum(0, dtype=torch.float64)
        product = grad * update
        products = product.sum(2).sum(0, dtype=torch.float64)
        mean, scale = mean[:, None], scale[:, None]
        with_values = (products - mean * sums) * scale
        count = grad.shape[0] * grad.shape[2]
        channels = grad.shape[3]
        weight = gamma.double()
        mean_grad = (weight * sums).sum(1, keepdim=True) / (count * channels)
        mean_product = (weight * with_values).sum(1, keepdim=True) / (count * channels)
        # dL/du = (r gamma) g + (-r^2 mean(gamma g v)) u + r (r mean mean(gamma g v) - mean(gamma g)).
        slope = -scale.square() * mean_product
        offset = -slope * mean - scale * mean_grad
        of_update = torch.mul(grad, _row(scale * weight, grad), out=product)
        of_update.addcmul_(update, _row(slope, grad)).add_(_row(offset, grad))
        return grad, of_update, with_values.sum(0).to(gamma.dtype), sums.sum(0).to(gamma.dtype), None


def _row(values: Tensor, like: Tensor) -> Tensor:
    """(B, C) or (B, 1) as (1, B, 1, *), in the type of `like`."""
    return values.to(like.dtype)[None, :, None]


def _add_normalized(
    x: Tensor, update: Tensor, gamma: Tensor, beta: Tensor, eps: float, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Write x + gLN(update) to `out` (D, B, A, C); return mean and 1/deviation (B,) of the update, float64.

    The update (A, B, D, C) is overwritten.
    """
    count = update.shape[0] * update.shape[2] * update.shape[3]
    mean = update.sum(-1).sum((0, 2), dtype=torch.float64) / count
    # The mean that is subtracted is a rounded one.
    mean = mean.to(x.dtype).double()
    update.sub_(_row(mean[:, None], x))
    power = torch.linalg.vector_norm(update, dim=-1).double().square().sum((0, 2)) / count
    scale = (power + eps).rsqrt()
    torch.addcmul(beta, update, _row(scale[:, None] * gamma, x), out=update)
    torch.add(x, update, out=out.transpose(0, 2))
    return mean, scale


@replaces(DualPathRNNMasker.trunk, when=in_evaluation(*_OWN))
def dual_path_trunk(masker: DualPathRNNMasker, features: Tensor) -> Tensor:
    """Return what `DualPathRNNMasker.trunk` does, (B, C + 1, F)."""
    batch, _, frames = features.shape
    chunk_size, hop_size = masker.chunk_size, masker.hop_size
    rows = _padded_rows(masker, features)
    x = rows.unfold(1, chunk_size, hop_size).permute(3, 0, 1, 2).contiguous()
    count, other = x.shape[2], torch.empty_like(x)
    for path in _paths(masker):
        out = other.view(x.shape[2], batch, x.shape[0], x.shape[3])
        norm = path.norm
        _add_normalized(x, path.update(x), norm.gamma, norm.beta, norm.eps, out)  # type: ignore[arg-type]
        x, other = out, x
    del other
    x = masker.spread[0](x)
    summed, held = rows.zero_(), rows.new_zeros(rows.shape[1])
    for first in range(0, chunk_size, hop_size):
        positions = x[first : first + hop_size]
        length = len(positions)
        # Position q of chunk s is frame q + s hop, so `hop_size` neighboring positions never share a frame.
        at = slice(first // hop_size, first // hop_size + count)
        summed.view(batch, -1, hop_size, x.shape[3])[:, at, :length] += positions.permute(1, 2, 0, 3)
        held.view(-1, hop_size)[at, :length] += 1
    summary = torch.cat([summed, held.expand(batch, -1).unsqueeze(-1)], dim=-1)
    # (F, C + 1) in memory; torch calls it (C + 1, F).
    return summary[:, chunk_size : chunk_size + frames].transpose(1, 2)


def _padded_rows(masker: DualPathRNNMasker, features: Tensor) -> Tensor:
    """The bottleneck's frames (B, F', C) with the zeros of `segment` at both ends; F' is a multiple of the hop."""
    batch, _, frames = features.shape
    chunk_size, hop_size = masker.chunk_size, masker.hop_size
    count = (frames + chunk_size) // hop_size + 1
    hops = count - 1 + -(-chunk_size // hop_size)
    weight, bias = masker.bottleneck.weight[:, :, 0], masker.bottleneck.bias
    assert bias is not None
    rows = features.new_zeros(batch, hops * hop_size, len(weight))
    for row, utterance in zip(rows, masker.norm(features), strict=True):
        torch.addmm(bias, utterance.t(), weight.t(), out=row[chunk_size : chunk_size + frames])
    return rows


@replaces(DualPathRNNMasker.values, when=in_evaluation(*_OWN))
def dual_path_values(masker: DualPathRNNMasker, summary: Tensor) -> Tensor:
    """Return what `DualPathRNNMasker.values` does, (B, n, P, K, F)."""
    batch, frames, channels = summary.shape[0], summary.shape[2], summary.shape[1] - 1
    spread, (value, _), (gate, _) = masker.spread[1], masker.value, masker.gate
    values = masker.values_per_dimension * masker.encoding_dim
    raw = summary.new_empty(batch, masker.hypotheses, values, frames)
    for k in range(masker.hypotheses):
        own = slice(k * channels, (k + 1) * channels)
        folded = [_behind(convolution, spread.weight[own, :, 0, 0], spread.bias[own]) for convolution in (value, gate)]  # type: ignore[index]
        for utterance, out in zip(summary, raw, strict=True):
            hidden, gates = (
                torch.outer(utterance[-1], each).add_(bias).addmm_(utterance[:-1].t(), weight.t())
                for weight, each, bias in folded
            )
            hidden.tanh_().mul_(gates.sigmoid_())
            torch.mm(masker.output.weight[:, :, 0], hidden.t(), out=out[k])
    return raw.view(batch, masker.hypotheses, masker.values_per_dimension, masker.encoding_dim, frames)


def _behind(convolution: nn.Module, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, constant per chunk and constant of a 1x1 convolution after another one and a sum over chunks."""
    after = convolution.weight[:, :, 0]  # type: ignore[index]
    return after @ weight, after @ bias, convolution.bias  # type: ignore[return-value]
