"""egs/annealed_vi: every stage at a tiny size, twice, and what its configurations say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sepkit.studies.annealed_inference.config import read_config

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = REPOSITORY / "egs" / "annealed_vi"

TINY = """
dimension: 16
after: 5
formulas: {temperatures: [90, 900], steps: [10, 20], starts: 20, after: 5}
agreement:
  {dimensions: [8], temperatures: [90], steps: [10], replicas: 10, samples: 8, cost_dimension: 16, cost_samples: 8,
   cost_replicas: 2, cost_steps: 2}
phase_diagram: {temperatures: [90, 900], steps: [10, 20], replicas: 6, samples: 16, row_steps: 10, row_samples: [8]}
runs: {seeds: 2, samples: 16, temperature: 90, steps: 10, plain_steps: 10}
flows: {dimension: 4, couplings: 2, hidden: 8, samples: 16, replicas: 2, temperatures: [9, 90], steps: [4, 8], after: 2}
"""


def _recipe(*options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(RECIPE / "run.sh"), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_all_stages_of_the_simulation(tmp_path: Path) -> None:
    """Tables, figures and cells; a second run computes no cell again."""
    conf = tmp_path / "tiny.yaml"
    conf.write_text(TINY)
    done = _recipe("--conf", str(conf), "--exp", str(tmp_path / "exp"))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "exp"
    tables = {name: json.loads((folder / f"{name}.json").read_text()) for name in EXPERIMENTS}
    figures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert figures == {"formulas", *(f"figure_{k}" for k in range(1, 8))}
    assert len(tables["phase-diagram"]) == 4 + 2
    assert {row["samples"] for row in tables["phase-diagram"]} == {16, 8}
    assert all(0 <= row["collapse"] <= 1 for row in tables["phase-diagram"] + tables["flows"]["rows"])
    assert len(tables["flows"]["rows"]) == 1 + 4
    cells = {path: path.stat().st_mtime_ns for path in folder.glob("*/*.json")}
    again = _recipe("--conf", str(conf), "--exp", str(tmp_path / "exp"), "--stage", "3", "--stop-stage", "3")
    assert again.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*.json")} == cells
    # Another setting makes its cell anew.
    conf.write_text(TINY.replace("replicas: 6", "replicas: 7"))
    assert (
        _recipe("--conf", str(conf), "--exp", str(tmp_path / "exp"), "--stage", "3", "--stop-stage", "3").returncode
        == 0
    )
    changed = [path for path in cells if path.stat().st_mtime_ns != cells[path]]
    assert changed and all(path.parent.name == "phase_diagram" for path in changed)


EXPERIMENTS = ("formulas", "agreement", "phase-diagram", "runs", "flows")


def test_separation_needs_recordings() -> None:
    """Stage 6 says what is missing."""
    done = _recipe("--stage", "6", "--stop-stage", "6")
    assert done.returncode == 2 and "--speech, --noise" in done.stderr


@pytest.mark.parametrize("name", ["cpu", "paper"])
def test_configurations_are_read(name: str) -> None:
    """Both files of the simulation, with the paper's problem."""
    config = read_config(RECIPE / "conf" / f"{name}.yaml")
    assert (config.radius, config.heavy_weight, config.dimension, config.step_size) == (3.0, 0.8, 512, 0.05)
    if name == "paper":
        assert config.phase_diagram.samples == 8192 and config.flows.replicas == 200 and config.flows.hidden == 512
