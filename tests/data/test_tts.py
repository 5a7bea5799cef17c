import time

import numpy as np
import pytest

from sepkit.data import tts
from sepkit.data.tts import Synthesizer, Voice, find_synthesizer, trim_silence
from sepkit.errors import UserError
from tests.complaint import complaint

TEXT = "seven quiet letters lie on an open window"


@pytest.fixture(params=[False, True], ids=["program", "library"])
def synthesizer(request) -> Synthesizer:
    """Each of the two ways to run espeak-ng that is installed here."""
    try:
        found = find_synthesizer(prefer_program=not request.param)
    except UserError as error:
        pytest.skip(str(error))
    if request.param != (len(found.command) > 1):
        pytest.skip("one espeak-ng is missing: pip install 'sepkit[tts]' or apt-get install espeak-ng")
    return found


def test_speech_lasts_as_long_as_its_rate_says_and_repeats(synthesizer):
    slow, rate = synthesizer.speak(TEXT, Voice("f2", words_per_minute=120))
    fast, _ = synthesizer.speak(TEXT, Voice("f2", words_per_minute=200))
    assert slow.dtype == np.float32 and 0.05 < np.abs(slow).max() <= 1
    assert 1.0 < len(fast) / rate < len(slow) / rate < 6.0
    if len(synthesizer.command) == 1 and not synthesizer.version.startswith("1.51"):
        return  # newer programs draw the roughness of voices anew
    time.sleep(1.1)  # a seed taken from the clock would be another one
    np.testing.assert_array_equal(slow, synthesizer.speak(TEXT, Voice("f2", words_per_minute=120))[0])


def test_pitch_variant_and_accent_are_heard(synthesizer):
    voices = (Voice("m3"), Voice("m3", pitch=90), Voice("f2"), Voice("m3", accent="en-gb-scotland"))
    waveforms = [synthesizer.speak(TEXT, voice)[0] for voice in voices]
    spectra = [np.abs(np.fft.rfft(waveform, 2**18)) for waveform in waveforms]
    for other in spectra[1:]:
        assert np.corrcoef(spectra[0], other)[0, 1] < 0.9


def test_fundamental_frequency_rises_with_pitch(synthesizer):
    def fundamental_hz(pitch: int) -> float:
        waveform, rate = synthesizer.speak("ah " * 6, Voice("m3", pitch=pitch))
        correlation = np.fft.irfft(np.abs(np.fft.rfft(waveform, 2**19)) ** 2)
        lags = slice(rate // 220, rate // 60)
        return rate / (lags.start + int(np.argmax(correlation[lags])))

    assert fundamental_hz(20) < fundamental_hz(50) < fundamental_hz(80)


def test_an_unknown_variant_is_refused(synthesizer):
    complaint(lambda: synthesizer.speak(TEXT, Voice("nobody")), "no voice variant 'nobody'")


def test_a_failing_program_says_why(synthesizer, tmp_path):
    program = tmp_path / "fake"
    program.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"exit code 3 .*out of order"):
        Synthesizer((str(program),), synthesizer.data_folder, "0").speak(TEXT, Voice("f2"))


def test_neither_is_installed(monkeypatch):
    monkeypatch.setattr(tts, "_find_program", lambda: None)
    monkeypatch.setattr(tts, "_find_library", lambda: None)
    complaint(lambda: find_synthesizer(), r"pip install 'sepkit\[tts\]'")


def test_trim_silence():
    waveform = np.zeros(8000, np.float32)
    waveform[2005:5003] = 0.5
    waveform[100] = 0.001
    np.testing.assert_array_equal(trim_silence(waveform, 8000), waveform[2000:5040])
    assert trim_silence(np.zeros(800, np.float32), 8000).size == 0
    assert trim_silence(np.zeros(0, np.float32), 8000).size == 0
    assert trim_silence(np.ones(79, np.float32), 8000).size == 0
