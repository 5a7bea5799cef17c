"""Variational models in training: rates are recorded and steered, resumed runs and ranks agree."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sepkit import config as c
from sepkit.data import audio
from sepkit.objectives import Objective
from sepkit.training.run import train
from tests.training.runs import assert_same_run, records, run_ranks, weights, with_trainer, write_corpus


@pytest.fixture
def variational(config: c.TrainConfig) -> c.TrainConfig:
    """Everything at once: an adaptive prior, auto-encoding, sampled rates, and a weight that is steered."""
    latents = {"encoding": c.GaussianConfig(), "encoding_prior": c.AdaptivePriorConfig(), "masks": c.LogNormalConfig()}
    steering = c.SteeringConfig(total=1e-3, change=0.1, initial_weight=0.5, warn_after_epochs=2)
    rates = c.RatesConfig(estimator="sample", steering=steering)
    autoencoding = c.AutoencodingConfig(sources=1.0, mixtures=1.0)
    objective = replace(config.objective, cost=c.BLRConfig(), rates=rates, autoencoding=autoencoding)
    return replace(config, model=replace(config.model, **latents), objective=objective)


def test_rates_are_recorded_and_steered_and_a_resumed_run_is_the_same(variational, tmp_path, capsys) -> None:
    """The weight grows with every step above the target, over the interruption too; the target is out of reach."""
    train(variational, tmp_path / "whole")
    assert "warning: objective.rates.steering: after 2 epochs" in capsys.readouterr().err
    train(with_trainer(variational, max_epochs=1), tmp_path / "resumed")
    train(variational, tmp_path / "resumed")
    whole = records(tmp_path / "whole")
    assert whole[-1]["encoding_rate_weight"] == pytest.approx(0.5 * 1.1**14)
    for name in ("encoding_rate", "mask_rate", "source_rate", "separation", "mixture_reconstruction"):
        assert whole[-1][f"train_{name}"] is not None and whole[-1][f"dev_{name}"] is not None
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")


def train_and_tell(config: c.TrainConfig, out: Path, told: Path) -> None:
    """Train, and write down the rates and weights of every step of this rank."""
    after_step = Objective.after_step

    def tell(self: Objective, means: Any) -> None:
        after_step(self, means)
        rank = torch.distributed.get_rank()
        rates = [value for name, value in sorted(means.items()) if name.endswith("per_frame")]
        with (told / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps([*rates, self.steerings[0].weight]) + "\n")

    Objective.after_step = tell  # type: ignore[method-assign]
    train(config, out)


def test_ranks_steer_by_the_same_rate(variational: c.TrainConfig, tmp_path: Path) -> None:
    """It is the mean over all of them: each one's mixtures and noise are others."""
    config = with_trainer(variational, devices=2, max_epochs=1)
    assert run_ranks(train_and_tell, 2, config, tmp_path / "out", tmp_path) == [0, 0]
    zero, one = ((tmp_path / f"{rank}.jsonl").read_text() for rank in (0, 1))
    assert zero == one and len(zero.splitlines()) >= 3


def test_mixtures_without_sources_are_learnt_from(variational: c.TrainConfig, tmp_path: Path) -> None:
    """Rows with `"sources": []` beside others: what they hold moves the encoder, through the mixture's term alone.

    Noise forwards and backwards has the same mean and deviation, so that nothing else depends on it.
    """
    noise = 0.1 * torch.randn(4000, generator=torch.Generator().manual_seed(0))
    filters: dict[tuple[str, float], torch.Tensor] = {}
    for name, waveform in (("forwards", noise), ("backwards", noise.flip(0))):
        manifest = write_corpus(tmp_path / name, mixtures=4, seed=0)
        rows = [json.loads(line) for line in manifest.read_text().splitlines()]
        audio.write(manifest.parent / "mixture.wav", waveform.numpy(), rows[0]["sample_rate"])
        for row in rows[2:]:
            row |= {"sources": [], "mixture": "mixture.wav", "noise": None}
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
        mixing = c.DynamicMixingConfig(enabled=False)
        data = replace(variational.data, train=str(manifest), dev=None, dynamic_mixing=mixing)
        model = replace(variational.model, encoding_prior=c.StandardPriorConfig())
        trainer = replace(variational.trainer, max_epochs=1)
        for weight in (0.0, 1.0):
            objective = replace(variational.objective, autoencoding=c.AutoencodingConfig(mixtures=weight))
            out = tmp_path / f"{name}_{weight}"
            train(replace(variational, model=model, objective=objective, data=data, trainer=trainer), out)
            filters[name, weight] = weights(out)["filterbank.encoder.filterbank._filters"]
    # Adam makes something of rounding errors, too.
    moved = {weight: (filters["forwards", weight] - filters["backwards", weight]).norm() for weight in (0.0, 1.0)}
    assert moved[1.0] > 5 * moved[0.0]
