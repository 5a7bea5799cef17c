"""Three Gaussians: critical temperatures, splits ordered by input, and the command at a tiny size."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from sepkit.cli.main import main
from sepkit.studies.quantization.config import GaussiansConfig
from sepkit.studies.quantization.data import ThreeGaussians
from sepkit.studies.quantization.gaussians import split_temperatures


def test_critical_temperatures() -> None:
    """.46444 at rest, .02 + .4444 x^2 when moving; a sample has the covariance and the entropy."""
    assert ThreeGaussians().critical_temperature() == pytest.approx(0.464444, abs=1e-4)
    for x in (0.0, 0.3, 0.6, 1.0):
        assert ThreeGaussians(moving=True).critical_temperature(x) == pytest.approx(0.02 + 4 / 9 * x * x, abs=1e-9)
    for law, x in ((ThreeGaussians(), 0.5), (ThreeGaussians(moving=True), 0.5)):
        points = law.sample(torch.full((50_000,), x), torch.Generator().manual_seed(0)).double()
        torch.testing.assert_close(points.T.cov(correction=0), law.covariance(x), rtol=0, atol=5e-3)
    # The three hardly overlap: entropy of one, and of which one.
    expected = math.log(3) + math.log(2 * math.pi * math.e * 0.01)
    assert ThreeGaussians().entropy_nats(count=50_000) == pytest.approx(expected, abs=0.02)


def test_splits_of_networks_are_seen_in_their_distortion() -> None:
    """After the last record at the plateau, .02 + 7/18 x^2; never, where it was not reached or not left."""
    plateaus = [0.02 + 7 / 18 * x * x for x in (0.6, 1.0)]
    shares = [[[0.5, 0.3], [1.0, 1.0]], [[1.0, 0.2], [0.95, 1.0]], [[0.95, 0.2], [0.5, 1.0]], [[0.4, 0.1], [0.2, 1.0]]]
    row = {
        "kind": "moving",
        "probes": [0.6, 1.0],
        "temperatures": [0.8, 0.6, 0.4, 0.2],
        "groups": [[[1, 1], [1, 1]]] * 4,
        "distortions": [[[s * p for s in of] for of, p in zip(record, plateaus, strict=True)] for record in shares],
    }
    assert split_temperatures(row, GaussiansConfig()) == {"0.6": [0.2, None], "1": [0.4, None]}
    assert split_temperatures(row | {"groups": []}, GaussiansConfig()) == {}


TINY = """
gaussians:
  {methods: [mcl, amcl_linear], hypotheses: 4, hidden: [8], seeds: 2, epochs: 6, steps_per_epoch: 1, batch_size: 32,
   probes: [0.5, 1.0], probe_points: 20, record_every: 2, test_points: 50, lloyd_inputs: 2}
free:
  {hypotheses: 3, points: 200, temperatures: [1.3, 0.5], split_points: 60, split_hypotheses: 3, split_seeds: 2,
   linear: [[0.6, 100]], exponential: [[0.6, 0.95]]}
"""


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables and figures of both commands; a second run computes no cell again; unknown sections are refused."""
    conf, out = tmp_path / "tiny.yaml", tmp_path / "out"
    conf.write_text(TINY)
    for experiment in ("gaussians", "free"):
        assert main(["quantize", experiment, "--config", str(conf), "--out", str(out)]) == 0
    cells = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert main(["quantize", "gaussians", "--config", str(conf), "--out", str(out)]) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == cells
    table = json.loads((out / "gaussians.json").read_text())
    assert [(row["kind"], row["method"]) for row in table["rows"]] == [
        (kind, method) for kind in ("fixed", "moving") for method in ("mcl", "amcl_linear")
    ]
    for row in table["rows"]:
        assert row["split_temperatures"].keys() == ({f"{x:g}" for x in row["probes"]} if row["groups"] else set())
        assert len(row["distortion"]) == len(row["used"]) == 2 and all(1 <= used <= 4 for used in row["used"])
        assert row["epochs"] == [0, 2, 4, 5] and len(row["probes"]) == (2 if row["kind"] == "moving" else 1)
        assert len(row["groups"]) == (0 if row["method"] == "mcl" else 4)
        assert all(found > table["floors"][row["kind"]] for found in row["distortion"])
    assert table["plateau"] == pytest.approx(0.02 + (1 / 6 + 2 / 9) / 3, abs=1e-3)
    assert {path.stem for path in (out / "figures").glob("*.png")} == {
        "figure_1_predictions",
        "figure_2_rate",
        "figure_3_distortion",
        "annealing",
        "splits",
    }
    conf.write_text("gauss: {}\n")
    assert main(["quantize", "free", "--config", str(conf), "--out", str(out)]) == 2
    assert "found gauss, expected the sections" in capsys.readouterr().err
    conf.write_text("free: {hypotheses: 0}\n")
    assert main(["quantize", "free", "--config", str(conf), "--out", str(out)]) == 2
    assert "free.hypotheses: found 0, expected 1 or more" in capsys.readouterr().err
