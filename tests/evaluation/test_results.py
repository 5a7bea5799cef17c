"""Figures of an evaluation by hand, of two manifests with a missed source, a silent one, and a skipped mixture."""

import csv
import math
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sepkit.evaluation import results
from sepkit.evaluation.labels import PROPERTIES
from sepkit.evaluation.results import columns_of, summarize_rows, write_rows
from sepkit.evaluation.scoring import MISSED, SILENT, UtteranceScores


def row(manifest: str, name: str, assignment: list[int], si_sdr_db: list[float], **more: Any) -> dict[str, Any]:
    scores = UtteranceScores(assignment, {"si_sdr_db": si_sdr_db}, **more)
    return {
        "manifest": manifest, "id": name, "corpus": None, "task": "", "sample_rate": 8000, "num_samples": 80,
        "sources": 2, "hypotheses": 4, "silent_sources": scores.silent_sources, "speakers": ["p", "q"],
        "mixture": dict.fromkeys(PROPERTIES), "scores": asdict(scores), "only_speakers": True,
    }  # fmt: skip


ROWS = [
    row("a", "1", [2, 0], [10.0, 6.0], winners=[2, 0], speaker_count=2, word_counts=[[1, 10], [2, 6]],
        reasons={"pesq": "too short"}),
    {"manifest": "a", "id": "2", "reason": "no such file"},
    row("b", "3", [1, MISSED], [4.0, math.nan], winners=[1, 1], speaker_count=1, reasons={"pesq": "no speech"}),
    row("b", "4", [SILENT, 0], [math.nan, 8.0], winners=[SILENT, 0], speaker_count=2, word_counts=[[0, 4]],
        mixture_is_source=True),
]  # fmt: skip


def test_the_summary_by_hand() -> None:
    summary = summarize_rows(ROWS, ["si_sdr_db"])
    skipped = [{"id": "2", "reason": "no such file"}]
    counts = {"n_utterances": 3, "n_skipped": 1, "skipped": skipped, "n_silent_sources": 1, "n_without_improvement": 1}
    assert summary.items() >= counts.items()
    assert summary["metrics"]["si_sdr_db"]["mean"] == pytest.approx((8 + 4 + 8) / 3)
    assert summary["failures"] == {"pesq": {"n": 2, "first": {"id": "1", "reason": "too short"}}}
    assert summary["wer"] == {"errors": 3, "words": 20, "word_error_rate": 0.15}
    first, second = summary["by_manifest"]
    assert (first["manifest"], first["n_skipped"], first["metrics"]["si_sdr_db"]["mean"]) == ("a", 1, 8.0)
    assert (second["manifest"], second["n_skipped"], second["metrics"]["si_sdr_db"]["mean"]) == ("b", 0, 6.0)
    assert second["metrics"]["si_sdr_db"]["drop_db"] == 2.0 and "drop_db" not in first["metrics"]["si_sdr_db"]
    assert {label: group["si_sdr_db"]["n"] for label, group in summary["by"]["speakers"].items()} == {"1": 1, "2": 2}
    assert "by_manifest" not in summarize_rows(ROWS[:2], ["si_sdr_db"])
    # Nothing of the first manifest was measured.
    assert summarize_rows(ROWS[1:3], ["si_sdr_db"])["by_manifest"][1]["metrics"]["si_sdr_db"]["drop_db"] is None


def test_rows_are_written_with_an_empty_cell_for_what_is_not_defined(tmp_path: Path) -> None:
    columns = columns_of(ROWS, ["si_sdr"])
    assert columns == ["si_sdr_db", "si_sdri_db", "mcl_si_sdr_db", "attenuation_db", "speaker_count_accuracy"]
    assert columns_of(ROWS[:1], ["sdr"]) == ["sdr_db", "sdri_db", "speaker_count_accuracy"]
    write_rows(tmp_path / "utterances.csv", ROWS, columns)
    with open(tmp_path / "utterances.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [one["id"] for one in written] == ["1", "3", "4"]
    assert [one["assignment"] for one in written] == ["3 1", "2 missed", "- 1"]
    assert [one["si_sdr_db"] for one in written] == ["8.0", "4.0", "8.0"]
    of_sources = [(one["si_sdr_db_s1"], one["si_sdr_db_s2"]) for one in written]
    assert of_sources == [("10.0", "6.0"), ("4.0", ""), ("", "8.0")]
    assert [one["speaker_count_accuracy"] for one in written] == ["1.0", "0.0", "0.0"]
    assert (written[0]["speaker_s1"], written[0]["speaker_s2"], written[0]["reasons"]) == ("p", "q", "pesq: too short")
    assert "speaker_count_accuracy_s1" not in written[0]


def test_a_commit_with_changed_files_ends_with_a_plus(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "__file__", str(tmp_path / "sepkit" / "evaluation" / "results.py"))
    assert results.commit() is None
    (tmp_path / "file").write_text("1")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init"], ["add", "file"], ["commit", "-m", "1"], ["tag", "v1", "-m", "1"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    assert len(clean := results.commit()) == 40
    (tmp_path / "file").write_text("2")
    assert results.commit() == clean + "+"
