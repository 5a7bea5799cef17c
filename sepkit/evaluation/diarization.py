"""The diarization error rate: the share of speech assigned to the wrong speaker or to no one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.errors import UserError, shown
from sepkit.files import read_text
from sepkit.limits import RECORDING_SECONDS, TURN_SPEAKERS, TURNS
from sepkit.matching import linear_sum_assignment

Turns = Mapping[str, Sequence[tuple[float, float]]]
"""Speaker -> beginnings and lengths of turns, seconds."""

COLLARS_SECONDS = (0.0, 0.25)

# Of the fields of RTTM: a number; and what may follow the name.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_UNKNOWN = re.compile(r"<NA>|\d*\.\d+([eE][+-]?\d+)?")


@dataclass(frozen=True)
class DiarizationErrors:
    """Seconds of errors; the speech of two at once counts twice.

    Args:
        speech: Speech of the reference, seconds.
        missed: Speech assigned to no speaker, seconds.
        false_alarm: Non-speech assigned to a speaker, seconds.
        confused: Speech assigned to another speaker, seconds.
    """

    speech: float
    missed: float
    false_alarm: float
    confused: float

    @property
    def rate(self) -> float:
        """The sum of errors over the speech; infinity if there is none."""
        wrong = self.missed + self.false_alarm + self.confused
        return wrong / self.speech if self.speech else (np.inf if wrong else 0.0)

    def __add__(self, other: DiarizationErrors) -> DiarizationErrors:
        return DiarizationErrors(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def diarization_errors(reference: Turns, hypothesis: Turns, collar_seconds: float = 0.0) -> DiarizationErrors:
    """Return the errors under the best one-to-one naming of speakers; overlapping speech is counted.

    Args:
        reference: true turns.
        hypothesis: found turns.
        collar_seconds: left out on both sides of each beginning and end of a true turn.

    Raises:
        UserError: more turns or speakers than `sepkit.limits` allows.

    Source: NIST, "The 2009 (RT-09) rich transcription meeting recognition evaluation plan", section 6.
    """
    turns = [(start, start + length) for own in (*reference.values(), *hypothesis.values()) for start, length in own]
    ends = np.array([end for own in reference.values() for start, length in own for end in (start, start + length)])
    collars = [(end - collar_seconds, end + collar_seconds) for end in ends] if collar_seconds else []
    if len(turns) > TURNS or max(len(reference), len(hypothesis)) > TURN_SPEAKERS:
        found = f"{len(turns)} turns of {len(reference)} and {len(hypothesis)} speakers"
        raise UserError(f"found {found} in one recording, expected at most {TURNS} of {TURN_SPEAKERS}; cut it")
    edges = np.unique(np.array([edge for part in (*turns, *collars) for edge in part]))
    if len(edges) < 2:
        return DiarizationErrors(0.0, 0.0, 0.0, 0.0)
    lengths, middles = np.diff(edges), 0.5 * (edges[:-1] + edges[1:])
    if len(collars):
        near = _distances(middles, ends) < collar_seconds
        lengths = np.where(near, 0.0, lengths)
    true, found = _active(reference, middles), _active(hypothesis, middles)
    together = (true * lengths) @ found.T
    rows, columns = linear_sum_assignment(together, maximize=True)
    correct = float(together[rows, columns].sum())
    spoken, given = true.sum(0), found.sum(0)
    both = float((np.minimum(spoken, given) * lengths).sum())
    return DiarizationErrors(
        speech=float((spoken * lengths).sum()),
        missed=float((np.maximum(spoken - given, 0) * lengths).sum()),
        false_alarm=float((np.maximum(given - spoken, 0) * lengths).sum()),
        confused=max(0.0, both - correct),
    )


def error_rates(reference: Mapping[str, Turns], hypothesis: Mapping[str, Turns]) -> dict[str, Any]:
    """Return `der` and `der_collar_0.25` of all recordings together, the shares of errors, and the rates of each.

    Args:
        reference: recording -> true turns.
        hypothesis: recording -> found turns; of a recording that it lacks, all speech is missed.

    Raises:
        UserError: a reference without speech.
    """
    rates: dict[str, Any] = {"recordings": {name: {} for name in reference}}
    for collar in COLLARS_SECONDS:
        name = "der" if collar == 0 else f"der_collar_{collar:g}"
        errors = {key: diarization_errors(own, hypothesis.get(key, {}), collar) for key, own in reference.items()}
        total = sum(errors.values(), DiarizationErrors(0.0, 0.0, 0.0, 0.0))
        if not total.speech:
            raise UserError("the reference: it contains no speech, expected turns longer than 0 s and than the collar")
        rates[name] = total.rate
        if collar == 0:
            parts = {"missed": total.missed, "false_alarm": total.false_alarm, "confused": total.confused}
            rates |= {f"{part}_share": value / total.speech for part, value in parts.items()}
            rates["speech_seconds"] = total.speech
        for key, own in errors.items():
            rates["recordings"][key][name] = own.rate if math.isfinite(own.rate) else None
    return rates


def _distances(times: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return (times,) how far each is from the nearest of the ends."""
    ends = np.sort(ends)
    after = np.searchsorted(ends, times).clip(max=len(ends) - 1)
    return np.minimum(np.abs(times - ends[after]), np.abs(times - ends[np.maximum(after - 1, 0)]))


def _active(turns: Turns, times: np.ndarray) -> np.ndarray:
    """Return (speakers, times) 1 where a speaker has a turn."""
    active = np.zeros((len(turns), len(times)))
    for row, own in zip(active, turns.values(), strict=True):
        for start, length in own:
            row[np.searchsorted(times, start) : np.searchsorted(times, start + length)] = 1
    return active


def read_rttm(path: str | Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return recording -> speaker -> turns of an RTTM file; a turn is its beginning and length in seconds.

    Raises:
        UserError: unreadable, or a line that is none of RTTM.
    """
    lines = read_text(path, "an RTTM file").splitlines()
    recordings: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if words[:1] != ["SPEAKER"]:
            continue
        turns = _turns_of(words)
        if len(turns) != 1 or not all(0 <= seconds <= RECORDING_SECONDS for seconds in turns[0][2:]):
            expected = "expected SPEAKER FILE CHANNEL START LENGTH <NA> <NA> NAME <NA> <NA>, names without spaces"
            raise UserError(f"{path}: line {number}: found {shown(line)}, {expected}")
        name, speaker, start, length = turns[0]
        recordings.setdefault(name, {}).setdefault(speaker, []).append((start, length))
    return recordings


def _turns_of(words: Sequence[str]) -> list[tuple[str, str, float, float]]:
    """Return every recording, speaker, beginning and length that the words of a line may stand for: names may have
    spaces."""
    found = []
    for place in range(3, len(words) - 4):
        after, name = words[place + 2], words[place + 4 :]
        # Two fields follow the name: nothing known, or a confidence such as 0.9. Older files have fewer.
        tail = next(k for k in (2, 1, 0) if k < len(name) and all(map(_UNKNOWN.fullmatch, name[len(name) - k :])))
        is_whole = tail == 2 or len(name) == 1 + tail
        if all(map(_NUMBER.fullmatch, words[place : place + 2])) and not _NUMBER.fullmatch(after) and is_whole:
            start, length = map(float, words[place : place + 2])
            found.append((" ".join(words[1 : place - 1]), " ".join(name[: len(name) - tail]), start, length))
    return found
