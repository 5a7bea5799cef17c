"""The short-time Fourier transform as a filterbank, with real or complex masks."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sepkit.config import STFTFilterbankConfig
from sepkit.errors import UserError
from sepkit.limits import WINDOW_SAMPLES
from sepkit.models.filterbanks import Decoder, Encoder, Filterbank, Filters, require
from sepkit.models.runtime import at_least_float32
from sepkit.registry import register

# Added to the power of every bin: the square root of an exact zero has no gradient.
_POWER_FLOOR = 1e-8
# Deviation of gaussian complex masks for a raw value of zero, near which training starts.
_INITIAL_MASK_DEVIATION = 0.1


@register(STFTFilterbankConfig)
class STFTFilterbank(Filterbank):
    """Short-time Fourier transform with a square-root Hann window, real and imaginary parts stacked along K_full.

    With `like_torch` the window is a Hann window, and the coefficients are those of torch.stft. With `like_sr_corrnet`
    they are those of SR-CorrNet's code, but for one factor.

    The masker sees compressed magnitudes |X|^c, K = kernel_size / 2 + 1 values per frame, or X |X|^(c - 1), K = 2 bins.
    A mask has one value per bin, which scales real and imaginary part alike, or is complex: M X, two values. The
    synthesis window makes decode(encode(x)) = x wherever all frames of a sample exist. With `synthesis_size` it covers
    the end of the window only, so the latency is shorter than a frame.

    CPUs use the fast Fourier transform, in float32, under autocast too. In float64 they do not: the
    filters are rounded to float32, so that the transform would be another one.

    Raw values of zero give complex masks of 0.5, as a sigmoid does: training starts from the mixture.

    Args: the fields of `STFTFilterbankConfig`, in order or by name, and
        values_per_dimension: P; 1, or 2 with learned deviations.
    """

    linear_only = True
    framewise_gradients = True
    mask_offset: Tensor | None

    def __init__(self, *first_fields: Any, values_per_dimension: int = 1, **fields: Any) -> None:
        config = STFTFilterbankConfig(*first_fields, **fields)
        _check(config)
        if values_per_dimension > 2:
            raise UserError(
                f"model.encoding: found a family of {values_per_dimension} values for each dimension, but the stft"
                " filterbank makes a coefficient and a deviation; use the deterministic or the gaussian family"
            )
        kernel_size, stride, synthesis_size = config.kernel_size, config.stride, config.synthesis_size
        is_hann = config.like_torch or (config.like_sr_corrnet and kernel_size == 4 * stride)
        bins = kernel_size // 2 + 1
        if synthesis_size:
            window, synthesis_window = _asymmetric_windows(kernel_size, synthesis_size, stride)
        else:
            window = np.hanning(kernel_size + 1)[:-1] ** (1.0 if is_hann else 0.5)
            synthesis_window = _synthesis_window(window, stride)
        analysis, synthesis = _fourier_filters(window, stride), _fourier_filters(synthesis_window, stride)
        if config.like_torch:
            _remove_scale(analysis, synthesis, stride)
        if config.like_sr_corrnet:
            analysis[[0, bins - 1]] *= 2**0.5
            synthesis[[0, bins - 1]] *= 2**0.5
        super().__init__(
            Encoder(Filters(analysis, torch.from_numpy(window).float()), stride),
            Decoder(Filters(synthesis, torch.from_numpy(synthesis_window).float()), stride),
            encoding_dim=bins if config.features == "magnitude" else 2 * bins,
            full_dim=2 * bins,
        )
        self.synthesis_size = synthesis_size or kernel_size
        self.compression = config.compression
        self.real_imaginary = config.features == "real_imaginary"
        self.complex_masks = config.complex_masks
        self.mapping = config.mapping
        self.mask_values = 2 if config.complex_masks and not self.real_imaginary else 1
        offset = torch.zeros(2, 2 * bins, 1)
        offset[0, :bins] = 0.0 if config.mapping else 0.5
        offset[1] = math.log(math.expm1(_INITIAL_MASK_DEVIATION))
        self.register_buffer("mask_offset", offset if config.complex_masks else None, persistent=False)
        self.raw_deviation: nn.Parameter | None = None
        if values_per_dimension == 2:
            self.raw_deviation = nn.Parameter(torch.full((bins,), math.log(math.expm1(config.initial_deviation))))

    def encode(self, waveform: Tensor) -> Tensor:
        """Return coefficients, (B, 2 K, F), followed by deviations if there are any: (B, 4 K, F)."""
        coefficients = super().encode(waveform)
        if self.raw_deviation is None:
            return coefficients
        raw = self.raw_deviation.unsqueeze(-1).expand(coefficients.shape[0], -1, coefficients.shape[-1])
        return torch.cat([coefficients, raw.to(coefficients.dtype).repeat(1, 2, 1)], dim=-2)

    def _analyzed(self, frames: Tensor) -> Tensor:
        """Return coefficients (B, 2 K, F) of windows of a waveform (B, F, kernel_size)."""
        if frames.dtype == torch.float64:
            return super()._analyzed(frames)
        window, scales = window_and_scales(self.encoder.filters)
        spectra = torch.fft.rfft(at_least_float32(frames) * window)
        return torch.cat([spectra.real * scales, spectra.imag * scales], dim=-1).transpose(-1, -2)

    def decode_frames(self, encoding: Tensor) -> Tensor:
        """Return waveforms with both ends untrimmed, (B, n, (F - 1) * stride + kernel_size)."""
        if encoding.dtype == torch.float64:
            return super().decode_frames(encoding)
        window, scales = window_and_scales(self.decoder.filters)
        # The inverse transform counts frequencies twice, but for the first and the last, and divides by the length.
        scales = scales * self.kernel_size / 2
        scales[[0, -1]] *= 2
        encoding = at_least_float32(encoding)
        frames, parts = encoding.shape[-1], -(-self.kernel_size // self.stride)
        # One waveform at a time: several copies of its windows are needed, and they stay in the CPU's caches.
        added = []
        for one in encoding.flatten(0, -3).transpose(-1, -2):
            real, imaginary = one.chunk(2, dim=-1)
            windows = torch.fft.irfft(torch.complex(real * scales, imaginary * scales), self.kernel_size) * window
            # Each window begins a block of `stride` samples later than the one before.
            columns = nn.functional.pad(windows, (0, parts * self.stride - self.kernel_size)).split(self.stride, dim=-1)
            added.append(sum(nn.functional.pad(c, (0, 0, k, parts - 1 - k)) for k, c in enumerate(columns)))
        blocks = torch.stack(added).unflatten(0, encoding.shape[:-2])
        return blocks.flatten(-2)[..., : (frames - 1) * self.stride + self.kernel_size]

    def features(self, encoding: Tensor) -> Tensor:
        """Return compressed magnitudes, or real and imaginary parts, (B, K, F)."""
        real, imaginary = encoding.chunk(2, dim=-2)
        power = real.square() + imaginary.square() + _POWER_FLOOR
        if self.real_imaginary:
            return encoding * power.pow((self.compression - 1) / 2).repeat(1, 2, 1)
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

        Args:
            mask: Mask, (B, n, K_mask, F).
            encoding: Encoding of the mixture, (B, 2 bins, F).
        """
        if self.mapping:
            return mask
        if self.complex_masks:
            real, imaginary = encoding.unsqueeze(-3).chunk(2, dim=-2)
            mask_real, mask_imaginary = mask.chunk(2, dim=-2)
            return torch.cat(
                [mask_real * real - mask_imaginary * imaginary, mask_real * imaginary + mask_imaginary * real], dim=-2
            )
        return (mask.unsqueeze(-3) * encoding.unflatten(-2, (2, self.encoding_dim)).unsqueeze(-4)).flatten(-3, -2)

    def masked_variance(self, variance: Tensor, encoding: Tensor) -> Tensor:
        """Return the elementwise variance of the masked encoding, (B, n, 2 bins, F).

        Real and imaginary part of a bin are correlated, which does not matter to the energy of their waveforms, because
        sine and cosine under a symmetric window are orthogonal.

        Args:
            variance: Variance of the mask, (B, n, K_mask, F).
            encoding: Encoding of the mixture, (B, 2 bins, F).
        """
        if self.mapping or not self.complex_masks:
            return super().masked_variance(variance, encoding)
        real, imaginary = encoding.square().unsqueeze(-3).chunk(2, dim=-2)
        of_real, of_imaginary = variance.chunk(2, dim=-2)
        return torch.cat([of_real * real + of_imaginary * imaginary, of_real * imaginary + of_imaginary * real], dim=-2)


def _check(config: STFTFilterbankConfig) -> None:
    """Raise UserError for sizes that are out of bounds, and for choices that do not go together."""
    size, stride, synthesis_size = config.kernel_size, config.stride, config.synthesis_size
    longest = min(2 * stride, size - 1)
    coefficients = config.features == "real_imaginary"
    require(
        config,
        kernel_size=(size % 2 == 0, f"an even number of samples, at most {WINDOW_SAMPLES}"),
        stride=(stride <= size // 2, f"1 to kernel_size / 2 ({size // 2})"),
        synthesis_size=(
            synthesis_size == 0 or stride < synthesis_size <= longest,
            f"0, or {stride + 1} to {longest} (2 * stride, and less than kernel_size)",
        ),
        like_torch=(
            not (config.like_torch and (config.like_sr_corrnet or synthesis_size)),
            "false with like_sr_corrnet: true or a synthesis_size",
        ),
        like_sr_corrnet=(not (config.like_sr_corrnet and synthesis_size), "false with a synthesis_size"),
        features=(
            config.features == "magnitude" or (coefficients and config.complex_masks),
            "magnitude, or with complex_masks: true real_imaginary, which makes two values a bin",
        ),
        mapping=(
            not config.mapping or coefficients,
            "false, or features: real_imaginary, with which the masker sees the phases of the coefficients it makes",
        ),
    )


def _synthesis_window(window: np.ndarray, stride: int) -> np.ndarray:
    """The window that inverts `window` after overlap-add at this stride, in the scale of `_fourier_filters`.

    It equals `window` if that is a tight frame (strides of a half or a quarter window).
    """
    size = len(window)
    blocks = np.pad(window**2, (0, -size % stride)).reshape(-1, stride)
    # From the last on, which decides about the last bit.
    overlap = np.resize(sum(blocks[::-1]), size)
    return window * (size / (2 * stride)) / overlap


def _asymmetric_windows(kernel_size: int, synthesis_size: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Analysis and synthesis windows, the latter 0 except at its end; scaled as `_fourier_filters`.

    The first rises as long as it can and falls within the overlap of two synthesis windows, V samples. The product is a
    Tukey window, with flanks of V samples; copies of it at the stride add up to 1.

    Source: D. Mauler and R. Martin, "A low delay, variable resolution, perfect reconstruction spectral
    analysis-synthesis system for speech enhancement", EUSIPCO 2007.
    """
    overlap = synthesis_size - stride
    rise, fall = (np.sin(np.pi / 2 * np.arange(size) / size) for size in (kernel_size - overlap, overlap))
    falling = np.sqrt(1 - fall**2)
    analysis = np.concatenate([rise, falling])
    product = np.concatenate([fall**2, np.ones(synthesis_size - 2 * overlap), falling**2])
    synthesis = np.zeros(kernel_size)
    synthesis[-synthesis_size:] = product / analysis[-synthesis_size:]
    return analysis, synthesis * (kernel_size / (2 * stride))


def _fourier_filters(window: np.ndarray, stride: int) -> Tensor:
    """Return filters of real parts, s_k w(t) cos(2 pi k t / T), then of imaginary ones, -s_k w(t) sin(2 pi k t / T).

    The scales s_k = 2 sqrt(stride) / T, and s_0 = s_(T/2) = sqrt(2 stride) / T, keep energies if w is a tight frame.
    Digests of saved models count each bit of the filters, signs of zeros too.
    """
    size = len(window)
    spectra = np.fft.fft(np.eye(size))[: size // 2 + 1] / (0.5 * np.sqrt(size * size / stride))
    filters = np.concatenate([spectra.real, spectra.imag])
    filters[[0, size // 2]] /= np.sqrt(2)
    return torch.from_numpy(filters * window).unsqueeze(1).float()


def _remove_scale(analysis: Tensor, synthesis: Tensor, stride: int) -> None:
    """Undo the scales of `_fourier_filters` in both filters (2 bins, 1, T)."""
    rows, _, kernel_size = analysis.shape
    scale = analysis.new_full((2, rows // 2), 0.5 * kernel_size / stride**0.5)
    # The rows of the real parts that stand for one frequency, not for a positive and a negative one.
    scale[0, [0, -1]] *= 2**0.5
    analysis.mul_(scale.view(-1, 1, 1))
    synthesis.div_(scale.view(-1, 1, 1))


def window_and_scales(filters: Tensor) -> tuple[Tensor, Tensor]:
    """Return the window (T,), times the first scale, and the relative scales (K,) of the filters (2 K, 1, T).

    Rows k are s_k w(t) cos(2 pi k t / T) and -s_k w(t) sin(2 pi k t / T).
    """
    window = filters[0, 0]
    largest = int(window.argmax())
    real, imaginary = filters[:, 0, largest].chunk(2)
    return window, torch.hypot(real, imaginary) / window[largest]
