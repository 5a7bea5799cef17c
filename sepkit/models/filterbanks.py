"""Filterbanks map waveforms to encodings and back.

Besides, a filterbank makes two small decisions: which features of an encoding the masker sees (`features`), and how a
mask is applied to it (`apply_mask`). The masker sees K values per frame, and the encoding holds K_full. They differ for
the short-time Fourier transform, where K counts bins and K_full real and imaginary parts.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from sepkit.choices import check_bounds
from sepkit.config import FilterbankConfig, FreeFilterbankConfig
from sepkit.errors import UserError
from sepkit.models.runtime import is_traced
from sepkit.registry import register


class Filters(nn.Module):
    """Filters of an encoder or decoder, (K_full, 1, kernel_size), under asteroid's names: those of saved models.

    Args:
        filters: learned if they are a parameter.
        window: (kernel_size,), already in the filters; kept beside them, as asteroid does.
    """

    _filters: Tensor

    def __init__(self, filters: Tensor, window: Tensor | None = None) -> None:
        super().__init__()
        if isinstance(filters, nn.Parameter):
            self._filters = filters
        else:
            self.register_buffer("_filters", filters)
        if window is not None:
            self.register_buffer("torch_window", window)


def free_filters(num_filters: int, kernel_size: int, outputs: int = 1) -> Filters:
    """Return learned filters, drawn from Xavier's normal distribution.

    Args:
        num_filters: Number of filters.
        kernel_size: Samples in a filter.
        outputs: Waveforms that each filter adds to.
    """
    return Filters(nn.Parameter(nn.init.xavier_normal_(torch.empty(num_filters, outputs, kernel_size))))


class _Coder(nn.Module):
    """Shared by encoder and decoder: filters and their positions."""

    def __init__(self, filterbank: Filters, stride: int, padding: int = 0) -> None:
        super().__init__()
        self.filterbank = filterbank
        self.stride = stride
        self.padding = padding

    @property
    def filters(self) -> Tensor:
        """(K_full, 1, kernel_size)."""
        return self.filterbank._filters


class Encoder(_Coder):
    """Analysis: correlation with filters every `stride` samples."""

    def forward(self, waveform: Tensor) -> Tensor:
        """Return encodings, (B, K_full, F); `waveform` is (B, 1, T)."""
        return nn.functional.conv1d(waveform, self.filters, stride=self.stride, padding=self.padding)


class Decoder(_Coder):
    """Synthesis: filters weighted by an encoding, added up every `stride` samples."""

    def __init__(self, filterbank: Filters, stride: int, padding: int = 0, output_padding: int = 0) -> None:
        super().__init__(filterbank, stride, padding)
        self.output_padding = output_padding

    def forward(self, encoding: Tensor) -> Tensor:
        """Return waveforms, (B, n, T); `encoding` is (B, n, K_full, F)."""
        waveforms = nn.functional.conv_transpose1d(
            encoding.flatten(0, -3),
            self.filters,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
        )
        return waveforms.squeeze(1).unflatten(0, encoding.shape[:-2])


class Filterbank(nn.Module, ABC):
    """Bias-free analysis and synthesis by strided (transposed) convolution.

    Attributes:
        encoding_dim: K, values per frame that the masker sees.
        full_dim: K_full, values per frame of an encoding.
        kernel_size: samples in a filter.
        synthesis_size: the last samples of a synthesis filter, without which it is 0.
        stride: samples between frames.
        padding: zeros that the convolution adds at both ends and the decoder removes.
        multiple: input lengths are padded on the right to a multiple of this many samples.
        linear_only: whether the encoding must stay linear (an activation would break its meaning).
        complex_masks: whether masks are complex, so that their values may be negative.
        mask_values: Number of mask values for each of the K.
        mapping: whether the masker's values are the estimates' encoding, not a mask.
        framewise_gradients: whether encoding and decoding frame by frame is faster on CPUs even where gradients are
            asked for.
    """

    linear_only: ClassVar[bool] = False
    framewise_gradients: ClassVar[bool] = False
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
        self.kernel_size = self.synthesis_size = encoder.filters.shape[-1]
        self.stride = encoder.stride
        self.padding = encoder.padding
        self.multiple = multiple

    def encode(self, waveform: Tensor) -> Tensor:
        """Return raw encodings, (B, P * K_full, F).

        P is the encoding family's number of values for each dimension, 1 for points.

        Args:
            waveform: (B, T), T >= kernel_size - 2 * padding.
        """
        if not self._framewise_pays(waveform):
            return self.encoder(waveform.unsqueeze(1))
        padded = nn.functional.pad(waveform, (self.padding, self.padding))
        return self._analyzed(padded.unfold(-1, self.kernel_size, self.stride))

    def _framewise_pays(self, x: Tensor) -> bool:
        """Whether to encode and decode frame by frame: on CPUs, without gradients or with `framewise_gradients`.

        There torch's convolutions are many times slower with one channel.
        """
        return x.is_cpu and (self.framewise_gradients or not torch.is_grad_enabled()) and not is_traced()

    def _analyzed(self, frames: Tensor) -> Tensor:
        """Return the raw encodings (B, P * K_full, F) of windows of a waveform (B, F, kernel_size)."""
        return torch.matmul(self.encoder.filters[:, 0], frames.transpose(-1, -2))

    def decode(self, encoding: Tensor) -> Tensor:
        """Return waveforms, (B, n, T).

        T = (F - 1) * stride + kernel_size - 2 * padding + output_padding.

        Args:
            encoding: (B, n, K_full, F).
        """
        if not self._framewise_pays(encoding):
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
        synthesized = torch.matmul(self.decoder.filters[:, 0].t(), encoding).flatten(0, -3)
        length = (frames - 1) * self.stride + self.kernel_size
        added = nn.functional.fold(synthesized, (1, length), (1, self.kernel_size), stride=(1, self.stride))
        return added.view(*encoding.shape[:-2], length)

    @abstractmethod
    def features(self, encoding: Tensor) -> Tensor:
        """Return the masker's input, (B, K, F); encoding is (B, K_full, F)."""

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

        `raw` is (B, n, P * mask_values, K, F).
        """
        return raw

    def masked_variance(self, variance: Tensor, encoding: Tensor) -> Tensor:
        """Return the elementwise variance of the masked encoding, (B, n, K_full, F), given that of the mask.

        `variance` is (B, n, K_mask, F), of independent values.
        """
        return self.apply_mask(variance, encoding.square())

    def decoded_energy(self, variance: Tensor) -> Tensor:
        """Return the expected energy of the waveforms that independent noise in encodings decodes to, (B, n).

        E ||D u||^2 = sum_kf var(u_kf) ||d_k||^2, with d_k the synthesis filters. Frames at the ends count in full.

        Args:
            variance: (B, n, K_full, F).
        """
        energies = self.decoder.filters[:, 0].square().sum(-1).to(variance.dtype)
        return (variance.sum(-1) * energies).sum(-1)

    def frames_for(self, num_samples: int, pad: Literal["full", "asteroid"] = "full") -> int:
        """The number of frames that `encode` makes after `padding_for`.

        Args:
            num_samples: Length of the waveform, T.
            pad: Kind of padding, see `padding_for`.
        """
        padded = num_samples + sum(self.padding_for(num_samples, pad)) + 2 * self.padding
        return (padded - self.kernel_size) // self.stride + 1

    def padding_for(self, num_samples: int, pad: Literal["full", "asteroid"] = "full") -> tuple[int, int]:
        """Return how many zeros to put on the left and on the right of samples before `encode`.

        Args:
            num_samples: T, at least 1.
            pad: "full": every sample lies in all synthesis filters that can hold it, also at both ends, so that
                overlap-add weights it as in the middle. "asteroid": nothing on the left, and on the right only what
                `multiple` and the kernel's length require.
        """
        if pad == "asteroid":
            # With much padding, the waveform of a single frame would be empty.
            single = self.kernel_size - 2 * self.padding
            more = max(0, math.ceil((1 - single - self.decoder.output_padding) / self.stride))
            left, padded = 0, max(num_samples, single + more * self.stride)
        else:
            left = self.kernel_size - self.stride - self.padding
            last_frame = math.ceil((num_samples + self.synthesis_size) / self.stride) - 2
            padded = last_frame * self.stride + self.kernel_size - 2 * self.padding
        padded = math.ceil(padded / self.multiple) * self.multiple
        return left, padded - left - num_samples


@register(FreeFilterbankConfig)
class FreeFilterbank(Filterbank):
    """Learned, bias-free analysis and synthesis filters (TasNet); the masker sees the encoding itself.

    Args: the fields of `FreeFilterbankConfig`, in order or by name, and
        values_per_dimension: P, raw values the encoder makes for each dimension.
    """

    def __init__(self, *first_fields: Any, values_per_dimension: int = 1, **fields: Any) -> None:
        config = FreeFilterbankConfig(*first_fields, **fields)
        size, stride, padding = config.kernel_size, config.stride, config.padding
        require(
            config,
            stride=(stride <= size, f"1 to kernel_size ({size})"),
            padding=(padding <= size - stride, f"0 to kernel_size - stride ({size - stride})"),
            output_padding=(config.output_padding < stride, f"0 to stride - 1 ({stride - 1})"),
        )
        super().__init__(
            Encoder(free_filters(config.num_filters * values_per_dimension, size), stride, padding),
            Decoder(
                free_filters(max(1, config.together) * config.num_filters, size, max(1, config.together)),
                stride,
                padding,
                config.output_padding,
            ),
            encoding_dim=config.num_filters,
            full_dim=config.num_filters,
            multiple=config.multiple,
        )
        self.mapping, self.together = config.mapping, config.together
        if config.init_range > 0:
            for bank in (self.encoder, self.decoder):
                nn.init.uniform_(bank.filters, -config.init_range, config.init_range)

    def decode(self, encoding: Tensor) -> Tensor:
        """Return waveforms, (B, n, T), as the base class; with `together` each of all n encodings (B, n, K, F)."""
        if not self.together:
            return super().decode(encoding)
        return nn.functional.pad(self.decode_frames(encoding), self.trim)

    def decode_frames(self, encoding: Tensor) -> Tensor:
        """Return waveforms with both ends untrimmed, as the base class; `encoding` is (B, n, K, F)."""
        if not self.together:
            return super().decode_frames(encoding)
        return nn.functional.conv_transpose1d(encoding.flatten(1, 2), self.decoder.filters, stride=self.stride)

    def features(self, encoding: Tensor) -> Tensor:
        """The encoding (B, K, F) itself."""
        return encoding

    def apply_mask(self, mask: Tensor, encoding: Tensor) -> Tensor:
        """Return mask * encoding, elementwise, (B, n, K, F); with `mapping` the mask itself.

        Args:
            mask: Mask, (B, n, K, F).
            encoding: Encoding of the mixture, (B, K, F).
        """
        return mask if self.mapping else mask * encoding.unsqueeze(-3)


def require(config: FilterbankConfig, **bounds: tuple[bool, str]) -> None:
    """Raise UserError for the first field of a filterbank's configuration that is out of bounds.

    Args:
        config: Configuration with the fields, which are first held against the bounds of their types.
        bounds: Bounds of fields by name: whether a value is allowed, and a description of allowed values.
    """
    check_bounds(config, "model.filterbank")
    for field, (holds, expected) in bounds.items():
        if not holds:
            raise UserError(f"model.filterbank.{field}: found {getattr(config, field)!r}, expected {expected}")
