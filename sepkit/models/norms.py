"""Normalizations of features (B, C, F) or (B, C, *, *), with one gain `gamma` and one offset `beta` a channel.

    y = gamma * (x - mean) / sqrt(variance + eps) + beta

They differ only in the values over which the mean and the (biased) variance are computed. Silence comes out as `beta`.
Statistics are computed in float32 or float64, also under autocast: eps is below the smallest number of float16.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from sepkit.errors import UserError
from sepkit.models.runtime import at_least_float32, widest

StreamState = dict[nn.Module, Any]
"""Module -> the state that it carries from one block of frames to the next; empty before the first block.

Modules that take a state update it in place, and their input continues a recording; with None it is the whole one."""


class _ChannelAffineNorm(nn.Module):
    """A norm with one gain and one offset a channel."""

    def __init__(self, channels: int, eps: float = 1e-8) -> None:
        super().__init__()
        self.channels = channels
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))


class GlobalLayerNorm(_ChannelAffineNorm):
    """gLN: statistics over everything but the batch (Luo & Mesgarani, Conv-TasNet, 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """The normalized features, of the shape of `x`; x is (B, C, F) or (B, C, *, *)."""
        # torch.nn.functional.group_norm is the same operation, but refuses an input of one value.
        return torch.group_norm(x, 1, self.gamma, self.beta, self.eps)


class ChannelLayerNorm(_ChannelAffineNorm):
    """Statistics over the channels of each frame alone: causal, and asteroid's "cLN"."""

    def forward(self, x: Tensor) -> Tensor:
        """The normalized features, of the shape of `x`; x is (B, C, F) or (B, C, *, *)."""
        return functional.layer_norm(x.movedim(1, -1), (self.channels,), self.gamma, self.beta, self.eps).movedim(-1, 1)


class CumulativeLayerNorm(_ChannelAffineNorm):
    """Statistics over all channels of the frames up to this one: causal.

    The cLN of the Conv-TasNet paper (Luo & Mesgarani 2019); asteroid's "cgLN".
    """

    def forward(self, x: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the normalized features (B, C, F).

        Args:
            x: features.
            state: sums over the frames of earlier blocks, updated in place; None: x is the whole recording.

        Raises:
            ValueError: x does not have three dimensions; chunks have no order in time.
        """
        if x.dim() != 3:
            raise ValueError(f"cumulative layer norm: found shape {tuple(x.shape)}, expected (batch, channels, frames)")
        mean, scale = self._statistics(x, state)
        return (x - mean) * scale * self.gamma[:, None] + self.beta[:, None]

    def _statistics(self, x: Tensor, state: StreamState | None) -> tuple[Tensor, Tensor]:
        """Running mean and 1/deviation, each (B, 1, F)."""
        # E[x^2] - E[x]^2 cancels over long inputs in float32.
        accumulator = widest(x)
        statistics = torch.var_mean(at_least_float32(x), 1, correction=0, keepdim=True)
        frame_variance, frame_mean = (statistic.to(accumulator) for statistic in statistics)
        count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=accumulator)
        mean_sum, power_sum = frame_mean.cumsum(-1), (frame_variance + frame_mean.square()).cumsum(-1)
        if state is not None:
            earlier = state.get(self)
            if earlier is not None:
                count, mean_sum, power_sum = count + earlier[0], mean_sum + earlier[1], power_sum + earlier[2]
            state[self] = count[-1:], mean_sum[..., -1:], power_sum[..., -1:]
        mean, power = mean_sum / count, power_sum / count
        variance = (power - mean.square()).clamp_min(0.0)
        return mean.to(x.dtype), (variance + self.eps).rsqrt().to(x.dtype)


class BatchNorm(_BatchNorm):
    """Batch normalization per channel, of (B, C, F) and (B, C, *, *) alike; running statistics in evaluation."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in (3, 4):
            raise ValueError(f"batch norm: found {input.dim()} dimensions, expected 3 or 4")


_NORMS: dict[str, type[nn.Module]] = {
    "global_layer_norm": GlobalLayerNorm,
    "cumulative_layer_norm": CumulativeLayerNorm,
    "channel_layer_norm": ChannelLayerNorm,
    "batch_norm": BatchNorm,
}


def normalize(norm: nn.Module, x: Tensor, state: StreamState | None) -> Tensor:
    """Return normalized features.

    Args:
        x: (B, C, F).
        state: State of a stream, updated in place; norms other than the cumulative one ignore it. None: `x` is all.
    """
    return norm(x, state) if isinstance(norm, CumulativeLayerNorm) else norm(x)


def build_norm(name: str, channels: int) -> nn.Module:
    """Return a normalization; raise UserError if there is none of this name.

    Args:
        name: Name of the norm in a configuration.
        channels: Number of channels.
    """
    if name not in _NORMS:
        raise UserError(f"norm: found {name!r}, expected one of {', '.join(_NORMS)}")
    return _NORMS[name](channels)
