"""Training with scores: the threshold that is kept counts the dev speakers as training says, on one rank and on two."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sepkit.config import MCLConfig, ScoringConfig, TrainConfig
from sepkit.data.manifest import read_manifest, write_manifest
from sepkit.data.mixing import mix_entry
from sepkit.inference import load_model
from sepkit.models.storage.folders import read_description
from sepkit.training.run import train
from sepkit.training.separation import distinct_scores
from sepkit.types import Batch
from tests.training.runs import records, run_process, run_ranks, with_data, with_model, with_trainer, write_corpus


def scored(config: TrainConfig, dev: Path, **trainer: Any) -> TrainConfig:
    return replace(
        config,
        model=replace(config.model, hypotheses=3, scoring=ScoringConfig(8)),
        objective=replace(config.objective, assignment=MCLConfig()),
        # As long as the mixtures, so that validation and separation hear the same.
        data=replace(config.data, dev=str(dev), segment_seconds=0.5),
        trainer=replace(config.trainer, **({"max_epochs": 1} | trainer)),
    )


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Six mixtures: of two, one and no speakers, and one of one speaker without noise."""
    manifest = write_corpus(tmp_path / "dev", mixtures=6, seed=1, silent={0: {1}, 1: {0, 1}, 2: {0}})
    entries = list(read_manifest(manifest))
    entries[3].sources, entries[3].noise = entries[3].sources[:1], None
    return write_manifest(manifest, entries)


def info_of(out: Path) -> dict[str, Any]:
    return read_description(out / "model")["info"]


def test_the_kept_threshold_counts_as_training_says(config: TrainConfig, dev: Path, tmp_path: Path) -> None:
    train(scored(config, dev), tmp_path / "exp")
    info = info_of(tmp_path / "exp")
    separator = load_model(tmp_path / "exp")
    assert separator.score_threshold == info["score_threshold"]
    right = []
    for entry in read_manifest(dev):
        mixed = mix_entry(entry)
        found = separator.separate(mixed.mixture, entry.sample_rate)
        right.append(found.is_speaker.sum() == mixed.sources.any(1).sum())
    assert np.mean(right) == pytest.approx(info["dev_speaker_count_accuracy"])
    epoch = records(tmp_path / "exp")[-1]
    assert epoch["score_threshold"] == info["score_threshold"]
    assert epoch["dev_scoring"] > 0 and epoch["train_scoring"] > 0
    assert epoch["train_loss"] == pytest.approx(epoch["train_separation"] + 0.1 * epoch["train_scoring"], abs=1e-4)


def test_one_speaker_alone_has_no_improvement(config: TrainConfig, dev: Path, tmp_path: Path) -> None:
    train(scored(config, dev), tmp_path / "all")
    entries = list(read_manifest(dev))
    write_manifest(dev, entries[:3] + entries[4:])
    train(scored(config, dev), tmp_path / "without")
    both = [info_of(tmp_path / name) for name in ("all", "without")]
    assert both[0]["dev_si_sdri_db"] == pytest.approx(both[1]["dev_si_sdri_db"], abs=1e-3)
    assert both[0]["dev_si_sdr_db"] != pytest.approx(both[1]["dev_si_sdr_db"], abs=1e-3)


def test_two_ranks_find_the_threshold_of_one(config: TrainConfig, dev: Path, tmp_path: Path) -> None:
    config = scored(config, dev)
    config = with_model(config, masker=replace(config.model.masker, dropout=0.0))  # type: ignore[type-var]
    half = with_trainer(with_data(config, batch_size=1), devices=2)
    assert run_process(train, config, tmp_path / "one") == 0
    assert run_ranks(train, 2, half, tmp_path / "two") == [0, 0]
    one, two = (info_of(tmp_path / name) for name in ("one", "two"))
    assert two["score_threshold"] == pytest.approx(one["score_threshold"], abs=1e-3)
    assert two["dev_speaker_count_accuracy"] == one["dev_speaker_count_accuracy"]


def test_the_model_knows_what_its_scores_say(config: TrainConfig, dev: Path, tmp_path: Path) -> None:
    """A distribution; weights follow from it."""
    config = scored(config, dev)
    train(replace(config, model=replace(config.model, scoring=ScoringConfig(8, "cross_entropy"))), tmp_path / "exp")
    found = load_model(tmp_path / "exp").separate(np.random.default_rng(0).standard_normal(4000), 8000)
    np.testing.assert_allclose(found.weights, np.exp(found.scores) / np.exp(found.scores).sum(), rtol=1e-5)


def test_padding_makes_nothing_distinct():
    """The second hypothesis is the first one up to the end of the mixture, and the third one silent; not behind it."""
    estimates = torch.randn(1, 3, 200, generator=torch.Generator().manual_seed(0))
    estimates[:, 1, :150], estimates[:, 2, :150] = -2 * estimates[:, 0, :150] + 1, 0.0
    active, scores = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[1.0, 2.0, 3.0]])
    for length, distinct in ((200, [1.0, 2.0, 3.0]), (150, [2.0])):
        batch = Batch(torch.zeros(1, 200), torch.zeros(1, 2, 200), active, torch.tensor([length]))
        assert distinct_scores(batch, scores, estimates) == [(distinct, 2)]
