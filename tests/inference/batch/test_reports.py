"""What a report says in a line, and which failures name their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sepkit.inference.batch.reports import FilesReport, failure_reason


@pytest.mark.parametrize(
    ("separated", "already_done", "failed", "line"),
    [
        (0, 0, 0, "0 files, 10 s of audio in 0.12 s"), (1, 0, 0, "1 file, 10 s of audio in 0.12 s"),
        (0, 2, 0, "2 files already separated"), (0, 0, 1, "1 file failed (listed in out/failed.jsonl)"),
        (0, 1, 1, "1 file already separated; 1 file failed (listed in out/failed.jsonl)"),
        (3, 1, 0, "3 files, 10 s of audio in 0.12 s; 1 file already separated"),
        (3, 0, 2, "3 files, 10 s of audio in 0.12 s; 2 files failed (listed in out/failed.jsonl)"),
    ],
)  # fmt: skip
def test_a_report_in_a_line_and_in_numbers(separated: int, already_done: int, failed: int, line: str) -> None:
    reasons = {f"{k}.wav": "damaged" for k in range(failed)}
    report = FilesReport(Path("out"), separated, already_done, reasons, 9.96, 0.1245)
    assert str(report) == line and report.real_time_factor == pytest.approx(0.0125)
    plain = report.to_plain()
    assert [plain[f"n_{name}"] for name in ("separated", "already_done", "failed")] == [separated, already_done, failed]
    assert plain["n_recordings"] == separated + already_done + failed
    assert plain["failed"] == [{"input": f"{k}.wav", "reason": "damaged"} for k in range(failed)]
    assert FilesReport(Path("out")).real_time_factor is None


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\nb"), "in/x.wav: a b"),
        (ValueError("in/x.wav: is empty"), "in/x.wav: is empty"),
        (MemoryError("in/x.wav"), "in/x.wav: too long for the device's memory; cut it into shorter files"),
    ],
)
def test_a_failure_names_its_file_once(error: Exception, line: str) -> None:
    assert failure_reason(error, Path("in/x.wav")).startswith(line)
