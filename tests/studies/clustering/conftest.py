"""Fixtures for tests of clustering: noise-like voices, tiny encoders and tiny trainings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sepkit.config import SpeakerEncoderConfig, TrainerConfig
from sepkit.data import audio
from sepkit.models import save_model
from sepkit.studies.clustering.config import (
    ContrastiveObjectiveConfig,
    ContrastiveTaskConfig,
    StretchDataConfig,
    ViewConfig,
)
from tests.noise_voices import RATE, noise_encoder, voice

SMALL = SpeakerEncoderConfig(channels=8, pooled=8, dimensions=6)


@pytest.fixture(scope="session")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three speakers with three recordings of about 2 s each, SPEAKER/TAKE.wav."""
    folder = tmp_path_factory.mktemp("voices")
    for speaker in range(3):
        for take in range(3):
            audio.write(folder / f"{speaker}" / f"{take}.wav", voice(speaker, 1.8 + 0.2 * take, take), RATE)
    return folder


@pytest.fixture
def moco(voices: Path) -> ContrastiveTaskConfig:
    """A training of a second."""
    return ContrastiveTaskConfig(
        model=SMALL,
        objective=ContrastiveObjectiveConfig(queue=5, teacher_decay=0.9),
        data=StretchDataConfig(
            train=str(voices), dev=str(voices), batch_size=2, workers=0, views=ViewConfig(crop_seconds=0.5)
        ),
        trainer=TrainerConfig(
            max_epochs=2, optimizer="sgd", learning_rate=0.1, accelerator="cpu", checkpoint_every_steps=1
        ),
    )


@pytest.fixture
def mice(moco: ContrastiveTaskConfig) -> ContrastiveTaskConfig:
    """The same with a mixture of three experts."""
    return replace(moco, loss="mice", model=replace(SMALL, experts=3, gate="fixed"))


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder that tells noise-like voices apart."""
    return save_model(noise_encoder(), tmp_path_factory.mktemp("encoder"), {"counting": {"threshold": 0.65}})


@pytest.fixture(scope="session")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Speakers 2, 0, 2, 1, each for 2 s, with pauses of half a second: talk/meeting.wav."""
    folder = tmp_path_factory.mktemp("meeting") / "talk"
    parts = [
        np.concatenate([voice(k, 2.0, 5 + n), np.zeros(RATE // 2, np.float32)]) for n, k in enumerate((2, 0, 2, 1))
    ]
    audio.write(folder / "meeting.wav", np.concatenate(parts), RATE)
    return folder.parent
