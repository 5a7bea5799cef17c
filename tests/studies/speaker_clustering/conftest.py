"""Fixtures for tests of clustering: noise-like voices, tiny encoders and tiny trainings."""

from dataclasses import replace
from pathlib import Path

import pytest

from sepkit.config import SpeakerEncoderConfig, TrainerConfig
from sepkit.studies.speaker_clustering import config as c
from tests.noise_voices import encoder, meeting, voices  # noqa: F401

SMALL = SpeakerEncoderConfig(channels=8, pooled=8, dimensions=6)


@pytest.fixture
def moco(voices: Path) -> c.SpeakerClusteringConfig:  # noqa: F811
    """A training of a second."""
    objective, views = c.ContrastiveObjectiveConfig(queue=5, teacher_decay=0.9), c.ViewConfig(crop_seconds=0.5)
    data = c.SegmentDataConfig(train=str(voices), dev=str(voices), batch_size=2, workers=0, views=views)
    trainer = TrainerConfig(max_epochs=2, optimizer="sgd", learning_rate=0.1, accelerator="cpu")
    trainer.checkpoint_every_steps = 1
    return c.SpeakerClusteringConfig(model=SMALL, objective=objective, data=data, trainer=trainer)


@pytest.fixture
def mice(moco: c.SpeakerClusteringConfig) -> c.SpeakerClusteringConfig:
    """The same with a mixture of three experts."""
    return replace(moco, loss="mice", model=replace(SMALL, experts=3, gate="fixed"))
