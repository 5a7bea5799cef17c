"""Averaged weights, and learning rates that end with the budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sepkit.config import TrainConfig, TrainerConfig
from sepkit.errors import UserError
from sepkit.training.averaging import average_of, decay_at
from sepkit.training.learning_rate import halve, rate_factor, set_factor
from sepkit.training.run import train
from sepkit.training.separation import SeparationTask


def with_trainer(config: TrainConfig, **changes) -> TrainConfig:
    return replace(config, trainer=replace(config.trainer, **changes))


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
    weights: list[torch.Tensor] = []
    step = SeparationTask._step

    def noted_step(self, *arguments):
        step(self, *arguments)
        weights.append(self.model.filterbank.encoder.filterbank._filters.detach().clone())

    monkeypatch.setattr(SeparationTask, "_step", noted_step)
    train(with_trainer(config, ema=0.9, max_epochs=1), tmp_path / "averaged")
    expected = weights[0]
    for update, now in enumerate(weights[1:], start=1):
        decay = decay_at(update, 0.9)
        expected = decay * expected + (1 - decay) * now
    kept = load_file(tmp_path / "averaged" / "model" / "model.safetensors")
    torch.testing.assert_close(kept["filterbank.encoder.filterbank._filters"], expected)
    assert not torch.equal(expected, weights[-1])


def test_a_run_with_average_and_decay_resumes_bit_for_bit(config: TrainConfig, tmp_path: Path):
    config = with_trainer(
        config, ema=0.9, optimizer="adamw", weight_decay=0.01, betas=(0.8, 0.95), warmup_steps=3, decay_share=0.5
    )
    train(with_trainer(config, max_epochs=3), tmp_path / "whole")
    stop = SeparationTask.on_train_epoch_start

    def stopped(self):
        stop(self)
        if self.position.epoch == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SeparationTask, "on_train_epoch_start", stopped)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(with_trainer(config, max_epochs=3), tmp_path / "parts")
    train(with_trainer(config, max_epochs=3), tmp_path / "parts")
    for name in ("model", "last_model"):
        whole, parts = (load_file(tmp_path / run / name / "model.safetensors") for run in ("whole", "parts"))
        assert all(torch.equal(whole[key], parts[key]) for key in whole)


@pytest.mark.parametrize(
    ("steps", "progress", "expected"),
    [
        (0, 0.0, 0.1),
        (4, 0.0, 0.5),
        (9, 0.0, 1.0),
        (500, 0.6, 1.0),
        (500, 0.8, 0.51),
        (500, 1.0, 0.02),
        (500, 1.5, 0.02),
    ],
)
def test_the_rate_warms_up_stays_and_falls(steps, progress, expected):
    config = TrainerConfig(warmup_steps=10, decay_share=0.4)
    assert rate_factor(config, steps, progress) == pytest.approx(expected)


@pytest.mark.parametrize(("epoch", "expected"), [(0, 1.0), (2, 1.0), (3, 0.5), (5, 0.25), (90, 0.25)])
def test_the_rate_falls_in_steps(epoch, expected):
    config = TrainerConfig(decay_epochs=[3, 5], decay_factor=0.5)
    assert rate_factor(config, 100, 0.0, epoch) == pytest.approx(expected)


def test_without_warm_up_and_decay_the_rate_is_the_rate():
    assert rate_factor(TrainerConfig(), 0, 1.0) == 1.0


def test_a_factor_does_not_pile_up_and_halving_stays():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    for factor in (0.5, 0.25):
        set_factor(optimizer, factor)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4 * factor)
    halve(optimizer)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    set_factor(optimizer, 1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ema", 1.0),
        ("betas", (0.9, 1.0)),
        ("decay_share", 1.5),
        ("final_rate_share", -0.1),
        ("warmup_steps", -1),
        ("decay_epochs", [4, 2]),
        ("decay_epochs", [0]),
        ("decay_factor", 0.0),
    ],
)
def test_values_out_of_range_are_refused(config: TrainConfig, tmp_path: Path, field, value):
    with pytest.raises(UserError, match=rf"^trainer\.{field}: found .*, expected") as caught:
        train(with_trainer(config, **{field: value}), tmp_path)
    assert "\n" not in str(caught.value)
