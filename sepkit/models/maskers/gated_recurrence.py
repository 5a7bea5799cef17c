"""The gated linear recurrence masker: SRU or minGRU layers in pre-norm residual blocks, over frames and over bands."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import ContinuousDepthConfig, GatedRecurrenceConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import FrameStream, FramewiseEnd, checked, require_causal
from sepkit.models.maskers.gated_scan import gated_scan, two_way_scan
from sepkit.models.norms import StreamState, build_norm, normalize
from sepkit.models.onednn import Linear, linear
from sepkit.registry import register

# Forget gates start with memories of between these numbers of frames.
_SHORTEST_MEMORY, _LONGEST_MEMORY = 2.0, 64.0


@register(GatedRecurrenceConfig)
class GatedRecurrenceMasker(FramewiseEnd):
    """Pre-norm residual blocks of a gated linear recurrence and a feed-forward layer, then one linear layer.

        x = features, normalized, through a linear layer                           (F, B, model_dim)
        x = x + recurrence over frames(norm(x))
        x = x + recurrence over bands(norm(x))         with bands > 1, both ways within each frame
        x = x + feed-forward(norm(x))

    With bands > 1 the K features of a frame are cut into that many equal bands (the last one padded with zeros). Each
    band has an input and an output layer of its own; the blocks are shared by all bands.

    With bidirectional=False and a causal norm (channel_layer_norm, cumulative_layer_norm) the masker is causal.

    Sources: T. Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", EMNLP 2018; L. Feng et al.,
    "Were RNNs All We Needed?", 2024 (minGRU). Over bands: Y. Luo and J. Yu, "Music Source Separation with Band-Split
    RNN", 2023.
    """

    small_steps = True
    hypothesis_layers = ("output",)
    hypothesis_axis = -1

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(GatedRecurrenceConfig(**fields))
        bands = self.bands = config.bands
        if bands > encoding_dim:
            raise UserError(f"model.masker.bands: found {bands}, expected at most {encoding_dim}, the size of a frame")
        self.bidirectional = config.bidirectional
        self.band_size = -(-encoding_dim // bands)
        self.norm = build_norm(config.norm, encoding_dim)
        self.input = _BandLinear(bands, self.band_size, config.model_dim)
        self.blocks = nn.ModuleList(
            GatedRecurrenceBlock(config, bands > 1, config.dropout) for _ in range(config.num_layers)
        )
        self.output_norm = nn.LayerNorm(config.model_dim)
        self.output = _BandLinear(bands, config.model_dim, hypotheses * values_per_dimension * self.band_size)

    def trunk(self, features: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the blocks' output, (B, bands * model_dim, F)."""
        frames = normalize(self.norm, features, state).permute(2, 0, 1)
        missing = self.bands * self.band_size - self.encoding_dim
        if missing:
            frames = nn.functional.pad(frames, (0, missing))
        x = self.input(frames.unflatten(-1, (self.bands, self.band_size)))
        for block in self.blocks:
            x = block(x, state)
        return self.output_norm(x).flatten(-2).permute(1, 2, 0)

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values (B, n, P, K, F')."""
        bands = self.output(summary.permute(2, 0, 1).unflatten(-1, (self.bands, -1)))
        sizes = (self.hypotheses, self.values_per_dimension, self.band_size)
        # (F, B, bands, n, P, band_size) -> (B, n, P, bands * band_size, F)
        return bands.unflatten(-1, sizes).permute(1, 3, 4, 2, 5, 0).flatten(3, 4)[..., : self.encoding_dim, :]

    def stream(self) -> FrameStream:
        """Return a stream without look-ahead. Its state: the last frame of every recurrence, and the norm's sums."""
        require_causal("gated_recurrence masker", self.bidirectional, self.norm)
        return FrameStream(self)


class GatedRecurrenceBlock(nn.Module):
    """Residual recurrences over time and, optionally, over bands, then a residual feed-forward layer.

    Args:
        config: Sizes of the layers; `bidirectional` is that of the recurrence over time, the one over bands always is.
        over_bands: Whether there is a recurrence over bands.
        dropout: Probability, behind every recurrence and feed-forward layer.
    """

    def __init__(
        self, config: GatedRecurrenceConfig | ContinuousDepthConfig, over_bands: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        size, hidden_size, units = config.model_dim, config.hidden_size, config.feedforward_dim
        self.time_norm = nn.LayerNorm(size)
        self.time = GatedRecurrence(size, hidden_size, config.bidirectional)
        self.band_norm = nn.LayerNorm(size) if over_bands else None
        self.over_bands = GatedRecurrence(size, hidden_size) if over_bands else None
        self.feedforward = nn.Sequential(nn.LayerNorm(size), Linear(size, units), nn.SiLU(), Linear(units, size))
        self.dropout = nn.Dropout(dropout)

    @torch.no_grad()
    def change_nothing(self) -> None:
        """Set the last layer of each residual branch to 0, so that the block is the identity."""
        branches = [branch.output for branch in (self.time, self.over_bands) if branch is not None]
        for layer in (*branches, self.feedforward[-1]):
            for parameter in layer.parameters():
                parameter.zero_()

    def forward(self, x: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the next values of all bands, of the shape of `x`; x is (F, B, bands, model_dim)."""
        x = x + self.dropout(self.time(self.time_norm(x), state))
        if self.over_bands is not None and self.band_norm is not None:
            over_bands = self.over_bands(self.band_norm(x).movedim(2, 0))
            x = x + self.dropout(over_bands.movedim(0, 2))
        return x + self.dropout(self.feedforward(x))


class GatedRecurrence(nn.Module):
    """A recurrence over the first dimension that is linear in its state, with an output gate.

        v, f, o = linear(x);   f = sigmoid(f)
        h_t = f_t h_(t-1) + (1 - f_t) v_t,   h_0 = 0
        y = linear(silu(o) h)

    If bidirectional, half of the units run backwards through the sequence.

    Args:
        model_dim: values of x and y.
        hidden_size: units of each direction.
        bidirectional: run both ways.
    """

    def __init__(self, model_dim: int, hidden_size: int, bidirectional: bool = True) -> None:
        super().__init__()
        units = hidden_size * (2 if bidirectional else 1)
        self.hidden_size = hidden_size
        self.bidirectional = bidirectional
        self.gates = Linear(model_dim, 3 * units)
        self.output = Linear(units, model_dim)
        # A gate of (m - 1) / m forgets within about m steps. Memories are spread evenly on a logarithmic scale.
        with torch.no_grad():
            shortest, longest = math.log10(_SHORTEST_MEMORY), math.log10(_LONGEST_MEMORY)
            # On torch's meta device a logspace would import its compiler.
            memories = torch.logspace(shortest, longest, hidden_size, device="cpu")
            self.gates.bias[units : 2 * units] = torch.log(memories - 1).repeat(units // hidden_size)

    def forward(self, x: Tensor, state: StreamState | None = None) -> Tensor:
        """Return outputs of the shape of the inputs; x is (T, ..., model_dim)."""
        value, forget, gate = self.gates(x).chunk(3, dim=-1)
        forget = torch.sigmoid(forget)
        if self.bidirectional:
            hidden = two_way_scan(forget, value)
        else:
            hidden = gated_scan(forget, value, None if state is None else state.get(self))
            if state is not None:
                state[self] = hidden[-1].clone()
        return self.output(nn.functional.silu(gate) * hidden)


class _BandLinear(nn.Module):
    """A linear layer for each band: (..., bands, from) -> (..., bands, to)."""

    def __init__(self, bands: int, from_size: int, to_size: int) -> None:
        super().__init__()
        bound = from_size**-0.5
        self.weight = nn.Parameter(torch.empty(bands, from_size, to_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(bands, to_size))

    def forward(self, x: Tensor) -> Tensor:
        if len(self.weight) == 1:
            return linear(x, self.weight[0].t(), self.bias[0])
        frames, batch = x.shape[:2]
        product = torch.bmm(x.flatten(0, 1).transpose(0, 1), self.weight) + self.bias.unsqueeze(1)
        return product.transpose(0, 1).unflatten(0, (frames, batch))
