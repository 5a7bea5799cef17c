"""Fit a model's prediction of SI-SDR on mixtures with known sources, and keep it beside the model."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.mixing import Mixed, mix_entry
from sepkit.errors import UserError
from sepkit.inference.quality.activity import fit_activity, levels_db
from sepkit.inference.quality.features import recording_features
from sepkit.inference.quality.predictor import QualityPredictor, fit_quality
from sepkit.inference.quality.single_speaker import (
    LabeledRecording,
    default_encoder,
    estimates_summary,
    fit_single_speaker,
    voice_change,
)
from sepkit.inference.runners.base import ModelOutput, Runner, pairwise_si_sdr_db
from sepkit.inference.selection import products_of
from sepkit.inference.separator import Separator
from sepkit.matching import linear_sum_assignment

# A view that takes less of real time is not noticed.
_AFFORDABLE_SHARE, _TIMED_SECONDS, _TIMED_CALLS = 0.01, 4.0, 3


@dataclass
class Calibration:
    """A fitted predictor, not yet stored, and the reason by the id of each unusable mixture."""

    predictor: QualityPredictor
    skipped: dict[str, str] = field(default_factory=dict)


def affordable_views(runner: Runner) -> int:
    """Return 2 if a view of a recording takes less processor time than 0.01 of its length, else 1."""
    noise = np.random.default_rng(0).standard_normal((1, round(_TIMED_SECONDS * runner.sample_rate)), np.float32)
    seconds = []
    for _ in range(_TIMED_CALLS):
        # Other programs take the clock's time, too.
        began = time.process_time()
        runner.run(0.1 * noise)
        seconds.append(time.process_time() - began)
    return 2 if min(seconds) < _AFFORDABLE_SHARE * _TIMED_SECONDS else 1


def calibrate(
    separator: Separator,
    manifest: str | os.PathLike[str],
    *,
    first: int | None = None,
) -> Calibration:
    """Return a predictor of the SI-SDR of a separator's estimates, fitted on mixtures that the model was not trained
    on.

    The target is the SI-SDR of each active source's hypothesis in the best one-to-one matching, at the mixture's rate,
    as `sepkit evaluate` measures it. A second head is fitted on the mean SI-SDR improvement of each mixture, see
    `fit_failure`. Where all sources of a mixture but one are left out, the model hears one speaker alone; where
    one speaks in the first half and another in the second, two take turns. Recordings of these two kinds are twice as
    long for every other mixture, so that their length tells nothing; the speaker alone then goes on with an utterance
    of another mixture. From these and the mixtures follow the level below which nobody speaks in an estimate
    (`fit_activity`) and what tells one speaker alone (`fit_single_speaker`). The separator's own predictor does not
    change.

    Args:
        manifest: of mixtures with sources, dev.jsonl for example.
        first: number of mixtures, from the beginning of the manifest; None: all.

    Raises:
        UserError: a bad manifest or number, or too few usable mixtures.
    """
    if first is not None and first < 1:
        raise UserError(f"first: found {first}, expected at least 1 mixture")
    entries = list(read_manifest(manifest))[:first]
    # A separator without a predictor, whose results would not be used.
    plain = Separator(separator.runner, views=1)
    skipped: dict[str, str] = {}
    rows: list[dict[str, np.ndarray]] = []
    targets: list[np.ndarray] = []
    improvements: list[np.ndarray] = []
    mixtures: list[int] = []
    examples: list[_Example] = []
    for number, entry in enumerate(tqdm(entries, disable=None, unit="mixture")):
        try:
            more = _more_of_first(entries, number) if number % 2 else None
            features, si_sdr_db, improvement_db, levels = _measure(plain, entry, more)
        except UserError as error:
            skipped[entry.id] = str(error)
            continue
        rows.append(features)
        targets.append(si_sdr_db)
        improvements.append(improvement_db)
        examples += levels
        mixtures += [number] * len(si_sdr_db)
    if not rows:
        name, reason = next(iter(skipped.items()), ("none", "the manifest is empty"))
        raise UserError(f"{manifest}: no mixture could be used ({name}: {reason}); expected mixtures with sources")
    try:
        predictor = fit_quality(
            {name: np.concatenate([row[name] for row in rows]) for name in rows[0]},
            np.concatenate(targets),
            mixtures,
            np.concatenate(improvements),
            weights=separator.runner.fingerprint(),
            hypotheses=separator.hypotheses,
            manifest=str(Path(manifest)),
        )
        predictor.depth_steps, predictor.views = plain.depth_steps, getattr(plain.runner, "views", 1)
        if not plain.runner.scored:
            speakers = [one.speakers for one in examples]
            predictor.activity = fit_activity([one.levels_db for one in examples], speakers)
            labeled = [
                LabeledRecording(
                    estimates_summary(one.features, one.levels_db), one.voice, one.speakers, one.in_turn, one.group
                )
                for one in examples
            ]
            predictor.single_speaker = fit_single_speaker(labeled, default_encoder().fingerprint())
    except UserError as error:
        raise UserError(f"{manifest}: {error}") from error
    return Calibration(predictor, skipped)


@dataclass
class _Example:
    """Levels and features of all hypotheses of a recording, (n,) each, its voice, and who speaks in it."""

    levels_db: np.ndarray
    features: dict[str, np.ndarray]
    speakers: int
    group: str
    in_turn: bool = False
    voice: dict[str, float] = field(default_factory=dict)


def _more_of_first(entries: Sequence[MixtureEntry], number: int) -> MixtureEntry | None:
    """Return the speaker of an entry's first source alone in the next entry with another recording of them."""
    own = entries[number].sources[0] if entries[number].sources else None
    for other in (*entries[number + 1 :], *entries[:number]):
        for source in other.sources:
            if own is not None and source.speaker and source.speaker == own.speaker and source.path != own.path:
                return replace(other, sources=[source], mixture=None, noise=None)
    return None


def _measure(
    separator: Separator, entry: MixtureEntry, more: MixtureEntry | None
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, list[_Example]]:
    """Return (k,) of every feature, SI-SDR and its improvement, dB, of the hypotheses matched with the active sources.

    The last tell of all hypotheses, for the mixture, for its first source alone, and for its first two in turn; the
    latter two twice as long if there is more of the first source's speaker.
    """
    mixed = mix_entry(entry)
    measured = measure_sources(separator, mixed, entry.sample_rate)
    group = entry.sources[0].speaker or entry.id
    count = len(measured.matches)
    examples = [_Example(_levels(measured.output), measured.features, count, group)]
    if count > 1 and not separator.runner.scored:
        for speech, in_turn in ((_single(mixed, more), False), (_in_turn(mixed, more is not None), True)):
            examples += _example_of(separator, speech.astype(np.float32), entry.sample_rate, in_turn, group)
    return measured.matched_features(), measured.si_sdr_db, measured.improvement_db, examples


@dataclass
class MeasuredSources:
    """What a model makes of a mixture, and how good its estimates of the k active sources are.

    Args:
        output: of the model, a batch of one.
        features: (n,) of each hypothesis.
        matches: (k,) the hypothesis of each active source.
        si_sdr_db, improvement_db: (k,) of these; no improvement (NaN) where one source is alone.
    """

    output: ModelOutput
    features: dict[str, np.ndarray]
    matches: np.ndarray
    si_sdr_db: np.ndarray
    improvement_db: np.ndarray

    def matched_features(self) -> dict[str, np.ndarray]:
        """Return (k,) features of the hypotheses of the sources."""
        return {name: values[self.matches] for name, values in self.features.items()}


def measure_sources(separator: Separator, mixed: Mixed, sample_rate: int) -> MeasuredSources:
    """Separate a mixture at a rate in Hz, and measure its estimates at that rate.

    Raises:
        UserError: no active source, more than the model has estimates, silence, or less than half a second.
    """
    active = mixed.sources.any(axis=1)
    count = int(active.sum())
    if not count:
        raise UserError("no active source")
    if count > separator.hypotheses:
        raise UserError(f"{count} sources, but the model makes {separator.hypotheses} estimates")
    estimates = separator.separate(mixed.mixture, sample_rate).estimates
    output, features = _output_of(separator, mixed.mixture, sample_rate)
    if features is None:
        raise UserError("silent, or shorter than half a second")
    sources = mixed.sources[active]
    table = pairwise_si_sdr_db(estimates, sources)
    matches = linear_sum_assignment(table.T, maximize=True)[1]
    si_sdr = table[matches, np.arange(count)]
    improvement_db = si_sdr - pairwise_si_sdr_db(mixed.mixture[None], sources)[0] if count > 1 else np.full(1, np.nan)
    return MeasuredSources(output, features, matches, si_sdr, improvement_db)


def _single(mixed: Mixed, more: MixtureEntry | None) -> np.ndarray:
    """Return the first active source of a mixture with its noise; twice as long, with more of the same speaker."""
    first = mixed.sources[mixed.sources.any(axis=1)][0]
    if more is None:
        return first + _background(mixed, 1)
    second = mix_entry(more).sources[0]
    length = min(len(first), len(second))
    level = np.linalg.norm(first[:length]) / max(float(np.linalg.norm(second[:length])), np.finfo(np.float32).tiny)
    second = np.pad(level * second[:length], (0, len(first) - length))
    return np.concatenate([first, second]) + _background(mixed, 2)


def _in_turn(mixed: Mixed, long: bool) -> np.ndarray:
    """Return the first two active sources of a mixture in turn with its noise: half of each, or all of each."""
    first, second = mixed.sources[mixed.sources.any(axis=1)][:2]
    if long:
        return np.concatenate([first, second]) + _background(mixed, 2)
    middle = len(first) // 2
    return np.concatenate([first[:middle], second[middle:]]) + _background(mixed, 1)


def _background(mixed: Mixed, times: int) -> np.ndarray:
    """Return what is in a mixture beside its sources, forwards and then, if asked for, backwards."""
    background = mixed.mixture - mixed.sources.sum(0)
    return np.concatenate([background, background[::-1]][:times])


def _output_of(
    separator: Separator, waveform: np.ndarray, rate: int
) -> tuple[ModelOutput, dict[str, np.ndarray] | None]:
    mixture = audio.resample(waveform, rate, separator.sample_rate)
    output = separator.runner.run(mixture[None], features=True)
    return output, recording_features(separator.runner, mixture, output)


def _example_of(separator: Separator, speech: np.ndarray, rate: int, in_turn: bool, group: str) -> list[_Example]:
    """Return what a model makes of one speaker, or of two in turn; nothing of a silent or too short recording."""
    output, features = _output_of(separator, speech, rate)
    if features is None:
        return []
    waveform, estimates = audio.resample(speech, rate, separator.sample_rate), output.estimates[0]
    voice = voice_change(default_encoder(), products_of(waveform, estimates), estimates, separator.sample_rate)
    return [_Example(_levels(output), features, 1 + in_turn, group, in_turn, voice)]


def _levels(output: ModelOutput) -> np.ndarray:
    return levels_db(np.square(output.estimates[0], dtype=np.float64).sum(-1))
