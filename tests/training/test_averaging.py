"""Averaged weights, and learning rates that end with the budget."""

import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from sepkit.config import TrainConfig, TrainerConfig
from sepkit.training.callbacks import halve, rate_factor, set_factor
from sepkit.training.run import train
from sepkit.training.separation import SeparationTask
from sepkit.training.task import average_of, decay_at
from tests.training.runs import BATCHES, assert_same_run, run_process, train_interrupted, weights, with_trainer

RISE_AND_FALL = {"warmup_steps": 10, "decay_share": 0.4}
STEPS = {"decay_epochs": [3, 5], "decay_factor": 0.5}


def test_the_average_is_that_of_its_formula():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    average, expected = average_of(model, 0.5), None
    for update in range(6):
        model.weight.data.normal_()
        average.update_parameters(model)
        # The first update takes the weights as they are.
        decay = min(0.5, (1 + update) / (10 + update))
        now = model.weight.detach().clone()
        expected = now if expected is None else decay * expected + (1 - decay) * now
    assert decay_at(5, 0.5) == pytest.approx(0.4) and decay_at(100, 0.5) == 0.5
    torch.testing.assert_close(average.module.weight, expected)
    assert not any(p.requires_grad for p in average.parameters()) and model.weight.requires_grad


def test_the_average_is_what_is_validated_and_kept(config: TrainConfig, tmp_path: Path, monkeypatch):
    seen: list[torch.Tensor] = []
    step = SeparationTask._step

    def noted_step(self, *arguments):
        step(self, *arguments)
        seen.append(self.model.filterbank.encoder.filterbank._filters.detach().clone())

    monkeypatch.setattr(SeparationTask, "_step", noted_step)
    train(with_trainer(config, ema=0.9, max_epochs=1), tmp_path / "averaged")
    expected = seen[0]
    for update, now in enumerate(seen[1:], start=1):
        decay = decay_at(update, 0.9)
        expected = decay * expected + (1 - decay) * now
    kept = weights(tmp_path / "averaged", "model")
    torch.testing.assert_close(kept["filterbank.encoder.filterbank._filters"], expected)
    assert not torch.equal(expected, seen[-1])


def test_a_run_with_average_and_decay_resumes_bit_for_bit(config: TrainConfig, tmp_path: Path):
    decay = {"weight_decay": 0.01, "betas": (0.8, 0.95), "warmup_steps": 3, "decay_share": 0.5}
    config = with_trainer(config, ema=0.9, optimizer="adamw", **decay)
    config = with_trainer(config, max_epochs=3)
    train(config, tmp_path / "whole")
    assert run_process(train_interrupted, config, tmp_path / "parts", BATCHES + 2) == -signal.SIGKILL
    train(config, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "steps", "progress", "epoch", "expected"),
    [
        ({}, 0, 1.0, 0, 1.0),
        *[(RISE_AND_FALL, *row) for row in ((0, 0.0, 0, 0.1), (4, 0.0, 0, 0.5), (9, 0.0, 0, 1.0), (500, 0.6, 0, 1.0))],
        *[(RISE_AND_FALL, *row) for row in ((500, 0.8, 0, 0.51), (500, 1.0, 0, 0.02), (500, 1.5, 0, 0.02))],
        *[(STEPS, 100, 0.0, *row) for row in ((0, 1.0), (2, 1.0), (3, 0.5), (5, 0.25), (90, 0.25))],
    ],
)
def test_the_rate_warms_up_stays_and_falls(changes, steps, progress, epoch, expected):
    assert rate_factor(TrainerConfig(**changes), steps, progress, epoch) == pytest.approx(expected)


def test_a_factor_does_not_pile_up_and_halving_stays():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    for factor in (0.5, 0.25):
        set_factor(optimizer, factor)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4 * factor)
    halve(optimizer)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    set_factor(optimizer, 1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
