"""Turns of speech: energy and an encoder that tells speech."""

import numpy as np
import pytest

from sepkit.inference.diarization.segments import SpeechMeter
from tests.noise_voices import voice


class Rising:
    """Tells speech where samples are not negative in the mean, for frames of 20 ms at 8 kHz."""

    sample_rate, has_vad = 8000, True

    def speech(self, waveforms: np.ndarray) -> np.ndarray:
        frames = waveforms[:, : waveforms.shape[1] // 160 * 160].reshape(len(waveforms), -1, 160)
        return (frames.mean(-1) > 0).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 16000, 11025])
@pytest.mark.parametrize("block", [777, 10**6])
def test_noise_is_no_turn(rate: int, block: int) -> None:
    """Sound of 12.3 s at two levels: only what the encoder calls speech counts, at its place, whatever the blocks."""
    wave = np.full((2, round(12.3 * rate)), -0.1, np.float32)
    spans = [[(1.0, 2.5), (5.9, 8.1)], [(3.0, 12.3)]]
    for row, own in zip(wave, spans, strict=True):
        for start, end in own:
            row[round(start * rate) : round(end * rate)] = 0.1
    meter = SpeechMeter(2, rate, Rising())  # type: ignore[arg-type]
    for start in range(0, wave.shape[1], block):
        meter.add(wave[:, start : start + block])
    for found, expected in zip(meter.segments(), spans, strict=True):
        np.testing.assert_allclose([(start, start + length) for start, length in found], expected, atol=0.045)


def test_what_is_left_of_a_voice_is_no_turn_and_a_short_doubt_does_not_end_one() -> None:
    """The mean level of speech is that of the first alone, and little more with the second: -11 dB are left out, -6 dB
    are not. Of 0.6 s about the middle of a pause of 0.2 s, two thirds are speech."""
    wave = np.full((3, 80000), -0.001, np.float32)
    wave[0, 8000:64000] = 0.1
    wave[0, 32000:33600] *= -1
    wave[1, 16000:48000] = 0.1 * 10 ** (-11 / 20)
    wave[2, 16000:24000] = 0.1 * 10 ** (-6 / 20)
    meter = SpeechMeter(3, 8000, Rising())  # type: ignore[arg-type]
    meter.add(wave)
    first, second, third = meter.segments()
    np.testing.assert_allclose(first, [(1.0, 7.0)], atol=0.045)
    assert not second and third == [pytest.approx((2.0, 1.0), abs=0.3)]


def test_without_an_encoder_that_tells_speech_all_sound_counts() -> None:
    wave = voice(0, 2.0, 0)[None]
    meter = SpeechMeter(1, 8000, None)
    meter.add(wave)
    ((start, length),) = meter.segments()[0]
    assert start == 0 and length == pytest.approx(2.0)
