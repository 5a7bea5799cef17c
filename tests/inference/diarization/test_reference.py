"""`sepkit cluster --reference`: tables and RTTM, scored as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sepkit.cli.main import main
from sepkit.data.segments import Segment, write_segments


@pytest.fixture
def clusters(tmp_path):
    rows = [
        Segment("in/a_s1.wav", 0.0, 1.0, "speaker_1", 0.9),
        Segment("in/a_s2.wav", 1.0, 1.0, "speaker_2", 0.9),
        Segment("in/a_s1.wav", 2.0, 1.0, "speaker_1", 0.9),
        Segment("in/b.wav", 0.0, 1.0, "speaker_2", 0.9),
    ]
    return write_segments(tmp_path / "clusters" / "segments.csv", rows)


def score(clusters: Path, reference: Path, out: Path) -> int:
    return main(["cluster", str(clusters), "--reference", str(reference), "--out", str(out)])


def test_rttm(clusters, tmp_path):
    """One second of four goes to the wrong speaker, and half a second is missed."""
    lines = [("a", 0, 1, "x"), ("a", 1, 1, "y"), ("a", 2, 1, "y"), ("b", 0, 1.5, "y")]
    text = "".join(
        f"SPEAKER {name} 1 {start} {length} <NA> <NA> {who} <NA> <NA>\n" for name, start, length, who in lines
    )
    (tmp_path / "truth.rttm").write_text(text)
    assert score(clusters, tmp_path / "truth.rttm", tmp_path / "out") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["scores"]
    assert summary["acc"] == pytest.approx(0.75) and summary["n_segments"] == 4 and summary["count_error"] == 0
    assert summary["der"] == pytest.approx(1.5 / 4.5)
    assert summary["recordings"]["a"]["der"] == pytest.approx(1 / 3)
    assert summary["recordings"]["b"]["der"] == pytest.approx(1 / 3)
    assert summary["der_collar_0.25"] < summary["der"]


def test_rttm_against_rttm(clusters, tmp_path, capsys):
    line = "SPEAKER a 1 {} 1.0 <NA> <NA> {} <NA> <NA>\n"
    (tmp_path / "truth.rttm").write_text(line.format(0.0, "x") + line.format(1.0, "y"))
    found = tmp_path / "a.rttm"
    found.write_text(line.format(0.0, "s1") + line.format(1.0, "s1"))
    assert score(found, tmp_path / "truth.rttm", tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["scores"]["der"] == pytest.approx(0.5)
    found.write_text("")
    assert score(found, tmp_path / "truth.rttm", tmp_path / "out") == 2
    assert "nobody speaks in it" in capsys.readouterr().err


def test_table(clusters, tmp_path, capsys):
    rows = [
        Segment("in/a_s1.wav", speaker="x"),
        Segment("in/a_s2.flac", speaker="y"),
        Segment("absent.wav", speaker="z"),
    ]
    reference = write_segments(tmp_path / "truth.csv", rows)
    assert score(clusters, reference, tmp_path / "out") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["scores"]
    assert (summary["nmi"], summary["n_segments"], summary["n_without_label"]) == (1.0, 3, 1)
    assert summary["unknown_paths"] == ["absent"] and "der" not in summary
    assert "absent: in " in capsys.readouterr().out


def test_one_line_for_what_cannot_be_measured(clusters, tmp_path, capsys):
    other = write_segments(tmp_path / "other.csv", [Segment("elsewhere.wav", speaker="x")])
    assert score(clusters, other, tmp_path / "out") == 2
    assert "names none of the recordings" in capsys.readouterr().err
    nobody = write_segments(tmp_path / "nobody.csv", [Segment("in/b.wav")])
    assert score(clusters, nobody, tmp_path / "out") == 2
    assert "in/b.wav has no speaker" in capsys.readouterr().err
    assert main(["cluster", str(clusters), "--out", str(tmp_path / "out")]) == 2
    assert "is a table" in capsys.readouterr().err
