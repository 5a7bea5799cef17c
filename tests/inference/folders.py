"""Folders of recordings of noise, and what was written to a folder."""

import numpy as np

from sepkit.data import audio


def record(path, num_samples=400, sample_rate=8000, channels=None, level=0.1):
    shape = (num_samples,) if channels is None else (channels, num_samples)
    waveform = level * np.random.default_rng(num_samples).standard_normal(shape).astype(np.float32)
    audio.write(path, waveform, sample_rate, subtype="PCM_16" if path.suffix == ".flac" else "FLOAT")
    return waveform


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
