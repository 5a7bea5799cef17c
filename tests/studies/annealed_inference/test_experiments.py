"""The experiments' own rules: seeds, kept cells, and bad numbers in a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from sepkit.cells import cell_seed, run_cells
from sepkit.errors import UserError
from sepkit.studies.annealed_inference.config import AnnealedInferenceConfig, PhaseDiagramConfig, read_config
from sepkit.studies.annealed_inference.experiments import phase_diagram
from sepkit.studies.annealed_inference.planning import plan_inverse_temperature


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
        ("radius: 0", "radius: found 0.0, expected more than 0"),
        ("dimension: -1", "dimension: found -1"),
        ("heavy_weight: 1.5", "heavy_weight: found 1.5, expected more than 0, less than 1"),
        ("phase_diagram: {steps: [0]}", "phase_diagram.steps: found 0"),
        ("phase_diagram: {samples: -8}", "phase_diagram.samples: found -8"),
        ("formulas: {temperatures: [0.5]}", "formulas.temperatures: found 0.5, expected more than 1"),
        ("radios: 3", "radios"),
    ],
)
def test_bad_numbers(tmp_path: Path, text: str, line: str) -> None:
    """File, field, found, expected."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_config(path)
    assert line in str(caught.value) and str(path) in str(caught.value)


def test_plan_predicts_a_cell_of_the_phase_diagram(tmp_path: Path) -> None:
    """`plan-schedule` within .15 of the simulated share, at 1 / beta_i = 90, t0 = 300."""
    config = AnnealedInferenceConfig(
        phase_diagram=PhaseDiagramConfig([90.0], [300], replicas=100, samples=256, row_steps=300, row_samples=[])
    )
    (row,) = phase_diagram(config, tmp_path)
    plan = plan_inverse_temperature(512, 3.0, 0.8, initial_beta=1 / 90, steps=300)
    assert row["collapse"] == pytest.approx(plan.data["collapse_probability"], abs=0.15)
