"""SR-CorrNet: from correlations of neighboring bins to a deep filter for each speaker, split early and counted."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import SRCorrNetConfig
from sepkit.models.maskers.base import Masker, MaskerOutput, checked, require_coefficients, require_multiple
from sepkit.models.maskers.tf_locoformer import RotaryAttention
from sepkit.models.onednn import Linear, linear
from sepkit.models.runtime import at_least_float32, is_traced
from sepkit.registry import register

# Added to powers, and to products of magnitudes, of coefficients that are divided by their root mean square.
_POWER_FLOOR = 1e-12


@register(SRCorrNetConfig)
class SRCorrNetMasker(Masker):
    """Separation encoder, early split, and a reconstruction decoder that the speakers share, on every bin and frame.

        c_l = X Y_l* / sqrt(|X| |Y_l|)                         Y_l: X and its neighbors in frequency and time, L of them
        x = norm(convolution(SiLU(convolution(real and imaginary parts of c)))) + sinusoid(bin)
        x = block over frames(block over bins(x))                                           encoder_layers times
        x_i = norm(split_i(x)),   i = 1 ... n
        x_i = block over speakers(block over frames(block over bins(x_i)))                  decoder_layers times
        S_i = sum_l h_il Y_l,   h_il = softplus(a) (tanh(b) + j tanh(c)),   a, b, c = linear(x_i)

    In correlations X and Y_l are divided by the root mean square over frames of X's bin. Values are the coefficients
    S_i of the estimates: it is made for features that are the coefficients themselves, and for mapping.

    With `count_speakers` an attractor is asked for each speaker, and says whether there is one. As many estimates are
    made, the first ones, as there are positive scores, or as `with_scores` gets; the others are zero. Scores outside
    training are in descending order, so that the i-th is positive if there are i speakers or more.

    Attributes:
        maps: values are the estimates' coefficients.

    Source: U.-H. Shin and H.-M. Park, "Asymmetric Encoder-Decoder Based on Time-Frequency Correlation for Speech
    Separation", arXiv 2603.29097. Same numbers as the authors' code, without the loss of the decoder's inner layers.
    """

    maps = True

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(SRCorrNetConfig(**fields))
        require_coefficients("sr_corrnet", encoding_dim)
        channels, heads = config.channels, config.num_heads
        expected = f"an even multiple of num_heads {heads}, and a multiple of 4"
        require_multiple("channels", channels, math.lcm(2 * heads, 4), expected)
        self.bin_taps, self.frame_taps = config.bin_taps, config.frame_taps
        taps = (2 * self.bin_taps + 1) * (2 * self.frame_taps + 1)
        self.input = nn.Sequential(
            nn.Conv2d(2 * taps, 4 * channels, 3, padding=1), nn.SiLU(), nn.Conv2d(4 * channels, channels, 3, padding=1)
        )
        self.norm = RMSNorm(channels)
        decoder_layers = range(config.decoder_layers)
        self.encoder = nn.ModuleList(TimeFrequencyBlock(config) for _ in range(config.encoder_layers))
        self.split = (AttractorSplit if config.count_speakers else FixedSplit)(channels, hypotheses, heads)
        self.split_norm = nn.LayerNorm(channels)
        self.decoder = nn.ModuleList(TimeFrequencyBlock(config) for _ in decoder_layers)
        self.speakers = nn.ModuleList(SpeakerBlock(channels, heads, config.speaker_dim) for _ in decoder_layers)
        self.output = Linear(channels, 3 * taps * values_per_dimension)

    @property
    def counts_speakers(self) -> bool:
        """Whether an attractor for each speaker has a score."""
        return isinstance(self.split, AttractorSplit)

    def forward(self, features: Tensor) -> Tensor:
        """Raw values (B, n, P, K, F) of features (B, K, F), real parts before imaginary parts along K."""
        return self.with_scores(features).values

    def with_scores(self, features: Tensor, speakers: Tensor | None = None) -> MaskerOutput:
        """Return raw values, with scores (B, n) if it counts speakers.

        Args:
            features: (B, K, F), coefficients.
            speakers: (B,) how many speak, up to n, if it counts speakers; None: as many as have positive scores.
        """
        neighbors = self._neighbors(features.unflatten(1, (2, -1)))
        x = self.norm(self.input(self._correlations(neighbors).transpose(-1, -2)).movedim(1, -1))
        x = x + sinusoids(x.shape[2], x.shape[3], x)
        for block in self.encoder:
            x = block(x)
        scores = present = None
        if isinstance(self.split, AttractorSplit):
            attractors, logits = self.split.attractors(x)
            # In order, since not which attractors are positive is what counts, but how many.
            ranked = logits[:, 1:] if self.training else logits[:, 1:].sort(dim=1, descending=True).values
            scores = ranked[:, : self.hypotheses]
            if speakers is None:
                # Not a number is no reason to be silent.
                speakers = (~(scores <= 0)).sum(1)
            # In a graph the number of speakers is not known: all are made.
            most = self.hypotheses if is_traced() else min(max(1, int(speakers.max())), self.hypotheses)
            present = torch.arange(most, device=x.device) < speakers.unsqueeze(1)
            x = self.split(x, attractors[:, 1 : most + 1])
        else:
            x = self.split(x)
        x = self.split_norm(x)
        for block, across in zip(self.decoder, self.speakers, strict=True):
            x = across(block(x.flatten(0, 1)).unflatten(0, x.shape[:2]), present)
        return MaskerOutput(self._filtered(self.output(x), neighbors, present), scores)

    def _neighbors(self, spectrum: Tensor) -> Tensor:
        """(B, 2, bins, F) -> (B, L, 2, bins, F): every bin's neighbors, zero beyond the ends, the lowest first."""
        bins, frames = spectrum.shape[-2:]
        padded = nn.functional.pad(spectrum, (self.frame_taps, self.frame_taps, self.bin_taps, self.bin_taps))
        places = [(k, f) for k in range(2 * self.bin_taps + 1) for f in range(2 * self.frame_taps + 1)]
        return torch.stack([padded[..., k : k + bins, f : f + frames] for k, f in places], dim=1)

    @torch.no_grad()
    def _correlations(self, neighbors: Tensor) -> Tensor:
        """Return the normalized correlations (B, 2 L, bins, F) with (B, L, 2, bins, F), as features without gradient.

        Each is divided by the square root of the product of its magnitudes (smoothed coherence transform).
        """
        y = at_least_float32(neighbors)
        middle = y.shape[1] // 2
        power = y[:, middle].square().sum(1).mean(-1, keepdim=True)
        y = y / (power + _POWER_FLOOR).sqrt()[:, None, None]
        magnitudes = y.square().sum(2).sqrt()
        (y_real, y_imaginary), (x_real, x_imaginary) = y.unbind(2), y[:, middle, None].unbind(2)
        products = [x_real * y_real + x_imaginary * y_imaginary, x_imaginary * y_real - x_real * y_imaginary]
        scales = (magnitudes * magnitudes[:, middle, None] + _POWER_FLOOR).rsqrt()
        return (torch.stack(products, dim=2) * scales.unsqueeze(2)).flatten(1, 2).to(neighbors.dtype)

    def _filtered(self, raw: Tensor, neighbors: Tensor, present: Tensor | None) -> Tensor:
        """Return coefficients (B, n, P, 2 bins, F), zero for the speakers who are not there.

        Args:
            raw: (B, n', F, bins, P L 3), of the speakers that are made.
            neighbors: (B, L, 2, bins, F).
            present: Which of these are present, (B, n'); None: all.
        """
        gain, real, imaginary = raw.unflatten(-1, (-1, neighbors.shape[1], 3)).unbind(-1)
        gain, real, imaginary = nn.functional.softplus(gain), real.tanh(), imaginary.tanh()
        # (B, 1, F, bins, 1, L)
        y, z = (part.permute(0, 3, 2, 1)[:, None, :, :, None] for part in neighbors.unbind(2))
        parts = [(gain * (real * y - imaginary * z)).sum(-1), (gain * (real * z + imaginary * y)).sum(-1)]
        # (B, n', F, bins, P) each
        values = torch.stack(parts, dim=-1).permute(0, 1, 4, 5, 3, 2).flatten(3, 4)
        if present is not None:
            values = values.where(present[:, :, None, None, None], values.new_zeros(()))
        return nn.functional.pad(values, (0, 0, 0, 0, 0, 0, 0, self.hypotheses - values.shape[1]))


class RMSNorm(nn.RMSNorm):
    """Values divided by their root mean square over channels, with a gain for each."""

    def __init__(self, channels: int) -> None:
        # torch's own floor depends on the precision.
        super().__init__(channels, eps=torch.finfo(torch.float32).eps)


class FeedForward(nn.Module):
    """x + weight contract(a * SiLU(b)), with a and b the halves of expand(norm(x)).

    Args:
        channels: D.
        hidden: values of a and b.
        kernel_size: positions that both layers see, which are convolutions then; None: one position each.
        weight: Weight of the residual branch.
    """

    def __init__(self, channels: int, hidden: int, kernel_size: int | None = None, weight: float = 1.0) -> None:
        super().__init__()
        self.norm = RMSNorm(channels)
        layer = Linear if kernel_size is None else partial(_Convolution, kernel_size=kernel_size, padding="same")
        self.expand, self.contract = layer(channels, 2 * hidden), layer(hidden, channels)
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, L, D); x is (B, L, D)."""
        value, gate = self.expand(self.norm(x)).chunk(2, dim=-1)
        return x + self.weight * self.contract(value * nn.functional.silu(gate))


class _Convolution(nn.Conv1d):
    """A convolution along the last dimension but one, (B, L, C) -> (B, L, C')."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


class TimeFrequencyBlock(nn.Module):
    """A block over bins, then one over frames; each is half a feed-forward network, attention, and another half."""

    def __init__(self, config: SRCorrNetConfig) -> None:
        super().__init__()
        self.over_bins, self.over_frames = _AxisBlock(config), _AxisBlock(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, F, bins, D); x is (B, F, bins, D)."""
        return self.over_frames(self.over_bins(x).transpose(1, 2)).transpose(1, 2)


class _AxisBlock(nn.Module):
    def __init__(self, config: SRCorrNetConfig) -> None:
        super().__init__()
        channels, hidden, kernel_size = config.channels, config.feedforward_dim, config.kernel_size
        self.first = FeedForward(channels, hidden, kernel_size, weight=0.5)
        self.norm = RMSNorm(channels)
        self.attention = RotaryAttention(channels, config.num_heads, channels, dropout=0.0)
        self.second = FeedForward(channels, hidden, kernel_size, weight=0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(B, other axis, axis, D) -> the same shape; the block runs along `axis`."""
        y = self.first(x.flatten(0, 1))
        y = y + self.attention(self.norm(y))
        return self.second(y).unflatten(0, x.shape[:2])


class Attention(nn.Module):
    """x + multi-head attention of norm(x), to itself or to a memory, without offsets and positions.

    Args:
        channels: D, a multiple of the heads.
        cross: whether there is a memory.
    """

    def __init__(self, channels: int, num_heads: int, cross: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = RMSNorm(channels)
        self.query = Linear(channels, channels, bias=False) if cross else None
        self.inputs = Linear(channels, (2 if cross else 3) * channels, bias=False)
        self.output = Linear(channels, channels, bias=False)

    def forward(self, x: Tensor, memory: Tensor | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return the output, (B, L, D).

        Args:
            x: (B, L, D).
            memory: (B, M, D); None: x itself.
            allowed: Inputs of the attention, bool, broadcast to (B, heads, L, M); None: all.
        """
        y = self.norm(x)
        parts = self._heads(self.inputs(y if memory is None else memory))
        query, key, value = (*self._heads(self.query(y)), *parts) if self.query is not None else parts
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return x + self.output(attended.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, L, parts * D) -> `parts` tensors (B, heads, L, D / heads)."""
        size = self.output.in_features // self.num_heads
        return x.unflatten(-1, (-1, self.num_heads, size)).permute(2, 0, 3, 1, 4).unbind(0)


class SpeakerBlock(nn.Module):
    """Attention over the speakers of each bin and frame, then a feed-forward network."""

    def __init__(self, channels: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(channels, num_heads)
        self.feedforward = FeedForward(channels, hidden)

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Return the output, (B, n, F, bins, D).

        Args:
            x: (B, n, F, bins, D).
            present: Speakers that are present and visible to the others, (B, n); None: all.
        """
        together = x.permute(0, 2, 3, 1, 4)
        allowed = None
        if present is not None:
            # Without speakers, the first is visible: attention to nothing is not a number.
            first = torch.arange(present.shape[1], device=x.device) == 0
            allowed = (present | first)[:, None, None].expand(together.shape[:-1]).flatten(0, 2)[:, None, None]
        y = self.feedforward(self.attention(together.flatten(0, 2), allowed=allowed))
        return y.unflatten(0, together.shape[:3]).permute(0, 3, 1, 2, 4)


class FixedSplit(nn.Module):
    """linear(SiLU(linear(x))), n times the channels, which are cut into the speakers."""

    def __init__(self, channels: int, hypotheses: int, num_heads: int) -> None:
        super().__init__()
        self.hypotheses = hypotheses
        self.layers = nn.Sequential(
            Linear(channels, 4 * hypotheses * channels),
            nn.SiLU(),
            Linear(4 * hypotheses * channels, hypotheses * channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, n, F, bins, D); x is (B, F, bins, D)."""
        return self.layers(x).unflatten(-1, (-1, self.hypotheses)).movedim(-1, 1)


class AttractorSplit(nn.Module):
    """linear(SiLU(linear(x, attractor))) for each attractor, a vector of length 1 computed from the whole mixture.

    The first of the n + 2 attractors is that of silence, and the last is one too many.
    """

    def __init__(self, channels: int, hypotheses: int, num_heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.queries = nn.Parameter(torch.randn(1, hypotheses + 2, channels))
        self.blocks = nn.ModuleList(_AttractorBlock(channels, num_heads) for _ in range(2))
        self.presence = Linear(channels, 1)
        self.fusion = nn.Sequential(Linear(2 * channels, 4 * channels), nn.SiLU(), Linear(4 * channels, channels))

    def attractors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return attractors (B, n + 2, D), and the log-odds (B, n + 2) that there is a speaker for each.

        `x` is (B, F, bins, D).
        """
        frames, bins, channels = x.shape[1:]
        halves = sinusoids(frames, channels // 2, x)[:, None], sinusoids(bins, channels // 2, x)[None]
        places = torch.cat([half.expand(frames, bins, channels // 2) for half in halves], dim=-1)
        memory = (self.norm(x) + places).flatten(1, 2)
        y = self.queries.repeat(x.shape[0], 1, 1)
        for block in self.blocks:
            y = block(y, memory)
        y = y / (torch.linalg.vector_norm(y, dim=-1, keepdim=True) + 1e-8)
        return y, self.presence(y).squeeze(-1)

    def forward(self, x: Tensor, attractors: Tensor) -> Tensor:
        """Return a mixture for each attractor, (B, n', F, bins, D); x is (B, F, bins, D), attractors (B, n', D)."""
        first, activation, second = self.fusion
        of_x, of_attractor = first.weight.chunk(2, dim=1)  # type: ignore[operator, union-attr]
        both = linear(x, of_x).unsqueeze(1) + linear(attractors, of_attractor, first.bias)[:, :, None, None]  # type: ignore[arg-type]
        return second(activation(both))


class _AttractorBlock(nn.Module):
    """(B, n + 2, D) -> the same shape: attention to the mixture, to the attractors before, and feed-forward."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.to_mixture = Attention(channels, num_heads, cross=True)
        self.to_others = Attention(channels, num_heads)
        self.feedforward = FeedForward(channels, 4 * channels)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        earlier = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return self.feedforward(self.to_others(self.to_mixture(x, memory), allowed=earlier))


def sinusoids(length: int, channels: int, like: Tensor) -> Tensor:
    """Return sines, then cosines, of place * 10000^(-k / (C / 2 - 1)), (length, C), as `like` in type and device.

    Args:
        length: Number of places.
        channels: Values of a place, C.
        like: Tensor of the type and device that are wanted.
    """
    half = channels // 2
    steps = torch.arange(half, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
    angles = torch.arange(length, device=like.device)[:, None] * torch.exp(-math.log(10000.0) / (half - 1) * steps)
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)
