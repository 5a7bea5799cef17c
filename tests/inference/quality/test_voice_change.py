"""How much the voice of a recording changes, for the encoder that ships."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.data import audio
from sepkit.inference.quality.single_speaker import VOICE_FEATURES, default_encoder, voice_change
from sepkit.inference.selection import products_of

RATE = 8000


def voice(seconds: float, pitch_hz: float, resonance_hz: float, seed: int = 0) -> np.ndarray:
    """Return pulses through a resonance, in syllables with pauses: a voice for an encoder."""
    generator = np.random.default_rng(seed)
    times = np.arange(round(seconds * RATE)) / RATE
    pitch = pitch_hz * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * times + generator.uniform(0, 6)))
    phase = np.cumsum(2 * np.pi * pitch / RATE)
    numbers = np.arange(1, 20)[:, None]
    gains = 1 / (1 + np.square((numbers * pitch_hz - resonance_hz) / 300))
    syllables = np.clip(np.sin(2 * np.pi * 3 * times), 0, None)
    noise = 1e-3 * generator.standard_normal(len(times))
    return (0.05 * syllables * (gains * np.sin(numbers * phase)).sum(0) + noise).astype(np.float32)


def change(speech: np.ndarray, rate: int = RATE) -> dict[str, float]:
    estimates = np.stack([speech, 0.1 * speech + 1e-4 * np.roll(speech, 7)])
    return voice_change(default_encoder(), products_of(speech, estimates), estimates, rate)


LOW, HIGH = (110.0, 600.0), (220.0, 1800.0)


@pytest.fixture(scope="module")
def heard() -> dict[str, dict[str, float]]:
    low = voice(6, *LOW)
    turns = [np.concatenate([voice(length, *LOW), voice(length, *HIGH, seed=1)]) for length in (1, 3, 6)]
    return {"low": change(low), "short": change(turns[0]), "turns": change(turns[1]), "long": change(turns[2])}


def test_turns_of_two_voices_change_and_one_voice_does_not(heard):
    assert set(heard["low"]) == set(VOICE_FEATURES)
    for name in ("short", "turns", "long"):
        assert heard[name]["voice_halves"] < heard["low"]["voice_halves"] - 0.2
        assert heard[name]["voice_mean"] < heard["low"]["voice_mean"] - 0.2
    for name in ("turns", "long"):
        assert heard[name]["voice_change"] > heard["low"]["voice_change"] + 0.2
        assert heard[name]["voice_across"] < heard[name]["voice_within"]
    # As many seconds of each: the numbers mean the same at any length.
    assert heard["long"]["voice_halves"] == pytest.approx(heard["turns"]["voice_halves"], abs=0.2)


def test_neither_the_level_nor_pauses_nor_chance_matter(heard):
    turns = np.concatenate([voice(3, *LOW), voice(3, *HIGH, seed=1)])
    assert change(turns) == heard["turns"]
    louder = change(8 * turns)
    assert louder == pytest.approx(heard["turns"], abs=1e-3)
    with_pause = change(np.concatenate([turns[: 3 * RATE], np.zeros(3 * RATE, np.float32), turns[3 * RATE :]]))
    assert with_pause == pytest.approx(heard["turns"], abs=0.1)


def test_another_rate_and_a_breath_of_speech_have_numbers():
    breath = change(voice(0.5, *LOW))
    assert all(np.isfinite(list(breath.values())))
    at_16 = change(audio.resample(voice(4, *LOW), RATE, 2 * RATE), 2 * RATE)
    assert at_16 == pytest.approx(change(voice(4, *LOW)), abs=0.05)
