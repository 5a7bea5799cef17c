"""Validation hears a mixture as `sepkit evaluate` does, also beside longer ones in a batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sepkit.config import TrainConfig
from sepkit.data.dataset import MixtureDataset, collate
from sepkit.data.manifest import read_manifest, write_manifest
from sepkit.evaluation.evaluate import EvaluationOptions, evaluate
from sepkit.inference import load_model
from sepkit.models import EncoderMaskerDecoder
from sepkit.objectives import build_objective
from sepkit.training.run import train
from sepkit.training.separation import SeparationTask
from tests.training.runs import records, write_corpus


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Five mixtures of three lengths."""
    manifest = write_corpus(tmp_path / "dev", mixtures=5, seed=1)
    entries = list(read_manifest(manifest))
    for entry, num_samples in zip(entries, (4000, 2111, 2500, 2111, 4000), strict=True):
        entry.num_samples = num_samples
    return write_manifest(manifest, entries)


def configured(config: TrainConfig, dev: Path) -> TrainConfig:
    masker = replace(config.model.masker, norm="global_layer_norm")  # type: ignore[call-arg]
    data = replace(config.data, dev=str(dev), segment_seconds=0.5, batch_size=5)
    model, trainer = replace(config.model, masker=masker), replace(config.trainer, max_epochs=1)
    return replace(config, model=model, data=data, trainer=trainer)


def test_validation_scores_are_those_of_evaluate(config: TrainConfig, dev: Path, tmp_path: Path) -> None:
    # Batches of two and of three lengths: means are over mixtures, not over batches.
    config = configured(config, dev)
    train(replace(config, data=replace(config.data, batch_size=2)), tmp_path / "exp")
    found = records(tmp_path / "exp")[-1]
    evaluation = evaluate(load_model(tmp_path / "exp"), [dev], tmp_path / "scores", EvaluationOptions(["si_sdr"]))
    assert evaluation is not None
    for name in ("si_sdr_db", "si_sdri_db"):
        assert found[f"dev_{name}"] == pytest.approx(evaluation["metrics"][name]["mean"], abs=1e-4)


def test_a_padded_mixture_is_separated_as_it_is_alone(config: TrainConfig, dev: Path, tmp_path: Path) -> None:
    task = SeparationTask(configured(config, dev), tmp_path / "exp")
    task.objective = build_objective(task.config.objective)
    heard: list[torch.Tensor] = []

    def remember(module: EncoderMaskerDecoder, inputs: Any, separation: Any) -> None:
        heard.append(separation.estimates)

    model = task.model.eval()
    model.register_forward_hook(remember)
    data = MixtureDataset(dev)
    with torch.no_grad():
        rows = task.scores(model, collate([data[k] for k in range(5)]))
        assert [estimates.shape[::2] for estimates in heard] == [(2, 2111), (1, 2500), (2, 4000)]
        together = {1: heard[0][0], 3: heard[0][1], 2: heard[1][0], 0: heard[2][0], 4: heard[2][1]}
        for k in range(5):
            mixture = data[k].mixture - data[k].mixture.mean()
            # At the level that the model was trained with, as `sepkit evaluate` separates it.
            alone = model(mixture[None] * model.signal_std / mixture.std(correction=0)).estimates[0]
            torch.testing.assert_close(together[k], alone, rtol=0, atol=1e-5 * float(alone.abs().max()))
            assert rows[k] == pytest.approx(task.scores(model, collate([data[k]]))[0], abs=1e-3)
