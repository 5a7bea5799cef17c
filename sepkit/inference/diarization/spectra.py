"""Spectra in NumPy: inputs of other toolkits' speaker encoders, and plain spectra as baselines."""

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from sepkit.signals import mel_bands, triangular_bands

FRONTEND_RATE = 16000
"""Hz, of speech that spectra are made of."""

_FRAME, _HOP = 400, 160
_EMPHASIS, _LOWEST_HZ, _FBANK_SIZE = 0.97, 20.0, 512
_QUIET_DBFS = -30.0

BASELINES: tuple[str, ...] = ("mean_log_mel", "mean_mfcc")
"""Plain spectra in place of speaker embeddings."""

_BANDS, _CEPSTRA = 40, 20
_FRAME_SECONDS, _HOP_SECONDS, _BASELINE_LOWEST_HZ = 0.032, 0.01, 60.0


def fbank(waveform: np.ndarray) -> np.ndarray:
    """Return log energies of 80 mel bands (F, 80) minus their mean over time, as Kaldi computes them without dither.

    Args:
        waveform: (T,) at 16 kHz, between -1 and 1.

    Source: Kaldi, compute-fbank-feats, with Hamming windows, as WeSpeaker uses it.
    """
    samples = np.pad(np.asarray(waveform, np.float64), (0, max(0, _FRAME - len(waveform)))) * 2**15
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[::_HOP]
    frames = frames - frames.mean(-1, keepdims=True)
    frames = frames - _EMPHASIS * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    power = np.square(np.abs(np.fft.rfft(frames * np.hamming(_FRAME), _FBANK_SIZE)))
    weights = mel_bands(_FBANK_SIZE, FRONTEND_RATE, 80, _LOWEST_HZ, FRONTEND_RATE / 2, nearest_weight=0)
    logs = np.log(np.maximum(power @ weights.T, np.finfo(np.float32).eps))
    return (logs - logs.mean(0)).astype(np.float32)


def mel(waveform: np.ndarray) -> np.ndarray:
    """Return powers of 40 mel bands (F, 40) of a waveform that is raised to -30 dB of full scale if it is quieter.

    Args:
        waveform: (T,) at 16 kHz, between -1 and 1.

    Source: librosa, melspectrogram, the input of Resemblyzer.
    """
    samples = np.asarray(waveform, np.float64)
    level = 10 * np.log10(max(float(np.square(samples).mean()), 1e-20))
    samples = np.pad(samples * 10 ** (max(0.0, _QUIET_DBFS - level) / 20), _FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[::_HOP]
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(_FRAME + 1)[:-1])))
    return (power @ _slaney_bands(40).T).astype(np.float32)


FRONTENDS: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {"fbank": (80, fbank), "mel": (40, mel)}
"""Features -> number of bands, and the function that computes them."""


@lru_cache(maxsize=2)
def _slaney_bands(bands: int) -> np.ndarray:
    """Return (bands, K) triangles of equal area on Slaney's scale, linear below 1 kHz and logarithmic above."""
    steps = np.linspace(0, 15 + np.log(FRONTEND_RATE / 2000) / (np.log(6.4) / 27), bands + 2)
    edges = np.where(steps < 15, steps * 200 / 3, 1000 * np.exp((steps - 15) * np.log(6.4) / 27))
    return triangular_bands(edges, np.fft.rfftfreq(_FRAME, 1 / FRONTEND_RATE)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def mean_spectra(kind: str, waveforms: Iterable[np.ndarray], sample_rate: int) -> np.ndarray:
    """Return standardized means over time of the log mel spectrum, or of mel cepstra, of each waveform, (N, D).

    Args:
        kind: Name in `BASELINES`.
        waveforms: Waveforms, (T,) each.
        sample_rate: Sample rate, Hz.
    """
    frame, hop = round(_FRAME_SECONDS * sample_rate), round(_HOP_SECONDS * sample_rate)
    bands = mel_bands(frame, sample_rate, _BANDS, _BASELINE_LOWEST_HZ)
    cosines = cosine_transform(_BANDS, _CEPSTRA)
    rows = []
    for waveform in waveforms:
        padded = np.pad(waveform, (0, max(0, frame - len(waveform)))).astype(np.float64)
        frames = np.lib.stride_tricks.sliding_window_view(padded, frame)[::hop] * np.hanning(frame)
        power = np.square(np.abs(np.fft.rfft(frames, axis=-1))) @ bands.T
        logs = np.log(power + 1e-6 * power.max() + 1e-20).mean(0)
        rows.append(cosines @ logs if kind == "mean_mfcc" else logs)
    return standardized(np.array(rows))


def cosine_transform(bands: int, orders: int) -> np.ndarray:
    """Return the rows (orders, bands) of the cosine transform (DCT-II) without the first, which is the level.

    >>> cosine_transform(2, 1).round(3)
    array([[ 0.707, -0.707]])

    Args:
        bands: Number of bands.
        orders: Number of cepstra.
    """
    return np.cos(np.pi * np.arange(1, orders + 1)[:, None] * (np.arange(bands) + 0.5) / bands)


def standardized(values: np.ndarray) -> np.ndarray:
    """Return columns with mean 0 and deviation 1 over the rows; a column of equal values is 0.

    Args:
        values: Rows, (N, D).
    """
    deviation = values.std(0)
    return (values - values.mean(0)) / np.where(deviation > 0, deviation, 1.0)
