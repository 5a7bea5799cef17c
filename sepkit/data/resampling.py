"""Change sample rates: of whole recordings, and of recordings of any length block by block, in bounded memory.

The results of `StreamResampler` and `PolyphaseStream` do not depend on the blocks: they equal that of `resample` on the
whole recording. soxr takes 80 to 180 ms to answer, because its filters work on long blocks; `PolyphaseStream` has a
delay of ten samples of the slower rate.
"""

from functools import lru_cache
from math import gcd
from typing import Literal, get_args

import numpy as np
import soxr

from sepkit.errors import UserError

Resampler = Literal["soxr_hq", "scipy_poly"]
RESAMPLERS: tuple[str, ...] = get_args(Resampler)

# Outputs computed at a time, which bounds the memory of a long block.
_OUTPUTS_AT_ONCE = 8192


def resample(waveform: np.ndarray, from_rate: int, to_rate: int, resampler: str = "soxr_hq") -> np.ndarray:
    """Return a waveform at another rate, of the same dtype and `resampled_length` samples.

    Args:
        waveform: Samples, (..., T).
        from_rate: Sampling rate of the samples, Hz.
        to_rate: Sampling rate of the result, Hz.
        resampler: "soxr_hq" (linear phase, pass band to 91 % of the lower Nyquist frequency) or "scipy_poly"
            (`scipy.signal.resample_poly` with its Kaiser window, as in the LibriMix and WSJ0-mix scripts).
    """
    length = resampled_length(waveform.shape[-1], from_rate, to_rate, resampler)
    if from_rate == to_rate:
        return waveform
    if length == 0:
        return np.zeros((*waveform.shape[:-1], 0), dtype=waveform.dtype)
    if resampler == "scipy_poly":
        from scipy.signal import resample_poly

        taps = _poly_filter(to_rate, from_rate, waveform.dtype.name)
        return resample_poly(waveform, to_rate, from_rate, axis=-1, window=taps).astype(waveform.dtype, copy=False)
    rows = [_resample_row(row, from_rate, to_rate, length) for row in waveform.reshape(-1, waveform.shape[-1])]
    return np.stack(rows).reshape(*waveform.shape[:-1], length)


def _resample_row(row: np.ndarray, from_rate: int, to_rate: int, length: int) -> np.ndarray:
    resampled = soxr.resample(row, from_rate, to_rate, quality="HQ")
    if len(resampled) < length:
        # Where the length falls between two samples, soxr's own arithmetic may round it down.
        resampled = soxr.resample(np.pad(row, (0, 1)), from_rate, to_rate, quality="HQ")
    return resampled[:length]


def resampled_length(num_samples: int, from_rate: int, to_rate: int, resampler: str = "soxr_hq") -> int:
    """Return the length after `resample`: rounded half up for "soxr_hq", up for "scipy_poly".

    Args:
        num_samples: Length before, samples.
        from_rate: Sampling rate before, Hz.
        to_rate: Sampling rate after, Hz.
        resampler: "soxr_hq" or "scipy_poly".

    >>> resampled_length(3, 16000, 8000), resampled_length(5, 16000, 8000), resampled_length(5, 48000, 8000)
    (2, 3, 1)

    Raises:
        UserError: An unknown resampler.
    """
    if resampler not in RESAMPLERS:
        raise UserError(f"resampler: found {resampler!r}, expected one of {', '.join(RESAMPLERS)}")
    if resampler == "scipy_poly":
        return -(-num_samples * to_rate // from_rate)
    return (2 * num_samples * to_rate + from_rate) // (2 * from_rate)


@lru_cache(maxsize=64)
def _poly_filter(to_rate: int, from_rate: int, dtype: str) -> np.ndarray:
    """Return the filter of `scipy.signal.resample_poly`, which would design it in every call, a fifth of its time."""
    max_rate = max(to_rate, from_rate) // gcd(to_rate, from_rate)
    taps = np.sinc(np.arange(-10 * max_rate, 10 * max_rate + 1) / max_rate) * np.kaiser(20 * max_rate + 1, 5.0)
    return (taps / taps.sum()).astype(dtype)


class StreamResampler:
    """Resamples a signal that comes in blocks, with no delay left in the result.

    The output blocks, joined, are `resample(..., "soxr_hq")` of the joined input blocks.
    """

    def __init__(self, from_rate: int, to_rate: int, channels: int = 1) -> None:
        self._rates = (from_rate, to_rate)
        self._channels = channels
        self._stream = (
            None if from_rate == to_rate else soxr.ResampleStream(from_rate, to_rate, channels, "float32", "HQ")
        )
        self._taken = self._given = 0

    def push(self, block: np.ndarray) -> np.ndarray:
        """Take the next samples (C, T) float32, T >= 0; return the outputs (C, t) that are ready, often none at
        first."""
        self._taken += block.shape[-1]
        return self._pass(block, last=False)

    def finish(self) -> np.ndarray:
        """Return the remaining outputs (C, t), so that all together are `resampled_length`; nothing may follow."""
        rest = self._pass(np.zeros((self._channels, 0), np.float32), last=True)
        missing = resampled_length(self._taken, *self._rates) - self._given
        return np.pad(rest, ((0, 0), (0, missing))) if missing > 0 else rest[:, : rest.shape[-1] + missing]

    def _pass(self, block: np.ndarray, last: bool) -> np.ndarray:
        if self._stream is None:
            self._given += block.shape[-1]
            return np.asarray(block, np.float32)
        if not last and block.shape[-1] == 0:
            return np.zeros((self._channels, 0), np.float32)
        columns = np.ascontiguousarray(block.T, np.float32)
        # For one channel soxr takes and returns (T,).
        resampled = self._stream.resample_chunk(columns if self._channels > 1 else columns[:, 0], last=last)
        resampled = resampled.reshape(-1, self._channels).T
        self._given += resampled.shape[-1]
        return resampled


class PolyphaseStream:
    """Resamples signals block by block, with the result of `resample(signal, ..., "scipy_poly")`.

    Every output is returned as soon as the last input that its filter reaches is known, at most `delay_seconds` after
    the output's own time.
    """

    def __init__(self, from_rate: int, to_rate: int, channels: int = 1) -> None:
        self.from_rate, self.to_rate = from_rate, to_rate
        divisor = gcd(from_rate, to_rate)
        self._up, self._down = to_rate // divisor, from_rate // divisor
        # Input k lies at k * up and output m at m * down, on a grid at the rate that both rates divide.
        if from_rate == to_rate:
            taps = np.ones(1, np.float32)
        else:
            taps = _poly_filter(to_rate, from_rate, "float32") * self._up
        self._half = (len(taps) - 1) // 2
        self.delay_seconds = self._half / (self._up * from_rate)
        reach = -(-len(taps) // self._up)
        # Row r: weights of the inputs, oldest first, for an output r grid points behind its newest input.
        padded = np.pad(taps, (0, reach * self._up - len(taps)))
        self._weights = np.ascontiguousarray(padded.reshape(reach, self._up)[::-1].T)
        self._reach = reach
        # Zeros precede the first input; `_first` is the number of the first input held.
        self._held = np.zeros((channels, reach - 1), np.float32)
        self._first = 1 - reach
        self._pushed = 0
        self._returned = 0

    def push(self, block: np.ndarray) -> np.ndarray:
        """Take the next inputs (C, T) float32, T >= 0; return the next outputs (C, T') that are final."""
        self._pushed += block.shape[-1]
        # The newest input of output m is (m * down + half) // up.
        ready = (self._pushed * self._up - self._half - 1) // self._down + 1
        return self._outputs(block, ready)

    def finish(self) -> np.ndarray:
        """End the signal, followed by zeros; return the missing outputs, (C, T')."""
        total = resampled_length(self._pushed, self.from_rate, self.to_rate, "scipy_poly")
        newest = ((total - 1) * self._down + self._half) // self._up
        return self._outputs(np.zeros((len(self._held), max(0, newest + 1 - self._pushed)), np.float32), total)

    def _outputs(self, block: np.ndarray, stop: int) -> np.ndarray:
        held = np.concatenate([self._held, block], axis=-1)
        parts = [held[:, :0]]
        for start in range(self._returned, stop, _OUTPUTS_AT_ONCE):
            position = np.arange(start, min(stop, start + _OUTPUTS_AT_ONCE)) * self._down + self._half
            oldest = position // self._up - self._reach + 1 - self._first
            windows = np.lib.stride_tricks.sliding_window_view(held, self._reach, axis=-1)[:, oldest]
            parts.append(np.einsum("cmk,mk->cm", windows, self._weights[position % self._up]))
        self._returned = max(self._returned, stop)
        needed = (self._returned * self._down + self._half) // self._up - self._reach + 1
        dropped = min(max(0, needed - self._first), held.shape[-1])
        self._held, self._first = held[:, dropped:], self._first + dropped
        return np.concatenate(parts, axis=-1)
