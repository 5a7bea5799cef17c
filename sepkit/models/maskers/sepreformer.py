"""SepReformer: a U-shaped transformer that splits the speakers early and reconstructs them with shared weights."""

from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import SepReformerConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import FramewiseEnd, checked, require_multiple
from sepkit.models.norms import GlobalLayerNorm
from sepkit.models.onednn import Linear
from sepkit.registry import register

# Every residual branch starts as small as this.
_LAYER_SCALE = 1e-5


@register(SepReformerConfig)
class SepReformerMasker(FramewiseEnd):
    """Separation encoder, early split, and a reconstruction decoder whose weights all speakers share.

        x_0 = linear(norm(features)),   padded with zeros to a multiple of 2^R frames
        encoder stage r:  y_r = (local global)^2 x_r,   x_(r+1) = down-sampling by 2 of y_r,   r = 0 ... R - 1
        bottleneck:       d_R = split((local global)^2 x_R)
        decoder stage r:  d_r = (cross-speaker local global)^3 fusion(up-sampling of d_(r+1), split(y_r))
        values = linear(GLU(linear(d_0)))

    `split` makes n sequences of one, and is the same at all stages. Global blocks attend over the 2^R times shorter
    sequence; local blocks are convolutions; cross-speaker blocks attend over the n sequences of each frame.

    Source: U.-H. Shin, S. Lee, T. Kim and H.-M. Park, "Separate and Reconstruct: Asymmetric Encoder-Decoder for Speech
    Separation", NeurIPS 2024. Same numbers as the authors' code, without the loss of the decoder's inner stages.
    """

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(SepReformerConfig(**fields))
        channels, heads = config.channels, config.num_heads
        require_multiple("channels", channels, heads, f"a multiple of num_heads {heads}")
        if config.kernel_size % 2 == 0:
            raise UserError(f"model.masker.kernel_size: found {config.kernel_size}, expected an odd number")
        self.num_stages, stages = config.num_stages, range(config.num_stages)
        self.norm = GlobalLayerNorm(encoding_dim)
        self.input = Linear(encoding_dim, channels, bias=False)
        self.positions = RelativePositions(channels // heads, config.max_distance)
        self.encoder = nn.ModuleList(_GlobalLocal(config, repeats=2) for _ in stages)
        self.downsampling = nn.ModuleList(_DownSampling(channels) for _ in stages)
        self.bottleneck = _GlobalLocal(config, repeats=2)
        self.split = SpeakerSplit(channels, hypotheses)
        self.fusion = nn.ModuleList(Linear(2 * channels, channels) for _ in stages)
        self.decoder = nn.ModuleList(_GlobalLocal(config, repeats=3, hypotheses=hypotheses) for _ in stages)
        size = values_per_dimension * encoding_dim
        self.output = nn.Sequential(Linear(channels, 4 * channels), nn.GLU(), Linear(2 * channels, size))

    def trunk(self, features: Tensor) -> Tensor:
        """Return the last decoder stage, (B, n * channels, F)."""
        x = self.input(self.norm(features).transpose(1, 2))
        frames, factor = features.shape[-1], 2**self.num_stages
        shortest = (frames + factor - 1) // factor
        x = nn.functional.pad(x, (0, 0, 0, shortest * factor - frames))
        positions = self.positions(shortest)
        skipped = []
        for level, (stage, downsampling) in enumerate(zip(self.encoder, self.downsampling, strict=True)):
            y = stage(x, positions, 2 ** (self.num_stages - level))
            skipped.append(self.split(y))
            x = downsampling(y)
        decoded = self.split(self.bottleneck(x, positions, 1))
        for level, (fusion, stage) in enumerate(zip(self.fusion, self.decoder, strict=True)):
            joined = torch.cat([repeat_frames(decoded, 2), skipped.pop()], dim=-1)
            decoded = stage(fusion(joined), positions, 2 ** (level + 1))
        decoded = decoded.unflatten(0, (-1, self.hypotheses))
        return decoded.transpose(2, 3).flatten(1, 2)[..., :frames]

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values (B, n, P, K, F')."""
        frames = summary.unflatten(1, (self.hypotheses, -1)).transpose(2, 3)
        return self.output(frames).unflatten(-1, (self.values_per_dimension, self.encoding_dim)).permute(0, 1, 3, 4, 2)


class RelativePositions(nn.Module):
    """A learned vector for every distance between two frames, for all attention over frames.

    Args:
        size: values of a vector, those of an attention head.
        max_distance: distances outside -max_distance ... max_distance - 1 share the vector of the nearest one inside.
    """

    def __init__(self, size: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.vectors = nn.Embedding(2 * max_distance, size)

    def forward(self, frames: int) -> Tensor:
        """Return the vectors of the distances -(frames - 1) ... frames - 1, (2 frames - 1, size)."""
        distances = torch.arange(1 - frames, frames, device=self.vectors.weight.device)
        return self.vectors(distances.clamp(-self.max_distance, self.max_distance - 1) + self.max_distance)


class Attention(nn.Module):
    """Normalized multi-head self-attention with relative positions, scaled at its end.

        scores_ij = (q_i k_j + q_i p_(i - j)) / sqrt(d)

    Args:
        channels: C.
        num_heads: Number of heads, of C / num_heads = d values each.
    """

    def __init__(self, channels: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(channels)
        self.query = Linear(channels, channels)
        # An offset of the keys would add the same to all scores of a query.
        self.key = Linear(channels, channels, bias=False)
        self.value = Linear(channels, channels)
        self.output = Linear(channels, channels)
        self.dropout = nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.full((channels,), _LAYER_SCALE))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the output, (B, F, C).

        Args:
            x: (B, F, C).
            positions: (2 F - 1, d), of `RelativePositions`; None: positions do not matter.
        """
        x = self.norm(x)
        query, key, value = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended = nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if positions is None else _position_scores(query, positions),
            dropout_p=self.dropout.p if self.training else 0.0,
        )
        return self.scale * self.dropout(self.output(attended.transpose(1, 2).flatten(2)))


def _position_scores(query: Tensor, positions: Tensor) -> Tensor:
    """Return q_i p_(i - j) / sqrt(d), (B, heads, F, F), of queries (B, heads, F, d) and vectors (2 F - 1, d)."""
    frames = query.shape[-2]
    scores = torch.matmul(query / query.shape[-1] ** 0.5, positions.to(query.dtype).t())
    index = torch.arange(frames, device=query.device)
    distances = index.unsqueeze(1) - index + frames - 1
    return scores.gather(-1, distances.expand(*query.shape[:2], -1, -1))


class GlobalBlock(nn.Module):
    """Efficient global attention, then a gated feed-forward network.

    y = up-sampling(attention(pooling(x)));   x = x + sigmoid(linear(norm(x))) y
    """

    def __init__(self, channels: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(channels, num_heads, dropout)
        self.gate = nn.Sequential(nn.LayerNorm(channels), Linear(channels, channels), nn.Sigmoid())
        self.feedforward = GatedFeedForward(channels, dropout)

    def forward(self, x: Tensor, positions: Tensor, pooled: int) -> Tensor:
        """Return the output, (B, F, C).

        Args:
            x: (B, F, C); F is a multiple of `pooled`.
            positions: (2 F / pooled - 1, d).
            pooled: Number of frames that the attention pools.
        """
        y = self.attention(x.unflatten(1, (-1, pooled)).mean(2), positions)
        return self.feedforward(x + self.gate(x) * repeat_frames(y, pooled))


class GatedFeedForward(nn.Module):
    """Residual: linear(GLU(depthwise convolution over 3 frames(linear(norm(x)))))."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.LayerNorm(channels), Linear(channels, 6 * channels))
        self.depthwise = nn.Conv1d(6 * channels, 6 * channels, 3, padding=1, groups=6 * channels)
        self.output = nn.Sequential(nn.GLU(), nn.Dropout(dropout), Linear(3 * channels, channels), nn.Dropout(dropout))
        self.scale = nn.Parameter(torch.full((channels,), _LAYER_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, F, C); x is (B, F, C)."""
        return x + self.scale * self.output(self.depthwise(self.expand(x).transpose(1, 2)).transpose(1, 2))


class LocalBlock(nn.Module):
    """Convolutional local attention, then a gated feed-forward network.

        x = x + linear(GELU(batch norm(linear(depthwise convolution(GLU(linear(norm(x))))))))

    Args:
        kernel_size: frames of the depthwise convolution.
    """

    def __init__(self, channels: int, kernel_size: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.LayerNorm(channels), Linear(channels, 2 * channels), nn.GLU())
        self.depthwise = nn.Conv1d(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels)
        self.linear = Linear(channels, 2 * channels)
        self.norm = nn.BatchNorm1d(2 * channels)
        self.output = nn.Sequential(nn.GELU(), Linear(2 * channels, channels), nn.Dropout(dropout))
        self.scale = nn.Parameter(torch.full((channels,), _LAYER_SCALE))
        self.feedforward = GatedFeedForward(channels, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, F, C); x is (B, F, C)."""
        y = self.linear(self.depthwise(self.expand(x).transpose(1, 2)).transpose(1, 2))
        y = self.norm(y.transpose(1, 2)).transpose(1, 2)
        return self.feedforward(x + self.scale * self.output(y))


class SpeakerBlock(nn.Module):
    """Residual attention over the n sequences of each frame, then a gated feed-forward network over frames."""

    def __init__(self, channels: int, num_heads: int, dropout: float, hypotheses: int) -> None:
        super().__init__()
        self.hypotheses = hypotheses
        self.attention = Attention(channels, num_heads, dropout)
        self.feedforward = GatedFeedForward(channels, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B * n, F, C); x is (B * n, F, C)."""
        frames = x.shape[1]
        together = x.unflatten(0, (-1, self.hypotheses)).transpose(1, 2).flatten(0, 1)
        together = together + self.attention(together)
        return self.feedforward(together.unflatten(0, (-1, frames)).transpose(1, 2).flatten(0, 1))


class SpeakerSplit(nn.Module):
    """One sequence for each hypothesis: norm(linear(GLU(linear(x))))."""

    def __init__(self, channels: int, hypotheses: int) -> None:
        super().__init__()
        self.hypotheses = hypotheses
        self.layers = nn.Sequential(
            Linear(channels, 4 * hypotheses * channels),
            nn.GLU(),
            Linear(2 * hypotheses * channels, hypotheses * channels),
        )
        self.norm = GlobalLayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B * n, F, C); x is (B, F, C)."""
        split = self.layers(x).unflatten(-1, (self.hypotheses, -1)).permute(0, 2, 3, 1).flatten(0, 1)
        return self.norm(split).transpose(1, 2)


class _GlobalLocal(nn.Module):
    """Global and local blocks in turn; with `hypotheses`, a cross-speaker block after each local one."""

    def __init__(self, config: SepReformerConfig, repeats: int, hypotheses: int = 0) -> None:
        super().__init__()
        channels, heads, dropout = config.channels, config.num_heads, config.dropout
        self.over_all = nn.ModuleList(GlobalBlock(channels, heads, dropout) for _ in range(repeats))
        self.local = nn.ModuleList(LocalBlock(channels, config.kernel_size, dropout) for _ in range(repeats))
        self.speakers = nn.ModuleList(
            SpeakerBlock(channels, heads, dropout, hypotheses) for _ in range(repeats if hypotheses else 0)
        )

    def forward(self, x: Tensor, positions: Tensor, pooled: int) -> Tensor:
        for index, (over_all, local) in enumerate(zip(self.over_all, self.local, strict=True)):
            x = local(over_all(x, positions, pooled))
            if len(self.speakers) > 0:
                x = self.speakers[index](x)
        return x


class _DownSampling(nn.Module):
    """(B, F, C) -> (B, F / 2, C): GELU(batch norm(depthwise convolution over 5 frames))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(channels, channels, 5, stride=2, padding=2, groups=channels)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.norm(self.depthwise(x.transpose(1, 2)))).transpose(1, 2)


def repeat_frames(x: Tensor, times: int) -> Tensor:
    """Return every frame several times in a row, (B, F * times, C); x is (B, F, C)."""
    return x.unsqueeze(2).expand(-1, -1, times, -1).flatten(1, 2)
