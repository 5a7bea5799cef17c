"""Fixtures for tests of clustering: noise-like voices, tiny encoders and tiny trainings."""

from dataclasses import replace
from pathlib import Path

import pytest

from sepkit.config import SpeakerEncoderConfig, TrainerConfig
from sepkit.studies.speaker_clustering.config import (
    ContrastiveObjectiveConfig,
    SegmentDataConfig,
    SpeakerClusteringConfig,
    ViewConfig,
)
from tests.noise_voices import encoder, meeting, voices  # noqa: F401

SMALL = SpeakerEncoderConfig(channels=8, pooled=8, dimensions=6)


@pytest.fixture
def moco(voices: Path) -> SpeakerClusteringConfig:  # noqa: F811
    """A training of a second."""
    return SpeakerClusteringConfig(
        model=SMALL,
        objective=ContrastiveObjectiveConfig(queue=5, teacher_decay=0.9),
        data=SegmentDataConfig(
            train=str(voices), dev=str(voices), batch_size=2, workers=0, views=ViewConfig(crop_seconds=0.5)
        ),
        trainer=TrainerConfig(
            max_epochs=2, optimizer="sgd", learning_rate=0.1, accelerator="cpu", checkpoint_every_steps=1
        ),
    )


@pytest.fixture
def mice(moco: SpeakerClusteringConfig) -> SpeakerClusteringConfig:
    """The same with a mixture of three experts."""
    return replace(moco, loss="mice", model=replace(SMALL, experts=3, gate="fixed"))
