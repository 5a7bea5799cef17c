"""Every experiment from the command line at a tiny size: tables, figures, resuming, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.studies.quantization import commands

TINY = """
gaussians:
  {methods: [mcl, amcl_linear], hypotheses: 4, hidden: [8], seeds: 2, epochs: 6, steps_per_epoch: 1, batch_size: 32,
   probes: [0.5, 1.0], probe_points: 20, record_every: 2, test_points: 50, lloyd_inputs: 2,
   clvq_steps: 100}
free: {hypotheses: 3, points: 200, temperatures: [1.3, 0.5], split_points: 60, annealed_hypotheses: 3}
sines: {seeds: 2, examples: 100, test_examples: 50, steps: 8, batch_size: 16, hidden: 4}
"""
FIGURES = {
    "gaussians": {"figure_1_predictions", "figure_2_rate", "figure_3_distortion"},
    "free": {"annealing"},
    "sines": {f"figure_{part}_{target}" for part in ("2_points", "3_weights") for target in ("raw", "standardized")},
}


def check_gaussians(table: dict) -> None:
    assert [(row["kind"], row["method"]) for row in table["rows"]] == [
        (kind, method) for kind in ("fixed", "moving") for method in ("mcl", "amcl_linear")
    ]
    for row in table["rows"]:
        annealed = row["method"] == "amcl_linear"
        assert len(row["distortion"]) == len(row["used"]) == 2 and all(1 <= used <= 4 for used in row["used"])
        assert len(row["temperatures"]) == (4 if annealed else 0)
        assert len(row["distortions"]) == 4 and len(row["probes"]) == (2 if row["kind"] == "moving" else 1)
    least = {(row["kind"], row["method"]): row["distortion"] for row in table["quantizers"]}
    assert [method for _, method in least] == 2 * ["lloyd", "clvq", "lbg"]
    assert all(found > least[row["kind"], "lloyd"] for row in table["rows"] for found in row["distortion"])


def check_free(table: dict) -> None:
    assert len(table["rate"]) == 2 and table["annealing"]["splits"]


def check_sines(table: dict) -> None:
    kinds = ("plain", "noisy", "split", "annealed")
    expected = [(kind, target) for target in ("raw", "standardized") for kind in kinds]
    assert [(row["kind"], row["target"]) for row in table["rows"]] == expected
    for shown in (row["shown"] for row in table["rows"]):
        assert len(shown["modes"]) == len(shown["predictions"]) == 3 and len(shown["points"][0]) == 50
        for name in ("weights", "truth"):
            assert np.sum(shown[name], axis=0) == pytest.approx(np.ones(len(shown["x"])), abs=1e-3)


@pytest.mark.parametrize("check", [f for name, f in list(globals().items()) if name.startswith("check_")])
def test_experiments(check: Callable[[dict], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run computes no cell again."""
    name = check.__name__.removeprefix("check_")
    conf, out = tmp_path / "tiny.yaml", tmp_path / "out"
    conf.write_text(TINY)
    command = ["quantize", name, "--config", str(conf), "--out", str(out)]
    assert main(command) == 0
    check(json.loads((out / f"{name}.json").read_text()))
    assert {path.stem for path in (out / "figures").glob("*.png")} == FIGURES.get(name, set())
    cells = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    # Figures are drawn anew each time, which takes longer than all else.
    monkeypatch.setattr(commands, "_write_figures", lambda *_: None)
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == cells


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("free", "gauss: {}", "gauss: unknown field (did you mean gaussians?)"),
        ("free", "gaussians: {decay: 1.0}", "decay: found 1.0, expected more than 0, less than 1"),
        ("gaussians", "gaussians: {epoch: 3}", "epoch"),
        ("sines", "sines: {kinds: [grown]}", "kinds[0]: found 'grown', expected one of plain"),
        ("sines", "sines: {targets: [cubed]}", "targets[0]: found 'cubed'"),
    ],
)
def test_bad_configurations(name, text, message, tmp_path, refused) -> None:
    """One line that names the field; nothing is computed."""
    (tmp_path / "bad.yaml").write_text(text)
    assert message in refused(["quantize", name, "--config", tmp_path / "bad.yaml", "--out", tmp_path / "out"])
    assert not (tmp_path / "out").exists()
