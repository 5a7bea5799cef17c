"""Plain spectra in place of speaker embeddings, to compare encoders with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sepkit.signals import mel_bands

BASELINES: tuple[str, ...] = ("mean_log_mel", "mean_mfcc")
_BANDS, _CEPSTRA = 40, 20
_FRAME_SECONDS, _HOP_SECONDS, _LOWEST_HZ = 0.032, 0.01, 60.0


def mean_spectra(kind: str, waveforms: Iterable[np.ndarray], sample_rate: int) -> np.ndarray:
    """Return standardized means over time of the log mel spectrum, or of mel cepstra, of each waveform (T,): (N, D)."""
    from scipy.fft import dct

    frame, hop = round(_FRAME_SECONDS * sample_rate), round(_HOP_SECONDS * sample_rate)
    bands = mel_bands(frame, sample_rate, _BANDS, _LOWEST_HZ)
    rows = []
    for waveform in waveforms:
        padded = np.pad(waveform, (0, max(0, frame - len(waveform)))).astype(np.float64)
        frames = np.lib.stride_tricks.sliding_window_view(padded, frame)[::hop] * np.hanning(frame)
        power = np.square(np.abs(np.fft.rfft(frames, axis=-1))) @ bands.T
        logs = np.log(power + 1e-6 * power.max() + 1e-20)
        rows.append(
            (np.asarray(dct(logs, axis=-1, norm="ortho"))[:, 1 : _CEPSTRA + 1] if kind == "mean_mfcc" else logs).mean(0)
        )
    return standardized(np.array(rows))


def standardized(values: np.ndarray) -> np.ndarray:
    """Return columns (N, D) with mean 0 and deviation 1 over the rows."""
    deviation = values.std(0)
    return (values - values.mean(0)) / np.where(deviation > 0, deviation, 1.0)
