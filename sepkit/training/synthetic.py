"""A set of synthetic mixtures, to try a configuration without data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest


def write_synthetic_set(folder: Path, *, sample_rate: int, sources: int, mixtures: int, seconds: float = 1.0) -> Path:
    """Write mixtures of modulated tones, the same every time, and return their manifest, `folder`/train.jsonl."""
    generator = np.random.default_rng(0)
    samples = round(seconds * sample_rate)
    time = np.arange(samples) / sample_rate
    entries = []
    for index in range(mixtures):
        parts = []
        for source in range(sources):
            carrier = np.sin(2 * np.pi * generator.uniform(100, sample_rate / 4) * time)
            envelope = 1 + np.sin(2 * np.pi * generator.uniform(1, 5) * time + generator.uniform(0, 6))
            waveform = 0.1 * envelope * (carrier + 0.1 * generator.standard_normal(samples))
            path = f"wav/{index}_{source}.wav"
            audio.write(folder / path, waveform.astype(np.float32), sample_rate)
            parts.append(SourceEntry(path, speaker=f"voice{index}-{source}", sex="FM"[index % 2]))
        entries.append(MixtureEntry(id=f"mixture{index}", sample_rate=sample_rate, num_samples=samples, sources=parts))
    manifest = folder / "train.jsonl"
    write_manifest(manifest, entries)
    return manifest
