"""A run that is interrupted, anywhere and anyhow, gives the weights of one that is not, bit for bit."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from sepkit.config import TrainConfig
from sepkit.errors import UserError
from sepkit.training.run import train
from sepkit.training.separation import SeparationTask
from tests.complaint import complaint
from tests.training import runs
from tests.training.runs import assert_same_run, epochs, weights, with_data, with_model, with_trainer

EPOCHS = 4


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
def reference(tmp_path_factory: pytest.TempPathFactory, session_config: TrainConfig) -> Path:
    """A run of all epochs that nothing interrupts."""
    out = tmp_path_factory.mktemp("reference")
    train(with_trainer(session_config, max_epochs=EPOCHS), out)
    return out


def test_reference_moves(reference: Path) -> None:
    """The comparison below would be empty if nothing were learnt, or if epochs were alike."""
    lines = epochs(reference)
    assert len({line["train_loss"] for line in lines}) == len(lines) == EPOCHS
    assert lines[-1]["dev_si_sdr_db"] > lines[0]["dev_si_sdr_db"]


def test_killed_between_validations(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs that nobody judges are not saved for their own sake, yet no more steps are repeated than promised."""
    config = with_trainer(config, max_epochs=EPOCHS, validate_every_epochs=3, checkpoint_every_steps=5)
    train(config, tmp_path / "whole")
    assert runs.run_process(runs.train_interrupted, config, tmp_path / "killed", 13) == -signal.SIGKILL
    used = count_batches(monkeypatch)
    train(config, tmp_path / "killed")
    assert 13 - used[0] <= 5
    assert used == list(range(used[0], EPOCHS * runs.BATCHES))
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


# 13 is the last batch of the second epoch; 14 the first of the third.
@pytest.mark.parametrize(("at_batch", "workers"), [(5, 0), (13, 0), (14, 0), (12, 2)])
def test_killed(config: TrainConfig, reference: Path, tmp_path: Path, at_batch: int, workers: int, monkeypatch) -> None:
    """No more steps are repeated than promised, and a finished run is left alone."""
    config = with_data(with_trainer(config, max_epochs=EPOCHS), workers=workers)
    assert runs.run_process(runs.train_interrupted, config, tmp_path, at_batch) == -signal.SIGKILL
    used = count_batches(monkeypatch)
    train(config, tmp_path)
    assert at_batch - used[0] <= config.trainer.checkpoint_every_steps
    assert used == list(range(used[0], EPOCHS * runs.BATCHES))
    assert_same_run(tmp_path, reference)
    assert train(config, tmp_path) == tmp_path / "model" and used[-1] == EPOCHS * runs.BATCHES - 1
    assert_same_run(tmp_path, reference)


@pytest.mark.slow
@pytest.mark.parametrize("at_batch", range(0, EPOCHS * runs.BATCHES, 2))
def test_killed_anywhere_with_workers(config: TrainConfig, reference: Path, tmp_path: Path, at_batch: int) -> None:
    config = with_data(with_trainer(config, max_epochs=EPOCHS), workers=4)
    runs.run_process(runs.train_interrupted, config, tmp_path, at_batch)
    runs.run_process(runs.train_interrupted, config, tmp_path, at_batch + 9)
    assert runs.run_process(train, config, tmp_path) == 0
    assert_same_run(tmp_path, reference)


def train_in_group(config: TrainConfig, out: Path, at_batch: int, number: int) -> None:
    """Train, and get a signal with all data workers just before a batch is used."""
    os.setsid()
    # The loader forgives what its own process sends.
    os.kill = lambda pid, number: subprocess.run(["kill", f"-{number}", "--", f"-{pid}"], start_new_session=True)
    runs.train_interrupted(config, out, at_batch, number)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("number", "at_batch"), [(signal.SIGTERM, 8), (signal.SIGINT, 13), (signal.SIGHUP, 8)])
def test_asked_to_stop(config, reference, tmp_path, number, at_batch, workers, monkeypatch) -> None:
    """A run that is asked to stop, with its workers, finishes its step and repeats none."""
    config = with_data(with_trainer(config, max_epochs=EPOCHS), workers=workers)
    assert runs.run_process(train_in_group, config, tmp_path, at_batch, number) == 128 + number
    used = count_batches(monkeypatch)
    train(config, tmp_path)
    assert used[0] == at_batch + 1
    assert_same_run(tmp_path, reference)


@pytest.mark.parametrize("at_batch", [4, 9])
def test_killed_while_accumulating(config: TrainConfig, tmp_path: Path, at_batch: int) -> None:
    """Windows of 3 batches, the last one of an epoch of 1: saved states lie between windows."""
    config = with_trainer(config, accumulate_batches=3, checkpoint_every_steps=1)
    train(config, tmp_path / "whole")
    assert runs.run_process(runs.train_interrupted, config, tmp_path / "killed", at_batch) == -signal.SIGKILL
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
    # Half of it: 60 * (spent / 60) may round to more than spent, which leaves the run a step.
    train(with_trainer(config, max_minutes=spent / 120), tmp_path)
    again = torch.load(tmp_path / "resume" / "last.ckpt", weights_only=True)
    assert again["position"]["batches"] == 2, "the second run had no time left"
    train(config, tmp_path)
    runs.assert_same_weights(tmp_path, reference)


def test_two_and_two_epochs_are_four_and_a_line_cut_short_is_dropped(config, reference, tmp_path) -> None:
    train(with_trainer(config, max_epochs=2), tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "epoch": 3, "step": 21}\n{"kind": "epo')
    train(with_trainer(config, max_epochs=EPOCHS), tmp_path)
    assert_same_run(tmp_path, reference)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda c: with_trainer(c, learning_rate=0.5), r"config.yaml: trainer.learning_rate was 0.001 .* now 0.5"),
        (lambda c: with_model(c, hypotheses=3), r"model\.hypotheses was 2 .* now 3"),
        (lambda c: with_data(c, batch_size=1), "data.batch_size: found 1 .* batches of 2; resume with the same size"),
        (lambda c: with_trainer(with_data(c, batch_size=2), devices=2), "data.batch_size: found 4 on all devices"),
    ],
)
def test_what_cannot_go_on_is_refused(config: TrainConfig, tmp_path: Path, changed: Any, message: str) -> None:
    train(with_trainer(config, max_minutes=1e-9), tmp_path)
    complaint(lambda: train(changed(config), tmp_path), message)


def test_fewer_epochs_than_are_done_are_refused(config: TrainConfig, reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "run")
    config, before = with_trainer(config, max_epochs=EPOCHS - 1), (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=r"trainer.max_epochs: found 3, but .* has begun epoch 4; take 4 or more"):
        train(config, tmp_path / "run")
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    train(with_trainer(config, max_epochs=EPOCHS), tmp_path / "run")
    assert_same_run(tmp_path / "run", reference)
