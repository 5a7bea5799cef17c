"""Voices of tones whose frames are all alike, and evidence for who is who, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.fft import dct

from sepkit.inference.diarization.profiles import Profiles, TraitStatistics, measure_voices
from sepkit.inference.diarization.spectra import mean_spectra
from sepkit.signals import mel_bands

RATE, HOP, FRAME, FRAMES = 8000, 128, 256, 12


def tone(period: int) -> np.ndarray:
    """Pulses whose period divides the hop, with a decay: (T,) for 12 frames, all of them alike."""
    return np.tile(0.8 ** np.arange(period), (512 + (FRAMES - 1) * HOP) // period).astype(np.float32)


@pytest.mark.parametrize(
    ("level", "counted", "power"), [(0.49, [1, 0], 1.0), (0.51, [0, 0], 1.0), (0.0, [1, 0], 31.6), (0.0, [0, 0], 31.7)]
)
def test_what_is_heard_in_frames_of_one_voice(level: float, counted: list[int], power: float) -> None:
    """One has to have 80 % of a frame's energy, and 1.5 decades less than the mean power."""
    voice = tone(64)
    found = measure_voices(np.stack([voice, level * voice]), RATE, power * float(np.square(voice[:64]).mean()))
    frame = voice[128 : 128 + FRAME].astype(np.float64) * np.hanning(FRAME + 2)[1:-1]
    powers = mel_bands(FRAME, RATE, 24, 80.0) @ np.abs(np.fft.rfft(frame)) ** 2
    expected = dct(np.log(np.maximum(powers, 1e-5 * powers.max()))) / 2
    for name, values in (("cepstra", expected[1:17]), ("pitch", np.log([RATE / 64]))):
        assert found[name].seconds == pytest.approx(0.016 * FRAMES * np.array(counted))
        assert found[name].frames == FRAMES * sum(counted)
        assert found[name].means == pytest.approx(np.outer(counted, values), abs=1e-4)
        assert found[name].scatter == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("period", "hz"), [(32, 250), (64, 125), (128, 125 / 2)])
def test_pitch_in_its_range(period: int, hz: float) -> None:
    (pitch,) = measure_voices(tone(period)[None], RATE, 0.0)["pitch"].means[0]
    assert np.exp(pitch) == pytest.approx(hz) if hz > 70 else np.exp(pitch) != pytest.approx(hz)


@pytest.mark.parametrize("orders", [[[0, 1], [0, 1]], [[0, 1], [1, 0]], [[1, 0], [1, 0]]])
def test_evidence_by_hand(orders: list[list[int]]) -> None:
    """One trait of one dimension, heard of both estimates, then of the second one alone; what a chunk is compared with
    is the other one."""
    pitches, seconds, scatter, keep = np.array([[5.0, 4.5], [4.6, 5.2]]), np.array([[2.0, 1.0], [0.0, 3.0]]), 0.9, 30.0
    nothing = TraitStatistics(np.zeros(2), np.zeros((2, 16)), np.zeros((16, 16)), 0)
    chunks = [
        {"cepstra": nothing, "pitch": TraitStatistics(own, pitch[:, None], np.array([[scatter]]), 50)}
        for own, pitch in zip(seconds, pitches, strict=True)
    ]
    found = Profiles(chunks, keep).log_likelihoods(np.array(orders))
    deviation = np.sqrt(1.001 * 2 * scatter / 100 + 1e-9)
    values = (pitches - (seconds * pitches).sum() / seconds.sum()) / deviation
    faded = np.exp(-keep / 600)
    for place, other in ((0, 1), (1, 0)):
        for i in range(2):
            for j in range(2):
                if not seconds[place, i]:
                    assert found[place, i, j] == 0
                    continue
                own, then = 1 / (7 * seconds[place, i]) + 0.1, orders[other][j]
                known = faded / (1 / (7 * seconds[other, then]) + 0.1) if seconds[other, then] else 0.0
                variance = own + 1 / (known + 0.4)
                difference = values[place, i] - known * values[other, then] / (known + 0.4)
                assert found[place, i, j] == pytest.approx(-0.5 * (difference**2 / variance + np.log(variance)))
    # Too few frames identify no one.
    few = [{"cepstra": nothing, "pitch": TraitStatistics(np.ones(2), pitches[:1].T, np.eye(1), 4)}] * 2
    assert not Profiles(few, keep).log_likelihoods(np.array([[0, 1]] * 2)).any()


@pytest.mark.parametrize("kind", ["mean_log_mel", "mean_mfcc"])
def test_mean_spectra_of_frames_that_are_all_alike(kind: str) -> None:
    """Hops of 80 samples; the shortest one is padded to a frame."""
    waveforms = [np.tile(decay ** np.arange(40), 10 + 4 * k) for k, decay in enumerate((0.8, 0.5, 0.2))]
    waveforms.append(waveforms[0][:100])
    rows = []
    for waveform in waveforms:
        frame = np.pad(waveform[:FRAME], (0, max(0, FRAME - len(waveform)))) * np.hanning(FRAME)
        power = mel_bands(FRAME, RATE, 40, 60.0) @ np.abs(np.fft.rfft(frame)) ** 2
        logs = np.log(power + 1e-6 * power.max() + 1e-20)
        rows.append(logs if kind == "mean_log_mel" else dct(logs)[1:21] / 2)
    expected = (np.array(rows) - np.mean(rows, 0)) / np.std(rows, 0)
    np.testing.assert_allclose(mean_spectra(kind, waveforms, RATE), expected, atol=1e-6)
    # A column without variation stays at 0.
    np.testing.assert_array_equal(mean_spectra(kind, waveforms[:1] * 2, RATE), np.zeros((2, len(rows[0]))))
