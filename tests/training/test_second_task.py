"""A task that is not separation goes through the ordinary commands: train, resume, smoke, summarize, report."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from sepkit.cli.main import main

TASK = str(Path(__file__).with_name("line_task.py"))
OPTIONS = ("--import", TASK, "--task", "line", "--trainer.checkpoint_every_steps", "3", "--trainer.accelerator", "cpu")


def train(out: Path, *more: str) -> int:
    return main(["train", *OPTIONS, *more, "--out", str(out)])


def train_killed(out: Path, at_batch: int) -> None:
    """Train, and be killed before a batch is used."""
    from sepkit.training.task import Task

    step = Task.training_step

    def killed_step(self: Any, batch: Any, batch_idx: int) -> None:
        if self.position.batches == at_batch:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, batch, batch_idx)

    Task.training_step = killed_step  # type: ignore[method-assign]
    train(out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of three epochs of four batches, with seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("line")
    for seed in ("0", "1"):
        assert train(folder / f"line_seed{seed}", "--seed", seed) == 0
    return folder


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_killed_run_ends_as_if_it_had_not_been_killed(
    trained: Path, tmp_path: Path, in_process: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert in_process(train_killed, tmp_path / "exp", 7) == -signal.SIGKILL
    assert train(tmp_path / "exp") == 0
    assert "resuming from" in capfd.readouterr().err
    expected = load_file(trained / "line_seed0" / "last_model" / "model.safetensors")
    for name, weight in load_file(tmp_path / "exp" / "last_model" / "model.safetensors").items():
        assert torch.equal(weight, expected[name])


def test_records_and_files_are_those_of_any_run(trained: Path) -> None:
    out = trained / "line_seed0"
    epochs = [line for line in records(out) if line["kind"] == "epoch"]
    assert len(epochs) == 3
    assert {"train_loss", "train_absolute_error", "dev_loss", "dev_absolute_error", "learning_rate"} <= epochs[0].keys()
    assert epochs[-1]["dev_loss"] < epochs[0]["dev_loss"]
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["task"] == "line" and config["data"]["points"] == 16
    description = yaml.safe_load((out / "model" / "model.yaml").read_text())
    assert description["kind"] == "line" and description["info"]["monitor"] == "dev_loss"


def test_fine_tuning(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "exp", "--init-from", str(trained / "line_seed0"), "--trainer.max_epochs", "1") == 0
    assert "loaded 2 of 2 tensors" in capfd.readouterr().err


def test_smoke(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", *OPTIONS]) == 0
    assert "(line)" in capfd.readouterr().out


def test_summarize(trained: Path, tmp_path: Path) -> None:
    """There is no `evaluate` for it: the best model's dev scores are in the table."""
    runs = [str(trained / f"line_seed{seed}") for seed in (0, 1)]
    assert main(["summarize", *runs, "--out", str(tmp_path / "table.md")]) == 0
    infos = [yaml.safe_load(Path(run, "model", "model.yaml").read_text())["info"] for run in runs]
    mean = sum(info["dev_loss"] for info in infos) / 2
    text = (tmp_path / "table.md").read_text()
    assert "line" in text and f"{mean:.2f}" in text and "±" in text


def test_report(trained: Path, tmp_path: Path) -> None:
    assert main(["report", str(trained / "line_seed0"), "--out", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "Training curve: absolute error" in text and "points: 16" in text


@pytest.mark.parametrize("command", ["separate", "calibrate", "export", "evaluate"])
def test_commands_for_separators_refuse_the_model(
    trained: Path, tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model, out = str(trained / "line_seed0"), str(tmp_path / "out")
    (tmp_path / "in.wav").touch()
    arguments = {
        "separate": [str(tmp_path / "in.wav"), "--model", model, "--out", out],
        "calibrate": [model, "--manifest", "dev.jsonl"],
        "export": [model, "--out", out],
        "evaluate": ["--model", model, "--manifest", "dev.jsonl", "--out", out],
    }
    assert main([command, *arguments[command]]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "found a model of kind line, expected one of kind separation" in line


def test_options_of_other_tasks_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "exp", "--target-rates", "1") == 2
    assert "--target-rates: found task line, expected separation" in capfd.readouterr().err
    assert train(tmp_path / "exp", "--trainer.monitor", "pit") == 2
    assert "trainer.monitor: found pit, expected auto or loss for task line" in capfd.readouterr().err


def test_unknown_task(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--task", "seperation", "--out", str(tmp_path / "exp")]) == 2
    assert "task: unknown choice 'seperation' (did you mean separation?)" in capfd.readouterr().err


def test_another_task_in_the_same_folder_is_refused(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    manifest = trained / "train.jsonl"
    assert main(["train", "--data.train", str(manifest), "--out", str(trained / "line_seed0")]) == 2
    assert "task was line when this training began, now separation" in capfd.readouterr().err


def test_only_separators_grow(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "exp", "--trainer.growth.epochs", "[1]") == 2
    assert "trainer.growth: task line has no hypotheses that could grow" in capfd.readouterr().err
