"""A tiny corpus of colored noise: four speakers, two recordings each, and a manifest of two-speaker mixtures."""

from pathlib import Path

import numpy as np
import pytest

from sepkit.data import audio
from sepkit.data.manifest import Manifest, MixtureEntry, SourceEntry, read_manifest, write_manifest

RATE = 8000


def tone_noise(seed: int, num_samples: int) -> np.ndarray:
    """Noise with a slow envelope, (T,) float32, within +-1."""
    generator = np.random.default_rng(seed)
    envelope = 1 + 0.5 * np.sin(np.arange(num_samples) / RATE * 2 * np.pi * (1 + seed))
    return (0.1 * envelope * generator.standard_normal(num_samples)).clip(-0.99, 0.99).astype(np.float32)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Six mixtures of two sources in "min" mode at 8 kHz, stored as float wav; speakers "0" to "3"."""
    folder = tmp_path_factory.mktemp("corpus")
    lengths = {}
    for speaker in range(4):
        for take in range(2):
            path = f"wav/{speaker}/{take}.wav"
            lengths[path] = 9000 + 500 * speaker + 133 * take
            audio.write(folder / path, tone_noise(10 * speaker + take, lengths[path]), RATE)
    entries = []
    for first, second in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]:
        paths = [f"wav/{first}/0.wav", f"wav/{second}/1.wav"]
        gains = zip(paths, (0.8, 1.25), strict=True)
        sources = [SourceEntry(path, speaker=path.split("/")[1], gain=gain) for path, gain in gains]
        entries.append(MixtureEntry(f"{first}-{second}", RATE, min(lengths[p] for p in paths), sources))
    return read_manifest(write_manifest(Path(folder) / "train.jsonl", entries))
