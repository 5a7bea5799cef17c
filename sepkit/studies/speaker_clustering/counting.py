"""Calibrate how an encoder of voices counts speakers, and measure it.

Recordings of one person each are counted by a threshold of distances, which is calibrated on collections drawn from dev
speakers. Estimates of a separated recording are counted by what each person adds (see
`sepkit.inference.diarization.counting`); two
thresholds of that are calibrated on separated dev meetings, as a whole, in parts, and on what each person says alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.evaluation.diarization import read_rttm
from sepkit.files import write_json
from sepkit.inference.batch.cluster import find_speech
from sepkit.inference.diarization.baselines import BASELINES
from sepkit.inference.diarization.counting import SpeakerGains, SpeakerTree
from sepkit.inference.diarization.segments import SpeechSegment, blend_turns
from sepkit.models import load_checkpoint
from sepkit.models.published.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.models.storage.checkpoints import save_model
from sepkit.models.storage.folders import find_checkpoint
from sepkit.studies.speaker_clustering.measures import (
    Collection,
    embeddings_of,
    embeddings_of_waveforms,
    read_collection,
)

_THRESHOLDS = [(float(value),) for value in np.round(np.arange(0.05, 1.2, 0.025), 3)]
_GAINS = [
    (float(second), float(further))
    for second, further in itertools.product(
        np.round(np.arange(0.03, 0.081, 0.005), 3), np.round(np.arange(0.012, 0.031, 0.001), 3)
    )
]
_PARTS_SECONDS, _EVERY_SECONDS = (60.0, 150.0), 150.0
# Who speaks less of a part is not counted there, as in `sepkit.inference.diarization.counting`.
_LEAST_SHARE = 0.02
_STEP_SECONDS = 0.02
# One person alone: in most of the stretch, and of others hardly anything; fewer stretches tell nothing.
_ALONE, _OTHERS, _LEAST_ALONE = 0.5, 0.02, 30


@dataclass(frozen=True)
class CountOptions:
    """Collections to count in.

    Args:
        most: speakers of a collection, from 1 to this, each as often.
    """

    collections: int = 100
    most: int = 10
    seconds: tuple[float, float] = (20.0, 60.0)
    seed: int = 0


def draw_collections(collection: Collection, options: CountOptions) -> list[np.ndarray]:
    """Return the numbers of the stretches of each drawn collection: whole utterances until the seconds are full."""
    generator = np.random.default_rng(options.seed)
    names = sorted(set(collection.speakers))
    by_speaker = {name: np.flatnonzero(np.array(collection.speakers) == name) for name in names}
    most = min(options.most, len(names))
    drawn = []
    for number in range(options.collections):
        chosen = generator.choice(len(names), 1 + number % most, replace=False)
        parts = []
        for index in chosen:
            own, wanted = by_speaker[names[index]], generator.uniform(*options.seconds)
            utterances = generator.permutation(np.unique(collection.utterances[own]))
            taken = 0.0
            for utterance in utterances:
                stretches = own[collection.utterances[own] == utterance]
                parts.append(stretches)
                taken += collection.seconds[stretches].sum()
                if taken >= wanted:
                    break
        drawn.append(np.concatenate(parts))
    return drawn


@dataclass(frozen=True)
class Countable:
    """Stretches to count the speakers of: `people` returns how many there are under given thresholds."""

    people: Callable[..., int]
    speakers: int


def countables(embeddings: np.ndarray, collection: Collection, options: CountOptions) -> list[Countable]:
    """Return collections that are drawn from one, with embeddings (N, D) of all its stretches."""
    names, seconds = np.array(collection.speakers), collection.seconds
    drawn = draw_collections(collection, options)
    turns = [SpeechSegment(int(utterance), 0.0, 0.0) for utterance in collection.utterances]
    embeddings = blend_turns(embeddings, turns)
    return [Countable(SpeakerTree(embeddings[own], seconds[own]).speakers, len(set(names[own]))) for own in drawn]


@dataclass(frozen=True)
class Meeting:
    """A separated recording of whom it is known when they speak.

    Args:
        stretches: N of all its estimates, in order of time.
        values: (N, D) embeddings.
        spoken: (K, F) who speaks in steps of 20 ms.
    """

    stretches: list[SpeechSegment]
    values: np.ndarray
    spoken: np.ndarray

    def part(self, chosen: Sequence[int], speakers: int) -> Countable:
        """Return some stretches as if there were no others."""
        blended = blend_turns(self.values[list(chosen)], [self.stretches[number] for number in chosen])
        return Countable(SpeakerGains(blended).speakers, speakers)

    def whole(self) -> Countable:
        """Return all stretches."""
        return self.part(range(len(self.stretches)), len(self.spoken))

    def parts(self) -> list[Countable]:
        """Return a minute, and two and a half, of every two and a half minutes."""
        found, total = [], self.spoken.shape[1] * _STEP_SECONDS
        for seconds in _PARTS_SECONDS:
            for begin in np.arange(0.0, total - seconds + 1e-6, _EVERY_SECONDS):
                chosen = [
                    number
                    for number, stretch in enumerate(self.stretches)
                    if begin <= stretch.start_seconds
                    and stretch.start_seconds + stretch.duration_seconds <= begin + seconds
                ]
                spoken = self.spoken[:, round(begin / _STEP_SECONDS) : round((begin + seconds) / _STEP_SECONDS)].sum(1)
                if chosen:
                    found.append(self.part(chosen, max(1, int((spoken > _LEAST_SHARE * spoken.sum()).sum()))))
        return found

    def alone(self) -> list[Countable]:
        """Return for each person the stretches in which nobody else speaks, if there are some."""
        shares = []
        for stretch in self.stretches:
            first = int(stretch.start_seconds / _STEP_SECONDS)
            last = int((stretch.start_seconds + stretch.duration_seconds) / _STEP_SECONDS) + 1
            shares.append(self.spoken[:, first:last].mean(1))
        table = np.array(shares)
        only = (table > _ALONE) & (table.sum(1, keepdims=True) - table < _OTHERS)
        return [self.part(np.flatnonzero(own).tolist(), 1) for own in only.T if own.sum() >= _LEAST_ALONE]


def read_meetings(model: str, folders: Sequence[str | Path]) -> list[Meeting]:
    """Return separated meetings from folders of `sepkit prepare conversation` with estimates of mixture.flac in
    separated/."""
    meetings = []
    for folder in map(Path, folders):
        truth = next(iter(read_rttm(folder / "conversation.rttm").values()))
        speech = find_speech([folder / "separated"], folder / "separated" / "clusters")
        stretches = [stretch for _, stretch in speech.all]
        ends = [start + length for turns in truth.values() for start, length in turns]
        end = max(*ends, *(stretch.start_seconds + stretch.duration_seconds for stretch in stretches))
        spoken = np.zeros((len(truth), int(end / _STEP_SECONDS) + 1), bool)
        for row, turns in zip(spoken, truth.values(), strict=True):
            for start, length in turns:
                row[round(start / _STEP_SECONDS) : round((start + length) / _STEP_SECONDS)] = True
        meetings.append(Meeting(stretches, embeddings_of_waveforms(model, speech.waveforms), spoken))
    return meetings


def sets_of_meetings(meetings: Sequence[Meeting]) -> dict[str, list[Countable]]:
    """Return meetings as a whole, in parts, and what each person says alone."""
    sets = {
        "meetings": [meeting.whole() for meeting in meetings],
        "parts of meetings": [part for meeting in meetings for part in meeting.parts()],
        "one person of a meeting": [part for meeting in meetings for part in meeting.alone()],
    }
    return {name: own for name, own in sets.items() if own}


def count_all(items: Sequence[Countable], thresholds: Sequence[tuple[float, ...]]) -> list[dict[str, Any]]:
    """Return for each threshold how often the count is exact and within one, and the confusion matrix (true, found)."""
    true = np.array([item.speakers for item in items])
    results = []
    for threshold in thresholds:
        found = np.array([item.people(*threshold) for item in items])
        confusion = np.zeros((max(true.max(), found.max()),) * 2, int)
        np.add.at(confusion, (true - 1, found - 1), 1)
        errors = found - true
        results.append(
            {
                "collections": len(items),
                "exact": float((errors == 0).mean()),
                "within_one": float((np.abs(errors) <= 1).mean()),
                "mean_error": float(errors.mean()),
                "confusion": confusion.tolist(),
            }
        )
    return results


def calibrate(
    sets: Mapping[str, Sequence[Countable]], thresholds: Sequence[tuple[float, ...]]
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Return the thresholds that count best: shares within one and exact, added over all sets; and how well in each."""
    results = {name: count_all(items, thresholds) for name, items in sets.items()}
    values = sum(np.array([result["within_one"] + result["exact"] for result in own]) for own in results.values())
    # The middle of the best thresholds is the safest.
    good = np.flatnonzero(values >= np.max(values) - 1e-9)
    middle = int(good[len(good) // 2])
    return thresholds[middle], {name: own[middle] for name, own in results.items()}


def count_trial(
    model: str,
    dev: Sequence[str | Path],
    test: str | Path,
    out: str | Path,
    options: CountOptions,
    meetings: Sequence[str | Path] = (),
) -> dict[str, Any]:
    """Calibrate the thresholds of a count on dev, count on test, and return both; an encoder keeps its thresholds."""
    sets = {}
    for folder in dev:
        known = read_collection(folder)
        most = min(options.most, len(set(known.speakers)))
        sets[str(folder)] = countables(embeddings_of(model, known), known, replace(options, most=most))
    (threshold,), on_dev = calibrate(sets, _THRESHOLDS)
    counting = {"threshold": threshold}
    if meetings:
        (second, further), on_meetings = calibrate(sets_of_meetings(read_meetings(model, meetings)), _GAINS)
        counting |= {"second_gain": second, "further_gain": further}
        on_dev |= on_meetings
    collection = read_collection(test)
    items = countables(embeddings_of(model, collection), collection, options)
    (on_test,) = count_all(items, [(threshold,)])
    if model not in BASELINES:
        keep(encoder_folder(model), {"counting": counting})
    result = {"model": model, "counting": counting, "dev": on_dev, "test": on_test}
    write_json(out, result)
    return result


def keep(folder: Path, info: Mapping[str, Any]) -> None:
    """Add plain data to what stands beside an encoder's weights."""
    encoder = load_checkpoint(folder, of=SpeakerEncoder)
    save_model(encoder, find_checkpoint(folder), encoder.info | dict(info))
