"""Small trees of recordings: noise with a slow envelope, at a level that differs from file to file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sepkit.data import audio

RATE = 8000


def _write_recording(path: Path, seed: int, seconds: float = 1.2, sample_rate: int = RATE) -> Path:
    """A recording of noise that is 0.02 to 0.2 loud."""
    generator = np.random.default_rng(seed)
    level = 0.02 * 10 ** generator.uniform(0, 1)
    waveform = level * generator.standard_normal(round(seconds * sample_rate))
    return audio.write(path, waveform.clip(-0.99, 0.99).astype(np.float32), sample_rate)


def _write_speakers(folder: Path, speakers: list[str], takes: int = 3, seconds: float = 1.2) -> Path:
    """`folder/SPEAKER/TAKE.wav`, a little longer from take to take."""
    for speaker in speakers:
        for take in range(takes):
            seed = int.from_bytes(f"{folder.name}{speaker}{take}".encode()[-7:], "big")
            _write_recording(folder / speaker / f"{speaker}-{take}.wav", seed, seconds + 0.1 * take)
    return folder


@pytest.fixture
def write_recording() -> Callable[..., Path]:
    """write_recording(path, seed, seconds=1.2, sample_rate=8000) -> path."""
    return _write_recording


@pytest.fixture
def write_speakers() -> Callable[..., Path]:
    """write_speakers(folder, speakers, takes=3, seconds=1.2) -> folder."""
    return _write_speakers


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    """train with 4 speakers, dev with 2, test with 4 of which 2 are called x.."""
    folder = tmp_path / "speech"
    _write_speakers(folder / "train", ["a", "b", "c", "d"])
    _write_speakers(folder / "dev-clean", ["e", "f"])
    _write_speakers(folder / "test", ["g", "h", "x1", "x2"])
    return folder


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    """A copy of the `corpus` of a module, which a test may damage."""
    shutil.copytree(corpus, tmp_path / "corpus")
    return tmp_path / "corpus"
