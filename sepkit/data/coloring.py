"""Random coloring of sound over frequency, as microphones and rooms color it."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_COSINES = 4


def color(size: int, deviation_nepers: float, generator: np.random.Generator) -> np.ndarray:
    """Return (size // 2 + 1,) float32 gains over frequency: a smooth tilt, exp of a sum of four cosines of this
    deviation."""
    weights = (deviation_nepers * generator.standard_normal(_COSINES)).astype(np.float32)
    return np.exp(weights @ _cosines(size))


def colored(waveform: np.ndarray, deviation_db: float, generator: np.random.Generator) -> np.ndarray:
    """Return a waveform (T,) through a random coloring, float32, with the energy that it had."""
    from scipy.fft import irfft, next_fast_len, rfft

    size = int(next_fast_len(2 * len(waveform), real=True) or 0)
    gains = color(size, deviation_db * math.log(10) / 20, generator)
    result = np.asarray(irfft(np.asarray(rfft(waveform, size)) * gains, size))[: len(waveform)]
    energy = float(np.square(result, dtype=np.float64).sum())
    if energy == 0:
        return waveform
    ratio = float(np.square(waveform, dtype=np.float64).sum()) / energy
    return (result * np.sqrt(ratio)).astype(np.float32)


@lru_cache(maxsize=8)
def _cosines(size: int) -> np.ndarray:
    frequencies = np.linspace(0, np.pi, size // 2 + 1)
    return np.cos(np.outer(np.arange(1, _COSINES + 1), frequencies)).astype(np.float32)
