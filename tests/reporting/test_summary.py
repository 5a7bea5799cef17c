"""One table of several evaluations."""

import re
from pathlib import Path
from typing import Any

import pytest

from sepkit.cli.main import main
from sepkit.evaluation.evaluate import EvaluationOptions, evaluate
from sepkit.evaluation.run_folder import load_run
from sepkit.reporting.report import write_report
from sepkit.reporting.summary import evaluations_table
from sepkit.reporting.text import evaluation_lines
from tests.complaint import complaint


@pytest.fixture
def folders(corpus: Any, tmp_path: Path) -> list[Path]:
    """A worse run, a better one, and one of another metric."""
    runs = {"a_worse": (0.5, ["si_sdr"]), "b|best": (0.1, ["si_sdr", "snr"]), "c": (0.2, ["snr"])}
    for name, (noise, metrics) in runs.items():
        command = f"sepkit evaluate --out {name}"
        evaluate(corpus.separator(noise), corpus.manifest, tmp_path / name, EvaluationOptions(metrics), command)
    return [tmp_path / name for name in runs]


def test_evaluations_are_sorted_best_first_with_commands(folders: list[Path], tmp_path: Path, capsys, refused) -> None:
    before = (folders[0] / "summary.json").read_bytes()
    assert "ends in .md" in refused(["summarize", folders[0], "--out", folders[0] / "summary.json"])
    assert (folders[0] / "summary.json").read_bytes() == before
    out = tmp_path / "table.md"
    assert main(["summarize", *map(str, folders), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1] == str(out)
    lines = out.read_text().splitlines()
    assert lines[0].startswith("| run | mixtures | speakers | SI-SDR [dB] | SI-SDRi [dB] |")
    assert lines[0].endswith("| command |")
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| b\\|best", "| a_worse", "| c"]
    assert lines[2].count("**") == 2 * 5 and "`sepkit evaluate --out b\\|best" in lines[2]
    score = load_run(folders[1]).evaluations[0].summary["metrics"]["si_sdr_db"]
    half = (score["ci95"][1] - score["ci95"][0]) / 2
    assert f"| **{score['mean']:.2f} ± {half:.2f}** |" in lines[2]
    # Every row has every column, also of the metrics that it lacks.
    assert all(line.replace("\\|", "").count("|") == lines[0].count("|") for line in lines[:5])
    assert "bootstrapped over the test speakers" in lines[6]


def test_of_few_mixtures_there_are_means_alone(make_corpus: Any, tmp_path: Path, capsys: Any) -> None:
    corpus = make_corpus(tmp_path / "corpus", count=2)
    folders = [tmp_path / name for name in ("first", "second")]
    for folder, noise in zip(folders, (0.5, 0.1), strict=True):
        compared = {} if folder is folders[0] else {"compare": folders[0]}
        found = evaluate(corpus.separator(noise), corpus.manifest, folder, EvaluationOptions(["si_sdr"], **compared))
        assert all(score["ci95"] is None for score in found["metrics"].values())
    lines = list(evaluation_lines(found))
    gain = found["comparison"]["metrics"]["si_sdr_db"]["mean"]
    assert f"SI-SDR [dB] over {folders[0]}: {gain:+.2f}" in lines
    assert not any(" to " in line or "intervals" in line for line in lines)
    table = evaluations_table([load_run(folder) for folder in folders])
    assert "±" not in table and f"{found['metrics']['si_sdr_db']['mean']:.2f}" in table
    page = write_report(folders, tmp_path / "report.html").read_text()
    # Means and paired differences stand in the page without ends.
    assert "Differences on the same mixtures" in page and f"{gain:+.2f}<" in page
    assert not re.search(r"<small>[+-]?[0-9.]+ to |95 % interval [0-9-]", page)


def test_the_first_metric_ranks_and_names_are_told_apart(folders: list[Path], corpus: Any, tmp_path: Path) -> None:
    evaluate(corpus.separator(0.02), corpus.manifest, tmp_path / "x" / "c", EvaluationOptions(["snr"]))
    runs = [load_run(folder) for folder in [*folders, tmp_path / "x" / "c"]]
    rows = evaluations_table(runs, ["snr_db"]).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| x/c", "| b\\|best", f"| {tmp_path.name}/c", "| a_worse"]
    complaint(lambda: evaluations_table(runs, ["loudness"]), "si_sdri_db")
