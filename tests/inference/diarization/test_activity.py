"""The network that detects active estimates."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from sepkit.inference.diarization.activity import SAMPLE_RATE, detect_activity, log_mel
from sepkit.signals import mel_bands


def test_log_mel_is_that_of_torch() -> None:
    """torch.stft with windows that begin 120 samples before the hop of their frame; a sine is loudest in its band."""
    waves = np.random.default_rng(0).standard_normal((2, 8000)).astype(np.float32)
    waves[1] = np.sin(2 * np.pi * 1000 * np.arange(8000) / SAMPLE_RATE)
    padded = torch.nn.functional.pad(torch.from_numpy(waves), (176, 336))
    window = torch.nn.functional.pad(torch.hann_window(400), (56, 56))
    spectra = torch.stft(padded, 512, 160, window=window, center=False, return_complex=True)[..., :50]
    bands = mel_bands(512, SAMPLE_RATE, 40, 60.0)
    wanted = (spectra.abs().square().transpose(1, 2) @ torch.from_numpy(bands.astype(np.float32)).T + 1e-10).log()
    found = log_mel(waves)
    assert found.shape == (2, 50, 40)
    np.testing.assert_allclose(np.exp(found), wanted.exp().numpy(), rtol=1e-3, atol=1e-3)
    loudest = bands[found[1, 25].argmax()].argmax()
    assert loudest * SAMPLE_RATE / 512 == pytest.approx(1000, abs=40)


def spoken(folder: Path, seconds: int) -> np.ndarray:
    """Return real speech of one speaker, repeated where it is too short, of deviation 1."""
    parts = [soundfile.read(path, dtype="float32")[0] for path in sorted(folder.rglob("*.flac"))]
    samples = np.resize(np.concatenate(parts), seconds * SAMPLE_RATE)
    return samples / samples.std()


@pytest.mark.parametrize(("gain", "error"), [(1e-4, 1.0), (30.0, 1.0), (1.0, 0.1), (1.0, 10.0)])
def test_speakers_are_found_whatever_the_level(data_folder: Path, gain: float, error: float) -> None:
    """One speaks for 10 s, then the other, then both, with the other's remainder 20 dB below; at last, noise alone.

    A turn may end half a second late, which is 5 % of 10 s. The level need not be exact: past speech may be louder.
    """
    folders = sorted(path for path in (data_folder / "speech_mini" / "wav8k" / "dev").iterdir() if path.is_dir())
    one, other = (spoken(folder, 20) for folder in folders[:2])
    tenth = 10 * SAMPLE_RATE
    estimates = np.zeros((2, 4 * tenth), np.float32)
    estimates[0, :tenth], estimates[0, 2 * tenth : 3 * tenth] = one[:tenth], one[tenth:]
    estimates[1, tenth : 3 * tenth] = other
    estimates += 0.1 * estimates[::-1]
    noise = 0.1 * np.random.default_rng(0).standard_normal(4 * tenth)
    sound = np.concatenate([estimates + 0.1 * noise, (estimates.sum(0) + noise)[None]]).astype(np.float32) * gain
    active = detect_activity(sound, error * float(np.square(sound[-1]).mean())) > 0.5
    shares = active.reshape(2, 4, 500).mean(-1)
    assert (shares[0, [0, 2]] > 0.7).all() and (shares[1, [1, 2]] > 0.7).all()
    assert max(shares[0, 1], shares[1, 0]) < 0.05 and (shares[:, 3] < 0.05).all()
