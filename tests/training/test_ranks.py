"""Several processes train as one: gradients, skipped steps and validation scores are those of a single process."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sepkit.config import TrainConfig
from sepkit.training.run import train
from sepkit.training.separation import SeparationTask
from sepkit.types import Batch, Losses, Separation
from tests.training import runs
from tests.training.runs import plain, run_ranks, with_data, with_trainer, write_corpus

# Sources that say nothing: one of the first mixture, both of the second.
SILENT = {0: {1}, 1: {0, 1}}


def train_and_remember(config: TrainConfig, out: Path, gradients: Path, limit_batches: int | None = None) -> None:
    """Train, and keep the gradients of the first step of every rank."""

    def remember(self: SeparationTask, optimizer: Any) -> None:
        file = gradients / f"{self.global_rank}.pt"
        if not file.exists():
            torch.save({name: p.grad.clone() for name, p in self.model.named_parameters()}, file)

    gradients.mkdir(exist_ok=True)
    SeparationTask.on_before_optimizer_step = remember  # type: ignore[method-assign]
    train(config, out, limit_batches=limit_batches)


@pytest.mark.parametrize(("mixtures", "batch_size"), [(4, 2), (2, 1)])
def test_two_ranks_have_the_gradient_of_one(config, tmp_path, mixtures, batch_size) -> None:
    """Unequal numbers of active sources included, down to a rank that has none at all."""
    manifest = write_corpus(tmp_path / "train", mixtures=mixtures, seed=0, silent=SILENT)
    config = with_data(plain(config, precision="64-true"), train=str(manifest))
    one = with_data(config, batch_size=2 * batch_size)
    two = with_trainer(with_data(config, batch_size=batch_size), devices=2)
    assert runs.run_process(train_and_remember, one, tmp_path / "one", tmp_path / "gradients1") == 0
    assert run_ranks(train_and_remember, 2, two, tmp_path / "two", tmp_path / "gradients2") == [0, 0]
    expected = torch.load(tmp_path / "gradients1" / "0.pt")
    for rank in (0, 1):
        found = torch.load(tmp_path / "gradients2" / f"{rank}.pt")
        for name, gradient in expected.items():
            assert gradient.norm() > 0
            assert (found[name] - gradient).norm() <= 1e-10 * gradient.norm(), name
    scores = [runs.records(tmp_path / name)[0] for name in ("one", "two")]
    assert scores[0]["train_loss"] == pytest.approx(scores[1]["train_loss"], rel=1e-6)
    # Three validation mixtures on two ranks: one rank repeats one, which must not count twice.
    assert scores[0]["dev_si_sdr_db"] == pytest.approx(scores[1]["dev_si_sdr_db"], abs=1e-2)


def train_with_a_bad_rank(config: TrainConfig, out: Path) -> None:
    """Train while the loss of the second rank alone is not finite, once."""
    evaluate = SeparationTask.evaluate_objective

    def spoiled(self: SeparationTask, batch: Batch, separation: Separation) -> Losses:
        result = evaluate(self, batch, separation)
        if self.model.training and self.position.batches == 2 and self.global_rank == 1:
            result.loss = result.loss * float("nan")
        return result

    SeparationTask.evaluate_objective = spoiled  # type: ignore[method-assign]
    train(config, out, limit_batches=3)
    (out / f"rank{os.environ['RANK']}").touch()


def test_one_bad_rank_skips_the_step_on_all(config: TrainConfig, tmp_path: Path) -> None:
    assert run_ranks(train_with_a_bad_rank, 2, plain(config, devices=2), tmp_path / "bad") == [0, 0]
    state = torch.load(tmp_path / "bad" / "resume" / "last.ckpt", weights_only=True)
    assert (state["position"]["attempts"], state["position"]["steps"]) == (3, 2)


def test_two_ranks_resume(config: TrainConfig, tmp_path: Path) -> None:
    two = plain(config, devices=2, accumulate_batches=2)
    longer = with_trainer(two, max_epochs=2)
    assert run_ranks(train, 2, longer, tmp_path / "whole") == [0, 0]
    assert run_ranks(train, 2, two, tmp_path / "parts") == [0, 0]
    assert run_ranks(train, 2, longer, tmp_path / "parts") == [0, 0]
    runs.assert_same_weights(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
def test_command_starts_its_own_ranks(config: TrainConfig, tmp_path: Path, repository: Path) -> None:
    """`sepkit train --devices 2` without torchrun."""
    import subprocess

    import yaml

    from sepkit.config import to_dict

    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_dict(config)))
    command = [sys.executable, "-m", "sepkit", "train", "--config", str(file), "--devices", "2"]
    command += ["--out", str(tmp_path / "exp")]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=800)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == str(tmp_path / "exp" / "model")
    assert "effective batch 4 = 2 mixtures of 0.1 s x 2 devices" in result.stderr
    assert result.stderr.count("effective batch") == 1
