"""Filterbanks map waveforms to encodings and back; they are built on asteroid_filterbanks.

Besides, a filterbank makes two small decisions: which features of an encoding the masker sees (`features`), and how a
mask is applied to it (`apply_mask`). The masker sees K values per frame, and the encoding holds K_full. They differ for
the short-time Fourier transform, where K counts bins and K_full real and imaginary parts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
import torch
from asteroid_filterbanks import STFTFB, Decoder, Encoder, FreeFB
from torch import Tensor, nn

from sepkit.config import FreeFilterbankConfig, STFTFilterbankConfig
from sepkit.errors import UserError
from sepkit.limits import WINDOW_SAMPLES
from sepkit.models.maskers.fast.guard import is_traced
from sepkit.registry import register

# Added to the power of every bin: the square root of an exact zero has no gradient.
_POWER_FLOOR = 1e-8
# Deviation of gaussian complex masks for a raw value of zero, near which training starts.
_INITIAL_MASK_DEVIATION = 0.1


class Filterbank(nn.Module, ABC):
    """Bias-free analysis and synthesis by strided (transposed) convolution.

    Attributes:
        encoding_dim: K, values per frame that the masker sees.
        full_dim: K_full, values per frame of an encoding.
        kernel_size: samples in a filter.
        stride: samples between frames.
        padding: zeros that the convolution adds at both ends and the decoder removes.
        multiple: input lengths are padded on the right to a multiple of this many samples.
        linear_only: whether the encoding must stay linear (a link would break its meaning).
        complex_masks: whether masks are complex, so that their values may be negative.
        mask_values: how many values a mask has for each of the K.
        mapping: whether the masker's values are the estimates' encoding, not a mask.

    Args:
        encoder: asteroid_filterbanks' analysis.
        decoder: asteroid_filterbanks' synthesis.
    """

    linear_only: ClassVar[bool] = False
    complex_masks: bool = False
    mask_values: int = 1
    mapping: bool = False

    def __init__(
        self, encoder: Encoder, decoder: Decoder, *, encoding_dim: int, full_dim: int, multiple: int = 1
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.encoding_dim = encoding_dim
        self.full_dim = full_dim
        self.kernel_size: int = encoder.filterbank.kernel_size
        self.stride: int = encoder.filterbank.stride
        self.padding: int = encoder.padding
        self.multiple = multiple

    def encode(self, waveform: Tensor) -> Tensor:
        """Return raw encodings, (B, P * K_full, F).

        P is the encoding family's number of values for each dimension, 1 for points.

        Args:
            waveform: (B, T), T >= kernel_size - 2 * padding.
        """
        if not _framewise_pays(waveform):
            return self.encoder(waveform.unsqueeze(1))
        padded = nn.functional.pad(waveform, (self.padding, self.padding))
        return self._analyzed(padded.unfold(-1, self.kernel_size, self.stride))

    def _analyzed(self, frames: Tensor) -> Tensor:
        """Return the raw encodings (B, P * K_full, F) of windows of a waveform (B, F, kernel_size)."""
        return torch.matmul(self.encoder.get_filters()[:, 0], frames.transpose(-1, -2))

    def decode(self, encoding: Tensor) -> Tensor:
        """Return waveforms, (B, n, T).

        T = (F - 1) * stride + kernel_size - 2 * padding + output_padding.

        Args:
            encoding: (B, n, K_full, F).
        """
        if not _framewise_pays(encoding):
            return self.decoder(encoding)
        return nn.functional.pad(self.decode_frames(encoding), self.trim)

    @property
    def trim(self) -> tuple[int, int]:
        """Padding, left and right, that makes of the waveforms of `decode_frames` those of `decode`."""
        # A negative one removes what the encoder added; the output padding is past the last frame.
        return -self.padding, self.decoder.output_padding - self.padding

    def encode_frames(self, waveform: Tensor) -> Tensor:
        """Return raw encodings of the frames that lie inside waveforms, (B, P * K_full, F).

        Unlike `encode`, it adds no zeros at the ends, because other blocks hold the samples beyond them.

        Args:
            waveform: (B, (F - 1) * stride + kernel_size).
        """
        frames = (waveform.shape[-1] - self.kernel_size) // self.stride + 1
        shift = -self.padding % self.stride
        first = (self.padding + shift) // self.stride
        return self.encode(nn.functional.pad(waveform, (shift, 0)))[..., first : first + frames]

    def decode_frames(self, encoding: Tensor) -> Tensor:
        """Return waveforms with both ends untrimmed, (B, n, (F - 1) * stride + kernel_size).

        One product, then overlap-add.

        Args:
            encoding: (B, n, K_full, F).
        """
        frames = encoding.shape[-1]
        # (K_full, kernel_size): as asteroid_filterbanks makes it for its own transposed convolution.
        filters = self.decoder.get_filters()[:, 0]
        synthesized = torch.matmul(filters.t(), encoding).flatten(0, -3)
        length = (frames - 1) * self.stride + self.kernel_size
        added = nn.functional.fold(synthesized, (1, length), (1, self.kernel_size), stride=(1, self.stride))
        return added.view(*encoding.shape[:-2], length)

    @abstractmethod
    def features(self, encoding: Tensor) -> Tensor:
        """Return the masker's input, (B, K, F).

        Args:
            encoding: (B, K_full, F).
        """

    @abstractmethod
    def apply_mask(self, mask: Tensor, encoding: Tensor) -> Tensor:
        """Return masked encodings, (B, n, K_full, F).

        Args:
            mask: (B, n, K_mask, F).
            encoding: (B, K_full, F).
        """

    @property
    def mask_dim(self) -> int:
        """K_mask: values of a mask in a frame."""
        return self.mask_values * self.encoding_dim

    def raw_masks(self, raw: Tensor) -> Tensor:
        """Return a masker's values, arranged as the mask family's raw values, (B, n, P, K_mask, F).

        Args:
            raw: (B, n, P * mask_values, K, F).
        """
        return raw

    def masked_variance(self, variance: Tensor, encoding: Tensor) -> Tensor:
        """Return the elementwise variance of the masked encoding, (B, n, K_full, F), given that of the mask.

        Args:
            variance: (B, n, K_mask, F), of independent values.
            encoding: (B, K_full, F).
        """
        return self.apply_mask(variance, encoding.square())

    def decoded_energy(self, variance: Tensor) -> Tensor:
        """Return the expected energy of the waveforms that independent noise in encodings decodes to, (B, n).

        E ||D u||^2 = sum_kf var(u_kf) ||d_k||^2, with d_k the synthesis filters. Frames at the ends count in full.

        Args:
            variance: (B, n, K_full, F).
        """
        return variance.sum(-1) @ self.decoder.get_filters()[:, 0].square().sum(-1).to(variance.dtype)

    def frames_for(self, num_samples: int, pad: Literal["full", "asteroid"] = "full") -> int:
        """The number of frames that `encode` makes after `padding_for`.

        Args:
            num_samples: T, at least 1.
            pad: as in `padding_for`.
        """
        padded = num_samples + sum(self.padding_for(num_samples, pad)) + 2 * self.padding
        return (padded - self.kernel_size) // self.stride + 1

    def padding_for(self, num_samples: int, pad: Literal["full", "asteroid"] = "full") -> tuple[int, int]:
        """Return how many zeros to put on the left and on the right of samples before `encode`.

        Args:
            num_samples: T, at least 1.
            pad: "full": every sample lies in all frames that can hold it, also at both ends, so that overlap-add
                weights it as in the middle. "asteroid": nothing on the left, and on the right only what `multiple` and
                the kernel's length require.
        """
        if pad == "asteroid":
            # With much padding, the waveform of a single frame would be empty.
            single = self.kernel_size - 2 * self.padding
            more = max(0, math.ceil((1 - single - self.decoder.output_padding) / self.stride))
            left, padded = 0, max(num_samples, single + more * self.stride)
        else:
            left = self.kernel_size - self.stride - self.padding
            last_frame = math.ceil((num_samples + self.kernel_size) / self.stride) - 2
            padded = last_frame * self.stride + self.kernel_size - 2 * self.padding
        padded = math.ceil(padded / self.multiple) * self.multiple
        return left, padded - left - num_samples


@register(FreeFilterbankConfig)
class FreeFilterbank(Filterbank):
    """Learned, bias-free analysis and synthesis filters (TasNet); the masker sees the encoding itself.

    Args: the fields of `FreeFilterbankConfig`, and
        values_per_dimension: P, raw values the encoder makes for each dimension.

    Raises:
        UserError: sizes that do not fit together.
    """

    def __init__(
        self,
        num_filters: int,
        kernel_size: int,
        stride: int,
        padding: int,
        output_padding: int,
        multiple: int,
        init_range: float,
        mapping: bool,
        *,
        values_per_dimension: int = 1,
    ) -> None:
        _require("num_filters", num_filters, num_filters >= 1, "at least 1")
        _require("kernel_size", kernel_size, kernel_size >= 1, "at least 1")
        _require("stride", stride, 1 <= stride <= kernel_size, f"1 to kernel_size ({kernel_size})")
        _require(
            "padding",
            padding,
            0 <= padding <= kernel_size - stride,
            f"0 to kernel_size - stride ({kernel_size - stride})",
        )
        _require("output_padding", output_padding, 0 <= output_padding < stride, f"0 to stride - 1 ({stride - 1})")
        _require("multiple", multiple, multiple >= 1, "at least 1")
        _require("init_range", init_range, init_range >= 0, "at least 0")
        analysis = FreeFB(num_filters * values_per_dimension, kernel_size, stride)
        synthesis = FreeFB(num_filters, kernel_size, stride)
        if init_range > 0:
            for bank in (analysis, synthesis):
                nn.init.uniform_(bank.filters(), -init_range, init_range)
        super().__init__(
            Encoder(analysis, padding=padding),
            Decoder(synthesis, padding=padding, output_padding=output_padding),
            encoding_dim=num_filters,
            full_dim=num_filters,
            multiple=multiple,
        )
        self.mapping = mapping

    def features(self, encoding: Tensor) -> Tensor:
        """The encoding (B, K, F) itself."""
        return encoding

    def apply_mask(self, mask: Tensor, encoding: Tensor) -> Tensor:
        """Return mask * encoding, elementwise, (B, n, K, F); with `mapping` the mask itself."""
        return mask if self.mapping else mask * encoding.unsqueeze(-3)


@register(STFTFilterbankConfig)
class STFTFilterbank(Filterbank):
    """Short-time Fourier transform with a square-root Hann window, real and imaginary parts stacked along K_full.

    With `like_torch` the window is a Hann window, and the coefficients are those of torch.stft.

    The masker sees compressed magnitudes |X|^c, K = kernel_size / 2 + 1 values a frame, or X |X|^(c - 1), K = 2 bins. A
    mask has one value per bin, which scales real and imaginary part alike, or is complex: M X, two values per bin. The
    synthesis window makes decode(encode(x)) = x wherever all frames of a sample exist.

    Where no gradient is asked for, CPUs use the fast Fourier transform, in float32. In float64 they do not: asteroid's
    filters are rounded to float32, so that the transform would be another one.

    Raw values of zero give complex masks of 0.5, as a sigmoid does: training starts from the mixture.

    Args: the fields of `STFTFilterbankConfig`, and
        values_per_dimension: P; 1, or 2 with learned deviations.

    Raises:
        UserError: sizes or choices that do not fit together, or a family that needs more than two values.
    """

    linear_only = True
    mask_offset: Tensor | None

    def __init__(
        self,
        kernel_size: int,
        stride: int,
        compression: float,
        deviation: Literal["per_bin", "predicted"],
        initial_deviation: float,
        features: Literal["magnitude", "real_imaginary"],
        complex_masks: bool,
        mapping: bool,
        like_torch: bool,
        *,
        values_per_dimension: int = 1,
    ) -> None:
        _require("kernel_size", kernel_size, kernel_size >= 2 and kernel_size % 2 == 0, "an even number of samples")
        _require("kernel_size", kernel_size, kernel_size <= WINDOW_SAMPLES, f"at most {WINDOW_SAMPLES} samples")
        _require("stride", stride, 1 <= stride <= kernel_size // 2, f"1 to kernel_size / 2 ({kernel_size // 2})")
        _require("compression", compression, compression >= 0, "at least 0")
        _require("initial_deviation", initial_deviation, 0 < initial_deviation < math.inf, "a positive number")
        _check_complex(features, complex_masks, mapping, compression)
        if values_per_dimension > 2:
            raise UserError(
                f"model.encoding: found a family of {values_per_dimension} values for each dimension, but the stft"
                " filterbank makes a coefficient and a deviation; use the deterministic or the gaussian family"
            )
        window = np.hanning(kernel_size + 1)[:-1] ** (1.0 if like_torch else 0.5)
        bins = kernel_size // 2 + 1
        analysis = STFTFB(kernel_size, kernel_size, stride, window=window)
        synthesis = STFTFB(kernel_size, kernel_size, stride, window=_synthesis_window(window, stride))
        if like_torch:
            _remove_scale(analysis, synthesis)
        super().__init__(
            Encoder(analysis),
            Decoder(synthesis),
            encoding_dim=bins if features == "magnitude" else 2 * bins,
            full_dim=2 * bins,
        )
        self.compression = compression
        self.real_imaginary = features == "real_imaginary"
        self.complex_masks = complex_masks
        self.mapping = mapping
        self.mask_values = 2 if complex_masks and not self.real_imaginary else 1
        offset = torch.zeros(2, 2 * bins, 1)
        offset[0, :bins] = 0.0 if mapping else 0.5
        offset[1] = math.log(math.expm1(_INITIAL_MASK_DEVIATION))
        self.register_buffer("mask_offset", offset if complex_masks else None, persistent=False)
        self.raw_deviation: nn.Parameter | None = None
        self.deviation_predictor: nn.Conv1d | None = None
        if values_per_dimension == 2:
            raw = torch.full((bins,), math.log(math.expm1(initial_deviation)))
            if deviation == "per_bin":
                self.raw_deviation = nn.Parameter(raw)
            else:
                self.deviation_predictor = nn.Conv1d(self.encoding_dim, bins, 1)
                nn.init.zeros_(self.deviation_predictor.weight)
                self.deviation_predictor.bias = nn.Parameter(raw)

    def encode(self, waveform: Tensor) -> Tensor:
        """Return coefficients, (B, 2 K, F), followed by deviations if there are any: (B, 4 K, F)."""
        coefficients = super().encode(waveform)
        if self.raw_deviation is not None:
            raw = self.raw_deviation.unsqueeze(-1).expand(coefficients.shape[0], -1, coefficients.shape[-1])
        elif self.deviation_predictor is not None:
            raw = self.deviation_predictor(self.features(coefficients))
        else:
            return coefficients
        return torch.cat([coefficients, raw.to(coefficients.dtype).repeat(1, 2, 1)], dim=-2)

    def _analyzed(self, frames: Tensor) -> Tensor:
        """Return coefficients (B, 2 K, F) of windows of a waveform (B, F, kernel_size)."""
        if frames.dtype == torch.float64:
            return super()._analyzed(frames)
        window, scales = _window_and_scales(self.encoder.get_filters())
        spectra = torch.fft.rfft(_at_least_float32(frames) * window)
        return torch.cat([spectra.real * scales, spectra.imag * scales], dim=-1).transpose(-1, -2)

    def decode_frames(self, encoding: Tensor) -> Tensor:
        """Return waveforms with both ends untrimmed, (B, n, (F - 1) * stride + kernel_size).

        Args:
            encoding: (B, n, 2 K, F).
        """
        if encoding.dtype == torch.float64:
            return super().decode_frames(encoding)
        window, scales = _window_and_scales(self.decoder.get_filters())
        # The inverse transform counts frequencies twice, but for the first and the last, and divides by the length.
        scales = scales * self.kernel_size / 2
        scales[[0, -1]] *= 2
        encoding = _at_least_float32(encoding)
        frames, parts = encoding.shape[-1], -(-self.kernel_size // self.stride)
        blocks = encoding.new_zeros(*encoding.shape[:-2], frames + parts - 1, self.stride)
        # One waveform at a time: several copies of its windows are needed, and they stay in the processor's caches.
        for one, added in zip(encoding.flatten(0, -3).transpose(-1, -2), blocks.flatten(0, -3), strict=True):
            real, imaginary = one.chunk(2, dim=-1)
            windows = torch.fft.irfft(torch.complex(real * scales, imaginary * scales), self.kernel_size).mul_(window)
            for part, columns in enumerate(windows.split(self.stride, dim=-1)):
                added[part : part + frames, : columns.shape[-1]] += columns
        return blocks.flatten(-2)[..., : (frames - 1) * self.stride + self.kernel_size]

    def features(self, encoding: Tensor) -> Tensor:
        """Return compressed magnitudes, or real and imaginary parts, (B, K, F)."""
        real, imaginary = encoding.chunk(2, dim=-2)
        power = real.square() + imaginary.square() + _POWER_FLOOR
        if self.real_imaginary:
            return encoding * power.pow((self.compression - 1) / 2).repeat(1, 2, 1)
        if self.compression == 0:
            return torch.log(1e-4 + power.sqrt())
        return power.pow(self.compression / 2)

    def raw_masks(self, raw: Tensor) -> Tensor:
        """Return a masker's values, arranged as the mask family's raw values, (B, n, P, K_mask, F).

        Complex masks, the first of the P, are moved by 0.5 on the real axis. The raw deviation of gaussian masks, the
        second, is moved so that zero gives 0.1.
        """
        if self.mask_values > 1:
            raw = raw.unflatten(-3, (-1, self.mask_values)).flatten(-3, -2)
        return raw if self.mask_offset is None else raw + self.mask_offset[: raw.shape[-3]]

    def apply_mask(self, mask: Tensor, encoding: Tensor) -> Tensor:
        """Return masked encodings, (B, n, 2 bins, F).

        Real masks scale both halves of the encoding; complex ones are multiplied as complex numbers, real parts first.
        With `mapping` they are the result.
        """
        if self.mapping:
            return mask
        if self.complex_masks:
            real, imaginary = encoding.unsqueeze(-3).chunk(2, dim=-2)
            mask_real, mask_imaginary = mask.chunk(2, dim=-2)
            return torch.cat(
                [mask_real * real - mask_imaginary * imaginary, mask_real * imaginary + mask_imaginary * real], dim=-2
            )
        halves = encoding.unflatten(-2, (2, self.encoding_dim)).unsqueeze(-4)
        return (mask.unsqueeze(-3) * halves).flatten(-3, -2)

    def masked_variance(self, variance: Tensor, encoding: Tensor) -> Tensor:
        """Return the elementwise variance of the masked encoding, (B, n, 2 bins, F).

        Real and imaginary part of a bin are correlated, which does not matter to the energy of their waveforms, because
        sine and cosine under a symmetric window are orthogonal.
        """
        if self.mapping or not self.complex_masks:
            return super().masked_variance(variance, encoding)
        real, imaginary = encoding.square().unsqueeze(-3).chunk(2, dim=-2)
        of_real, of_imaginary = variance.chunk(2, dim=-2)
        return torch.cat([of_real * real + of_imaginary * imaginary, of_real * imaginary + of_imaginary * real], dim=-2)


def _framewise_pays(tensor: Tensor) -> bool:
    """Whether to encode and decode frame by frame: on CPUs, where no gradient is asked for.

    There torch's convolutions are many times slower with one channel.
    """
    return tensor.is_cpu and not torch.is_grad_enabled() and not is_traced()


def _check_complex(features: str, complex_masks: bool, mapping: bool, compression: float) -> None:
    """Refuse choices of the STFT that do not go together.

    Raises:
        UserError: names the field.
    """
    if features not in ("magnitude", "real_imaginary"):
        raise UserError(f"model.filterbank.features: found {features!r}, expected magnitude or real_imaginary")
    if features == "real_imaginary" and not complex_masks:
        raise UserError("model.filterbank.features: real_imaginary makes two values a bin; set complex_masks to true")
    if features == "real_imaginary" and compression == 0:
        raise UserError("model.filterbank.compression: found 0, expected more than 0 with features: real_imaginary")
    if mapping and not (complex_masks and features == "real_imaginary"):
        raise UserError(
            "model.filterbank.mapping: the masker can make coefficients only if it sees their phases;"
            " set complex_masks to true and features to real_imaginary"
        )


def _synthesis_window(window: np.ndarray, stride: int) -> np.ndarray:
    """The window that inverts `window` after overlap-add at this stride, in STFTFB's scale.

    It equals `window` if that is a tight frame (strides of a half or a quarter window).
    """
    shifts = range(-(len(window) // stride), len(window) // stride + 1)
    overlap = sum(_shift(window**2, shift * stride) for shift in shifts)
    return window * (len(window) / (2 * stride)) / overlap


def _remove_scale(analysis: STFTFB, synthesis: STFTFB) -> None:
    """Undo STFTFB's scale of the Fourier transform in the filters of an analysis, and of the synthesis that inverts it.

    Args:
        analysis: changed in place.
        synthesis: changed in place.
    """
    filters: list[Tensor] = [bank.get_buffer("_filters") for bank in (analysis, synthesis)]
    rows, _, kernel_size = filters[0].shape
    scale = filters[0].new_full((2, rows // 2), 0.5 * kernel_size / analysis.stride**0.5)
    # The rows of the real parts that stand for one frequency, not for a positive and a negative one.
    scale[0, [0, -1]] *= 2**0.5
    filters[0].mul_(scale.view(-1, 1, 1))
    filters[1].div_(scale.view(-1, 1, 1))


def _window_and_scales(filters: Tensor) -> tuple[Tensor, Tensor]:
    """Return the window (T,), times the first scale, and the relative scales (K,) of the filters (2 K, 1, T).

    Row k of the real parts is s_k w(t) cos(2 pi k t / T), which is +-s_k in the middle of the window.
    """
    window = filters[0, 0]
    middle = filters.shape[-1] // 2
    return window, filters[: middle + 1, 0, middle].abs() / window[middle]


def _at_least_float32(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _shift(values: np.ndarray, by: int) -> np.ndarray:
    """`values` moved to the right by `by` samples (to the left if negative), zeros moving in."""
    moved = np.zeros_like(values)
    if by >= 0:
        moved[by:] = values[: len(values) - by]
    else:
        moved[:by] = values[-by:]
    return moved


def _require(field: str, found: float, holds: bool, expected: str) -> None:
    if not holds:
        raise UserError(f"model.filterbank.{field}: found {found}, expected {expected}")
