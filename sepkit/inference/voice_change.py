"""Whether the voice of a recording changes: how alike its parts are for an encoder of voices.

Two people who take turns may come out of a model as one, in the same output. What the estimates tell of each other does
not show it, but the voice of the parts does. Every number is a mean over pairs of windows that share no sample, or the
largest of such means, so that it has one meaning for recordings of any length.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from sepkit.data import audio
from sepkit.inference.levels import Products, gains_of
from sepkit.inference.voices import unit_rows
from sepkit.models import load_checkpoint
from sepkit.models.published.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder

VOICE_FEATURES = ("voice_mean", "voice_change", "voice_across", "voice_within", "voice_halves", "voice_of_estimates")
"""Names of the features of `voice_change`."""

_WINDOW_SECONDS, _HOP_SECONDS, _SHORTEST_SECONDS = 0.75, 0.375, 0.25
_FRAME_SECONDS = 0.02
# Frames this far below the loud ones are pauses.
_PAUSE_DB, _LOUD_PERCENTILE = 30.0, 95
# A voice changes nowhere nearer to the ends.
_LEAST_SHARE = 0.15


@lru_cache(maxsize=1)
def default_encoder() -> SpeakerEncoder:
    """Return the encoder of voices that ships."""
    return load_checkpoint(encoder_folder(None), of=SpeakerEncoder).eval()


@torch.inference_mode()
def voice_change(
    encoder: SpeakerEncoder, products: Products, estimates: np.ndarray, sample_rate: int
) -> dict[str, float]:
    """Return numbers of a recording, cosines between embeddings of windows of its speech without the pauses.

    Its speech is the sum of all estimates that is nearest to the recording.

    * `voice_mean`: mean over all pairs of windows.
    * `voice_change`: how much more alike pairs on the same side of an instant are than pairs across it, for the instant
      where this is largest; instants near the ends count less.
    * `voice_across`, `voice_within`: means of the pairs across that instant, and on the same side of it.
    * `voice_halves`: between the mean directions of both halves.
    * `voice_of_estimates`: mean over all pairs of windows of an estimate, mean over the estimates.

    Args:
        encoder: of voices.
        products: of the recording and the estimates.
        estimates: (n, T).
        sample_rate: Hz.
    """
    speech = gains_of(products, "mixture", True, np.arange(len(estimates))) @ estimates
    embeddings = _embeddings(encoder, speech, sample_rate)
    likeness, apart = _pairs(embeddings)
    mean = _mean(likeness, apart)
    change, across, within = _largest_change(likeness, apart, mean)
    middle = len(embeddings) // 2
    halves = unit_rows(np.stack([embeddings[:middle].sum(0), embeddings[middle:].sum(0)]))
    of_estimates = [_mean(*_pairs(_embeddings(encoder, estimate, sample_rate))) for estimate in estimates]
    values = (mean, change, across, within, float(halves[0] @ halves[1]), float(np.mean(of_estimates)))
    return dict(zip(VOICE_FEATURES, values, strict=True))


def _embeddings(encoder: SpeakerEncoder, waveform: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return (N, D) unit vectors of half overlapping windows of a waveform (T,) without its pauses, N at least 2."""
    waveform = audio.resample(waveform.astype(np.float32), sample_rate, encoder.sample_rate)
    frame = round(_FRAME_SECONDS * encoder.sample_rate)
    count = len(waveform) // frame
    frames = waveform[: count * frame].reshape(count, frame)
    levels = 10 * np.log10(np.maximum(np.square(frames, dtype=np.float64).mean(-1), np.finfo(np.float64).tiny))
    speech = frames[levels > np.percentile(levels, _LOUD_PERCENTILE) - _PAUSE_DB].reshape(-1)
    window, hop = (round(seconds * encoder.sample_rate) for seconds in (_WINDOW_SECONDS, _HOP_SECONDS))
    if len(speech) < 2 * window:
        window = max(len(speech) // 2, round(_SHORTEST_SECONDS * encoder.sample_rate))
        hop = window // 2
    speech = np.pad(speech, (0, max(0, window + hop - len(speech))))
    windows = np.lib.stride_tricks.sliding_window_view(speech, window)[::hop]
    found = encoder(torch.from_numpy(np.ascontiguousarray(windows))).numpy()
    return unit_rows(found.astype(np.float64))


def _pairs(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, N) cosines between windows, and which pairs count: those without common samples, or all others."""
    numbers = np.arange(len(embeddings))
    distances = np.abs(numbers[:, None] - numbers)
    return embeddings @ embeddings.T, distances >= min(2, len(numbers) - 1)


def _mean(values: np.ndarray, counted: np.ndarray) -> float:
    return float((values * counted).sum() / counted.sum())


def _largest_change(likeness: np.ndarray, apart: np.ndarray, mean: float) -> tuple[float, float, float]:
    """Return the largest change of the voice, and the mean likeness of pairs across it and on the same side of it."""
    count = len(likeness)
    least = max(1, round(_LEAST_SHARE * count))
    changes = []
    for number in range(least, count - least + 1):
        first = np.arange(count) < number
        crossing = apart & (first[:, None] != first)
        inside = apart & ~crossing
        across = _mean(likeness, crossing)
        within = _mean(likeness, inside) if inside.any() else mean
        share = number / count
        changes.append(((within - across) * math.sqrt(4 * share * (1 - share)), across, within))
    return max(changes)
