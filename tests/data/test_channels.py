"""Band limits against SciPy's Butterworth filters, codecs against G.711 by hand, and what belongs to the targets."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import signal

from sepkit.config import DynamicMixingConfig
from sepkit.data.channels import CODECS, RandomChannel, band_gains, band_limit, codecs_at, encode_and_decode

RATE = 8000


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("order", [2, 4, 11])
def test_gains_are_those_of_analog_butterworth_filters(order: int) -> None:
    frequencies = np.fft.rfftfreq(1000, 1 / RATE)
    high = signal.butter(order, 300, "highpass", analog=True)
    low = signal.butter(order, 3400, "lowpass", analog=True)
    expected = np.abs(signal.freqs(*high, frequencies)[1] * signal.freqs(*low, frequencies)[1])
    np.testing.assert_allclose(band_gains(1000, RATE, (300, order), (3400, order)), expected, atol=1e-9)
    np.testing.assert_array_equal(band_gains(1000, RATE, None, None), 1)


def test_a_brick_wall_takes_away_what_is_outside() -> None:
    time = np.arange(RATE) / RATE
    tones = {f: np.sin(2 * np.pi * f * time).astype(np.float32) for f in (150, 1000, 3800)}
    passed = band_limit(np.stack([*tones.values()]), lambda n: band_gains(n, RATE, (300, 200), (3400, 200)))
    assert passed.dtype == np.float32
    middle = slice(1000, 7000)
    np.testing.assert_allclose(passed[1, middle], tones[1000][middle], atol=1e-3)
    assert np.abs(passed[[0, 2], middle]).max() < 1e-2


def test_mu_law_is_that_of_g711() -> None:
    """Within a segment, steps are even; from one to the next they double: 8 segments of 16 steps, of 8,159 in all."""
    samples = (np.arange(-32768, 32768) / 32768).astype(np.float32)
    decoded = encode_and_decode(samples, RATE, "mu_law")
    levels = np.unique(np.abs(decoded[decoded != 0]))
    steps = np.round(np.diff(levels) * 32768)
    assert steps.min() == 8 and steps.max() == 1024
    assert set(np.unique(steps)) <= {8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}
    assert np.abs(decoded - samples).max() < 0.025
    companded = np.sign(samples) * np.log1p(255 * np.abs(samples)) / np.log(256)
    again = np.sign(decoded) * np.log1p(255 * np.abs(decoded)) / np.log(256)
    assert np.abs(again - companded).max() < 1 / 64


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_keep_length_and_place(codec: str) -> None:
    time = np.arange(5003) / RATE
    samples = (0.3 * np.sin(2 * np.pi * (300 + 400 * time) * time)).astype(np.float32)
    decoded = encode_and_decode(samples, RATE, codec)
    assert decoded.shape == samples.shape and decoded.dtype == np.float32
    assert abs(int(signal.correlate(decoded, samples, "full").argmax()) - (len(samples) - 1)) <= 1
    assert 0 < np.square(decoded - samples).sum() < 0.5 * np.square(samples).sum()


def test_codecs_of_a_rate() -> None:
    assert codecs_at(8000) == list(CODECS)
    assert codecs_at(16000) == ["mu_law", "a_law", "mp3", "opus", "opus_low"]
    assert codecs_at(44100) == ["mu_law", "a_law", "mp3"]


def test_channels_have_their_shares() -> None:
    config = replace(DynamicMixingConfig(), codec_probability=0.3, clipping_probability=0.2)
    drawn = [RandomChannel(config, RATE, np.random.default_rng(seed)) for seed in range(2000)]
    assert np.mean([one.highpass is not None for one in drawn]) == pytest.approx(0.85, abs=0.03)
    assert np.mean([one.lowpass is not None for one in drawn]) == pytest.approx(0.6, abs=0.04)
    assert np.mean([one.clipped_share > 0 for one in drawn]) == pytest.approx(0.2, abs=0.03)
    assert 29.9 < max(one.headroom_db for one in drawn) <= 30 and 0 <= min(one.headroom_db for one in drawn) < 0.1
    clipped = sorted(np.log10(one.clipped_share / 5e-4) for one in drawn if one.clipped_share)
    assert 0 <= clipped[0] < 0.05 and np.log10(40) - 0.05 < clipped[-1] <= np.log10(40)
    # Weights 6, 2, 2, 1.5, 1 and 1 of 13.5.
    counts = Counter(one.codec for one in drawn)
    shares = {None: 0.7, "mu_law": 0.3 / 2.25, "a_law": 0.3 / 6.75, "gsm": 0.3 / 6.75, "mp3": 0.1 / 3}
    shares |= dict.fromkeys(("opus", "opus_low"), 0.2 / 9)
    assert {codec: count / 2000 for codec, count in counts.items()} == pytest.approx(shares, abs=0.02, rel=0.3)
    cutoffs, orders = np.array([one.highpass for one in drawn if one.highpass]).T
    assert 60 <= cutoffs.min() < 65 and 395 < cutoffs.max() <= 400
    # Log-uniform: half of the orders are below the geometric mean.
    assert np.mean(orders < np.sqrt(2 * 60)) == pytest.approx(0.5, abs=0.04)


def test_clipping_limits_its_share_of_the_samples() -> None:
    config = replace(DynamicMixingConfig(), codec_probability=0.0, clipping_probability=1.0)
    channel = RandomChannel(config, RATE, np.random.default_rng(1))
    mixture = noise(20000)
    clipped = channel.distort(mixture)
    changed = clipped != mixture
    assert np.mean(changed) == pytest.approx(channel.clipped_share, abs=2e-4)
    assert np.abs(clipped).max() <= np.abs(mixture[changed]).min()
    np.testing.assert_array_equal(RandomChannel(config, RATE, np.random.default_rng(1)).distort(mixture), clipped)
    assert not channel.distort(np.zeros(100, np.float32)).any()
