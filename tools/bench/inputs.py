"""The voices that are separated: two real ones if there are recordings."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sepkit.data import audio

SAMPLE_RATE = 8000
REAL, SHAPED = "speech of two speakers of speech_mini", "noise with the spectrum and the syllables of speech"


def two_voices(seconds: float) -> tuple[np.ndarray, str]:
    """Return sources (2, T) float32 at 8 kHz, and a description: utterances of two speakers laid end to end, or noise.

    Real speech is the test split of `$SEPKIT_DATA/speech_mini`; without it speech-shaped noise stands in.
    """
    num_samples = round(seconds * SAMPLE_RATE)
    folder = Path(os.environ.get("SEPKIT_DATA", "data")) / "speech_mini" / "wav8k" / "test"
    by_speaker: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.flac")):
        by_speaker.setdefault(path.parts[-3], []).append(path)
    if len(by_speaker) < 2:
        return np.stack([_shaped_noise(num_samples, seed) for seed in (0, 1)]), SHAPED
    # Several speakers after each other would be more than two voices, so two speakers are repeated.
    voices = sorted(by_speaker, key=lambda speaker: -len(by_speaker[speaker]))[:2]
    return np.stack([_end_to_end(by_speaker[speaker], num_samples) for speaker in voices]), REAL


def _end_to_end(paths: list[Path], num_samples: int) -> np.ndarray:
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < num_samples and len(parts) < len(paths):
        part = audio.read(paths[len(parts)], sample_rate=SAMPLE_RATE)
        parts.append(part - part.mean())
    # Repeated if it is longer than all recordings.
    voice = np.resize(np.concatenate(parts), num_samples)
    return (0.05 * voice / voice.std()).astype(np.float32)


def _shaped_noise(num_samples: int, seed: int) -> np.ndarray:
    """Return noise of -9 dB an octave above 500 Hz, whose level goes up and down four times a second, with pauses."""
    generator = np.random.default_rng(seed)
    spectrum = np.fft.rfft(generator.standard_normal(num_samples))
    frequencies = np.fft.rfftfreq(num_samples, 1 / SAMPLE_RATE)
    noise = np.fft.irfft(spectrum / (1 + (frequencies / 500) ** 1.5), num_samples)
    steps = generator.standard_normal(max(2, round(4 * num_samples / SAMPLE_RATE)) + 1).clip(-0.5, None) + 0.5
    level = np.interp(np.linspace(0, len(steps) - 1, num_samples), np.arange(len(steps)), steps)
    voice = noise * level
    return (0.05 * voice / voice.std()).astype(np.float32)
