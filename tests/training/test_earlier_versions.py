"""Models and experiment folders that sepkit 0.1.0 wrote: they load, separate as they did then, and go on training."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import sepkit
from sepkit.config import TrainConfig, from_dict
from sepkit.training.run import train

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "written_by_0_1_0"
KINDS = ("deterministic", "variational", "scored")


@pytest.fixture(params=KINDS)
def experiment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an experiment folder, below the folder that its configuration's paths start from."""
    shutil.copytree(FIXTURES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path(request.param)


def expected_of(experiment: Path) -> dict[str, Tensor]:
    return load_file(experiment / "expected.safetensors")


def config_of(experiment: Path) -> TrainConfig:
    return from_dict(TrainConfig, yaml.safe_load((experiment / "config.yaml").read_text()))


def records(file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "mixtures_per_second")} for line in lines]


def test_a_model_separates_as_it_did(experiment: Path) -> None:
    expected = expected_of(experiment)
    found = sepkit.load_model(str(experiment)).separate(expected["mixture"], 8000)
    torch.testing.assert_close(torch.as_tensor(found.estimates), expected["estimates"], rtol=1e-5, atol=1e-6)
    if experiment.name == "scored":
        torch.testing.assert_close(torch.as_tensor(found.scores), expected["scores"], rtol=1e-5, atol=1e-6)


def test_a_stopped_run_ends_as_if_it_had_not_been_stopped(experiment: Path) -> None:
    """Steps are of 1e-3; a run that forgot its optimizer, schedule or place in the data is off by as much."""
    train(config_of(experiment), experiment)
    found = load_file(experiment / "last_model" / "model.safetensors")
    for name, weight in found.items():
        expected = expected_of(experiment)[f"finished.{name}"]
        torch.testing.assert_close(
            weight, expected, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    written, reference = records(experiment / "metrics.jsonl"), records(experiment / "expected_metrics.jsonl")
    for line, wanted in zip(written, reference, strict=True):
        # Later versions may record more.
        assert wanted.keys() <= line.keys()
        assert line.pop("kind") == wanted.pop("kind")
        assert {name: line[name] for name in wanted} == pytest.approx(wanted, rel=1e-3, abs=1e-3)


def test_a_finished_part_can_be_fine_tuned(experiment: Path, tmp_path: Path) -> None:
    config = replace(config_of(experiment), init_from=str(experiment))
    model = train(config, tmp_path / "tuned", limit_batches=1)
    assert load_file(model / "model.safetensors").keys() == load_file(experiment / "model/model.safetensors").keys()
