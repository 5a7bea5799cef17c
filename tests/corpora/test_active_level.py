"""ITU-T P.56 against its definition, sample by sample, and signals whose level is known."""

import math

import numpy as np
import pytest

from sepkit.corpora.active_level import active_speech_level


def level_db(waveform: np.ndarray, rate: int = 8000, high_pass: bool = False) -> float:
    return 10 * math.log10(active_speech_level(waveform, rate, high_pass))


def p56_step_by_step(waveform: np.ndarray, rate: int, step_db: float) -> float:
    """Method B as the recommendation states it, with counters and a hangover of 0.2 s; dB."""
    pole = math.exp(-1 / (rate * 0.03))
    hangover = math.ceil(0.2 * rate)
    first = second = 0.0
    envelope = []
    for sample in waveform.astype(float):
        first = pole * first + (1 - pole) * abs(sample)
        second = pole * second + (1 - pole) * first
        envelope.append(second)
    energy = float(np.sum(waveform.astype(float) ** 2))
    threshold_db = 10 * math.log10(2) * math.floor(math.log2(max(envelope) ** 2))
    previous = None
    while True:
        threshold = 10 ** (threshold_db / 20) * (1 - 1e-12)
        active, left = 0, 0
        for value in envelope:
            if value >= threshold:
                active, left = active + 1, hangover
            elif left:
                active, left = active + 1, left - 1
        activity_db = 10 * math.log10(energy / active)
        excess = activity_db - threshold_db - 15.9
        if previous and excess >= 0:
            part = previous[1] / (previous[1] - excess)
            return previous[0] + part * (activity_db - previous[0])
        previous = (activity_db, excess)
        threshold_db -= step_db


def bursts(seed: int, rate: int, pause: float = 0.7) -> np.ndarray:
    generator = np.random.default_rng(seed)
    parts = []
    for _ in range(3):
        noise = 0.1 * generator.standard_normal(round(generator.uniform(0.4, 1.0) * rate))
        parts += [noise, np.zeros(int(pause * rate))]
    return np.concatenate(parts) + 1e-5 * generator.standard_normal(sum(map(len, parts)))


@pytest.mark.parametrize("rate", [8000, 11025, 16000])
@pytest.mark.parametrize("seed", [0, 1])
def test_level_is_that_of_the_definition(seed, rate):
    waveform = bursts(seed, rate)
    assert level_db(waveform, rate) == pytest.approx(p56_step_by_step(waveform, rate, 10 * math.log10(2)), abs=1e-9)
    # P.56's own steps of 6 dB interpolate more coarsely.
    assert level_db(waveform, rate) == pytest.approx(p56_step_by_step(waveform, rate, 20 * math.log10(2)), abs=0.1)


def test_pauses_do_not_count():
    speech = 0.1 * np.random.default_rng(3).standard_normal(4 * 8000)
    assert level_db(speech) == pytest.approx(-20, abs=0.1)
    # Of 4 s pause, the hangover of 0.2 s and the decay of the envelope (2 * 0.03 s, down to -15.9 dB) count.
    with_pause = np.concatenate([speech, np.zeros(4 * 8000)])
    assert level_db(with_pause) == pytest.approx(10 * math.log10(0.01 * 4 / 4.3), abs=0.1)
    assert 10 * math.log10(np.mean(with_pause**2)) == pytest.approx(-23, abs=0.1)


def test_scaling_and_dtype():
    waveform = bursts(5, 8000)
    for high_pass in (True, False):
        once = active_speech_level(waveform, 8000, high_pass)
        assert active_speech_level(3 * waveform, 8000, high_pass) == pytest.approx(9 * once, rel=2e-3)
        assert active_speech_level(2 * waveform, 8000, high_pass) == pytest.approx(4 * once, rel=1e-12)
        assert active_speech_level(waveform.astype(np.float32), 8000, high_pass) == pytest.approx(once, rel=1e-5)


def test_high_pass_cuts_what_lies_below_200_hz():
    time = np.arange(3 * 8000) / 8000
    for frequency, expected in [(1000, 0.0), (3000, 0.0), (200, -0.25), (50, -50.0)]:
        tone = 0.1 * math.sqrt(2) * np.sin(2 * np.pi * frequency * time)
        assert level_db(tone, high_pass=False) == pytest.approx(-20, abs=0.15)
        cut = level_db(tone, high_pass=True) + 20
        assert cut < -40 if expected == -50.0 else cut == pytest.approx(expected, abs=0.15), frequency


def test_silence_and_very_short():
    assert active_speech_level(np.zeros(1000), 8000) == 0
    assert active_speech_level(np.zeros(0), 8000) == 0
    impulse = np.zeros(8000)
    impulse[4000] = 0.5
    assert 0 < active_speech_level(impulse, 8000) < 0.25
    assert active_speech_level(1e-4 * np.ones(3), 8000, high_pass=False) > 0
