"""Tables of several evaluations."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from sepkit.cli.main import main
from sepkit.errors import UserError
from sepkit.evaluation.evaluate import evaluate
from sepkit.reporting.leaderboard import leaderboard


@pytest.fixture
def folders(corpus: Any, tmp_path: Path) -> list[Path]:
    """A worse run, a better one, and one of another metric."""
    runs = {"a_worse": (0.5, ["si_sdr"]), "b|best": (0.1, ["si_sdr", "snr"]), "c": (0.2, ["snr"])}
    for name, (noise, metrics) in runs.items():
        command = f"sepkit evaluate --out {name} --signal_std 5%"
        evaluate([corpus.manifest], tmp_path / name, separate=corpus.separator(noise), metrics=metrics, command=command)
    return [tmp_path / name for name in runs]


def test_markdown_is_sorted_best_first_with_commands(folders: list[Path]) -> None:
    lines = leaderboard(folders).splitlines()
    assert lines[0].startswith("| run | n | si_sdr (dB) | si_sdri (dB) |") and "---" in lines[1]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| b\\|best", "| a_worse", "| c"]
    assert lines[2].count("**") == 2 * 5 and "`sepkit evaluate --out b\\|best" in lines[2]
    # Four columns of the other metric, and no score is bold in them.
    assert all(line.replace("\\|", "").count("|") == lines[0].count("|") for line in lines)


def test_latex_escapes_what_it_must(folders: list[Path]) -> None:
    table = leaderboard(folders, "latex")
    assert table.startswith("\\begin{tabular}{lrrrrrr}") and table.endswith("\\end{tabular}\n")
    assert "a\\_worse & 5 & $" in table and "\\pm" in table and "mcl\\_si\\_sdr (dB)" in table
    assert "% a_worse: sepkit evaluate --out a_worse --signal_std 5%\n" in table


def test_csv_holds_the_numbers(folders: list[Path]) -> None:
    rows = list(csv.DictReader(io.StringIO(leaderboard(folders, "csv"))))
    assert [row["run"] for row in rows] == ["b|best", "a_worse", "c"]
    assert float(rows[0]["si_sdr_db_ci95_low"]) < float(rows[0]["si_sdr_db"]) and rows[2]["si_sdr_db"] == ""
    by_snr = csv.DictReader(io.StringIO(leaderboard(folders, "csv", sort_by="snr_db")))
    assert [row["run"] for row in by_snr] == ["b|best", "c", "a_worse"]


def test_runs_of_one_name_are_told_apart(folders: list[Path], corpus: Any, tmp_path: Path) -> None:
    evaluate([corpus.manifest], tmp_path / "x" / "c", separate=corpus.separator(), metrics=["si_sdr"])
    table = leaderboard([folders[2], tmp_path / "x" / "c"])
    assert "| x/c |" in table and f"| {tmp_path.name}/c |" in table


def test_the_command_writes_the_table(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.md"
    names = [str(folder) for folder in folders]
    assert main(["leaderboard", *names, "--format", "md", "--out", str(out)]) == 0
    assert out.read_text() == leaderboard(folders)
    assert capsys.readouterr().out.strip().splitlines()[-1] == str(out)


def test_a_users_mistakes(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="md, latex, csv"):
        leaderboard(folders, "docx")
    with pytest.raises(UserError, match="no folders"):
        leaderboard([])
    with pytest.raises(UserError, match="si_sdri_db"):
        leaderboard(folders, sort_by="loudness")
    with pytest.raises(UserError, match="no such file"):
        leaderboard([tmp_path / "nowhere"])
