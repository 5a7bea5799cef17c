"""A run that is interrupted, anywhere and anyhow, gives the weights of one that is not, bit for bit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sepkit.config import TrainConfig
from sepkit.errors import UserError
from sepkit.training.run import train
from sepkit.training.separation import SeparationTask

EPOCHS = 4
BATCHES = 7


def with_trainer(config: TrainConfig, **changes: Any) -> TrainConfig:
    return replace(config, trainer=replace(config.trainer, **changes))


def with_data(config: TrainConfig, **changes: Any) -> TrainConfig:
    return replace(config, data=replace(config.data, **changes))


def weights(out: Path, name: str = "last_model") -> dict[str, torch.Tensor]:
    return load_file(out / name / "model.safetensors")


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "mixtures_per_second")} for line in lines]


def assert_same_run(out: Path, reference: Path) -> None:
    for name in ("model", "last_model"):
        found, expected = weights(out, name), weights(reference, name)
        assert found.keys() == expected.keys()
        for key in expected:
            assert torch.equal(found[key], expected[key]), f"{name}: {key}"
    assert timeless(records(out)) == timeless(records(reference))


def train_interrupted(config: TrainConfig, out: Path, at_batch: int, number: signal.Signals) -> None:
    """Train, and get a signal just before a batch is used."""
    step = SeparationTask.training_step

    def interrupted_step(self: SeparationTask, batch: Any, batch_idx: int) -> None:
        if self.position.batches == at_batch:
            os.kill(os.getpid(), number)
        step(self, batch, batch_idx)

    SeparationTask.training_step = interrupted_step  # type: ignore[method-assign]
    train(config, out)


def count_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches used from now on, by number."""
    used: list[int] = []
    step = SeparationTask.training_step

    def counted_step(self: SeparationTask, batch: Any, batch_idx: int) -> None:
        used.append(self.position.batches)
        step(self, batch, batch_idx)

    monkeypatch.setattr(SeparationTask, "training_step", counted_step)
    return used


@pytest.fixture(scope="module")
def reference_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reference")


@pytest.fixture
def reference(reference_folder: Path, config: TrainConfig) -> Path:
    """A run of all epochs that nothing interrupts."""
    if not (reference_folder / "model").exists():
        train(with_trainer(config, max_epochs=EPOCHS), reference_folder)
    return reference_folder


def test_reference_moves(reference: Path) -> None:
    """The comparison below would be empty if nothing were learnt, or if epochs were alike."""
    epochs = [line for line in records(reference) if line["kind"] == "epoch"]
    assert len(epochs) == EPOCHS
    assert len({line["train_loss"] for line in epochs}) == EPOCHS
    assert epochs[-1]["dev_si_sdr_db"] > epochs[0]["dev_si_sdr_db"]


def test_two_and_two_epochs_are_four(config: TrainConfig, reference: Path, tmp_path: Path) -> None:
    train(with_trainer(config, max_epochs=2), tmp_path)
    train(with_trainer(config, max_epochs=EPOCHS), tmp_path)
    assert_same_run(tmp_path, reference)


def test_killed_between_validations(
    config: TrainConfig, tmp_path: Path, in_process: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs that nobody judges are not saved for their own sake, yet no more steps are repeated than promised."""
    config = with_trainer(config, max_epochs=EPOCHS, validate_every_epochs=3, checkpoint_every_steps=5)
    train(config, tmp_path / "whole")
    assert in_process(train_interrupted, config, tmp_path / "killed", 13, signal.SIGKILL) == -signal.SIGKILL
    used = count_batches(monkeypatch)
    train(config, tmp_path / "killed")
    assert 13 - used[0] <= 5
    assert used == list(range(used[0], EPOCHS * BATCHES))
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_finished_run_is_left_alone(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_trainer(config, max_epochs=1)
    assert train(config, tmp_path) == tmp_path / "model"
    before = weights(tmp_path)
    used = count_batches(monkeypatch)
    assert train(config, tmp_path) == tmp_path / "model"
    assert used == []
    assert all(torch.equal(before[key], value) for key, value in weights(tmp_path).items())


# 13 is the last of the second epoch; 14 the first of the third.
@pytest.mark.parametrize("at_batch", [5, 13, 14])
def test_killed(
    config: TrainConfig,
    reference: Path,
    tmp_path: Path,
    at_batch: int,
    in_process: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = with_trainer(config, max_epochs=EPOCHS)
    assert in_process(train_interrupted, config, tmp_path, at_batch, signal.SIGKILL) == -signal.SIGKILL
    used = count_batches(monkeypatch)
    train(config, tmp_path)
    assert at_batch - used[0] <= config.trainer.checkpoint_every_steps
    assert used == list(range(used[0], EPOCHS * BATCHES))
    assert_same_run(tmp_path, reference)


def test_killed_with_workers(
    config: TrainConfig, reference: Path, tmp_path: Path, in_process: Callable[..., int]
) -> None:
    config = with_data(with_trainer(config, max_epochs=EPOCHS), workers=4)
    assert in_process(train_interrupted, config, tmp_path, 12, signal.SIGKILL) == -signal.SIGKILL
    assert in_process(train, config, tmp_path) == 0
    assert_same_run(tmp_path, reference)


@pytest.mark.slow
@pytest.mark.parametrize("at_batch", range(0, EPOCHS * BATCHES, 2))
def test_killed_anywhere_with_workers(
    config: TrainConfig, reference: Path, tmp_path: Path, at_batch: int, in_process: Callable[..., int]
) -> None:
    config = with_data(with_trainer(config, max_epochs=EPOCHS), workers=4)
    in_process(train_interrupted, config, tmp_path, at_batch, signal.SIGKILL)
    in_process(train_interrupted, config, tmp_path, at_batch + 9, signal.SIGKILL)
    assert in_process(train, config, tmp_path) == 0
    assert_same_run(tmp_path, reference)


@pytest.mark.parametrize(("number", "at_batch"), [(signal.SIGTERM, 8), (signal.SIGINT, 13)])
def test_asked_to_stop(
    config: TrainConfig,
    reference: Path,
    tmp_path: Path,
    number: signal.Signals,
    at_batch: int,
    in_process: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that is asked to stop finishes its step and repeats none."""
    config = with_trainer(config, max_epochs=EPOCHS)
    assert in_process(train_interrupted, config, tmp_path, at_batch, number) == 128 + number
    used = count_batches(monkeypatch)
    train(config, tmp_path)
    assert used[0] == at_batch + 1
    assert_same_run(tmp_path, reference)


@pytest.mark.parametrize("at_batch", [4, 9])
def test_killed_while_accumulating(
    config: TrainConfig, tmp_path: Path, at_batch: int, in_process: Callable[..., int]
) -> None:
    """Windows of 3 batches, the last one of an epoch of 1: saved states lie between windows."""
    config = with_trainer(config, accumulate_batches=3, checkpoint_every_steps=1)
    train(config, tmp_path / "whole")
    assert in_process(train_interrupted, config, tmp_path / "killed", at_batch, signal.SIGKILL) == -signal.SIGKILL
    train(config, tmp_path / "killed")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_budget_counts_over_runs(config: TrainConfig, reference: Path, tmp_path: Path) -> None:
    config = with_trainer(config, max_epochs=EPOCHS)
    train(with_trainer(config, max_minutes=1e-9), tmp_path)
    assert len(weights(tmp_path, "model")) > 0, "a budget that is over at once still leaves a model"
    state = torch.load(tmp_path / "resume" / "last.ckpt", weights_only=True)
    assert state["position"]["batches"] == 2, "the step in which time ran out, and the one that agreed on it"
    spent = state["callbacks"]["ExactResume"]["seconds"]
    assert spent > 0
    train(with_trainer(config, max_minutes=spent / 60), tmp_path)
    again = torch.load(tmp_path / "resume" / "last.ckpt", weights_only=True)
    assert again["position"]["batches"] == 2, "the second run had no time left"
    train(config, tmp_path)
    for key, value in weights(reference).items():
        assert torch.equal(weights(tmp_path)[key], value)


def test_line_cut_short_is_dropped(config: TrainConfig, reference: Path, tmp_path: Path) -> None:
    train(with_trainer(config, max_epochs=2), tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "epoch": 3, "step": 21}\n{"kind": "epo')
    train(with_trainer(config, max_epochs=EPOCHS), tmp_path)
    assert timeless(records(tmp_path)) == timeless(records(reference))


def test_other_configuration_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    config = with_trainer(config, max_epochs=1)
    train(config, tmp_path)
    with pytest.raises(UserError, match=r"config.yaml: trainer.learning_rate was 0.001 .* now 0.5"):
        train(with_trainer(config, learning_rate=0.5), tmp_path)
    with pytest.raises(UserError, match=r"model\.hypotheses was 2 .* now 3"):
        train(replace(config, model=replace(config.model, hypotheses=3)), tmp_path)


def test_other_batches_in_mid_epoch_are_refused(config: TrainConfig, tmp_path: Path) -> None:
    train(with_trainer(config, max_minutes=1e-9), tmp_path)
    with pytest.raises(UserError, match="an epoch had 7 batches when this training stopped, now 14"):
        train(with_data(config, batch_size=1), tmp_path)


def test_damaged_state(config: TrainConfig, tmp_path: Path) -> None:
    train(with_trainer(config, max_epochs=1), tmp_path)
    (tmp_path / "resume" / "last.ckpt").write_bytes(b"no checkpoint")
    with pytest.raises(UserError, match=r"last\.ckpt: .*damaged"):
        train(config, tmp_path)
