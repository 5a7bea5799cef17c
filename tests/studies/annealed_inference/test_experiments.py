"""`sepkit annealed-inference`: every experiment at a tiny size, twice; kept cells, and bad numbers."""

import json
from pathlib import Path

import pytest
import torch

from sepkit.cells import cell_seed, run_cells
from sepkit.cli.main import main
from sepkit.schedules import Constant, InverseTemperature
from sepkit.studies.annealed_inference import experiments
from sepkit.studies.annealed_inference.config import AnnealedInferenceConfig, FlowsConfig, PhaseDiagramConfig
from sepkit.studies.annealed_inference.experiments import phase_diagram
from sepkit.studies.annealed_inference.planning import plan_inverse_temperature

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


def test_flows_of_temperature_1_are_not_annealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell without annealing takes as many steps as the longest other one."""
    seen = []

    def fit(flow, config, schedule, steps, seed):
        seen.append((schedule, steps))
        return torch.ones(2), torch.zeros(2), []

    monkeypatch.setattr(experiments, "fit_flows", fit)
    own = FlowsConfig(dimension=4, couplings=1, hidden=4, replicas=2, temperatures=[9.0], steps=[4, 8], after=2)
    experiments.flows(AnnealedInferenceConfig(flows=own), tmp_path)
    assert seen == [(Constant(1.0), 10), (InverseTemperature(1 / 9, 4), 6), (InverseTemperature(1 / 9, 8), 10)]


def test_all_experiments(tmp_path: Path) -> None:
    """Tables, figures and cells; a second run computes no cell again, one with another setting its own cells alone."""
    conf, out = tmp_path / "tiny.yaml", tmp_path / "exp"
    conf.write_text(TINY)
    for experiment in EXPERIMENTS:
        _simulate(experiment, conf, out)
    tables = {name: json.loads((out / f"{name}.json").read_text()) for name in EXPERIMENTS}
    assert {path.stem for path in (out / "figures").glob("*.png")} == {f"figure_{k}" for k in range(1, 8)}
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


def test_cells_are_kept_and_have_seeds_of_their_own(tmp_path: Path) -> None:
    """Each is computed once for its settings; seeds depend on the name alone."""
    calls = []

    def compute(value: int, seed: int) -> dict[str, int]:
        calls.append(value)
        return {"double": 2 * value, "used": seed}

    cells = {"a": {"value": 1}, "b": {"value": 2}}
    first = run_cells(cells, compute, tmp_path / "x", 0)
    assert run_cells(cells, compute, tmp_path / "x", 0) == first and calls == [1, 2]
    assert first["a"]["double"] == 2 and first["a"]["used"] == cell_seed(0, "a") != cell_seed(0, "b")
    assert first["a"]["processor_seconds"] >= 0
    run_cells({"a": {"value": 3}}, compute, tmp_path / "x", 0)
    run_cells(cells, compute, tmp_path / "x", 1)
    assert calls == [1, 2, 3, 1, 2]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("formulas: {temperatures: [0.5]}", "formulas.temperatures: found 0.5, expected more than 1"),
        ("radios: 3", "radios: unknown field"),
    ],
)
def test_bad_numbers(tmp_path: Path, text: str, line: str, refused) -> None:
    """One line with file, field, found and expected; exit code 2."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    error = refused(["annealed-inference", "runs", "--config", path, "--out", tmp_path])
    assert line in error and str(path) in error


def test_plan_predicts_a_cell_of_the_phase_diagram(tmp_path: Path) -> None:
    """`plan-schedule` within .15 of the simulated share, at 1 / beta_i = 90, t0 = 300."""
    diagram = PhaseDiagramConfig([90.0], [300], replicas=100, samples=256, row_steps=300, row_samples=[])
    config = AnnealedInferenceConfig(phase_diagram=diagram)
    (row,) = phase_diagram(config, tmp_path)
    setting = {"dimension": 512, "radius": 3.0, "heavy_weight": 0.8, "initial_beta": 1 / 90, "steps": 300}
    plan = json.loads(plan_inverse_temperature(**setting, json=True))
    assert row["collapse"] == pytest.approx(plan["collapse_probability"], abs=0.15)
