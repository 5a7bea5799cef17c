"""The band-split masker: recurrent layers over time within each band and over bands within each frame."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sepkit.config import BandSplitRNNConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import FrameStream, Masker, require_at_least, stream_frames
from sepkit.models.maskers.recurrent import run_rnn
from sepkit.models.norms import StreamState
from sepkit.models.products import Linear
from sepkit.registry import register

# eps of the norms over bands and of those within one band, as in the reference code.
_EPS = {"global_layer_norm": 1e-5, "channel_layer_norm": torch.finfo(torch.float32).eps}
# Rate in Hz, and (number of bands, width in units of a 64th of 0 to 4 kHz) from the lowest on.
_LAYOUTS = {"8k": (8000, ((16, 1), (8, 2), (8, 4))), "16k": (16000, ((16, 1), (8, 2), (8, 4), (8, 8)))}


@register(BandSplitRNNConfig)
class BandSplitRNNMasker(Masker):
    """Band split; residual LSTMs over time and over bands in turn; one small network for each band's values.

        z_k = linear_k(norm(x_k))                                   x_k: the features of band k; z: (F, B, bands, N)
        z = z + linear(LSTM over time(norm(z)))                     the same weights for all bands
        z = z + linear(LSTM over bands(norm(z)))                    both ways, within each frame
        values_k = GLU(linear(tanh(linear(norm(z_k)))))

    With `residual` the values are m X + r, two such networks for each band, of features that are the coefficients X
    themselves: an estimate, not a mask. Features may be magnitudes (K = bins) or real and imaginary parts (K = 2 bins).

    With bidirectional=False and channel_layer_norm, which works on single frames, the masker is causal.

    Attributes:
        sample_rate: Hz, for which the bands are laid out.
        maps: whether values are the estimates' coefficients.

    Sources: J. Yu and Y. Luo, "Efficient monaural speech enhancement with universal sample rate band-split RNN",
    ICASSP 2023; J. Yu et al., "High fidelity speech enhancement with band-split RNN", Interspeech 2023. Same numbers as
    ESPnet's BSRNN, with norms GN (global_layer_norm) and cfLN (channel_layer_norm).
    """

    small_steps = True

    def __init__(
        self,
        encoding_dim: int,
        hypotheses: int = 2,
        values_per_dimension: int = 1,
        *,
        bands: str = "8k",
        channels: int = 32,
        num_layers: int = 4,
        bidirectional: bool = True,
        residual: bool = False,
        norm: str = "global_layer_norm",
    ) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        require_at_least(1, channels=channels, num_layers=num_layers)
        if norm not in _EPS:
            raise UserError(f"model.masker.norm: found {norm!r}, expected one of {', '.join(_EPS)}")
        # The number of bins below the last one is even, so only magnitudes have an odd K.
        self.parts = 1 if encoding_dim % 2 else 2
        self.bins = encoding_dim // self.parts
        self.widths = band_widths(bands, self.bins)
        self.sample_rate = _LAYOUTS[bands][0]
        self.maps = residual
        if residual and self.parts == 1:
            raise UserError(
                "model.masker.residual: found true with features of magnitudes; expected real and imaginary parts"
                " (model.filterbank.features: real_imaginary)"
            )
        self.bidirectional = bidirectional
        self.norm = norm
        self.split = nn.ModuleList(_BandInput(self.parts * width, channels, norm) for width in self.widths)
        self.blocks = nn.ModuleList(BandSplitBlock(channels, bidirectional, norm) for _ in range(num_layers))
        count = self.parts * hypotheses * values_per_dimension
        self.masks = nn.ModuleList(_BandOutput(channels, count * width, norm) for width in self.widths)
        self.residuals = (
            nn.ModuleList(_BandOutput(channels, count * width, norm) for width in self.widths) if residual else None
        )

    def forward(self, features: Tensor, state: StreamState | None = None) -> Tensor:
        """Return raw mask values (B, n, P, K, F)."""
        # (F, B, bins, parts): real and imaginary part of a bin side by side.
        frames = features.unflatten(1, (self.parts, self.bins)).permute(3, 0, 2, 1)
        inputs = frames.split(self.widths, dim=2)
        z = torch.stack([band(part.flatten(2)) for band, part in zip(self.split, inputs, strict=True)], dim=2)
        for block in self.blocks:
            z = block(z, state)
        values = self._values(self.masks, z)
        if self.residuals is None:
            return values
        real, imaginary = values.chunk(2, dim=-2)
        x, y = features[:, None, None].chunk(2, dim=-2)
        product = torch.cat([real * x - imaginary * y, real * y + imaginary * x], dim=-2)
        return product + self._values(self.residuals, z)

    def _values(self, outputs: nn.ModuleList, z: Tensor) -> Tensor:
        """Return (B, n, P, K, F) for the blocks' output, (F, B, bands, N)."""
        sizes = (self.hypotheses, self.values_per_dimension)
        parts = [
            output(band).unflatten(-1, (*sizes, width, self.parts))
            for output, band, width in zip(outputs, z.unbind(2), self.widths, strict=True)
        ]
        # (F, B, n, P, bins, parts) -> (B, n, P, parts * bins, F)
        return torch.cat(parts, dim=-2).permute(1, 2, 3, 5, 4, 0).flatten(3, 4)

    def stream(self) -> FrameStream:
        """Return a stream without look-ahead. Its state: that of the LSTM over time of every block and band."""
        return stream_frames(self, "band_split_rnn", self.bidirectional, self.norm == "global_layer_norm")


class BandSplitBlock(nn.Module):
    """A residual LSTM over time for each band, then one over bands for each frame, with 2 N units per direction.

    Args:
        channels: N.
        bidirectional: of the LSTM over time; the one over bands always is.
        norm: "global_layer_norm", over everything of an utterance, or "channel_layer_norm", over all of a frame.
    """

    def __init__(self, channels: int, bidirectional: bool, norm: str) -> None:
        super().__init__()
        over = (0, 2, 3) if norm == "global_layer_norm" else (2, 3)
        units = 2 * channels
        self.time_norm = _Norm(channels, over, _EPS[norm])
        self.time = nn.LSTM(channels, units, bidirectional=bidirectional)
        self.time_output = Linear(units * (2 if bidirectional else 1), channels)
        self.band_norm = _Norm(channels, over, _EPS[norm])
        self.over_bands = nn.LSTM(channels, units, batch_first=True, bidirectional=True)
        self.band_output = Linear(2 * units, channels)

    def forward(self, z: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the next values of all bands, of the shape of `z`; z is (F, B, bands, N)."""
        sizes = z.shape[1:3]
        over_time = run_rnn(self.time, self.time_norm(z).flatten(1, 2), state)
        z = z + self.time_output(over_time).unflatten(1, sizes)
        over_bands, _ = self.over_bands(self.band_norm(z).flatten(0, 1))
        return z + self.band_output(over_bands).unflatten(0, (-1, sizes[0]))


class _BandInput(nn.Sequential):
    """(F, B, values of a band) -> (F, B, N)."""

    def __init__(self, size: int, channels: int, norm: str) -> None:
        super().__init__(_within_band(size, norm), Linear(size, channels))


class _BandOutput(nn.Sequential):
    """(F, B, N) -> (F, B, size)."""

    def __init__(self, channels: int, size: int, norm: str) -> None:
        super().__init__(
            _within_band(channels, norm),
            Linear(channels, 4 * channels),
            nn.Tanh(),
            Linear(4 * channels, 2 * size),
            nn.GLU(dim=-1),
        )


class _Norm(nn.Module):
    """Normalization of (F, B, ..., C), with one gain and one offset for each of the last dimension's C.

    Args:
        channels: C.
        over: dimensions that mean and variance are taken over.
        eps: added to the variance.
    """

    def __init__(self, channels: int, over: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.over, self.eps = over, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = values.mean(self.over, keepdim=True)
        centered = values - mean
        scale = torch.rsqrt(centered.square().mean(self.over, keepdim=True) + self.eps)
        return (centered * scale * self.weight + self.bias).to(x.dtype)


def _within_band(channels: int, norm: str) -> _Norm:
    return _Norm(channels, (0, 2) if norm == "global_layer_norm" else (2,), _EPS[norm])


def band_widths(layout: str, bins: int) -> list[int]:
    """Return the bins in each band, from the lowest on; the first band also has the bin at 0 Hz.

    "8k": 16 bands of 62.5 Hz, 8 of 125 Hz and 8 of 250 Hz. "16k": 8 of 500 Hz above these.

        layout: "8k" or "16k".
        bins: of a frame, from 0 Hz to half the sample rate: kernel_size / 2 + 1.
    """
    if layout not in _LAYOUTS:
        raise UserError(f"model.masker.bands: found {layout!r}, expected one of {', '.join(_LAYOUTS)}")
    _, groups = _LAYOUTS[layout]
    units = sum(count * width for count, width in groups)
    unit, rest = divmod(bins - 1, units)
    if rest or unit == 0:
        raise UserError(
            f"model.masker.bands: the layout {layout} divides windows of {2 * units} samples or a multiple, found a"
            f" frame of {bins} bins (model.filterbank.kernel_size {2 * (bins - 1)})"
        )
    widths = [unit * width for count, width in groups for _ in range(count)]
    return [widths[0] + 1, *widths[1:]]
