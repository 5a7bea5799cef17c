"""A corpus of tones, and a tiny configuration."""

import copy
from pathlib import Path

import pytest

from sepkit import config as c
from tests.training.runs import write_corpus


@pytest.fixture(scope="session")
def train_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("train"), mixtures=14, seed=0)


@pytest.fixture(scope="session")
def dev_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("dev"), mixtures=3, seed=1)


@pytest.fixture(scope="session")
def session_config(train_manifest: Path, dev_manifest: Path) -> c.TrainConfig:
    """Seven batches an epoch, with everything random that there is: shuffling, crops, dynamic mixing, dropout."""
    bank = c.FreeFilterbankConfig(num_filters=16, kernel_size=64, stride=32)
    model = c.ModelConfig(filterbank=bank, masker=c.RecurrentConfig(hidden_size=6, num_layers=2, dropout=0.2))
    data = c.DataConfig(train=str(train_manifest), dev=str(dev_manifest), segment_seconds=0.1, batch_size=2, workers=0)
    data.dynamic_mixing.enabled = True
    trainer = c.TrainerConfig(max_epochs=2, accelerator="cpu", checkpoint_every_steps=3)
    return c.TrainConfig(model=model, data=data, trainer=trainer)


@pytest.fixture
def config(session_config: c.TrainConfig) -> c.TrainConfig:
    """A copy for one test."""
    return copy.deepcopy(session_config)
