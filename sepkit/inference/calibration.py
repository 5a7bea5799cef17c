"""Fit a model's prediction of SI-SDR on mixtures with known sources, and keep it beside the model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.mixing import Mixed, mix_entry
from sepkit.errors import UserError
from sepkit.inference.quality.features import SHORTEST_SECONDS, hypothesis_features, largest, recording_features
from sepkit.inference.quality.predictor import QualityPredictor, fit_quality, runner_fields
from sepkit.inference.quality.single_speaker import LEAST_OF_EACH, LabeledRecording, fit_single_speaker, rule_features
from sepkit.inference.quality.voices import prediction_encoder, speaker_evidence
from sepkit.inference.runners.base import ModelOutput, Runner
from sepkit.inference.runners.level import standardize
from sepkit.inference.selection import products_of
from sepkit.inference.separator import Separator
from sepkit.inference.waveforms import fit_length
from sepkit.matching import linear_sum_assignment
from sepkit.signals import pairwise_si_sdr_db

# A view that takes less of real time is not noticed.
_AFFORDABLE_SHARE, _TIMED_SECONDS, _TIMED_CALLS = 0.01, 4.0, 3

MOST_HEARD = 150
"""Largest number of recordings of one speaker, of two in turn, and of two who overlap, that count speakers."""

_MOST_SECONDS, _TURN_SECONDS, _OVERLAPS = (5.0, 10.0, 25.0), (2.0, 3.0, 5.0, 8.0), (1.0, 0.5, 0.25)


@dataclass
class Calibration:
    """The result of `calibrate`.

    Args:
        separator: Separator of the model, without a predictor.
        manifest: Manifest of the mixtures.
        measured: Number of each mixture with sources, its kind (`corpus` in the manifest, or "more speakers" than
            estimates), whether only the interval is fitted on it, and its features and SI-SDR, dB.
        labeled: Recordings that the rule for single speakers is fitted on.
        skipped: Reason by the id of each unusable mixture.
        predictor: Fitted predictor, not yet stored.
    """

    separator: Separator
    manifest: str
    measured: list[tuple[int, str, bool, _Measured]] = field(default_factory=list)
    labeled: list[LabeledRecording] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    predictor: QualityPredictor = field(init=False)

    def fit(self, *without: str) -> QualityPredictor:
        """Return a predictor fitted on all mixtures but those of some kinds.

        Args:
            *without: Kinds to leave out.

        Raises:
            UserError: too few mixtures are left.
        """
        used = [one for one in self.measured if one[1] not in without]
        if all(only for _, _, only, _ in used):
            name, reason = next(iter(self.skipped.items()), ("none", "the manifest is empty"))
            raise UserError(f"{self.manifest}: no usable mixture ({name}: {reason}); expected mixtures with sources")
        numbers, kinds, only, found = zip(*used, strict=True)
        features, si_sdr_db = zip(*found, strict=True)
        counts = list(map(len, si_sdr_db))
        try:
            predictor = fit_quality(
                {name: np.concatenate([own[name] for own in features]) for name in features[0]},
                np.concatenate(si_sdr_db),
                *(np.repeat(each, counts) for each in (numbers, kinds, only)),
                **runner_fields(self.separator.runner),
                manifest=self.manifest,
            )
            if labeled := [one for one in self.labeled if one.kind not in without]:
                predictor.single_speaker = fit_single_speaker(labeled, prediction_encoder().fingerprint())
        except UserError as error:
            raise UserError(f"{self.manifest}: {error}") from error
        return predictor


def affordable_views(runner: Runner) -> int:
    """Return 2 if a view of a recording takes less CPU time than 0.01 of its length, else 1."""
    noise = np.random.default_rng(0).standard_normal((1, round(_TIMED_SECONDS * runner.sample_rate)), np.float32)
    seconds = []
    for _ in range(_TIMED_CALLS):
        # Other programs take the clock's time, too.
        began = time.process_time()
        runner.run(0.1 * noise)
        seconds.append(time.process_time() - began)
    return 2 if min(seconds) < _AFFORDABLE_SHARE * _TIMED_SECONDS else 1


def calibrate(separator: Separator, manifest: str | os.PathLike[str], *, first: int | None = None) -> Calibration:
    """Return a predictor of the SI-SDR of a separator's estimates, fitted on mixtures that the model was not trained
    on.

    The target is the SI-SDR of each active source's hypothesis in the best one-to-one matching, at the mixture's rate,
    as `sepkit evaluate` measures it. For up to `MOST_HEARD` of the mixtures the model also separates all speech of the
    first speaker in the manifest, of the first two in turns or partly overlapping, and the noise. These fit the rule
    for single speakers (`fit_single_speaker`). The same mixtures with as much noise as speech, if they have noise, and
    with one speaker more than the model has estimates, widen the intervals, because the features of the regression do
    not distinguish them. If a manifest has recordings of one speaker, the number of speakers is learned from its own
    recordings, and the intervals hold for each of its `corpus` values. The separator's own predictor does not change.

    Args:
        separator: Separator of the model.
        manifest: Manifest of mixtures with sources, dev.jsonl for example.
        first: Number of mixtures, from the beginning of the manifest; None: all.

    Raises:
        UserError: a bad manifest or number, or too few usable mixtures.
    """
    if first is not None and first < 1:
        raise UserError(f"first: found {first}, expected at least 1 mixture")
    entries = list(read_manifest(manifest))[:first]
    # A separator without a predictor, whose results would not be used.
    plain = Separator(separator.runner, views=1)
    found = Calibration(plain, str(Path(manifest)))
    # A manifest with recordings of one speaker has what the number of speakers is learned from.
    complete = sum(len(entry.sources) == 1 for entry in entries) >= LEAST_OF_EACH
    chosen = [] if complete else _chosen(entries)
    for number, entry in enumerate(tqdm(entries, disable=None, unit="mixture")):
        corpus = entry.corpus or ""
        try:
            mixed = mix_entry(entry)
            made = _run(plain, mixed.mixture, entry.sample_rate)
            if complete and not plain.runner.scored:
                found.labeled += _label(plain, entry, mixed, made)
                if len(mixed.sources) < 2:
                    continue
            beyond = len(mixed.sources) > plain.hypotheses
            sources = _measure_sources(plain, mixed, entry.sample_rate, complete and beyond, made)
            if number in chosen and not beyond:
                if not plain.runner.scored:
                    found.labeled += _measure_example(plain, entries, number, mixed)
                for kind, hard in _stress_mixtures(entries, number, mixed, plain.hypotheses):
                    found.measured.append((number, kind, True, _measure_sources(plain, hard, entry.sample_rate, True)))
        except UserError as error:
            found.skipped[entry.id] = str(error)
            continue
        found.measured.append((number, "more speakers" if beyond else corpus, beyond, sources))
    found.predictor = found.fit()
    return found


def _chosen(entries: Sequence[MixtureEntry]) -> list[int]:
    """Return the numbers of up to `MOST_HEARD` mixtures of two or more, evenly from all."""
    several = [number for number, entry in enumerate(entries) if len(entry.sources) > 1]
    places = np.linspace(0, len(several) - 1, min(MOST_HEARD, len(several))).round().astype(int)
    return [several[place] for place in places.tolist()]


def _label(separator: Separator, entry: MixtureEntry, mixed: Mixed, made: _Made) -> list[LabeledRecording]:
    """Return a model's separation of a mixture whose number of speakers is stated; nothing if it is short."""
    if len(mixed.mixture) < SHORTEST_SECONDS * entry.sample_rate or not np.ptp(mixed.mixture):
        return []
    speakers = int(mixed.sources.any(axis=1).sum()) if len(mixed.sources) else 0
    group = (entry.sources[0].speaker if entry.sources else None) or entry.id
    return [_labeled(*made, separator.sample_rate, speakers, group, entry.corpus or "")]


def _measure_example(
    separator: Separator, entries: Sequence[MixtureEntry], number: int, mixed: Mixed
) -> list[LabeledRecording]:
    """Return a model's separations of a mixture's first speaker, its first two in turn and overlapping, and noise."""
    entry, rate = entries[number], entries[number].sample_rate
    # Neighbors in the manifest differ in all of these, so that the length of a recording carries no information.
    most, turn = _MOST_SECONDS[number // 3 % 3], round(_TURN_SECONDS[number // 2 % 4] * rate)
    first, second = (_speech_of(entries, number, which, round(most * rate)) for which in (0, 1))
    share, count = _OVERLAPS[number % 3], min(len(first), len(second))
    half, part = (min(count, round(most * rate / divisor)) for divisor in (2, 2 - share))
    heard = [
        (first[: round(most * rate)], 1),
        (in_turns((first[:half], second[:half]), turn), 2),
        (overlapping(first[:part], second[:part], share), 2),
    ]
    if (background := _background(mixed)) is not None:
        heard = [(recording + np.resize(background, len(recording)), speakers) for recording, speakers in heard]
        heard.append((background, 0))
    group = entry.sources[0].speaker or entry.id
    return [
        _labeled(*_run(separator, recording, rate), separator.sample_rate, speakers, group)
        for recording, speakers in heard
        if len(recording) >= SHORTEST_SECONDS * rate and np.ptp(recording)
    ]


def _labeled(
    mixture: np.ndarray, output: ModelOutput, rate: int, speakers: int, group: str, kind: str = ""
) -> LabeledRecording:
    """Return the record of a mixture (T,) of this many speakers, given the model's output."""
    estimates, sound = output.estimates[0], largest(hypothesis_features(mixture, output, rate))
    voices = speaker_evidence(prediction_encoder(), products_of(mixture, estimates), estimates, rate)
    return LabeledRecording(rule_features(voices, sound), speakers, group, sound, kind)


def _background(mixed: Mixed) -> np.ndarray | None:
    """Return the rest of a mixture without its sources, (T,); None: only rounding errors."""
    background = mixed.mixture - mixed.sources.sum(0)
    return background if np.square(background).sum() > 1e-8 * np.square(mixed.mixture).sum() else None


def _stress_mixtures(
    entries: Sequence[MixtureEntry], number: int, mixed: Mixed, most: int
) -> Iterator[tuple[str, Mixed]]:
    """Yield a mixture with its noise as loud as its speech, and with one speaker more than `most`, and their kinds."""
    speech = mixed.sources.sum(0)
    power = float(np.square(speech).mean())
    if (background := _background(mixed)) is not None:
        gain = np.sqrt(power / float(np.square(background).mean()))
        yield "more noise", Mixed(speech + np.float32(gain) * background, mixed.sources)
    known, others = {source.speaker for source in entries[number].sources}, []
    for place in (*range(number + 1, len(entries)), *range(number)):
        if len(mixed.sources) + len(others) > most:
            break
        if not known & {source.speaker for source in entries[place].sources}:
            voice = np.resize(_speech_of(entries, place, 0, len(speech)), len(speech))
            level = np.sqrt(power / len(mixed.sources) / max(float(np.square(voice).mean()), 1e-20))
            others.append((level * voice).astype(np.float32))
            known.add(entries[place].sources[0].speaker)
    if len(mixed.sources) + len(others) > most:
        added = np.stack(others)
        yield "more speakers", Mixed(mixed.mixture + added.sum(0), np.concatenate([mixed.sources, added]))


def _speech_of(entries: Sequence[MixtureEntry], number: int, which: int, most: int) -> np.ndarray:
    """Return what a manifest has of the speaker of a source, (T,) at one level, until it is at least `most` samples.

    It begins with the recording that the source is a part of. Others are known by the speaker's name; those that cannot
    be read are left out.
    """
    own, parts = entries[number].sources[which], {}
    for entry in (*entries[number:], *entries[:number]):
        for source in entry.sources if parts else [own]:
            if source is own or (own.speaker and source.speaker == own.speaker and source.path not in parts):
                # A source with a length of its own is a segment of a recording of more than it.
                start, count = (0, most) if source.num_samples is None else (source.start, source.num_samples)
                path, rate = entry.resolve(source.path), entry.sample_rate
                try:
                    speech = audio.read(path, start, min(count, most), rate, channel=source.channel, pad_end=True)
                except UserError:
                    if source is own:
                        raise
                    continue
                parts[source.path] = np.trim_zeros(speech, "b")
        if sum(map(len, parts.values())) >= most:
            break
    levels = {path: float(np.sqrt(np.mean(np.square(part)))) if len(part) else 0.0 for path, part in parts.items()}
    level = own.gain * levels[own.path]
    return np.concatenate([part * (level / max(levels[path], 1e-9)) for path, part in parts.items()])


def in_turns(voices: Sequence[np.ndarray], turn: int) -> np.ndarray:
    """Return all of several voices (T,) of one length, in turns of this many samples."""
    cut = [np.array_split(voice, range(turn, len(voice), turn)) for voice in voices]
    return np.concatenate([part for turns in zip(*cut, strict=True) for part in turns])


def overlapping(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """Return two voices (T,) of which this share of each overlaps; of 0 the second follows the first."""
    offset = round((1 - share) * len(first))
    mixture = np.zeros(offset + len(second), np.float32)
    mixture[: len(first)] += first
    mixture[offset:] += second
    return mixture


_Made = tuple[np.ndarray, ModelOutput]
_Measured = tuple[dict[str, np.ndarray], np.ndarray]


def _measure_sources(
    separator: Separator, mixed: Mixed, sample_rate: int, beyond: bool = False, made: _Made | None = None
) -> _Measured:
    """Return the features of the hypothesis of each active source of a mixture, (k,) each, and its SI-SDR, (k,) dB.

    Args:
        separator: Separator of the model.
        mixed: Mixture and its sources.
        sample_rate: Sample rate of these, Hz.
        beyond: Whether there may be more sources than estimates; those that are matched best are measured.
        made: Mixture at the rate and level of the model and the output for it; None: the model runs here.

    Raises:
        UserError: no active source, more than the model has estimates, silence, or less than half a second.
    """
    active = mixed.sources.any(axis=1)
    count = int(active.sum())
    if not count:
        raise UserError("no active source")
    if count > separator.hypotheses and not beyond:
        raise UserError(f"{count} sources, but the model makes {separator.hypotheses} estimates")
    mixture, output = made or _run(separator, mixed.mixture, sample_rate)
    features = recording_features(separator.runner, mixture, output)
    if features is None:
        raise UserError("silent, or shorter than half a second")
    estimates = audio.resample(output.estimates[0], separator.sample_rate, sample_rate)
    table = pairwise_si_sdr_db(fit_length(estimates, len(mixed.mixture)), mixed.sources[active])
    sources, matches = linear_sum_assignment(table.T, maximize=True)
    return {name: values[matches] for name, values in features.items()}, table[matches, sources]


def _run(separator: Separator, waveform: np.ndarray, rate: int) -> _Made:
    """Return a waveform (T,) at the rate and level of the model, and the output for it.

    Raises:
        UserError: nothing is left at that rate.
    """
    resampled = audio.resample(waveform, rate, separator.sample_rate)
    if not resampled.size:
        raise UserError("silent, or shorter than half a second")
    (mixture,), _ = standardize(resampled[None], separator.runner.level.deviation)
    return mixture, separator.runner.run(mixture[None], features=True)
