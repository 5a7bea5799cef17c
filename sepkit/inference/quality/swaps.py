"""Estimates that change speakers midway: the late voice of each is more like the early voice of another than its own.

A model that confuses speakers is as sure after the change as before it: neither levels nor the agreement of views tell.
"""

from __future__ import annotations

import numpy as np

from sepkit.data import audio
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.encoders import Encoder
from sepkit.inference.quality.single_speaker import FRAME_SECONDS, speech_frames
from sepkit.matching import linear_sum_assignment

LEAST_MARGIN = 0.05
"""By this much the mean cosine of swapped estimates has to be above that of the estimates as they are."""

_WINDOW_SECONDS = 0.8
_SPLITS = (0.3, 0.4, 0.5, 0.6, 0.7)


def changes_speakers(encoder: Encoder, estimates: np.ndarray, sample_rate: int) -> bool:
    """Return whether estimates (n, T) exchange speakers at one of five moments, if each is heard before and after it.

    Where a voice is heard before or after alone, nothing is known, and the answer is False.

    Args:
        encoder: hears windows of 0.8 s of the speech in each estimate, without its pauses.
        sample_rate: Hz, of the estimates.
    """
    voices = [_voices(encoder, estimate, sample_rate) for estimate in estimates]
    for split in _SPLITS:
        at = split * estimates.shape[1]
        halves = [(own[middles < at].sum(0), own[middles >= at].sum(0)) for own, middles in voices]
        # Samples far beyond full scale have no embedding.
        heard = [pair for pair in halves if all(side.any() and np.isfinite(side).all() for side in pair)]
        if len(heard) < 2:
            continue
        early, late = (unit_rows(np.array(side)) for side in zip(*heard, strict=True))
        cosines = early @ late.T
        rows, columns = linear_sum_assignment(cosines, maximize=True)
        if cosines[rows, columns].mean() - np.diagonal(cosines).mean() > LEAST_MARGIN:
            return True
    return False


def _voices(encoder: Encoder, estimate: np.ndarray, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings (N, D) of windows of the speech in an estimate (T,), and the samples of their middles (N,)."""
    frames, heard = speech_frames(estimate, sample_rate)
    places, length = np.flatnonzero(heard), round(_WINDOW_SECONDS / FRAME_SECONDS)
    count = len(places) // length
    if not count:
        return np.zeros((0, encoder.embedding_size)), np.zeros(0)
    windows = places[: count * length].reshape(count, length)
    waveforms = frames[windows].reshape(count, -1).astype(np.float32)
    embeddings = encoder.embed(audio.resample(waveforms, sample_rate, encoder.sample_rate))
    return embeddings.astype(np.float64), windows.mean(1) * frames.shape[1]
