"""Enrolled speakers: which linked speaker of a recording is who, and who is absent.

Each speaker is enrolled with a recording in which no one else speaks. Its embedding is compared with those of the
linked speakers. Names are assigned one to one if the similarity reaches a threshold. An enrolled speaker without a
match is reported as absent, or as undecided if the best similarity is just below the threshold and the enrollment is
short.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.errors import UserError
from sepkit.files import file_digest
from sepkit.inference.diarization.clustering import likeness, spherical_k_means, unit_rows
from sepkit.inference.diarization.encoders import Encoder, numbers_in
from sepkit.inference.diarization.segments import Source, embed, find_segments, waveforms_of
from sepkit.matching import linear_sum_assignment

LEAST_SECONDS = 1.0
"""Least length of speech in an enrollment, seconds."""

DEFAULT_THRESHOLD = 0.73
"""Cosine similarity below which no speaker is named, for encoders that have neither a threshold nor a cohort."""

COHORT_THRESHOLD = 0.1
"""Likeness below which no speaker is named, for encoders that have a cohort."""

DECIDING_SECONDS = 5.0
"""Seconds of speech in an enrollment that suffice to decide whether the speaker is absent."""

# A shorter enrollment is undecided if the likeness is at most this far below the threshold. With 3 s of enrollment, 2 %
# of the dev speakers who are present are further below.
_UNDECIDED = 0.15

# Two speakers: halves found by k-means that are less alike than this, each of this much speech, in enough of it. On dev
# speakers, on whom it was chosen, it finds 88 % of the enrollments of two, and takes 4 % of those of one for two.
_LEAST_LIKENESS, _LEAST_HALF_SECONDS, _CHECKED_SECONDS = 0.4, 1.4, 5.0


@dataclass(frozen=True)
class Enrolled:
    """A speaker with a recording of theirs alone.

    Args:
        sha256: SHA-256 of the recording.
        speech_seconds: Length of speech, seconds.
        embedding: (D,) unit vector.
        maybe_two: Whether it sounds like two speakers; None: too short to decide.
    """

    name: str
    path: Path
    sha256: str
    speech_seconds: float
    embedding: np.ndarray
    maybe_two: bool | None

    def warning(self) -> str | None:
        """Return the line that says so if the recording sounds like two speakers."""
        if not self.maybe_two:
            return None
        return f"{self.path}: may contain two speakers; enroll {self.name} with a recording of {self.name} alone"


def enroll(named: Mapping[str, Path], encoder: Encoder) -> list[Enrolled]:
    """Return enrolled speakers.

    Args:
        named: Name -> recording, at any rate.
        encoder: Speaker encoder.

    Raises:
        UserError: a recording that cannot be read, has less than 1 s of speech, or is that of another name.
    """
    enrolled: list[Enrolled] = []
    for name, path in named.items():
        source = Source(Path(path.name), (path,), (str(path),))
        segments, short = find_segments(source, encoder)
        lengths = np.array([segment.duration_seconds for segment in segments])
        seconds = sum(segment.duration_seconds for segment in (*segments, *short))
        if seconds < LEAST_SECONDS:
            raise UserError(
                f"{path}: found {seconds:.1f} s of speech, expected a recording of {name} alone with at least "
                f"{LEAST_SECONDS:g} s; 10 s are better"
            )
        rows, _ = embed(encoder, waveforms_of(source, segments, encoder.sample_rate))
        points = unit_rows(np.asarray(rows, np.float64))
        if not np.isfinite(points).all():
            raise UserError(f"{path}: its samples are far beyond full scale, without audible speech; get it again")
        sha256, mean, two = file_digest(path), unit_rows(points.mean(0)), _maybe_two(points, lengths)
        if same := [other.name for other in enrolled if other.sha256 == sha256]:
            raise UserError(f"{path}: enrolled as {same[0]} and as {name}, expected one recording per speaker")
        enrolled.append(Enrolled(name, path, sha256, seconds, mean, two))
    return enrolled


def _maybe_two(points: np.ndarray, seconds: np.ndarray) -> bool | None:
    """Return whether the segments of an enrollment, (N, D) unit vectors, sound like two speakers; None: too short."""
    if len(points) < 2 or seconds.sum() < _CHECKED_SECONDS:
        return None
    halves = spherical_k_means(points, 2)
    least = min(seconds[halves.labels == half].sum() for half in (0, 1))
    return bool(halves.centers[0] @ halves.centers[1] < _LEAST_LIKENESS and least >= _LEAST_HALF_SECONDS)


def threshold_of(encoder: Encoder) -> float:
    """Return the likeness below which no speaker is named.

    Args:
        encoder: Speaker encoder, which may state the number.

    Raises:
        UserError: the encoder states something else, see `numbers_in`.
    """
    default = DEFAULT_THRESHOLD if encoder.cohort is None else COHORT_THRESHOLD
    return numbers_in(encoder.info, "enrollment").get("threshold", default)


def threshold_warning(encoder: Encoder) -> str | None:
    """Return the line for an encoder that states no threshold and has no cohort; None otherwise.

    Args:
        encoder: Speaker encoder.
    """
    if encoder.info.get("enrollment") or encoder.cohort is not None:
        return None
    return (
        f"--enroll: the speaker encoder states no threshold, so a cosine similarity of {DEFAULT_THRESHOLD} decides who "
        "is absent; look at the likeness in the JSON file"
    )


@dataclass(frozen=True)
class Named:
    """The result for one enrolled speaker.

    Args:
        speaker: number of the linked speaker who has the name, from 0; None: absent, or undecided.
        nearest: Number of this speaker, or of the most similar one, who may have another name; None: no one speaks.
        likeness: Likeness to the nearest one, see `clustering.likeness`.
        too_short: Whether the enrollment is too short to decide whether the speaker is absent.
    """

    enrolled: Enrolled
    speaker: int | None
    nearest: int | None
    likeness: float | None
    too_short: bool

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for the JSON file."""
        return {
            "name": self.enrolled.name,
            "file": str(self.enrolled.path),
            "speech_seconds": round(self.enrolled.speech_seconds, 3),
            "maybe_two_speakers": self.enrolled.maybe_two,
            "speaker": None if self.speaker is None else self.speaker + 1,
            "nearest_speaker": None if self.nearest is None else self.nearest + 1,
            "likeness": self.likeness,
        }


def name_speakers(
    enrolled: Sequence[Enrolled], embeddings: np.ndarray, threshold: float, cohort: np.ndarray | None = None
) -> list[Named]:
    """Return which linked speaker each enrolled one is, one to one.

    Args:
        enrolled: Enrolled speakers.
        embeddings: Unit vectors of the linked speakers, (speakers, D); zeros for one who never speaks.
        threshold: Likeness below which no speaker is named.
        cohort: The encoder's cohort, (C, D), see `clustering.likeness`.
    """
    alike = likeness(np.array([speaker.embedding for speaker in enrolled]), embeddings, cohort)
    alike = np.where(np.any(embeddings != 0, axis=1), alike, -np.inf)
    # What is below the threshold counts the same, so that it takes no name from others.
    rows, columns = linear_sum_assignment(np.maximum(alike, threshold), maximize=True)
    given = {int(i): int(j) for i, j in zip(rows, columns, strict=True) if alike[i, j] >= threshold}
    found = []
    for number, speaker in enumerate(enrolled):
        column = given.get(number)
        nearest = int(alike[number].argmax()) if column is None else column
        best = float(alike[number, nearest])
        short = column is None and speaker.speech_seconds < DECIDING_SECONDS and best >= threshold - _UNDECIDED
        place = (nearest, round(best, 4)) if math.isfinite(best) else (None, None)
        found.append(Named(speaker, column, *place, short))
    return found
