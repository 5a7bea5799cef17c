"""Change sample rates block by block, with a delay of ten samples of the slower rate.

soxr, which resamples whole recordings here, takes 80 to 180 ms to answer, because its filters work on long blocks.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from sepkit.data.audio import _poly_filter, resampled_length

# Outputs computed at a time, which bounds the memory of a long block.
_OUTPUTS_AT_ONCE = 8192


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
        missing = max(0, newest + 1 - self._pushed)
        return self._outputs(np.zeros((len(self._held), missing), np.float32), total)

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
