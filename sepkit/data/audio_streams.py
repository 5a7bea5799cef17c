"""Resample recordings of any length block by block, in bounded memory.

The result does not depend on the blocks: it equals that of `sepkit.data.audio` on the whole recording.
"""

from __future__ import annotations

import numpy as np
import soxr

from sepkit.data.audio import resampled_length


class StreamResampler:
    """Resamples a signal that comes in blocks, with no delay left in the result.

    The output blocks, joined, are `sepkit.data.audio.resample(..., "soxr_hq")` of the joined input blocks.
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
