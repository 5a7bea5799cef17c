"""One speaker or several: a logistic regression on what estimates have in common and on how the voice changes in time.

One speaker alone leaves little in the other estimate, or the same in both, and all segments of the speech are of one
voice. Where this is sure, or where it is surely not so, a recording has a number of speakers; between, it is not known.
Nothing depends on the level of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sepkit.data import audio
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.encoders import Encoder, load_encoder
from sepkit.inference.quality.activity import levels_db
from sepkit.inference.quality.regression import LogisticRegression, fit_logistic, threshold_above
from sepkit.inference.selection import Products, gains_of
from sepkit.models.published.shipped import DEFAULT_ENCODER
from sepkit.signals import active_frames, frame_powers, si_sdr_of_cosines_db

MOST_TAKEN_FOR_ONE = 0.01
"""Share of the recordings of several speakers that may be taken for one speaker."""

MOST_TAKEN_FOR_SEVERAL = 0.025
"""Share of the recordings of one speaker that may be taken for several."""

SAME_VOICE = 0.75
"""Estimates whose voices are this much alike, by `outputs_between`, hold parts of one voice, not voice and noise."""

LEAST_FOUND = 0.25
"""The rule is kept only if it finds at least this share of the recordings of one speaker."""

LEAST_OF_EACH = 30
"""Fit only with at least this many recordings of one speaker, and of several."""

MOST_TAKEN_FOR_NOISE = 0.01
"""Share of the recordings of speech that may be taken for noise."""

FRAME_SECONDS = 0.02
"""Speech is told from pauses in frames of this length."""

_WINDOW_SECONDS, _HOP_SECONDS = 1.5, 0.75
# Fewer windows tell nothing of how a voice changes: 3 s of speech.
_LEAST_WINDOWS = 3
# Frames this far below the loud ones are pauses.
_PAUSE_DB, _LOUD_PERCENTILE = 30.0, 95
# Two speakers of whom one speaks for at least 5 % of the time make this share of unlike pairs.
_UNLIKE_PERCENTILE = 10
# Between an output and one without speech.
_UNKNOWN_COSINE = 0.5
# Beyond this, an output is empty: two who take turns in the other leave it as empty as one speaker does.
_MOST_RANGE_DB = 20.0
# A window belongs to the estimate that has this share of its energy.
_OWN_SHARE = 0.8
# Longer recordings are listened to in excerpts: as many seconds in all, of as many each.
_MOST_SECONDS, _EXCERPT_SECONDS = 180.0, 10.0
# What tells speech from other sounds: neither level nor length.
_SOUND = (
    "spectral_flatness_db",
    "spectral_centroid_hz",
    "zero_crossing_rate",
    "log_kurtosis",
    "level_deviation_db",
    "crest_factor_db",
)
# Share of a range that is added to it on both sides.
_SLACK = 0.1
# Windows that go through the encoder at once.
_AT_ONCE = 64


@dataclass
class LabeledRecording:
    """What is known of a recording to fit the rule.

    Args:
        evidence: of `speaker_evidence`.
        group: of recordings that are left out together, those of a speaker.
        sound: of `mixture_features`.
    """

    evidence: Mapping[str, float]
    speakers: int
    group: str = ""
    sound: Mapping[str, float] = field(default_factory=dict)


@dataclass
class SingleSpeakerDetector:
    """Tells recordings of one speaker, and recordings of several.

    Args:
        one: its log-odds are for one speaker, who is found above its threshold.
        several_below: log-odds below which several are found.
        encoder: fingerprint of the speaker encoder that it was fitted with.
        found_one, found_several: shares of the recordings of each kind that are found, by fits without the speaker.
        taken_for_one: share of the recordings of several that are taken for one, in the same way.
        taken_for_several: share of the recordings of one that are taken for several.
        sound: least and largest value of each feature in `_SOUND`, of the recordings that it was fitted on and a little
            beyond. What is beyond these, such as hum and music, is not counted.
        noise: flags recordings of noise alone by these features, which are not counted; None if none was heard.
    """

    one: LogisticRegression
    several_below: float
    encoder: str
    found_one: float
    found_several: float
    taken_for_one: float
    taken_for_several: float
    sound: dict[str, tuple[float, float]] = field(default_factory=dict)
    noise: LogisticRegression | None = None

    def knows(self, sound: Mapping[str, float]) -> bool:
        """Return whether a recording sounds like those that the rule was fitted on.

        Args:
            sound: of `mixture_features`.
        """
        if self.noise is not None and self.noise.flags(sound):
            return False
        return all(low <= sound[name] <= high for name, (low, high) in self.sound.items())

    def is_one(self, evidence: Mapping[str, float]) -> bool | None:
        """Return whether one speaker is alone in a recording; None if that is not sure.

        Args:
            evidence: of `speaker_evidence`.
        """
        log_odds = float(self.one.log_odds([evidence])[0])
        if log_odds > self.one.threshold:
            return True
        return False if log_odds < self.several_below else None


def fit_single_speaker(recordings: Sequence[LabeledRecording], encoder: str) -> SingleSpeakerDetector | None:
    """Return the rule that tells one speaker from several, or None if it would not find enough of them.

    By fits without the speaker in question, 1 % of the recordings of several speakers are taken for one, and 2.5 % of
    those of one speaker for several.

    Args:
        recordings: those without evidence, or with numbers that are not finite, are left out. Those without speakers
            tell how noise sounds.
    """
    noise = [one.sound for one in recordings if not one.speakers]
    usable = [
        one for one in recordings if one.speakers and one.evidence and all(map(math.isfinite, one.evidence.values()))
    ]
    alone = np.array([one.speakers == 1 for one in usable], bool)
    if min(alone.sum(), (~alone).sum()) < LEAST_OF_EACH:
        return None
    names = {group: number for number, group in enumerate(sorted({one.group for one in usable}))}
    groups = np.array([names[one.group] for one in usable])
    if (fit := fit_logistic([one.evidence for one in usable], alone, groups)) is None:
        return None
    regression, scores = fit
    several_below = -threshold_above(-scores[alone], MOST_TAKEN_FOR_SEVERAL)
    threshold = threshold_above(scores[~alone], MOST_TAKEN_FOR_ONE)
    # Where both kinds hardly overlap, what lies between the thresholds is still not known.
    regression.set_threshold(max(threshold, several_below), scores[alone], scores[~alone])
    several_below = min(threshold, several_below)
    if regression.found < LEAST_FOUND:
        return None
    return SingleSpeakerDetector(
        regression,
        several_below,
        encoder,
        regression.found,
        float(np.mean(scores[~alone] < several_below)),
        regression.false_alarms,
        float(np.mean(scores[alone] < several_below)),
        {name: _range([one.sound[name] for one in usable]) for name in _SOUND if name in usable[0].sound},
        _fit_noise([one.sound for one in usable], noise) if len(noise) >= LEAST_OF_EACH else None,
    )


def _fit_noise(
    speech: Sequence[Mapping[str, float]], noise: Sequence[Mapping[str, float]]
) -> LogisticRegression | None:
    """Return what flags noise alone by its sound, and at most 1 % of speech, by fits without it."""
    rows = [{name: one[name] for name in _SOUND} for one in (*speech, *noise)]
    labels = np.arange(len(rows)) >= len(speech)
    if (fit := fit_logistic(rows, labels)) is None:
        return None
    regression, scores = fit
    threshold = threshold_above(scores[~labels], MOST_TAKEN_FOR_NOISE)
    regression.set_threshold(threshold, scores[labels], scores[~labels])
    return regression


def _range(values: Sequence[float]) -> tuple[float, float]:
    slack = _SLACK * float(np.ptp(values))
    return min(values) - slack, max(values) + slack


# ------------------------------------------------------------------------------------------------------------- evidence


@lru_cache(maxsize=1)
def default_encoder() -> Encoder:
    """Return the speaker encoder that the rule of the shipped models was fitted with."""
    return load_encoder(DEFAULT_ENCODER)


def evidence_spans(num_samples: int, sample_rate: int) -> list[tuple[int, int]]:
    """Return beginnings and ends of what is listened to of a recording: all, or evenly spaced excerpts of 3 min."""
    most, length = round(_MOST_SECONDS * sample_rate), round(_EXCERPT_SECONDS * sample_rate)
    if num_samples <= most:
        return [(0, num_samples)]
    starts = np.linspace(0, num_samples - length, round(_MOST_SECONDS / _EXCERPT_SECONDS)).round().astype(int)
    return [(start, start + length) for start in starts.tolist()]


def speaker_evidence(encoder: Encoder, products: Products, estimates: np.ndarray, sample_rate: int) -> dict[str, float]:
    """Return what tells one speaker from several; nothing of less than 3 s of speech, or of one estimate.

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
        estimates: (n, T), or excerpts of them one after the other.
    """
    gram, energies = products.gram, np.maximum(np.diagonal(products.gram), np.finfo(np.float64).tiny)
    if len(estimates) < 2 or not gram.any():
        return {}
    speech, own = _speech(gains_of(products, "mixture", True, np.arange(len(estimates))), estimates, sample_rate)
    windows, shares = _windows(speech, own, sample_rate)
    if len(windows) < _LEAST_WINDOWS:
        return {}
    embeddings = _voices(encoder, windows, sample_rate)
    cosines = _cosines(embeddings)
    outputs = [_voices(encoder, _speech_windows(one, sample_rate), sample_rate) for one in estimates]
    means = unit_rows(np.array([own.mean(0) for own in outputs if len(own)] or [embeddings.mean(0)]))
    loudest = _cosines(outputs[int(np.argmax(energies))])
    centers = [embeddings[share > _OWN_SHARE].sum(0) for share in shares.T if (share > _OWN_SHARE).any()]
    among = unit_rows(np.array(centers)) if len(centers) > 1 else None
    alike = np.square(gram / np.sqrt(np.outer(energies, energies)))
    np.fill_diagonal(alike, 0.0)
    nearest = alike.max(1)
    return {
        "levels_range": min(_MOST_RANGE_DB, float(np.ptp(levels_db(energies)))),
        "projections_range": float(np.ptp(levels_db(np.square(products.cross) / energies))),
        "correlation_db": float(si_sdr_of_cosines_db(nearest).mean()),
        "voice_least": float(np.percentile(cosines, _UNLIKE_PERCENTILE)),
        "voice_between": float(cosines.mean() if among is None else (among @ among.T).min()),
        "outputs_between": float((means @ means.T).min()) if len(means) > 1 else _UNKNOWN_COSINE,
        "loudest_least": float(np.percentile(loudest if len(loudest) else cosines, _UNLIKE_PERCENTILE)),
    }


def _voices(encoder: Encoder, windows: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the unit embedding of each window (N, T), (N, D) float64."""
    if not len(windows):
        return np.zeros((0, encoder.embedding_size))
    waveforms = audio.resample(windows, sample_rate, encoder.sample_rate)
    parts = [encoder.embed(waveforms[start : start + _AT_ONCE]) for start in range(0, len(waveforms), _AT_ONCE)]
    return unit_rows(np.concatenate(parts).astype(np.float64))


def _cosines(embeddings: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of windows but neighbors, which have samples in common."""
    numbers = np.arange(len(embeddings))
    return (embeddings @ embeddings.T)[np.abs(numbers[:, None] - numbers) > 1]


def _speech_windows(waveform: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return half overlapping windows (N, T) of the speech in a waveform, without its pauses."""
    frames, heard = speech_frames(waveform, sample_rate)
    return _windows(frames[heard].astype(np.float32), np.ones((int(heard.sum()), 1)), sample_rate)[0]


def speech_frames(waveform: np.ndarray, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all frames (F, t) of 20 ms of a waveform (T,), and which of them are speech, not a pause (F,) bool."""
    frame = max(1, round(FRAME_SECONDS * sample_rate))
    frames = waveform[: len(waveform) // frame * frame].reshape(-1, frame)
    return frames, active_frames(frame_powers(waveform, frame), _PAUSE_DB, _LOUD_PERCENTILE)


def _speech(gains: np.ndarray, estimates: np.ndarray, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the frames (F, t) of the speech without its pauses, and the energies of the estimates in them (F, n)."""
    frames, heard = speech_frames(np.einsum("n,nt->t", gains, estimates), sample_rate)
    own = estimates[:, : frames.size].reshape(len(estimates), *frames.shape)[:, heard]
    return frames[heard].astype(np.float32), np.square(own, dtype=np.float64).sum(-1).T


def _windows(frames: np.ndarray, energies: np.ndarray, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return half overlapping windows (N, T) of frames, and the share of each estimate in the energy of each (N, n)."""
    length, hop = (round(seconds / FRAME_SECONDS) for seconds in (_WINDOW_SECONDS, _HOP_SECONDS))
    starts = range(0, len(frames) - length + 1, hop)
    windows = np.array([frames[start : start + length].reshape(-1) for start in starts], np.float32)
    totals = np.array([energies[start : start + length].sum(0) for start in starts])
    return windows, totals / np.maximum(totals.sum(-1, keepdims=True), np.finfo(np.float64).tiny)
