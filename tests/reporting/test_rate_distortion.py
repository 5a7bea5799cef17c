"""Tables and curves of models at different rates, from run folders with invented numbers."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sepkit.cli.main import main
from sepkit.evaluation.run_folder import load_run
from sepkit.reporting.rate_distortion import points_of, targets_of
from sepkit.reporting.report import write_report

# Target -> rate that training reached, and on the test set: rate per tick, log evidence, SI-SDR.
MODELS = {
    3: (2.9, 3.0, 1.0, 2.0),
    10: (10.5, 10.0, 1.4, 6.0),
    40: (43.0, 41.0, 1.9, 9.0),
    110: (108.0, 115.0, 1.8, 9.5),
    360: (150.0, 160.0, 1.7, 8.0),
}
DIMENSIONS = 96
# Offsets of other sets for evidence and SI-SDR, and their factor for the rate.
SETS = {"test": (0.0, 0.0, 1.0), "test_noise_low": (0.3, 2.0, 0.9), "test_noise_high": (-0.5, -3.0, 1.2)}


def make_model(folder: Path, target: int, *, steering: dict[str, Any] | None = None, sets: Any = SETS) -> str:
    """An experiment with a configuration, a log of two epochs, and evaluations."""
    reached, rate, evidence, si_sdr = MODELS[target]
    for name, (more_evidence, more_db, factor) in sets.items():
        evaluation = folder / "evaluation" / name
        evaluation.mkdir(parents=True)
        means = {
            "si_sdr_db": si_sdr + more_db,
            "si_sdri_db": si_sdr + more_db + 1,
            "blr_nats_per_sample": evidence + more_evidence,
            "encoding_rate_nats_per_frame": 0.25 * rate * factor,
            "mask_rate_nats_per_frame": 0.75 * rate * factor,
            "rate_nats_per_dimension": rate * factor / DIMENSIONS,
        }
        metrics = {key: {"mean": mean, "n": 2, "ci95": [mean, mean], "std": 0.0} for key, mean in means.items()}
        (evaluation / "summary.json").write_text(json.dumps({"n_utterances": 2, "metrics": metrics}))
        (evaluation / "utterances.csv").write_text("manifest,id\n")
    config = {"objective": {"rates": {"steering": steering or {"total": float(target), "per": "frame"}}}}
    (folder / "config.yaml").write_text(json.dumps(config))
    shares = {"encoding": 0.25 * reached, "mask": 0.75 * reached}
    rates = [{"encoding": 999.0}, shares, {"encoding": 777.0}]
    records = [{f"train_{part}_rate_nats_per_frame": value for part, value in rate.items()} for rate in rates]
    for number, (kind, record) in enumerate(zip(("epoch", "epoch", "step"), records, strict=True), start=1):
        record |= {"kind": kind, "epoch": number, "step": number}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    return [make_model(tmp_path / f"rate_{target}", target) for target in reversed(MODELS)]


def section(text: str, name: str) -> list[list[str]]:
    """The cells of a section's table, header first."""
    part = text.split(f"### {name}\n")[1].split("\n### ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


def summarize(models: list[str], out: Path, *more: str) -> str:
    assert main(["summarize", *models, "--figure", "rate-distortion", "--out", str(out), *more]) == 0
    return out.read_text()


def test_targets_and_reached_rates(tmp_path: Path, models: list[str]) -> None:
    text = summarize(models, tmp_path / "out" / "rd.md")
    header, *rows = section(text, "Rates")
    assert header[-3:] == ["test", "test_noise_high", "test_noise_low"]
    assert [row[0] for row in rows] == [f"rate_{target}" for target in MODELS]
    for row, (target, (reached, rate, *_)) in zip(rows, MODELS.items(), strict=True):
        assert row[1:4] == ["total", str(target), f"{reached:.4g}"]
        assert row[4] == ("yes" if abs(reached / target - 1) <= 0.1 else "no")
        assert row[5] == f"{rate:.4g} ({rate / DIMENSIONS:.3f})"
    assert "4 of 5 steered models are within 10 %" in text


def test_the_optimum_of_each_set_and_how_much_worse_the_highest_rate_is(tmp_path: Path, models: list[str]) -> None:
    text = summarize(models, tmp_path / "rd.md")
    _, *rows = section(text, "Best models")
    # By log evidence model 40, 0.2 nats better than 360; by SI-SDR model 110, 1.5 dB better.
    assert rows[0] == ["test", "-1.900", "rate_40", "0.427", "0.200", "9.50", "rate_110", "1.198", "1.50"]
    assert rows[2] == ["test_noise_low", "-2.200", "rate_40", "0.384", "0.200", "11.50", "rate_110", "1.078", "1.50"]
    # The table over seeds stands above, a row for each model.
    assert [row[0] for row in section(text, "test_noise_high")[1:]] == [f"rate_{target}" for target in reversed(MODELS)]


def test_the_curves_are_those_the_report_draws(tmp_path: Path, models: list[str]) -> None:
    summarize(models, tmp_path / "rd.md")
    assert (tmp_path / "rd_rate_distortion.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "rate_distortion.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 15 and lines[0]["curve"] == "test"
    curve = load_run(tmp_path).curves[tmp_path.name]
    assert list(curve.panels) == ["blr_nll_nats_per_sample", "si_sdr_db"]
    rates, values = curve.panels["si_sdr_db"]["test_noise_low"]
    assert values == pytest.approx([4.0, 8.0, 11.0, 11.5, 10.0])
    assert rates == pytest.approx([0.9 * rate / DIMENSIONS for _, rate, *_ in MODELS.values()])
    page = write_report([tmp_path, *models], tmp_path / "report.html").read_text()
    assert "rate-distortion" in page and "nats per dimension" in page


def test_separate_targets_and_other_units(tmp_path: Path) -> None:
    steering = {"encoding": 10.0, "masks": 30.0, "per": "frame"}
    encoding, masks = targets_of(load_run(make_model(tmp_path / "a", 40, steering=steering)))
    assert (encoding.name, encoding.reached, encoding.met) == ("encoding", pytest.approx(10.75), True)
    assert (masks.name, masks.reached, masks.met) == ("masks", pytest.approx(32.25), True)
    sampled = load_run(make_model(tmp_path / "b", 40, steering={"total": 40.0, "per": "sample"}))
    assert targets_of(sampled)[0].reached is None and targets_of(sampled)[0].met is None
    rows = [row[1:5] for row in section(summarize([str(tmp_path / "a")], tmp_path / "rd.md"), "Rates")[1:]]
    assert rows == [["encoding", "10", "10.75", "yes"], ["masks", "30", "32.25", "yes"]]


def test_models_that_lack_something(tmp_path: Path) -> None:
    """A set that one model was not measured on, a model that was not steered, and no log evidence."""
    folders = [make_model(tmp_path / "a", 3, sets={"test": SETS["test"]}), make_model(tmp_path / "b", 10)]
    (tmp_path / "b" / "config.yaml").write_text("objective: {rates: {steering: null}}\n")
    for path in tmp_path.glob("*/evaluation/*/summary.json"):
        summary = json.loads(path.read_text())
        del summary["metrics"]["blr_nats_per_sample"]
        path.write_text(json.dumps(summary))
    text = summarize(folders, tmp_path / "rd.md")
    rows = {row[0]: row for row in section(text, "Rates")[1:]}
    assert rows["b"][1:5] == [""] * 4 and rows["a"][-2:] == ["", ""]
    assert section(text, "Best models")[1][1:6] == ["", "", "", "", "6.00"]
    assert list(load_run(tmp_path).curves[tmp_path.name].panels) == ["si_sdr_db"]
    assert "1 of 1 steered models are within 10 %" in text


def test_mistakes_exit_with_2_and_one_line(tmp_path: Path, models: list[str], refused) -> None:
    out = tmp_path / "rd.md"
    path = Path(models[0]) / "evaluation" / "test" / "summary.json"
    summary = json.loads(path.read_text())
    del summary["metrics"]["rate_nats_per_dimension"]
    path.write_text(json.dumps(summary))
    error = refused(["summarize", *models, "--figure", "rate-distortion", "--out", out])
    assert "found no rate_nats_per_dimension" in error
    assert not out.exists() and not (tmp_path / "rate_distortion.csv").exists()
    assert [point.run for point in points_of([load_run(models[1])], "test")] == ["rate_110"]
