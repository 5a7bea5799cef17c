"""Plain spectra, against those of scipy."""

import numpy as np
import pytest
from scipy.fft import dct

from sepkit.inference.diarization.spectra import mean_spectra
from sepkit.signals import mel_bands

RATE, FRAME = 8000, 256


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
