"""SegLST transcripts: a JSON list of segments with speaker, times and words."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepkit.errors import UserError, shown
from sepkit.files import read_json, write_json
from sepkit.limits import MEETING_WORDS, RECORDING_SECONDS, TURN_SPEAKERS, TURNS

EXPECTED = "a list of segments with session_id, speaker, start_time, end_time and words"


@dataclass(frozen=True)
class SpokenSegment:
    """The words of one speaker in one segment of a meeting.

    Args:
        session: name of the meeting.
        start_seconds: None: unknown, as is the end.
        words: None: unknown.
    """

    session: str
    speaker: str
    start_seconds: float | None = None
    end_seconds: float | None = None
    words: str | None = None


def read_seglst(path: str | Path) -> list[SpokenSegment]:
    """Return the segments of a SegLST file; words may be absent, and so may times, which may also be text.

    Raises:
        UserError: another kind of file, or more segments, speakers or words in a meeting than `sepkit.limits` allows.

    Source: T. von Neumann et al., "MeetEval: a toolkit for computation of word error rates for meeting transcription
    systems", 2023.
    """
    rows = read_json(path, f"expected {EXPECTED}")
    if not isinstance(rows, list):
        raise UserError(f"{path}: found {shown(rows)}, expected {EXPECTED}")
    segments = [_segment(row, f"{path}: segment {number}") for number, row in enumerate(rows, 1)]
    by_session: dict[str, list[SpokenSegment]] = {}
    for segment in segments:
        by_session.setdefault(segment.session, []).append(segment)
    for session, own in by_session.items():
        words = sum(len((segment.words or "").split()) for segment in own)
        speakers = len({segment.speaker for segment in own})
        if len(own) > TURNS or speakers > TURN_SPEAKERS or words > MEETING_WORDS:
            raise UserError(
                f"{path}: session {shown(session)}: found {len(own)} segments of {speakers} speakers, {words} words, "
                f"expected at most {TURNS} of {TURN_SPEAKERS} and {MEETING_WORDS}; cut it"
            )
    return segments


def _segment(row: Any, where: str) -> SpokenSegment:
    if not isinstance(row, dict):
        raise UserError(f"{where}: found {shown(row)}, expected a mapping with session_id, speaker, start_time ...")
    names = [row.get(key) for key in ("session_id", "speaker")]
    for key, value in zip(("session_id", "speaker"), names, strict=True):
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise UserError(f"{where}: {key} is {shown(value)}, expected a name")
    words = row.get("words")
    if words is not None and not isinstance(words, str):
        raise UserError(f"{where}: words is {shown(words)}, expected text")
    start, end = (_time(row.get(key), f"{where}: {key}") for key in ("start_time", "end_time"))
    if (start is None) != (end is None) or (start is not None and end is not None and end < start):
        raise UserError(f"{where}: found start_time {start} and end_time {end}, expected both, the end after the start")
    return SpokenSegment(str(names[0]), str(names[1]), start, end, words)


def _time(value: Any, where: str) -> float | None:
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds <= RECORDING_SECONDS:
        raise UserError(f"{where} is {shown(value)}, expected seconds from 0 to {RECORDING_SECONDS}")
    return seconds


def write_seglst(path: str | Path, segments: Iterable[SpokenSegment]) -> Path:
    """Write segments as SegLST, seconds to the millisecond; unknown times and words are left out."""
    rows = []
    for segment in segments:
        times = {"start_time": segment.start_seconds, "end_time": segment.end_seconds}
        row = {"session_id": segment.session, "speaker": segment.speaker}
        row |= {key: round(value, 3) for key, value in times.items() if value is not None}
        rows.append(row if segment.words is None else row | {"words": segment.words})
    return write_json(path, rows)
