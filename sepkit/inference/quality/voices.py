"""Features of a separation from a speaker encoder: the number of voices, and whether estimates swap speakers."""

from functools import lru_cache

import numpy as np

from sepkit.data import audio
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.encoders import Encoder, load_encoder
from sepkit.inference.quality.features import levels_db, likeness_db
from sepkit.inference.selection import Products, gains_of
from sepkit.matching import linear_sum_assignment
from sepkit.models.published.shipped import ENCODERS, PREDICTION_ENCODER
from sepkit.signals import active_frames, frame_powers

SAME_VOICE = 0.75
"""Estimates whose voices are this much alike, by `outputs_between`, hold parts of one voice, not voice and noise."""

LEAST_MARGIN = 0.05
"""By this much the mean cosine of swapped estimates has to be above that of the estimates as they are."""

# Frames that are speech or a pause.
_FRAME_SECONDS = 0.02
# Fewer windows do not show how a voice changes: 3 s of speech.
_LEAST_WINDOWS = 3
# Frames this far below the loud ones are pauses.
_PAUSE_DB, _LOUD_PERCENTILE = 30.0, 95
# Two speakers of whom one speaks for at least 5 % of the time make this share of unlike pairs.
_UNLIKE_PERCENTILE = 10
# Between an output and one without speech.
_UNKNOWN_COSINE = 0.5
# Larger level differences, dB, count as this one: the weaker output is empty, for one speaker or two who take turns.
_MOST_RANGE_DB = 20.0

# A window belongs to the estimate that has this share of its energy.
_OWN_SHARE = 0.8
# Longer recordings are listened to in excerpts: as many seconds in all, of as many each.
_MOST_SECONDS, _EXCERPT_SECONDS = 180.0, 10.0
# Windows that go through the encoder at once.
_AT_ONCE = 64
# Where estimates may exchange speakers: length and hop of windows, seconds, and moments.
_SWAP_WINDOWS, _SPLITS = (0.8, 0.8), (0.3, 0.4, 0.5, 0.6, 0.7)


@lru_cache(maxsize=1)
def prediction_encoder() -> Encoder:
    """Return the speaker encoder with which the rules of the shipped models were fitted."""
    return load_encoder(ENCODERS / PREDICTION_ENCODER)


def evidence_spans(num_samples: int, sample_rate: int) -> list[tuple[int, int]]:
    """Return beginnings and ends of what is listened to of a recording: all, or evenly spaced excerpts of 3 min."""
    most, length = round(_MOST_SECONDS * sample_rate), round(_EXCERPT_SECONDS * sample_rate)
    if num_samples <= most:
        return [(0, num_samples)]
    starts = np.linspace(0, num_samples - length, round(_MOST_SECONDS / _EXCERPT_SECONDS)).round().astype(int)
    return [(start, start + length) for start in starts.tolist()]


def speaker_evidence(encoder: Encoder, products: Products, estimates: np.ndarray, sample_rate: int) -> dict[str, float]:
    """Return features that distinguish one speaker from several; none for less than 3 s of speech, or for one estimate.

    Of the whole recording, by products of its estimates:

    * `levels_range`: between the strongest and the weakest estimate, dB, at most 20.
    * `projections_range`: the same of the mixture's projections on them.
    * `correlation_db`: SI-SDR of an estimate to the one it is most like, mean.

    Of windows of 1.5 s of its speech without pauses, which is the sum of all estimates nearest to the recording:

    * `voice_least`: the cosine between embeddings that the 10 % most unlike pairs of windows are below.
    * `outputs_between`: cosine between the mean embeddings of the speech of either of two estimates by itself, the
      least of all pairs.
    * `loudest_least`: as `voice_least`, of the speech of the strongest estimate by itself.
    * `voice_between`: cosine between the mean embeddings of the windows that belong to either of two estimates, the
      least of all pairs of estimates; the mean cosine of all windows where all belong to one.

    Args:
        encoder: Speaker encoder.
        products: Inner products of the estimates and the mixture of the whole recording.
        estimates: Estimates (n, T), or excerpts of them one after the other.
        sample_rate: Sample rate of the estimates, Hz.
    """
    gram, energies = products.gram, np.maximum(np.diagonal(products.gram), np.finfo(np.float64).tiny)
    if len(estimates) < 2 or not gram.any():
        return {}
    gains = gains_of(products, "mixture", True, np.arange(len(estimates)))
    frames, heard = speech_frames(np.einsum("n,nt->t", gains, estimates), sample_rate)
    embeddings = _voices(encoder, frames[heard], sample_rate)
    if len(embeddings) < _LEAST_WINDOWS:
        return {}
    own = estimates[:, : frames.size].reshape(len(estimates), *frames.shape)[:, heard]
    totals = _windows(np.square(own, dtype=np.float64).sum(-1).T).sum(1)
    shares = totals / np.maximum(totals.sum(-1, keepdims=True), np.finfo(np.float64).tiny)
    cosines = _cosines(embeddings)
    speech = [frames[heard] for frames, heard in (speech_frames(one, sample_rate) for one in estimates)]
    outputs = [_voices(encoder, frames, sample_rate) for frames in speech]
    means = unit_rows(np.array([own.mean(0) for own in outputs if len(own)] or [embeddings.mean(0)]))
    loudest = _cosines(outputs[int(np.argmax(energies))])
    centers = [embeddings[share > _OWN_SHARE].sum(0) for share in shares.T if (share > _OWN_SHARE).any()]
    among = unit_rows(np.array(centers)) if len(centers) > 1 else None
    return {
        "levels_range": min(_MOST_RANGE_DB, float(np.ptp(levels_db(energies)))),
        "projections_range": float(np.ptp(levels_db(np.square(products.cross) / energies))),
        "correlation_db": float(likeness_db(gram).mean()),
        "voice_least": float(np.percentile(cosines, _UNLIKE_PERCENTILE)),
        "voice_between": float(cosines.mean() if among is None else (among @ among.T).min()),
        "outputs_between": float((means @ means.T).min()) if len(means) > 1 else _UNKNOWN_COSINE,
        "loudest_least": float(np.percentile(loudest if len(loudest) else cosines, _UNLIKE_PERCENTILE)),
    }


def changes_speakers(encoder: Encoder, estimates: np.ndarray, sample_rate: int) -> bool:
    """Return whether estimates swap speakers at one of five moments: each is active before and after it.

    The late voice of each is then more like the early voice of another than its own. A model that confuses speakers is
    as sure after the change as before it: neither levels nor the agreement of views show it. If a voice is
    active only before or only after it, the answer is False.

    Args:
        encoder: Speaker encoder, for windows of 0.8 s of the speech in each estimate, without its pauses.
        estimates: Estimates (n, T).
        sample_rate: Sample rate of the estimates, Hz.
    """
    voices = []
    for estimate in estimates:
        frames, heard = speech_frames(estimate, sample_rate)
        middles = _windows(np.flatnonzero(heard)[:, None], *_SWAP_WINDOWS).mean((1, 2)) * frames.shape[1]
        voices.append((_voices(encoder, frames[heard], sample_rate, *_SWAP_WINDOWS), middles))
    for split in _SPLITS:
        at = split * estimates.shape[1]
        halves = [(own[middles < at].sum(0), own[middles >= at].sum(0)) for own, middles in voices]
        # Samples far beyond full scale have no embedding.
        heard_twice = [pair for pair in halves if all(side.any() and np.isfinite(side).all() for side in pair)]
        if len(heard_twice) < 2:
            continue
        early, late = (unit_rows(np.array(side)) for side in zip(*heard_twice, strict=True))
        cosines = early @ late.T
        rows, columns = linear_sum_assignment(cosines, maximize=True)
        if cosines[rows, columns].mean() - np.diagonal(cosines).mean() > LEAST_MARGIN:
            return True
    return False


def speech_frames(waveform: np.ndarray, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all frames (F, t) of 20 ms of a waveform, and which of them are speech, not a pause, (F,) bool.

    Args:
        waveform: Samples (T,).
        sample_rate: Sample rate, Hz.
    """
    frame = max(1, round(_FRAME_SECONDS * sample_rate))
    frames = waveform[: len(waveform) // frame * frame].reshape(-1, frame)
    return frames, active_frames(frame_powers(waveform, frame), _PAUSE_DB, _LOUD_PERCENTILE)


def _windows(rows: np.ndarray, seconds: float = 1.5, hop_seconds: float = 0.75) -> np.ndarray:
    """Return windows (N, L, D) of what belongs to frames of speech (F, D)."""
    length, hop = (round(each / _FRAME_SECONDS) for each in (seconds, hop_seconds))
    if len(rows) < length:
        return np.zeros((0, length, rows.shape[1]))
    return np.lib.stride_tricks.sliding_window_view(rows, length, axis=0)[::hop].swapaxes(1, 2)


def _voices(encoder: Encoder, frames: np.ndarray, sample_rate: int, *windows: float) -> np.ndarray:
    """Return the unit embedding of each window of frames of speech (F, t), (N, D) float64."""
    cut = _windows(frames, *windows)
    if not len(cut):
        return np.zeros((0, encoder.embedding_size))
    waveforms = audio.resample(cut.reshape(len(cut), -1).astype(np.float32), sample_rate, encoder.sample_rate)
    parts = [encoder.embed(waveforms[start : start + _AT_ONCE]) for start in range(0, len(waveforms), _AT_ONCE)]
    return unit_rows(np.concatenate(parts).astype(np.float64))


def _cosines(embeddings: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of windows but neighbors, which have samples in common."""
    numbers = np.arange(len(embeddings))
    return (embeddings @ embeddings.T)[np.abs(numbers[:, None] - numbers) > 1]
