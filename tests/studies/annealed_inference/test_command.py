"""`sepkit annealed-inference`: every experiment at a tiny size, twice."""

from __future__ import annotations

import json
from pathlib import Path

from sepkit.cli.main import main

TINY = """
dimension: 16
after: 5
formulas: {temperatures: [90, 900], steps: [10, 20], starts: 20, after: 5}
phase_diagram: {temperatures: [90, 900], steps: [10, 20], replicas: 6, samples: 16, row_steps: 10, row_samples: [8]}
runs: {seeds: 2, samples: 16, temperature: 90, steps: 10, plain_steps: 10}
flows: {dimension: 4, couplings: 2, hidden: 8, samples: 16, replicas: 2, temperatures: [9, 90], steps: [4, 8], after: 2}
"""
EXPERIMENTS = ("formulas", "phase-diagram", "runs", "flows")


def _simulate(experiment: str, conf: Path, out: Path) -> None:
    assert main(["annealed-inference", experiment, "--config", str(conf), "--out", str(out)]) == 0


def test_all_experiments(tmp_path: Path) -> None:
    """Tables, figures and cells; a second run computes no cell again, one with another setting its own cells alone."""
    conf, out = tmp_path / "tiny.yaml", tmp_path / "exp"
    conf.write_text(TINY)
    for experiment in EXPERIMENTS:
        _simulate(experiment, conf, out)
    tables = {name: json.loads((out / f"{name}.json").read_text()) for name in EXPERIMENTS}
    figures = {path.stem for path in (out / "figures").glob("*.png")}
    assert figures == {f"figure_{k}" for k in range(1, 8)}
    assert len(tables["phase-diagram"]) == 4 + 2
    assert {row["samples"] for row in tables["phase-diagram"]} == {16, 8}
    assert all(0 <= row["collapse"] <= 1 for row in tables["phase-diagram"] + tables["flows"]["rows"])
    assert len(tables["flows"]["rows"]) == 1 + 4
    cells = {path: path.stat().st_mtime_ns for path in out.glob("*/*.json")}
    _simulate("phase-diagram", conf, out)
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*.json")} == cells
    conf.write_text(TINY.replace("replicas: 6", "replicas: 7"))
    _simulate("phase-diagram", conf, out)
    changed = [path for path in cells if path.stat().st_mtime_ns != cells[path]]
    assert len(changed) == 6 and all(path.parent.name == "phase_diagram" for path in changed)


def test_bad_configuration(tmp_path: Path, capsys) -> None:
    """One line, exit code 2."""
    conf = tmp_path / "bad.yaml"
    conf.write_text("dimension: 0\n")
    assert main(["annealed-inference", "runs", "--config", str(conf), "--out", str(tmp_path)]) == 2
    assert "dimension: found 0, expected at least 1" in capsys.readouterr().err
