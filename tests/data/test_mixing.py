from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import resample_poly

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry
from sepkit.data.mixing import extend_librimix, mix_entry, place
from sepkit.errors import UserError
from sepkit.signals import active_level
from tests.complaint import complaint

RATE = 8000


def ramp(num_samples: int, value: float = 1.0) -> np.ndarray:
    """Distinct values, exact in float32."""
    return (value * np.arange(1, num_samples + 1) / 4096).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """a.wav of 1000 samples, b.wav of 700, n.wav (noise) of 400 and a mix.wav of 600."""
    audio.write(tmp_path / "a.wav", ramp(1000), RATE)
    audio.write(tmp_path / "b.wav", ramp(700, -2), RATE)
    audio.write(tmp_path / "n.wav", ramp(400, 0.5), RATE)
    audio.write(tmp_path / "mix.wav", ramp(600, 3), RATE)
    return tmp_path


def entry(folder: Path, num_samples: int, *sources: SourceEntry, **fields: object) -> MixtureEntry:
    return MixtureEntry("x", RATE, num_samples, list(sources), folder=folder, **fields)  # type: ignore[arg-type]


def test_min_mixture_is_the_sum_of_scaled_sources(folder: Path) -> None:
    mixed = mix_entry(entry(folder, 600, SourceEntry("a.wav", start=50, gain=0.5), SourceEntry("b.wav", gain=2)))
    np.testing.assert_array_equal(mixed.sources[0], 0.5 * ramp(1000)[50:650])
    np.testing.assert_array_equal(mixed.sources[1], 2 * ramp(700, -2)[:600])
    np.testing.assert_array_equal(mixed.mixture, mixed.sources[0] + mixed.sources[1])
    assert mixed.mixture.dtype == mixed.sources.dtype == np.float32 and mixed.noise is None


def test_max_mixture_offsets_and_parts(folder: Path) -> None:
    sources = (SourceEntry("a.wav", start=10, num_samples=100, offset=30), SourceEntry("b.wav", offset=500))
    mixed = mix_entry(entry(folder, 1300, *sources, mode="max"))
    np.testing.assert_array_equal(mixed.sources[0], place(ramp(1000)[10:110], 30, 1300))
    np.testing.assert_array_equal(mixed.sources[1], place(ramp(700, -2), 500, 1300))


def test_noise_is_added_and_ends_where_its_file_ends(folder: Path) -> None:
    mixed = mix_entry(entry(folder, 600, SourceEntry("a.wav"), noise=NoiseEntry("n.wav", start=100, gain=0.25)))
    assert mixed.noise is not None
    np.testing.assert_array_equal(mixed.noise, place(0.25 * ramp(400, 0.5)[100:], 0, 600))
    np.testing.assert_array_equal(mixed.mixture, mixed.sources[0] + mixed.noise)


def test_a_recorded_mixture_is_read_and_not_mixed(folder: Path) -> None:
    mixed = mix_entry(entry(folder, 600, SourceEntry("a.wav"), mixture="mix.wav"))
    np.testing.assert_array_equal(mixed.mixture, ramp(600, 3))
    np.testing.assert_array_equal(mixed.sources[0], ramp(1000)[:600])
    alone = mix_entry(entry(folder, 600, mixture="mix.wav"), 100, 50)
    np.testing.assert_array_equal(alone.mixture, ramp(600, 3)[100:150])
    assert alone.sources.shape == (0, 50)


@pytest.mark.parametrize("extend", [None, "repeat", "librimix"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_part_of_a_mixture_is_that_part_of_the_whole(tmp_path_factory, extend, data) -> None:
    folder = tmp_path_factory.mktemp("mixture")
    generator = np.random.default_rng(0)
    for name, seconds in {"a.wav": 3.0, "b.wav": 2.1, "n.wav": 1.3}.items():
        audio.write(folder / name, generator.uniform(-1, 1, round(16000 * seconds)).astype(np.float32), 16000)
    sources = (SourceEntry("a.wav", gain=0.7, num_samples=19000), SourceEntry("b.wav", offset=900))
    noise = NoiseEntry("n.wav", start=7, gain=0.3, extend=extend)
    whole = entry(folder, 20000, *sources, mode="max", resampler="scipy_poly", noise=noise)
    start = data.draw(st.integers(0, 20000))
    count = data.draw(st.integers(0, 20000 - start))
    everything, part = mix_entry(whole), mix_entry(whole, start, count)
    np.testing.assert_array_equal(part.mixture, everything.mixture[start : start + count])
    np.testing.assert_array_equal(part.sources, everything.sources[:, start : start + count])


def test_files_that_are_shorter_than_described_are_refused(folder: Path) -> None:
    longer = entry(folder, 800, SourceEntry("b.wav", num_samples=701), mode="max")
    mixed = entry(folder, 601, SourceEntry("a.wav"), mixture="mix.wav")
    for short in (entry(folder, 800, SourceEntry("b.wav")), longer, mixed):
        complaint(lambda short=short: mix_entry(short), "not the one that was described")
    with pytest.raises(ValueError, match="which has 600"):
        mix_entry(entry(folder, 600, SourceEntry("a.wav")), 500, 101)


def test_unknown_extension_is_named(folder: Path) -> None:
    noise = NoiseEntry("n.wav", extend="mirror")
    with pytest.raises(UserError, match=r"noise\.extend is 'mirror', expected one of repeat, librimix"):
        mix_entry(entry(folder, 600, SourceEntry("a.wav"), noise=noise))


def test_repeated_noise_is_periodic(folder: Path) -> None:
    mixed = mix_entry(entry(folder, 900, SourceEntry("a.wav"), noise=NoiseEntry("n.wav", start=30, extend="repeat")))
    np.testing.assert_array_equal(mixed.noise, ramp(400, 0.5)[(np.arange(900) + 30) % 400])


def test_librimix_extension_sample_by_sample() -> None:
    rate, period = 1000, 1700
    noise = np.random.default_rng(0).uniform(-1, 1, period)
    fade = rate // 2 + 1
    extended = extend_librimix(noise, 4000, rate)
    assert extended.dtype == np.float64 and len(extended) == 4000
    # Copies begin every period - fade samples; in a seam the old one leaves and the new one enters along cosines.
    # Three copies are enough here, so the third does not leave.
    for t in range(4000):
        copy = min(t // (period - fade), 2)
        position = t - copy * (period - fade)
        expected = noise[position]
        if copy > 0 and position < fade:
            rise = 0.5 - 0.5 * np.cos(np.pi * position / (fade - 1))
            expected = rise * noise[position] + (1 - rise) * noise[period - fade + position]
        assert extended[t] == pytest.approx(expected, abs=1e-12)


def test_librimix_extension_of_long_and_of_too_short_noise() -> None:
    noise = np.arange(2000.0)
    np.testing.assert_array_equal(extend_librimix(noise, 1500, 1000), noise[:1500])
    complaint(lambda: extend_librimix(noise[:501], 1500, 1000), "over 501 samples")


@given(level=st.floats(1e-3, 10), pause_seconds=st.floats(0, 3), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_active_level_ignores_pauses_and_scales(level: float, pause_seconds: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    speech = generator.choice([-1.0, 1.0], size=256 * 40)
    pause = 1e-4 * generator.standard_normal(256 * round(RATE * pause_seconds / 256))
    waveform = (level * np.concatenate([pause, speech, pause])).astype(np.float32)
    assert active_level(waveform, RATE) == pytest.approx(level, rel=1e-5)


def test_active_level_of_odd_waveforms() -> None:
    assert active_level(np.zeros(0, np.float32), RATE) == 0
    assert active_level(np.zeros(1000, np.float32), RATE) == 0
    assert active_level(np.array([-0.5], np.float32), RATE) == 0.5


def test_place_cuts_and_fills() -> None:
    assert place(np.array([1, 2, 3]), 1, 3).tolist() == [0, 1, 2]
    assert place(np.array([1, 2]), 1, 5).tolist() == [0, 1, 2, 0, 0]
    assert place(np.array([1, 2]), 7, 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("available", [3001, 12001, 30000])
@pytest.mark.parametrize("extend", [None, "librimix"])
def test_noise_of_so_many_samples_of_its_file_is_cut_or_extended_before_it_is_resampled(tmp_path, available, extend):
    generator = np.random.default_rng(3)
    speech, noise = (0.1 * generator.standard_normal(n).astype(np.float32) for n in (20001, available + 9000))
    if extend is None:
        noise = noise[:available]
    audio.write(tmp_path / "s.wav", speech, 16000)
    audio.write(tmp_path / "n.wav", noise, 16000)
    fitted = extend_librimix(noise, 20001, 16000) if extend else place(noise, 0, min(available, 20001))
    resampled = resample_poly(fitted * (0.3 if fitted.dtype == np.float64 else np.float32(0.3)), 1, 2)
    expected = place(resampled, 0, 10001)
    described = entry(
        tmp_path, 10001, SourceEntry("s.wav"), noise=NoiseEntry("n.wav", gain=0.3, extend=extend, file_samples=20001),
        mode="max", resampler="scipy_poly",
    )  # fmt: skip
    mixed = mix_entry(described)
    np.testing.assert_array_equal(mixed.noise, expected.astype(np.float32))
    total = resample_poly(speech, 1, 2)
    total += expected
    np.testing.assert_array_equal(mixed.mixture, total)
    for start, count in [(0, 100), (4000, 800), (1400, 300), (9000, 1001), (10000, 1)]:
        crop = mix_entry(described, start, count)
        np.testing.assert_array_equal(crop.mixture, total[start : start + count])
        np.testing.assert_array_equal(crop.noise, expected[start : start + count].astype(np.float32))
