"""Figures of `sepkit cluster`: embeddings in two dimensions, and who spoke when."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from sepkit.errors import UserError, shown
from sepkit.files import read_csv
from sepkit.limits import RECORDING_SECONDS
from sepkit.reporting.figures import COLORS

_COLUMNS = ("recording", "start_seconds", "duration_seconds", "speaker", "x", "y")
_ROW_INCHES, _MARGIN_INCHES = 0.28, 0.8


@dataclass(frozen=True)
class DrawnSegment:
    """A segment of speech and where its embedding is drawn.

    Args:
        recording: path of the recording, without ending.
        start_seconds: Beginning of the segment, seconds.
        duration_seconds: its length.
        speaker: whom it was given to.
        x: first principal component of the embedding.
        y: second one.
    """

    recording: str
    start_seconds: float
    duration_seconds: float
    speaker: str
    x: float
    y: float


def read_embeddings(path: Path) -> list[DrawnSegment]:
    """Return the rows of a file `embeddings.csv`.

    Raises:
        UserError: a column is missing, or a number is none.
    """
    columns, rows = read_csv(path, "what sepkit cluster wrote")
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise UserError(f"{path}: found no column {', '.join(missing)}; cluster again")
    return [_segment(row, f"{path}: line {number}") for number, row in rows]


def _segment(row: dict[str, str | None], where: str) -> DrawnSegment:
    numbers = []
    for name in ("start_seconds", "duration_seconds", "x", "y"):
        try:
            number = float(row[name] or math.nan)
        except (TypeError, ValueError):
            number = math.nan
        if not abs(number) <= RECORDING_SECONDS:
            raise UserError(f"{where}: {name}: found {shown(row[name])}, expected a number; cluster again")
        numbers.append(number)
    start, duration, x, y = numbers
    return DrawnSegment(str(row["recording"]), start, duration, str(row["speaker"]), x, y)


def embedding_figure(segments: Sequence[DrawnSegment]) -> Figure:
    """Return a figure of embeddings in two dimensions, a point for each segment, in its speaker's color."""
    figure = Figure(figsize=(4.8, 4.0), layout="constrained")
    axes = figure.subplots()
    for number, speaker in enumerate(_speakers(segments)):
        own = [segment for segment in segments if segment.speaker == speaker]
        color = COLORS[number % len(COLORS)]
        axes.scatter([s.x for s in own], [s.y for s in own], s=10, color=color, alpha=0.7, linewidths=0, label=speaker)
    axes.set(xlabel="first principal component", ylabel="second principal component")
    axes.legend(fontsize="small", frameon=False, markerscale=1.5)
    return figure


def timeline_figure(segments: Sequence[DrawnSegment]) -> Figure:
    """Return a figure of who spoke when: a row for each speaker of one recording."""
    speakers = _speakers(segments)
    figure = Figure(figsize=(8.0, _MARGIN_INCHES + _ROW_INCHES * len(speakers)), layout="constrained")
    axes = figure.subplots()
    for row, speaker in enumerate(speakers):
        turns = [(s.start_seconds / 60, s.duration_seconds / 60) for s in segments if s.speaker == speaker]
        axes.broken_barh(turns, (row - 0.4, 0.8), color=COLORS[_number(speaker, row) % len(COLORS)])
    axes.set_yticks(range(len(speakers)), speakers)
    axes.invert_yaxis()
    axes.set(xlabel="time [min]", xlim=(0, None))
    return figure


def _speakers(segments: Sequence[DrawnSegment]) -> list[str]:
    """Return the names of all speakers, by number where they have one."""
    return sorted({s.speaker for s in segments}, key=lambda name: (_number(name, -1), name))


def _number(speaker: str, otherwise: int) -> int:
    """Return k - 1 for the name "speaker_k", so that a speaker has one color in all figures."""
    digits = speaker.rpartition("_")[2]
    return int(digits) - 1 if digits.isdecimal() and len(digits) < 6 else otherwise
