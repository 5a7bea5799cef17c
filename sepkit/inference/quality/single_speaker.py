"""One speaker alone: a recording in which all estimates hold the same voice from beginning to end.

Two logistic regressions have to say so. The first tells one speaker from several who speak at once, by what the
estimates tell of each other. The second tells one speaker from several who take turns, who may all be in one estimate,
by how the voice changes as well: how alike parts of the speech are for a speaker encoder, which is asked only if the
first one finds one speaker. Nothing in them depends on the level of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sepkit.data import audio
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.encoders import Encoder, load_encoder
from sepkit.inference.quality.regression import LogisticRegression, fit_logistic, threshold_above
from sepkit.inference.selection import Products, gains_of

MOST_AT_ONCE_MISSED = 0.05
"""Share of the mixtures of several speakers that may be taken for one speaker."""

MOST_IN_TURN_MISSED = 0.015
"""Share of the recordings of speakers in turn that may be taken for one speaker. It is less, because the words of two
speakers are then in one file, and because of new speakers it is up to three times as many, where turns are short."""

LEAST_FOUND = 0.5
"""The detector is kept only if it finds at least this share of the recordings of one speaker."""

LEAST_OF_EACH = 30
"""Fit only with at least this many recordings of one speaker, of several at once, and of several in turn."""

VOICE_FEATURES = ("voice_mean", "voice_change", "voice_across", "voice_within", "voice_halves", "voice_of_estimates")
"""Names of the features of `voice_change`."""

_OF_ESTIMATES = (
    "residual_db",
    "relative_level_db",
    "correlation_db",
    "mask_spread_db",
    "mask_rate_nats_per_frame",
    "dominance",
    "estimate_level_deviation_db",
)

_WINDOW_SECONDS, _HOP_SECONDS, _SHORTEST_SECONDS = 0.75, 0.375, 0.25
_FRAME_SECONDS = 0.02
# Frames this far below the loud ones are pauses.
_PAUSE_DB, _LOUD_PERCENTILE = 30.0, 95
# A voice changes nowhere nearer to the ends.
_LEAST_SHARE = 0.15


@dataclass
class LabeledRecording:
    """What is known of a recording to fit the detector.

    Args:
        voice: of `voice_change`; not needed of those who speak at once.
        in_turn: whether the speakers take turns.
        group: of recordings that are left out together, those of a speaker.
    """

    estimates: Mapping[str, float]
    voice: Mapping[str, float] = field(default_factory=dict)
    speakers: int = 1
    in_turn: bool = False
    group: str = ""


@dataclass
class SingleSpeakerDetector:
    """Tells recordings of one speaker.

    Args:
        at_once: flags one speaker rather than several at once, by `estimates_summary`.
        in_turn: flags one speaker rather than several in turn, by `estimates_summary` and `voice_change`.
        encoder: fingerprint of the speaker encoder that it was fitted with.
        found: share of the recordings of one speaker that both flag, by fits without the recording's speaker.
        missed_at_once: share of the mixtures that the first one flags, in the same way.
        missed_in_turn: share of the recordings of speakers in turn that both flag, in the same way.
    """

    at_once: LogisticRegression
    in_turn: LogisticRegression
    encoder: str
    found: float
    missed_at_once: float
    missed_in_turn: float

    def flags(self, estimates: Mapping[str, float], voice: Callable[[], Mapping[str, float]]) -> bool | None:
        """Return whether one speaker is alone in a recording; None if a feature is not known.

        Args:
            voice: returns what `voice_change` does; called only if it matters.
        """
        single = self.at_once.flags(estimates)
        return self.in_turn.flags({**estimates, **voice()}) if single else single


def estimates_summary(features: Mapping[str, np.ndarray], levels_db: np.ndarray) -> dict[str, float]:
    """Return numbers of a recording: mean and range of each feature (n,) over estimates, and the range of levels."""
    summary = {"levels_range": float(np.ptp(levels_db))}
    for name in _OF_ESTIMATES:
        if name in features:
            summary[f"{name}_mean"] = float(np.mean(features[name]))
            summary[f"{name}_range"] = float(np.ptp(features[name]))
    return summary


def fit_single_speaker(recordings: Sequence[LabeledRecording], encoder: str) -> SingleSpeakerDetector | None:
    """Return the detector of recordings of one speaker, or None if it would not find enough of them.

    By fits without the speaker in question, the first regression flags at most 5 % of the mixtures, and both flag at
    most 1.5 % of the recordings of speakers in turn.

    Args:
        recordings: those with numbers that are not finite are left out.
    """
    usable = [one for one in recordings if all(map(math.isfinite, (*one.estimates.values(), *one.voice.values())))]
    single = [one for one in usable if one.speakers == 1]
    at_once = [one for one in usable if one.speakers > 1 and not one.in_turn]
    in_turn = [one for one in usable if one.in_turn]
    if min(map(len, (single, at_once, in_turn))) < LEAST_OF_EACH:
        return None
    first = _fit(single, at_once, [one.estimates for one in single + at_once])
    second = _fit(single, in_turn, [{**one.estimates, **one.voice} for one in single + in_turn])
    if first is None or second is None:
        return None
    (at_once_model, singles, others), (in_turn_model, singles_of_second, turns) = first, second
    at_once_model.set_threshold(threshold_above(others, MOST_AT_ONCE_MISSED), singles, others)
    # Those in turn are unknown to the first one.
    passed = at_once_model.log_odds([one.estimates for one in in_turn]) > at_once_model.threshold
    turns = np.where(passed, turns, -np.inf)
    in_turn_model.set_threshold(max(threshold_above(turns, MOST_IN_TURN_MISSED), -1e3), singles_of_second, turns)
    found = np.mean((singles > at_once_model.threshold) & (singles_of_second > in_turn_model.threshold))
    if found < LEAST_FOUND:
        return None
    missed = at_once_model.false_alarms, in_turn_model.false_alarms
    return SingleSpeakerDetector(at_once_model, in_turn_model, encoder, float(found), *missed)


def _fit(
    single: Sequence[LabeledRecording], others: Sequence[LabeledRecording], rows: Sequence[Mapping[str, float]]
) -> tuple[LogisticRegression, np.ndarray, np.ndarray] | None:
    """Return the regression of one speaker against others, and log-odds by fits without the speaker, of both."""
    names = {group: number for number, group in enumerate(sorted({one.group for one in (*single, *others)}))}
    groups = np.array([names[one.group] for one in (*single, *others)])
    fit = fit_logistic(rows, np.arange(len(rows)) < len(single), groups)
    return None if fit is None else (fit[0], fit[1][: len(single)], fit[1][len(single) :])


# -------------------------------------------------------------------------------------------------------- voice change


@lru_cache(maxsize=1)
def default_encoder() -> Encoder:
    """Return the speaker encoder that ships."""
    return load_encoder()


def voice_change(encoder: Encoder, products: Products, estimates: np.ndarray, sample_rate: int) -> dict[str, float]:
    """Return numbers of a recording, cosines between embeddings of windows of its speech without the pauses.

    Its speech is the sum of all estimates that is nearest to the recording.

    * `voice_mean`: mean over all pairs of windows.
    * `voice_change`: how much more alike pairs on the same side of an instant are than pairs across it, for the instant
      where this is largest; instants near the ends count less.
    * `voice_across`, `voice_within`: means of the pairs across that instant, and on the same side of it.
    * `voice_halves`: between the mean directions of both halves.
    * `voice_of_estimates`: mean over all pairs of windows of an estimate (of n, T), mean over the estimates.
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


def _embeddings(encoder: Encoder, waveform: np.ndarray, sample_rate: int) -> np.ndarray:
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
    return unit_rows(encoder.embed(windows).astype(np.float64))


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
