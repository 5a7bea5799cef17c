"""The temporal convolutional masker of Conv-TasNet (Luo & Mesgarani, IEEE/ACM TASLP 27(8), 2019)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.config import ConvTasNetConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import FrameStream, FramewiseEnd, checked, looks_ahead
from sepkit.models.maskers.replaceable import replaceable
from sepkit.models.norms import GlobalLayerNorm, StreamState, build_norm, normalize
from sepkit.registry import register


class TemporalBlock(nn.Module):
    """1x1 expansion, dilated depthwise convolution, and one 1x1 convolution for residual and skip together.

    Args:
        config: Sizes of the block and kind of its norms.
        dilation: Frames between those that the depthwise convolution sees.
    """

    def __init__(self, config: ConvTasNetConfig, dilation: int) -> None:
        super().__init__()
        channels, hidden, kernel_size = config.bottleneck_channels, config.hidden_channels, config.kernel_size
        span = (kernel_size - 1) * dilation
        padding = span if config.causal else (span + 1) // 2
        self.expand = nn.Sequential(nn.Conv1d(channels, hidden, 1), nn.PReLU(), build_norm(config.norm, hidden))
        self.depthwise = nn.Conv1d(hidden, hidden, kernel_size, padding=padding, dilation=dilation, groups=hidden)
        self.activation = nn.PReLU()
        self.norm = build_norm(config.norm, hidden)
        self.output = nn.Conv1d(hidden, channels + config.skip_channels, 1)

    def forward(self, x: Tensor, state: StreamState | None = None) -> Tensor:
        """Return residual and skip, (B, channels + skip_channels, F); x is (B, channels, F)."""
        widen, activation, norm = self.expand
        hidden = normalize(norm, activation(widen(x)), state)
        # Both ends are padded alike, so a causal or even kernel makes frames beyond F, which are cut off.
        hidden = self.depthwise(hidden)[..., : x.shape[-1]] if state is None else self._continue(hidden, state)
        return self.output(normalize(self.norm, self.activation(hidden), state))

    def _continue(self, hidden: Tensor, state: StreamState) -> Tensor:
        """Convolve the next frames depthwise. The state holds the frames before them, at first zeros."""
        layer = self.depthwise
        past = state.get(layer)
        if past is None:
            past = hidden.new_zeros(*hidden.shape[:-1], (layer.kernel_size[0] - 1) * layer.dilation[0])
        joined = torch.cat([past, hidden], dim=-1)
        state[layer] = joined[..., hidden.shape[-1] :]
        return functional.conv1d(joined, layer.weight, layer.bias, dilation=layer.dilation, groups=layer.groups)


@register(ConvTasNetConfig)
class ConvTasNetMasker(FramewiseEnd):
    """Stacked dilated convolutions whose skip outputs, summed, become the masks.

    Attributes:
        low_precision: Whether factors of 1x1 convolutions inside the blocks are rounded to bfloat16, in evaluation on a
            CPU. Norms, residual sums and everything else stay in float32, and so do the weights. Can be set, with the
            global layer norm only.

    Args:
        encoding_dim: Values per frame, K.
        hypotheses: Number of estimates, n.
        values_per_dimension: Parameters of the mask's posterior for each entry, P (1 for a point).
        **fields: Fields of `ConvTasNetConfig`.

    Source: Y. Luo, N. Mesgarani, "Conv-TasNet", IEEE/ACM TASLP 27(8), 2019.
    """

    fast = ("folded", "recomputed")
    hypothesis_layers = ("output",)

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(ConvTasNetConfig(**fields))
        if config.causal and config.norm == "global_layer_norm":
            raise UserError(
                "model.masker.norm: found global_layer_norm, which sees the whole utterance; with causal: true "
                "choose cumulative_layer_norm, channel_layer_norm or batch_norm"
            )
        channels = self.bottleneck_channels = config.bottleneck_channels
        self.skip_channels = config.skip_channels
        self.causal = config.causal
        self.skip_scale = 1 / (config.blocks * config.repeats) if config.normalize_skip_sum else 1.0
        self.norm = build_norm(config.norm, encoding_dim)
        self.bottleneck = nn.Conv1d(encoding_dim, channels, 1)
        self.blocks = nn.ModuleList(
            TemporalBlock(config, 2**block) for _ in range(config.repeats) for block in range(config.blocks)
        )
        self.activation = nn.PReLU()
        self.output = nn.Conv1d(config.skip_channels or channels, self.output_channels, 1)
        self._low_precision = False

    @property
    def low_precision(self) -> bool:
        """Whether 1x1 convolutions compute in bfloat16."""
        return self._low_precision

    @low_precision.setter
    def low_precision(self, value: bool) -> None:
        if value and not isinstance(self.norm, GlobalLayerNorm):
            # Only there are the convolutions plain products, see `fast.folded`; as convolutions they would be slower.
            raise UserError(
                "precision: found bfloat16, but this conv_tasnet has another norm than global_layer_norm and would be "
                "slower; use float32"
            )
        self._low_precision = value

    @replaceable
    def trunk(self, features: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the output of `process`, (B, C, F).

        Args:
            features: The masker's view of the encoding, (B, K, F).
            state: State of a stream, updated in place; None: whole recordings.
        """
        return self.process(self.bottleneck(normalize(self.norm, features, state)), state)

    @replaceable
    def process(self, x: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the sum of skip outputs (without a skip path, of residuals), (B, C', F).

        Args:
            x: Output of the bottleneck, (B, C, F).
            state: State of a stream, updated in place; None: whole recordings.
        """
        skip_sum = x.new_zeros(())
        for block in self.blocks:
            residual, skip = block(x, state).split([self.bottleneck_channels, self.skip_channels], dim=1)
            x = x + residual
            skip_sum = skip_sum + skip
        return skip_sum * self.skip_scale if self.skip_channels else x

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values, (B, n, P, K, F').

        Args:
            summary: Result of `trunk`, (B, C, F').
        """
        return self.unflatten(self.output(self.activation(summary)))

    def stream(self) -> FrameStream:
        """Return a stream without look-ahead. Its state: the norms' sums, and past frames of the depthwise
        convolutions.
        """
        if not self.causal:
            raise looks_ahead("this conv_tasnet (causal: false)")
        return FrameStream(self)
