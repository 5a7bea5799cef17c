"""Variational models in training: rates are recorded and steered, resumed runs and ranks agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sepkit.config import (
    AdaptivePriorConfig,
    AutoencodingConfig,
    BLRConfig,
    GaussianConfig,
    LogNormalConfig,
    NegSISDRConfig,
    RatesConfig,
    SteeringConfig,
    TrainConfig,
)
from sepkit.errors import UserError
from sepkit.objectives import Objective
from sepkit.training.run import train


@pytest.fixture
def variational(config: TrainConfig) -> TrainConfig:
    """Everything at once: an adaptive prior, auto-encoding, sampled rates, and a weight that is steered."""
    return replace(
        config,
        model=replace(
            config.model, encoding=GaussianConfig(), encoding_prior=AdaptivePriorConfig(), masks=LogNormalConfig()
        ),
        objective=replace(
            config.objective,
            cost=BLRConfig(),
            rates=RatesConfig(
                estimator="sample",
                steering=SteeringConfig(total=1e-3, change=0.1, initial_weight=0.5, warn_after_epochs=2),
            ),
            autoencoding=AutoencodingConfig(sources=1.0, mixtures=1.0),
        ),
    )


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_rates_are_recorded_and_steered_and_a_resumed_run_is_the_same(
    variational: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weight grows with every step above the target, over the interruption too; the target is out of reach."""
    train(variational, tmp_path / "whole")
    assert "warning: objective.rates.steering: after 2 epochs" in capsys.readouterr().err
    first = replace(variational, trainer=replace(variational.trainer, max_epochs=1))
    train(first, tmp_path / "resumed")
    train(variational, tmp_path / "resumed")
    whole, resumed = (records(tmp_path / name) for name in ("whole", "resumed"))
    assert whole[-1]["encoding_rate_weight"] == pytest.approx(0.5 * 1.1**14)
    for name in ("encoding_rate", "mask_rate", "source_rate", "separation", "mixture_reconstruction"):
        assert whole[-1][f"train_{name}"] is not None and whole[-1][f"dev_{name}"] is not None
    for name in (
        "train_encoding_rate_nats_per_tick",
        "train_mask_rate_nats_per_tick",
        "mask_rate_weight",
        "train_loss",
    ):
        assert whole[-1][name] == resumed[-1][name]
    expected = load_file(tmp_path / "whole" / "last_model" / "model.safetensors")
    found = load_file(tmp_path / "resumed" / "last_model" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def train_and_tell(config: TrainConfig, out: Path, told: Path) -> None:
    """Train, and write down the rates and weights of every step of this rank."""
    after_step = Objective.after_step

    def tell(self: Objective, means: Any) -> None:
        after_step(self, means)
        rank = torch.distributed.get_rank()
        rates = [value for name, value in sorted(means.items()) if name.endswith("per_tick")]
        with (told / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps([*rates, self.steerings[0].weight]) + "\n")

    Objective.after_step = tell  # type: ignore[method-assign]
    train(config, out)


def test_ranks_steer_by_the_same_rate(
    variational: TrainConfig, tmp_path: Path, in_ranks: Callable[..., list[int]]
) -> None:
    """It is the mean over all of them: each one's mixtures and noise are others."""
    config = replace(variational, trainer=replace(variational.trainer, devices=2, max_epochs=1))
    assert in_ranks(train_and_tell, 2, config, tmp_path / "out", tmp_path) == [0, 0]
    zero, one = ((tmp_path / f"{rank}.jsonl").read_text() for rank in (0, 1))
    assert zero == one and len(zero.splitlines()) >= 3


def test_scales_need_a_likelihood_that_takes_them(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(
        config,
        model=replace(config.model, estimate_scales=True),
        objective=replace(config.objective, cost=NegSISDRConfig()),
    )
    with pytest.raises(UserError, match=r"model\.estimate_scales: objective\.cost is neg_si_sdr"):
        train(config, tmp_path)
