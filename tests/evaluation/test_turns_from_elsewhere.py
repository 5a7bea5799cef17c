"""Turns of speakers in files from elsewhere: bounded, and one line where they are none."""

import tracemalloc
from pathlib import Path

import pytest

from sepkit.data.segments import read_segments
from sepkit.evaluation.diarization import diarization_errors, read_rttm
from sepkit.limits import TURN_SPEAKERS, TURNS
from tests.complaint import complaint

RTTM = "SPEAKER a 1 {start} {length} <NA> <NA> anna <NA> <NA>\n"


@pytest.mark.parametrize(
    ("start", "length"),
    [("nan", "1"), ("0", "inf"), ("-1", "1"), ("0", "-1"), ("1e308", "1e308"), ("9" * 400, "1"), ("0", "x")],
)
def test_turns_beyond_reason(start: str, length: str, tmp_path: Path) -> None:
    (tmp_path / "x.rttm").write_text(RTTM.format(start=start, length=length))
    complaint(lambda: read_rttm(tmp_path / "x.rttm"), r"line 1: found .* expected SPEAKER FILE")


READ = {
    "f 1 0.5 1.5 <NA> <NA> A <NA> <NA>": ("f", "A"),
    "f 1 0.5 1.5 <NA> <NA> A": ("f", "A"),
    "f 1 0.5 1.5 <NA> <NA> A 0.93 <NA>": ("f", "A"),
    "my rec 1 0.5 1.5 <NA> <NA> A <NA> <NA>": ("my rec", "A"),
    "my rec 1 0.5 1.5 <NA> <NA> A": ("my rec", "A"),
    "talk 2024 01 02 1 0.5 1.5 <NA> <NA> A <NA> <NA>": ("talk 2024 01 02", "A"),
    "f 1 0.5 1.5 <NA> <NA> Ann Lee <NA> <NA>": ("f", "Ann Lee"),
    "my rec 1 0.5 1.5 <NA> <NA> Speaker 1 <NA> 0.5": ("my rec", "Speaker 1"),
}


@pytest.mark.parametrize("line", READ)
def test_names_with_spaces_are_read_whole(line: str, tmp_path: Path) -> None:
    (tmp_path / "x.rttm").write_text(f";; a comment\nSPEAKER {line}\n")
    recording, speaker = READ[line]
    assert read_rttm(tmp_path / "x.rttm") == {recording: {speaker: [(0.5, 1.5)]}}


@pytest.mark.parametrize(
    "line",
    [
        # Speaker 1, or a speaker with the confidence 1; two places that may hold the times; no times at all.
        "f 1 0.5 1.5 <NA> <NA> Speaker 1",
        "f 1 0.5 1.5 <NA> <NA> Speaker 1 <NA>",
        "f 1 0.5 1.5 <NA> <NA> Ann Lee",
        "a 1 0.0 1.0 <NA> x 1 0.5 1.5 <NA> <NA> A <NA> <NA>",
        "f 1 <NA> <NA> A <NA> <NA>",
    ],
)
def test_lines_that_may_be_read_in_two_ways_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "x.rttm").write_text(f"SPEAKER {line}\n")
    complaint(lambda: read_rttm(tmp_path / "x.rttm"), r"line 1: found .* expected SPEAKER FILE .* names without spaces")


@pytest.mark.parametrize("row", ["a.wav,nan,1", "a.wav,-1,1", "a.wav,0,1e308", "a.wav,1e300,1", ",0,1"])
def test_segments_beyond_reason(row: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"path,start_seconds,duration_seconds\n{row}\n")
    complaint(lambda: read_segments(tmp_path / "x.csv"), "line 2: ")


def test_too_many_turns_or_speakers_are_refused() -> None:
    turns = {"a": [(float(second), 0.5) for second in range(TURNS + 1)]}
    for known in (turns, {str(number): [(0.0, 1.0)] for number in range(TURN_SPEAKERS + 1)}):
        complaint(lambda known=known: diarization_errors(known, {"b": [(0.0, 1.0)]}), "expected at most")


def test_many_turns_take_little_memory() -> None:
    """With a collar, too: the middles of stretches are compared with the nearest end alone."""
    reference = {"a": [(2.0 * n, 1.0) for n in range(10_000)], "b": [(2.0 * n + 1, 1.0) for n in range(10_000)]}
    tracemalloc.start()
    errors = diarization_errors(reference, reference, 0.25)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert errors.rate == 0 and peak < 100_000_000
