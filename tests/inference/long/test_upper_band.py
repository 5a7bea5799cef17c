"""What a recording holds above the model's band is shared among the estimates."""

import numpy as np
import pytest

from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.data import audio
from sepkit.inference import Separator
from sepkit.inference.long.recordings import ArrayRecording
from sepkit.inference.long.upper_band import UpperBandSharing
from sepkit.models import EncoderMaskerDecoder, build_model

RATE, MODEL_RATE = 16000, 8000


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(int(seconds * RATE))).astype(np.float32)


def low_part(waveform: np.ndarray) -> np.ndarray:
    return audio.resample(audio.resample(waveform, RATE, MODEL_RATE), MODEL_RATE, RATE)[..., : waveform.shape[-1]]


def above(waveform: np.ndarray, hz: float) -> np.ndarray:
    """Spectrum above a frequency."""
    return np.fft.rfft(waveform)[..., np.fft.rfftfreq(waveform.shape[-1], 1 / RATE) >= hz]


def shared(mixture: np.ndarray, estimates: np.ndarray, blocks: int = 1) -> np.ndarray:
    sharing = UpperBandSharing(RATE, MODEL_RATE, len(estimates))
    parts = [sharing.push(mixture[cut], estimates[:, cut]) for cut in np.array_split(np.arange(mixture.size), blocks)]
    return np.concatenate([*parts, sharing.finish()], axis=1)


def test_shares_add_up_to_the_recording_above_and_change_nothing_below() -> None:
    mixture = noise(1)
    estimates = np.stack([0.3 * low_part(mixture), low_part(noise(1, 1))])
    found = shared(mixture, estimates)
    assert found.shape == estimates.shape
    added = (found - estimates).sum(0)
    scale = np.abs(np.fft.rfft(mixture)).max()
    np.testing.assert_allclose(above(added, 4100), above(mixture, 4100), atol=0.01 * scale)
    low = np.fft.rfftfreq(mixture.size, 1 / RATE) <= 3500
    np.testing.assert_allclose(np.fft.rfft(added)[low], 0, atol=0.01 * scale)


def test_the_speaker_who_is_heard_gets_more() -> None:
    # The first speaks in the first second, the second in the other.
    halves = np.stack([noise(2), noise(2, 1)]) * np.repeat([[1, 0], [0, 1]], RATE, axis=1)
    found = shared(halves.sum(0).astype(np.float32), low_part(halves.astype(np.float32)))
    energies = np.square([[np.abs(above(part, 4100)) for part in np.split(row, 2)] for row in found]).sum(-1)
    assert energies[0, 0] > 20 * energies[1, 0] and energies[1, 1] > 20 * energies[0, 1]


FOUR_TO_ONE = 100**0.3 / (1 + 100**0.3)


@pytest.mark.parametrize(
    ("tones", "least", "most"),
    [
        (((3300, 1.0), (3300, 0.1)), FOUR_TO_ONE - 0.01, FOUR_TO_ONE + 0.01),
        (((3300, 1e-5), (3300, 1e-6)), FOUR_TO_ONE - 0.01, FOUR_TO_ONE + 0.01),
        (((3300, 1e-8), (3300, 1e-9)), 0.49, 0.51),
        (((3100, 1.0), (2900, 1.0)), 0.9, 1.0),
        (((3540, 1.0), (3740, 1.0)), 0.9, 1.0),
    ],
)
def test_shares_by_the_energy_between_three_quarters_of_the_band_and_its_end(tones, least, most) -> None:
    times, mixture = np.arange(RATE) / RATE, noise(1)
    estimates = np.stack([level * np.sin(2 * np.pi * hz * times) for hz, level in tones])
    first, second = above(shared(mixture, estimates.astype(np.float32)), 4100)
    assert least < (np.vdot(first, first + second) / np.vdot(first + second, first + second)).real < most


def test_blocks_of_any_length_give_the_same() -> None:
    mixture, estimates = noise(0.4), low_part(np.stack([noise(0.4, 1), noise(0.4, 2), noise(0.4, 3)]))
    whole = shared(mixture, estimates)
    for blocks in (2, 7, 500):
        np.testing.assert_allclose(shared(mixture, estimates, blocks), whole, atol=1e-6)


@pytest.mark.parametrize("samples", [1, 100, 511, 513])
def test_short_and_silent_recordings_keep_their_length(samples: int) -> None:
    estimates = np.zeros((2, samples), np.float32)
    assert not shared(np.zeros(samples, np.float32), estimates).any()
    # Nobody is heard below: equal shares.
    found = shared(noise(1)[:samples], estimates)
    assert found.shape == (2, samples)
    np.testing.assert_array_equal(found[0], found[1])


CHUNKS = {"whole_seconds": 0.0, "chunk_seconds": 0.5, "overlap_seconds": 0.25}


def small_model() -> EncoderMaskerDecoder:
    masker = RecurrentConfig(hidden_size=8, num_layers=1)
    return build_model(ModelConfig(filterbank=FreeFilterbankConfig(num_filters=16), masker=masker))


@pytest.mark.parametrize("way", [{}, CHUNKS], ids=["whole", "chunks"])
def test_separator_shares_whole_and_in_chunks(way: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    separator, mixture = Separator(small_model(), **way), noise(1.3)
    found = np.asarray(separator.separate(mixture, RATE).estimates)
    together = above(found.sum(0), 4100)
    np.testing.assert_allclose(together, above(mixture, 4100), atol=0.02 * np.abs(np.fft.rfft(mixture)).max())
    monkeypatch.setattr(UpperBandSharing, "_shares", lambda sharing, frames: np.zeros((2, (frames + 1) * 256)))
    below = np.asarray(separator.separate(mixture, RATE).estimates)
    monkeypatch.undo()
    np.testing.assert_allclose(found, shared(mixture - mixture.mean(), below), atol=1e-5)
    # Nothing is added at the rate of the model, or below it.
    for rate in (MODEL_RATE, MODEL_RATE // 2):
        assert separator.separate(mixture[:4000], rate).estimates.shape == (2, 4000)


def test_estimates_of_chunks_can_be_read_again() -> None:
    """Linking speakers reads them three times, and 16 bits that clip are written anew."""
    long = Separator(small_model(), **CHUNKS).separate_recording(ArrayRecording(noise(1.3), RATE)).estimates
    first, again = (np.concatenate(list(long.blocks()), axis=1) for _ in range(2))
    assert first.shape == (2, int(1.3 * RATE))
    np.testing.assert_array_equal(first, again)
