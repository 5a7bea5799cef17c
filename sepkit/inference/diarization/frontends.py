"""Spectra that speaker encoders of other toolkits hear, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from sepkit.signals import mel_bands, triangular_bands

FRONTEND_RATE = 16000
"""Hz, of speech that spectra are made of."""

_FRAME, _HOP = 400, 160
_EMPHASIS, _LOWEST_HZ, _FBANK_SIZE = 0.97, 20.0, 512
_QUIET_DBFS = -30.0


def fbank(waveform: np.ndarray, bands: int = 80) -> np.ndarray:
    """Return log energies of mel bands (F, bands) minus their mean over time, as Kaldi computes them without dither.

    Args:
        waveform: (T,) at 16 kHz, between -1 and 1.

    Source: Kaldi, compute-fbank-feats, with Hamming windows, as WeSpeaker uses it.
    """
    samples = np.pad(np.asarray(waveform, np.float64), (0, max(0, _FRAME - len(waveform)))) * 2**15
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[::_HOP]
    frames = frames - frames.mean(-1, keepdims=True)
    frames = frames - _EMPHASIS * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    power = np.square(np.abs(np.fft.rfft(frames * np.hamming(_FRAME), _FBANK_SIZE)))
    logs = np.log(
        np.maximum(
            power @ mel_bands(_FBANK_SIZE, FRONTEND_RATE, bands, _LOWEST_HZ, FRONTEND_RATE / 2, nearest_weight=0).T,
            np.finfo(np.float32).eps,
        )
    )
    return (logs - logs.mean(0)).astype(np.float32)


def mel(waveform: np.ndarray, bands: int = 40) -> np.ndarray:
    """Return powers of mel bands (F, bands) of a waveform that is raised to -30 dB of full scale if it is quieter.

    Args:
        waveform: (T,) at 16 kHz, between -1 and 1.

    Source: librosa, melspectrogram, which Resemblyzer hears.
    """
    samples = np.asarray(waveform, np.float64)
    level = 10 * np.log10(max(float(np.square(samples).mean()), 1e-20))
    samples = np.pad(samples * 10 ** (max(0.0, _QUIET_DBFS - level) / 20), _FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[::_HOP]
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(_FRAME + 1)[:-1])))
    return (power @ _slaney_bands(bands).T).astype(np.float32)


FRONTENDS: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {"fbank": (80, fbank), "mel": (40, mel)}
"""Features -> number of bands, and the function that computes them."""


@lru_cache(maxsize=2)
def _slaney_bands(bands: int) -> np.ndarray:
    """Return (bands, K) triangles of equal area on Slaney's scale, linear below 1 kHz and logarithmic above."""
    steps = np.linspace(0, 15 + np.log(FRONTEND_RATE / 2000) / (np.log(6.4) / 27), bands + 2)
    edges = np.where(steps < 15, steps * 200 / 3, 1000 * np.exp((steps - 15) * np.log(6.4) / 27))
    weights = triangular_bands(edges, np.fft.rfftfreq(_FRAME, 1 / FRONTEND_RATE))
    return weights * (2 / (edges[2:] - edges[:-2]))[:, None]
