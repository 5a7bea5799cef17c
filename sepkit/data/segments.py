"""Tables of segments: which part of which recording, and who speaks in it, as CSV."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sepkit.data.activity import milliseconds
from sepkit.errors import UserError, shown
from sepkit.files import read_csv, write_csv
from sepkit.limits import RECORDING_SECONDS

EMBEDDINGS = "embeddings.csv"
"""File of the embeddings of segments in two dimensions, beside their table."""

COLUMNS = ("path", "start_seconds", "duration_seconds", "speaker", "confidence")


@dataclass(frozen=True)
class Segment:
    """A part of a recording: infinity as duration reaches to its end. Speaker and confidence, a probability, may be
    unknown."""

    path: str
    start_seconds: float = 0.0
    duration_seconds: float = math.inf
    speaker: str | None = None
    confidence: float | None = None


def read_segments(path: str | Path) -> list[Segment]:
    """Return the rows of a table of segments; the column `path` is necessary, the others may be absent or empty."""
    columns, rows = read_csv(path, f"a CSV file with columns {', '.join(COLUMNS)}")
    if "path" not in columns:
        found = ", ".join(columns) or "nothing"
        raise UserError(f"{path}: found columns {found[:200]}, expected {', '.join(COLUMNS)}")
    segments = []
    for number, row in rows:
        where = f"{path}: line {number}"
        if not row["path"]:
            raise UserError(f"{where}: path is empty, expected that of a recording")
        start = _number(row, "start_seconds", 0.0, where)
        duration = _number(row, "duration_seconds", math.inf, where)
        confidence = _number(row, "confidence", math.nan, where)
        sure = None if math.isnan(confidence) else confidence
        segments.append(Segment(row["path"], start, duration, row.get("speaker") or None, sure))
    if not segments:
        raise UserError(f"{path}: contains no segments, expected a row for each")
    return segments


def _number(row: dict[str, str | None], name: str, default: float, where: str) -> float:
    text = row.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value <= RECORDING_SECONDS or value == math.inf):
        raise UserError(f"{where}: {name} is {shown(text)}, expected a number from 0 to {RECORDING_SECONDS}")
    return value


def write_segments(path: str | Path, segments: Iterable[Segment]) -> Path:
    """Write a table of segments atomically, seconds to the millisecond, and return its path."""
    rows = []
    for segment in segments:
        seconds = milliseconds(segment.start_seconds, segment.duration_seconds)
        confidence = "" if segment.confidence is None else f"{segment.confidence:.4f}"
        rows.append([segment.path, *seconds, segment.speaker or "", confidence])
    return write_csv(path, COLUMNS, rows)
