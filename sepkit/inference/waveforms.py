"""Read recordings given as arrays, tensors, files or bytes, and return arrays in the same form."""

import io
import numbers
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.limits import CHANNELS, SAMPLE_RATES

if TYPE_CHECKING:
    from torch import Tensor

    Named = bytes | BinaryIO | str | os.PathLike[str]
    AnyRecording = np.ndarray | Tensor | Named


def read_waveform(waveform: Any, sample_rate: float | None, channel: int | None) -> tuple[np.ndarray, int]:
    """Return (T,) float32 samples of one channel and their rate, Hz.

    If the channels cancel in their mean, the loudest is taken, and a warning says so.

    Args:
        waveform: (T,) or (C, T) samples; or an audio file: its path, its bytes, or the file opened for reading.
        sample_rate: Hz, of samples; None for a file, which has its own.
        channel: Channel, from 0; None: the mean of all.

    Raises:
        UserError: samples without a rate, a file with one, no such channel, or see `to_mono`.
    """
    name = "waveform"
    is_path = isinstance(waveform, str | os.PathLike)
    if is_path or isinstance(waveform, bytes) or hasattr(waveform, "read"):
        if sample_rate is not None:
            raise UserError(f"sample_rate: found {sample_rate}, but an audio file states its own; leave it out")
        name = os.fspath(waveform) if is_path else "bytes"
        waveform, sample_rate = audio.decode(waveform if is_path else io.BytesIO(_content(waveform)))
    _check_is_one(waveform)
    if sample_rate is None:
        raise UserError("sample_rate: nothing given, expected that of the waveform in Hz")
    rate = checked_rate(sample_rate)
    if channel is not None:
        waveform = waveform if is_tensor(waveform) else np.asarray(waveform)
        channels = waveform.shape[0] if waveform.ndim == 2 else 1
        if not 0 <= channel < channels:
            raise UserError(f"channel: found {channel}, but {name} has {channels}, numbered from 0")
        waveform = waveform[channel] if waveform.ndim == 2 else waveform
    mono = to_mono(waveform, name)
    if getattr(waveform, "ndim", 1) == 2:
        columns = np.stack([to_mono(row, name) for row in waveform], axis=1)
        if (loudest := audio.loudest_if_cancelled([columns])) is not None:
            warnings.warn(f"{name}: {audio.cancelled_note(loudest)}", stacklevel=3)
            mono = columns[:, loudest]
    if not mono.size:
        raise UserError("waveform: found no samples, expected at least one")
    if not np.isfinite(mono).all():
        raise UserError(f"{name}: found NaN or infinite samples, expected finite numbers; repair the recording")
    return mono, rate


def _content(file: Any) -> bytes:
    content = file if isinstance(file, bytes) else file.read()
    if not isinstance(content, bytes):
        raise UserError("waveform: found a file opened as text, expected bytes; open it with mode 'rb'")
    return content


def _check_is_one(waveform: Any) -> None:
    """Raise UserError if several recordings are given: arrays in a list would be taken for channels of one."""
    found = ""
    if isinstance(waveform, list | tuple) and not all(isinstance(value, numbers.Real) for value in waveform):
        found = f"a {type(waveform).__name__} of {len(waveform)}"
    elif getattr(waveform, "ndim", 0) > 2:
        found = f"shape {tuple(np.shape(waveform))}"
    if found:
        raise UserError(
            f"waveform: found {found}, expected one recording, (samples,) or (channels, samples); use separate_many "
            "for several"
        )


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch, which need not be there."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_given(values: np.ndarray) -> Any:
    """Return an array as a CPU tensor, for a caller who gave a tensor."""
    import torch

    return torch.as_tensor(values)


def to_mono(waveform: Any, name: str) -> np.ndarray:
    """Return (T,) float32: the waveform, or the mean of its channels; samples may be infinite or NaN.

    Raises:
        UserError: samples that are not floating-point numbers, or a shape other than (T,) or (C, T).
    """
    if is_tensor(waveform):
        # Half-precision tensors have no numpy type of their own.
        waveform = (waveform.float() if waveform.is_floating_point() else waveform).detach().cpu().numpy()
    samples = np.asarray(waveform)
    if not np.issubdtype(samples.dtype, np.floating):
        raise UserError(
            f"{name}: found {samples.dtype} samples, expected floating point, full scale 1.0 (int16: divide by 32768)"
        )
    if samples.ndim not in (1, 2) or (samples.ndim == 2 and not 1 <= samples.shape[0] <= CHANNELS):
        raise UserError(
            f"{name}: found shape {samples.shape}, expected (samples,) or (channels, samples); transpose it?"
        )
    return np.ascontiguousarray(samples if samples.ndim == 1 else samples.mean(axis=0), dtype=np.float32)


def checked_rate(sample_rate: float) -> int:
    """Return a rate as an int.

    Raises:
        UserError: not a whole number of Hz, or beyond `SAMPLE_RATES`.
    """
    least, most = SAMPLE_RATES
    is_number = isinstance(sample_rate, numbers.Real) and not isinstance(sample_rate, bool)
    if not is_number or not least <= sample_rate <= most or int(sample_rate) != sample_rate:
        raise UserError(f"sample_rate: found {sample_rate!r}, expected a whole number of Hz from {least} to {most}")
    return int(sample_rate)


def fit_length(waveforms: np.ndarray, num_samples: int) -> np.ndarray:
    """Return waveforms (n, T) cut, or filled with zeros, to a length that resampling changed by a few samples."""
    missing = num_samples - waveforms.shape[-1]
    return np.pad(waveforms, ((0, 0), (0, missing))) if missing > 0 else waveforms[:, :num_samples]


class BlockReader:
    """Reads blocks of any length from blocks (t,) of other lengths."""

    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self._blocks, self._held = blocks, np.zeros(0, np.float32)

    def take(self, count: int) -> np.ndarray:
        """Return the next samples, (count,)."""
        while len(self._held) < count:
            self._held = np.concatenate([self._held, next(self._blocks)])
        taken, self._held = self._held[:count], self._held[count:]
        return taken
