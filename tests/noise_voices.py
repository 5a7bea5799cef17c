"""Noise-like voices that differ in color, and an encoder that tells them apart without a training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.config import SpeakerEncoderConfig
from sepkit.data import audio
from sepkit.models import save_model
from sepkit.models.speaker_encoder import SpeakerEncoder

RATE = 8000


def voice(speaker: int, seconds: float, seed: int) -> np.ndarray:
    """Noise with the color of a speaker, in syllables."""
    generator = np.random.default_rng((speaker, seed))
    samples = round(seconds * RATE)
    formant = np.exp(2j * np.pi * (0.05 + 0.06 * speaker) * np.arange(24) - np.arange(24) / 8).real
    noise = np.convolve(generator.standard_normal(samples), formant, mode="same")
    syllables = 0.55 + 0.45 * np.sin(2 * np.pi * 4 * np.arange(samples) / RATE + seed)
    return (0.03 * noise * syllables).astype(np.float32)


def talk(seed: int, seconds: float, sample_rate: int = RATE) -> np.ndarray:
    """Noise with a color of its own and a syllable's rhythm."""
    generator = np.random.default_rng(seed)
    count = round(seconds * sample_rate)
    color = np.cos(np.pi * np.arange(8) * (seed % 100 + 1) / 40)
    rhythm = 0.55 + 0.45 * np.sin(2 * np.pi * 4 * np.arange(count) / sample_rate + seed)
    return (0.02 * np.convolve(generator.standard_normal(count), color, mode="same") * rhythm).astype(np.float32)


def buzz(pitch_hz: float, seconds: float, sample_rate: int = RATE) -> np.ndarray:
    """Pulses of varying pitch in syllables, and a little noise: speech to the encoder that ships, as noise is not."""
    times = np.arange(round(seconds * sample_rate)) / sample_rate
    pitch = pitch_hz * (1 + 0.1 * np.sin(8 * times))
    pulses = np.diff(np.floor(np.cumsum(pitch) / sample_rate), prepend=0) * (1 + np.sin(8 * np.pi * times))
    return (0.4 * pulses + 1e-3 * np.random.default_rng(0).standard_normal(len(times))).astype(np.float32)


def noise_encoder() -> SpeakerEncoder:
    """Return an encoder with random weights, whitened by what it hears as batch normalization is after a training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = SpeakerEncoder(SpeakerEncoderConfig(channels=16, pooled=16, dimensions=8))
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.momentum = None
    with torch.no_grad():
        model.train()(torch.from_numpy(np.stack([voice(k % 3, 1.5, k) for k in range(12)])))
    return model.eval()


@pytest.fixture(scope="session")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three speakers with three recordings of about 2 s each, SPEAKER/TAKE.wav."""
    folder = tmp_path_factory.mktemp("voices")
    for speaker in range(3):
        for take in range(3):
            audio.write(folder / f"{speaker}" / f"{take}.wav", voice(speaker, 1.8 + 0.2 * take, take), RATE)
    return folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder that tells noise-like voices apart."""
    return save_model(noise_encoder(), tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Speakers 2, 0, 2, 1, each for 2 s, with pauses of half a second: talk/meeting.wav."""
    folder = tmp_path_factory.mktemp("meeting") / "talk"
    pause = np.zeros(RATE // 2, np.float32)
    parts = [np.concatenate([voice(k, 2.0, 5 + n), pause]) for n, k in enumerate((2, 0, 2, 1))]
    audio.write(folder / "meeting.wav", np.concatenate(parts), RATE)
    return folder.parent
