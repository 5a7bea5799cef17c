"""Triangular mel bands."""

from __future__ import annotations

import numpy as np


def mel_bands(frame: int, sample_rate: int, bands: int, lowest_hz: float) -> np.ndarray:
    """Return (bands, frame // 2 + 1) weights of the bins of a spectrum, triangles between `lowest_hz` and 95 % Nyquist.

    Args:
        frame: samples of the Fourier transform.
        lowest_hz: where the first band begins.
    """

    def mel(hz: np.ndarray) -> np.ndarray:
        return 2595 * np.log10(1 + hz / 700)

    edges = np.linspace(mel(np.array(lowest_hz)), mel(np.array(0.475 * sample_rate)), bands + 2)
    bins = mel(np.fft.rfftfreq(frame, 1 / sample_rate))
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    weights = np.clip(np.minimum(rising, falling), 0, None)
    # Narrow bands may lie between two bins.
    weights[np.arange(bands), np.abs(bins - edges[1:-1, None]).argmin(-1)] += 1e-3
    return weights
