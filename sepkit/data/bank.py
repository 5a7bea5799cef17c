"""Decoded and resampled recordings in memory, for training sets that are mixed anew in every epoch."""

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sepkit.errors import UserError

_GIB = 2**30
_FULL_SCALE = 32767


class WaveformBank:
    """Waveforms of given lengths in 16 bits, each scaled by its own peak, loaded when first asked for.

    Forked workers share the memory: each uses what any other has loaded, and two that load the same waveform at once
    write the same samples. Workers that are started anew have a bank each.
    """

    def __init__(self, lengths: Sequence[int], limit_gib: float) -> None:
        self._offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
        needed = 2 * int(self._offsets[-1]) / _GIB
        if needed > limit_gib:
            raise UserError(
                f"data.dynamic_mixing.bank_gib: found {limit_gib:g}, but the recordings take {needed:.1f} GiB at all "
                "speeds; raise it, lower bank_speeds, or set it to 0 to read files"
            )
        there = _memory_gib()
        if there is not None and needed > there:
            raise UserError(
                f"data.dynamic_mixing.bank_gib: the recordings take {needed:.1f} GiB at all speeds, but this machine "
                f"has {there:.1f} GiB; lower bank_speeds, or set it to 0 to read files"
            )
        self._allocate()

    def _allocate(self) -> None:
        # Forked workers share anonymous memory, and it is only taken when written to.
        count = len(self._offsets) - 1
        self._samples = np.frombuffer(mmap.mmap(-1, max(2, 2 * int(self._offsets[-1]))), np.int16)
        self._scales = np.frombuffer(mmap.mmap(-1, 4 * max(1, count)), np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return {"_offsets": self._offsets}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._offsets = state["_offsets"]
        self._allocate()

    def read(self, item: int, start: int, count: int, load: Callable[[], np.ndarray]) -> np.ndarray:
        """Return samples `start` to `start + count` of waveform number `item`, float32; `load` returns all of it if
        need be."""
        begin, end = self._offsets[item], self._offsets[item + 1]
        if self._scales[item] == 0:
            waveform = load()
            scale = np.float32(max(float(np.abs(waveform).max(initial=0.0)), 1e-9) / _FULL_SCALE)
            self._samples[begin:end] = np.rint(waveform / scale)
            self._scales[item] = scale
        return self._samples[begin + start : begin + start + count] * self._scales[item]


def _memory_gib() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    except (AttributeError, ValueError, OSError):
        return None
