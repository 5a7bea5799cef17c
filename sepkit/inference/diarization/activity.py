"""Speech activity of separated estimates: a network detects which of them are active."""

from functools import cache

import numpy as np

from sepkit.data.activity import FRAME_SECONDS
from sepkit.models.export.graph_file import Session, read_graph
from sepkit.models.published.shipped import encoder_folder
from sepkit.signals import mel_bands

SAMPLE_RATE = 8000
"""Hz, of the waveforms."""

BANDS = 40
"""Mel bands of each frame."""

ACTIVITY_GRAPH = "activity.onnx"
"""File beside the default speaker encoder's graph."""

_HOP, _WINDOW, _TRANSFORM, _LOWEST_HZ = round(FRAME_SECONDS * SAMPLE_RATE), 400, 512, 60.0


def log_mel(waveforms: np.ndarray) -> np.ndarray:
    """Return log mel powers (n, F, bands) of waveforms (n, T) at 8 kHz; windows of 50 ms, F = T // 160.

    Args:
        waveforms: (n, T).
    """
    before = (_WINDOW - _HOP) // 2
    padded = np.pad(waveforms, ((0, 0), (before, _WINDOW - before)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW, axis=1)[:, ::_HOP]
    spectra = np.fft.rfft(windows[:, : waveforms.shape[1] // _HOP] * np.hanning(_WINDOW + 1)[:-1], _TRANSFORM)
    power = np.square(np.abs(spectra)) @ mel_bands(_TRANSFORM, SAMPLE_RATE, BANDS, _LOWEST_HZ).T
    return np.log(power + 1e-10).astype(np.float32)


@cache
def _session() -> Session:
    path = encoder_folder(None) / ACTIVITY_GRAPH
    return Session(path, read_graph(path, "expected a graph that ships")[0])


def detect_activity(waveforms: np.ndarray, mean_square: float) -> np.ndarray:
    """Return the probability that each estimate is active, (k, T // 160), for frames of 20 ms.

    The network ships with the default speaker encoder. In its training, as many of two estimates were active as there
    were speakers, the strongest ones (`egs/speaker_clustering/local/activity.py`).

    Args:
        waveforms: k estimates at the level of the recording, and the recording, (k + 1, T), at 8 kHz; T // 160 is even.
        mean_square: Mean square of the recording up to here.
    """
    features = log_mel(waveforms / max(mean_square, 1e-20) ** 0.5)
    return _session().run({"features": features}, ["active"], waveforms.size, SAMPLE_RATE)[0]
