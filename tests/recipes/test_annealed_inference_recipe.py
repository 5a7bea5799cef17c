"""egs/annealed_inference: a stage at a tiny size, and what its configurations say; tests/studies runs the rest."""

import json
import subprocess
from pathlib import Path

import pytest

from sepkit.studies.annealed_inference.config import read_config

RECIPE = Path(__file__).resolve().parents[2] / "egs" / "annealed_inference"


def _recipe(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(RECIPE / "run.sh"), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_stage(tmp_path: Path, environment: dict[str, str]) -> None:
    """The table is written at its stated path."""
    conf = tmp_path / "tiny.yaml"
    conf.write_text("formulas: {temperatures: [90], steps: [10], starts: 20, after: 5}\n")
    done = _recipe(environment, "--conf", str(conf), "--exp", str(tmp_path / "exp"), "--stop-stage", "1")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "exp" / "formulas.json").read_text())
    assert row["temperature"] == 90 and str(tmp_path / "exp" / "formulas.json") in done.stdout


@pytest.mark.parametrize("name", ["cpu", "paper"])
def test_configurations_are_read(name: str) -> None:
    """Both files of the simulation, with the paper's problem."""
    config = read_config(RECIPE / "conf" / f"{name}.yaml")
    assert (config.radius, config.heavy_weight, config.dimension, config.step_size) == (3.0, 0.8, 512, 0.05)
    if name == "paper":
        assert config.phase_diagram.samples == 8192 and config.flows.replicas == 200 and config.flows.hidden == 512
