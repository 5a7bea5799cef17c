"""Turns of speech, by an encoder's voice activity detector and by a network that detects active estimates."""

from unittest import mock

import numpy as np
import pytest

from sepkit.inference.diarization import segments
from sepkit.inference.diarization.segments import SpeechMeter
from tests.noise_voices import voice


class Rising:
    """Tells speech where samples are not negative in the mean, for frames of 20 ms at 8 kHz."""

    sample_rate, has_vad = 8000, True

    def speech(self, waveforms: np.ndarray) -> np.ndarray:
        frames = waveforms[:, : waveforms.shape[1] // 160 * 160].reshape(len(waveforms), -1, 160)
        return (frames.mean(-1) > 0).astype(np.float32)


def rising_against(waveforms: np.ndarray, mean_square: float) -> np.ndarray:
    """Stands for the network: estimates are active where they are not negative and the recording is not above 0.15."""
    return Rising().speech(np.where(waveforms[-1] > 0.15, -1.0, waveforms[:-1]))


@pytest.mark.parametrize("rate", [8000, 16000, 11025])
@pytest.mark.parametrize(("block", "seconds"), [(777, 12.3), (10**6, 47.0)])
@pytest.mark.parametrize("count", [1, 2])
def test_noise_is_no_turn(rate: int, block: int, seconds: float, count: int, monkeypatch) -> None:
    """Sound at two levels: only what the encoder or the network calls speech counts, at its place, whatever the blocks.

    The network also takes the recording as input.
    """
    monkeypatch.setattr(segments, "detect_activity", rising_against)
    wave = np.full((count, round(seconds * rate)), -0.1, np.float32)
    recording = np.zeros(wave.shape[1], np.float32)
    recording[round(11 * rate) :] = 0.2
    spans = [[(1.0, 2.5), (5.9, 8.1)], [(3.0, 12.3)]][:count]
    for row, own in zip(wave, spans, strict=True):
        for start, end in own:
            row[round(start * rate) : round(end * rate)] = 0.1
    meter = SpeechMeter(count, rate, Rising())  # type: ignore[arg-type]
    for start in range(0, wave.shape[1], block):
        meter.add(wave[:, start : start + block], recording[start : start + block])
    spans = [spans[0], [(3.0, 11.0)]][:count]
    for found, expected in zip(meter.segments(), spans, strict=True):
        np.testing.assert_allclose([(start, start + length) for start, length in found], expected, atol=0.045)


@pytest.mark.parametrize("block", [777, 10**6])
def test_the_level_is_that_of_the_recording_so_far(block: int, monkeypatch) -> None:
    """20 s at 0.1, then 22 s at 0.2, in chunks of 20 s. Without a recording, it is the sum of the estimates."""
    network = mock.Mock(side_effect=rising_against)
    monkeypatch.setattr(segments, "detect_activity", network)
    meter = SpeechMeter(2, 8000, Rising())  # type: ignore[arg-type]
    wave = np.full((2, 42 * 8000), 0.1, np.float32)
    wave[:, : 20 * 8000] = 0.05
    for start in range(0, wave.shape[1], block):
        meter.add(wave[:, start : start + block])
    meter.segments()
    assert pytest.approx([0.01, 0.025, (20 * 0.01 + 22 * 0.04) / 42]) == [call.args[1] for call in network.mock_calls]


def test_a_short_doubt_does_not_end_a_turn() -> None:
    """Of 0.6 s about the middle of a pause of 0.2 s, two thirds are speech."""
    wave = np.full((1, 80000), -0.001, np.float32)
    wave[0, 8000:64000] = 0.1
    wave[0, 32000:33600] *= -1
    meter = SpeechMeter(1, 8000, Rising())  # type: ignore[arg-type]
    meter.add(wave)
    np.testing.assert_allclose(meter.segments()[0], [(1.0, 7.0)], atol=0.045)


def test_without_an_encoder_that_tells_speech_all_sound_counts() -> None:
    wave = voice(0, 2.0, 0)[None]
    meter = SpeechMeter(1, 8000, None)
    meter.add(wave)
    ((start, length),) = meter.segments()[0]
    assert start == 0 and length == pytest.approx(2.0)
