"""SuDoRM-RF maskers: successive downsampling and resampling of multi-resolution features.

Tzinis, Wang & Smaragdis, MLSP 2020 (first version); Tzinis, Wang, Jiang & Smaragdis, J. Signal Process. Syst. 94, 2022
(improved version).
"""

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from sepkit.config import ImprovedSuDoRMRFConfig, SuDoRMRFConfig
from sepkit.models.maskers.base import FramewiseEnd, checked
from sepkit.models.maskers.replaceable import replaceable
from sepkit.models.norms import GlobalLayerNorm
from sepkit.registry import register


class Resolutions(nn.Module):
    """A 1x1 expansion, repeatedly halved in time by depthwise convolutions, and summed back at full resolution.

    Args:
        hidden_channels: channels of every resolution, and out.
        depth: resolutions, the full one included.
    """

    def __init__(self, channels: int, hidden_channels: int, depth: int, expand_activation: nn.Module) -> None:
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv1d(channels, hidden_channels, 1), GlobalLayerNorm(hidden_channels), expand_activation
        )
        self.levels = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(hidden_channels, hidden_channels, 5, stride, padding=2, groups=hidden_channels),
                GlobalLayerNorm(hidden_channels),
            )
            for stride in [1] + [2] * (depth - 1)
        )
        self.merge = nn.Sequential(GlobalLayerNorm(hidden_channels), nn.PReLU(hidden_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the merged resolutions, (B, hidden_channels, F); x is (B, channels, F)."""
        x = self.expand(x)
        resolutions = []
        for level in self.levels:
            x = level(x)
            resolutions.append(x)
        merged = resolutions.pop()
        while resolutions:
            finer = resolutions.pop()
            merged = finer + functional.interpolate(merged, scale_factor=2.0)[..., : finer.shape[-1]]
        return self.merge(merged)


class SuDoRMRFBlock(nn.Module):
    """A block of the first version: the residual sum is normalized and activated."""

    def __init__(self, channels: int, hidden_channels: int, depth: int) -> None:
        super().__init__()
        self.resolutions = Resolutions(channels, hidden_channels, depth, nn.PReLU(hidden_channels))
        self.project = nn.Sequential(nn.Conv1d(hidden_channels, channels, 1), GlobalLayerNorm(channels))
        self.output = nn.Sequential(GlobalLayerNorm(channels), nn.PReLU(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, channels, F); x is (B, channels, F)."""
        return self.output(self.project(self.resolutions(x)) + x)


class ImprovedSuDoRMRFBlock(nn.Module):
    """A block of the improved version: a plain residual sum."""

    def __init__(self, channels: int, hidden_channels: int, depth: int) -> None:
        super().__init__()
        self.resolutions = Resolutions(channels, hidden_channels, depth, nn.PReLU())
        self.project = nn.Conv1d(hidden_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, channels, F); x is (B, channels, F)."""
        return self.project(self.resolutions(x)) + x


class SlidingFilters(nn.Conv2d):
    """Filters that slide over the K encoding dimensions of a frame, each making K values.

        y[o, k] = bias[o] + sum_j weight[o, j] x[k + j - K + floor(K / 2)],    j = 0 ... K, x zero outside

    They are computed as one product with the Toeplitz matrix of the filters. torch's convolution with one input channel
    and filters as long as its input is many times slower, above all in the backward pass.

    Args:
        encoding_dim: K.
        filters: O.
    """

    def __init__(self, encoding_dim: int, filters: int) -> None:
        super().__init__(1, filters, (encoding_dim + 1, 1))
        self.encoding_dim = encoding_dim

    def forward(self, input: Tensor) -> Tensor:
        """Return the output, (B, O * K, F); input is (B, K, F)."""
        dim = self.encoding_dim
        before = dim - dim // 2
        taps = functional.pad(self.weight[:, 0, :, 0], (dim - 1 - before, before - 1))
        matrix = taps.unfold(-1, dim, 1).flip(-2).reshape(-1, dim, 1)
        bias = None if self.bias is None else self.bias.repeat_interleave(dim)
        return functional.conv1d(input, matrix, bias)


class _SuDoRMRF(FramewiseEnd):
    """The common part of both versions: a norm, a 1x1 bottleneck and the blocks."""

    block: ClassVar[type[SuDoRMRFBlock] | type[ImprovedSuDoRMRFBlock]]

    fast = ("folded_sudormrf",)

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(SuDoRMRFConfig(**fields))
        channels, depth = config.bottleneck_channels, config.upsampling_depth
        self.hidden_channels = config.hidden_channels
        self.norm = GlobalLayerNorm(encoding_dim)
        self.bottleneck = nn.Conv1d(encoding_dim, channels, 1)
        self.blocks = nn.Sequential(*(self.block(channels, self.hidden_channels, depth) for _ in range(config.blocks)))
        self.make_output(channels)

    @abstractmethod
    def make_output(self, channels: int) -> None:
        """Make the layers of `values`."""

    @replaceable
    def trunk(self, features: Tensor) -> Tensor:
        """The output of the last block, (B, C, F), of features (B, K, F)."""
        return self.blocks(self.bottleneck(self.norm(features)))


@register(SuDoRMRFConfig)
class SuDoRMRFMasker(_SuDoRMRF):
    """The first version of SuDoRM-RF: each mask comes from one filter that slides over the encoding dimensions.

    Its authors' activation is a softmax over hypotheses, after a relu encoding.

    Args:
        encoding_dim: Values per frame, K.
        hypotheses: Number of estimates, n.
        values_per_dimension: Parameters of the mask's posterior for each entry, P (1 for a point).
        **fields: Fields of `SuDoRMRFConfig`.

    Source: E. Tzinis, Z. Wang, P. Smaragdis, "Sudo rm -rf", MLSP 2020.
    """

    block = SuDoRMRFBlock
    hypothesis_layers = ("output",)

    def make_output(self, channels: int) -> None:
        """Make the expansion to the encoding dimensions, and the sliding filters.

        Args:
            channels: Channels of the last block.
        """
        dim = self.encoding_dim
        self.expand = nn.Identity() if channels == dim else nn.Conv1d(channels, dim, 1)
        self.output = SlidingFilters(dim, self.hypotheses * self.values_per_dimension)

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values, (B, n, P, K, F').

        Args:
            summary: Result of `trunk`, (B, C, F').
        """
        return self.unflatten(self.output(self.expand(summary)))


@register(ImprovedSuDoRMRFConfig)
class ImprovedSuDoRMRFMasker(_SuDoRMRF):
    """The improved SuDoRM-RF: linear residual sums and a 1x1 convolution to the masks (its authors use relu).

    Args:
        encoding_dim: Values per frame, K.
        hypotheses: Number of estimates, n.
        values_per_dimension: Parameters of the mask's posterior for each entry, P (1 for a point).
        **fields: Fields of `ImprovedSuDoRMRFConfig`.

    Source: E. Tzinis et al., "Compute and memory efficient universal sound source separation", 2022.
    """

    block = ImprovedSuDoRMRFBlock
    hypothesis_layers = ("output.1",)

    def make_output(self, channels: int) -> None:
        """Make the activation and the 1x1 convolution.

        Args:
            channels: Channels of the last block.
        """
        self.output = nn.Sequential(nn.PReLU(), nn.Conv1d(channels, self.output_channels, 1))

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values, (B, n, P, K, F').

        Args:
            summary: Result of `trunk`, (B, C, F').
        """
        return self.unflatten(self.output(summary))
