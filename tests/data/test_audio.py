from __future__ import annotations

import io
import os
import stat
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile
import soxr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sepkit.data import audio
from tests.complaint import complaint
from tests.ordinary_user import as_ordinary_user

RATES = [8000, 11025, 16000, 22050, 44100, 48000]


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.9, 0.9, num_samples).astype(np.float32)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """One second and a bit of noise at each rate."""
    folder = tmp_path_factory.mktemp("recordings")
    return {rate: audio.write(folder / f"{rate}.wav", noise(rate + 137, rate), rate) for rate in RATES}


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_info_and_whole_read(tmp_path: Path, suffix: str) -> None:
    samples = np.random.default_rng(0).integers(-(2**15), 2**15, 1234, dtype=np.int16)
    soundfile.write(tmp_path / f"x{suffix}", samples, 16000)
    assert audio.info(tmp_path / f"x{suffix}") == audio.AudioInfo(16000, 1234, 1, "PCM_16")
    read = audio.read(tmp_path / f"x{suffix}")
    assert read.dtype == np.float32 and read.shape == (1234,)
    np.testing.assert_array_equal(read, samples / 32768)


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_crop_is_the_crop_of_the_whole(tmp_path: Path, suffix: str, data: st.DataObject) -> None:
    path = tmp_path / f"x{suffix}"
    if not path.exists():
        soundfile.write(path, noise(20000), 8000, subtype="PCM_16")
    whole = audio.read(path)
    start = data.draw(st.integers(0, 20000))
    count = data.draw(st.integers(0, 20000 - start))
    np.testing.assert_array_equal(audio.read(path, start, count), whole[start : start + count])


@pytest.mark.parametrize("resampler", audio.RESAMPLERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_resampled_crop_is_the_crop_of_the_resampled_whole(
    recordings: dict[int, Path], resampler: str, data: st.DataObject
) -> None:
    from_rate, to_rate = data.draw(st.sampled_from(RATES)), data.draw(st.sampled_from([*RATES, 7880, 8120]))
    path = recordings[from_rate]
    whole = audio.resample(audio.read(path), from_rate, to_rate, resampler)
    start = data.draw(st.integers(0, len(whole)))
    count = data.draw(st.integers(0, len(whole) - start))
    crop = audio.read(path, start, count, to_rate, resampler)
    if resampler == "scipy_poly":
        np.testing.assert_array_equal(crop, whole[start : start + count])
    else:
        np.testing.assert_allclose(crop, whole[start : start + count], atol=1e-6, rtol=0)


def test_a_length_between_two_samples_is_rounded_up() -> None:
    # 283350 * 7280 / 8000 is 257848.5, and soxr alone makes 257848 samples of it.
    assert len(audio.resample(noise(283350), 8000, 7280)) == audio.resampled_length(283350, 8000, 7280) == 257849


@pytest.mark.parametrize("rates", [(16000, 8000), (8000, 16000), (44100, 8000), (11025, 16000)])
@pytest.mark.parametrize("num_samples", [1, 2, 3, 160, 441, 4001])
def test_resample_equals_the_libraries_and_its_length_is_known(rates: tuple[int, int], num_samples: int) -> None:
    waveform = noise(num_samples)
    poly = audio.resample(waveform, *rates, "scipy_poly")
    np.testing.assert_array_equal(poly, scipy.signal.resample_poly(waveform, rates[1], rates[0]))
    assert poly.dtype == np.float32 and len(poly) == audio.resampled_length(num_samples, *rates, "scipy_poly")
    high = audio.resample(waveform, *rates)
    np.testing.assert_array_equal(high, soxr.resample(waveform, *rates, quality="HQ"))
    assert len(high) == audio.resampled_length(num_samples, *rates)


@pytest.mark.parametrize("resampler", audio.RESAMPLERS)
def test_resample_keeps_a_tone_and_leading_axes(resampler: str) -> None:
    time_in, time_out = np.arange(16000) / 16000, np.arange(8000) / 8000
    tone = np.stack([np.sin(2 * np.pi * 440 * time_in), np.cos(2 * np.pi * 1000 * time_in)]).reshape(2, 1, -1)
    expected = np.stack([np.sin(2 * np.pi * 440 * time_out), np.cos(2 * np.pi * 1000 * time_out)]).reshape(2, 1, -1)
    result = audio.resample(tone, 16000, 8000, resampler)
    assert result.dtype == np.float64 and result.shape == (2, 1, 8000)
    tolerance = 1e-4 if resampler == "soxr_hq" else 5e-3
    np.testing.assert_allclose(result[..., 500:-500], expected[..., 500:-500], atol=tolerance)


def test_files_are_found_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """Whatever the order of the file system is; endings may be upper-case, hidden files are none, links may circle."""
    names = ["a/2.WAV", "a/10.flac", "a-b.Ogg", "b.wav", ".c.wav", "d.txt", ".e/f.wav"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for link, target in (("a/up", tmp_path), ("g", tmp_path / "a"), (".e/h", tmp_path)):
        (tmp_path / link).symlink_to(target)
    found = [path.relative_to(tmp_path).as_posix() for path in audio.find_audio_files(tmp_path)]
    assert found == ["a-b.Ogg", "a/10.flac", "a/2.WAV", "b.wav", "g/10.flac", "g/2.WAV"]


def test_equal_rates_change_nothing() -> None:
    waveform = noise(100)
    assert audio.resample(waveform, 8000, 8000) is waveform


def test_stereo_is_the_mean_unless_a_channel_is_named(tmp_path: Path) -> None:
    left, right = noise(500, 1), noise(500, 2)
    path = audio.write(tmp_path / "x.wav", np.stack([left, right]), 44100)
    assert audio.info(path).channels == 2
    np.testing.assert_allclose(audio.read(path), (left + right) / 2, atol=1e-7)
    np.testing.assert_array_equal(audio.read(path, channel=1), right)
    np.testing.assert_array_equal(audio.read(path, 10, 20, channel=0), left[10:30])
    complaint(lambda: audio.read(path, channel=2), r"2 channel\(s\).*channel 2 was asked for")


@pytest.mark.parametrize("sample_rate", [8000, 16000])
def test_pad_end_gives_zeros_past_the_end(recordings: dict[int, Path], sample_rate: int) -> None:
    path = recordings[16000]
    whole = audio.read(path, sample_rate=sample_rate)
    padded = audio.read(path, len(whole) - 10, 25, sample_rate, pad_end=True)
    np.testing.assert_allclose(padded[:10], whole[-10:], atol=1e-6)
    assert padded.dtype == np.float32 and not padded[10:].any()
    np.testing.assert_array_equal(audio.read(path, len(whole) + 5, 7, sample_rate, pad_end=True), np.zeros(7))


def test_reading_past_the_end_is_an_error(recordings: dict[int, Path]) -> None:
    message = complaint(lambda: audio.read(recordings[16000], 8000, 100, 8000))
    assert "contains 8069 samples at 8000 Hz, but samples 8000 to 8100" in message


def broken_files(folder: Path) -> dict[str, Path]:
    """A file for each kind of damage; the key is what the message has to say."""
    paths = {what: folder / name for what, name in BROKEN.items()}
    soundfile.write(paths["contains no samples"], np.zeros(0, np.float32), 8000)
    paths["cannot be read as audio"].write_text("this is no audio")
    whole = folder / "whole.flac"
    soundfile.write(whole, noise(40000), 8000)
    paths["damaged or truncated"].write_bytes(whole.read_bytes()[:20000])
    bad = noise(1000)
    bad[500] = np.nan
    soundfile.write(paths["not finite"], bad, 8000, subtype="FLOAT")
    paths["it is a folder"].mkdir()
    return paths


BROKEN = {
    "contains no samples": "empty.wav",
    "cannot be read as audio": "text.wav",
    "damaged or truncated": "truncated.flac",
    "not finite": "nan.wav",
    "no such file": "absent.wav",
    "it is a folder": "folder.wav",
}


@pytest.mark.parametrize("what", BROKEN)
def test_bad_files_give_one_clear_line(tmp_path: Path, what: str) -> None:
    path = broken_files(tmp_path)[what]
    assert str(path) in complaint(lambda: audio.read(path), what)


def test_the_sound_parts_of_damaged_files_are_read(tmp_path: Path) -> None:
    paths = broken_files(tmp_path)
    np.testing.assert_allclose(audio.read(paths["damaged or truncated"], 0, 1000), noise(40000)[:1000], atol=1e-4)
    assert len(audio.read(paths["not finite"], 501, 400)) == 400
    complaint(lambda: audio.read(paths["damaged or truncated"], 38000, 1000), "damaged or truncated")


def test_a_wav_cut_off_is_as_long_as_its_data(tmp_path: Path) -> None:
    whole = audio.write(tmp_path / "whole.wav", noise(1000), 8000, "PCM_16")
    cut = tmp_path / "cut.wav"
    cut.write_bytes(whole.read_bytes()[:-500])
    assert audio.info(cut).num_samples == len(audio.read(cut)) == 750
    complaint(lambda: audio.read(cut, 0, 1000), "not the one that was described")


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"])
def test_every_sample_format_is_read_at_full_scale(tmp_path: Path, subtype: str) -> None:
    soundfile.write(tmp_path / "x.wav", noise(500), 8000, subtype=subtype)
    np.testing.assert_allclose(audio.read(tmp_path / "x.wav"), noise(500), atol=0.03)
    assert audio.info(tmp_path / "x.wav").subtype == subtype


def test_unknown_resampler_is_named() -> None:
    complaint(lambda: audio.resample(noise(10), 8000, 16000, "sinc"), r"'sinc'.*soxr_hq, scipy_poly")


def test_float_files_keep_every_value_and_are_the_same_bytes_again(tmp_path: Path) -> None:
    waveform = 3 * noise(1000)
    first, second = (
        audio.write(tmp_path / "a/b/x.wav", waveform, 16000),
        audio.write(tmp_path / "y.wav", waveform, 16000),
    )
    assert audio.info(first).subtype == "FLOAT"
    np.testing.assert_array_equal(audio.read(first), waveform)
    assert first.read_bytes() == second.read_bytes()
    assert [p.name for p in sorted(tmp_path.rglob("*")) if p.is_file()] == ["x.wav", "y.wav"]


@pytest.mark.parametrize("suffix", [".WAV", ".Flac"])
def test_pcm16_floor_is_what_soundfile_writes(tmp_path: Path, suffix: str) -> None:
    waveform = np.concatenate([noise(5000), np.array([0.6, -0.4, 0, 32767, 32768, -32768, 40000, -40000]) / 32768])
    waveform = waveform.astype(np.float32)
    ours = audio.write(tmp_path / f"ours{suffix}", waveform, 8000, "PCM_16", "floor")
    soundfile.write(tmp_path / "theirs.wav", waveform, 8000, subtype="PCM_16")
    np.testing.assert_array_equal(
        soundfile.read(ours, dtype="int16")[0], soundfile.read(tmp_path / "theirs.wav", dtype="int16")[0]
    )
    assert audio.info(ours).subtype == "PCM_16"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pcm16_floor_is_what_soundfile_writes_of_values_next_to_a_step(tmp_path: Path, dtype: type) -> None:
    generator = np.random.default_rng(5)
    tiny = generator.standard_normal(20000) * 10.0 ** generator.uniform(-9, 0, 20000)
    near = generator.integers(-33000, 33000, 20000) + generator.permutation(tiny) / 1000
    waveform = (np.concatenate([near, tiny]) / 32768).astype(dtype)
    soundfile.write(tmp_path / "theirs.wav", waveform, 8000, subtype="PCM_16")
    theirs = soundfile.read(tmp_path / "theirs.wav", dtype="int16")[0]
    np.testing.assert_array_equal(audio.quantize_pcm16(waveform, "floor"), theirs)


def test_the_gain_comes_before_resampling(tmp_path: Path) -> None:
    path = audio.write(tmp_path / "x.wav", noise(4001), 16000)
    expected = scipy.signal.resample_poly(audio.read(path) * np.float32(0.37), 1, 2)
    read = audio.read(path, sample_rate=8000, resampler="scipy_poly", gain=0.37)
    np.testing.assert_array_equal(read, expected)
    crop = audio.read(path, 700, 500, 8000, "scipy_poly", gain=0.37)
    np.testing.assert_array_equal(crop, expected[700:1200])


def test_pcm16_nearest_rounds_half_to_even_and_saturates() -> None:
    values = np.array([0.5, 1.5, -0.5, -1.5, 0.6, -0.4, 32767.4, 32768, -32769], np.float32) / 32768
    assert audio.quantize_pcm16(values).tolist() == [0, 2, 0, -2, 1, 0, 32767, 32767, -32768]
    assert audio.quantize_pcm16(values, "floor").tolist() == [0, 1, -1, -2, 0, -1, 32767, 32767, -32768]


def test_write_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        audio.write(tmp_path / "x.wav", np.array([0, np.nan]), 8000)
    with pytest.raises(ValueError, match=r"FLOAT in \.flac"):
        audio.write(tmp_path / "x.flac", noise(10), 8000)
    with pytest.raises(ValueError, match="shape"):
        audio.write(tmp_path / "x.wav", np.zeros((1, 2, 3)), 8000)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = audio.write(tmp_path / "x.wav", noise(100), 8000)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        audio.write(path, noise(100, 1), 8000)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    for name in ("file", "locked"):
        path = tmp_path / name / "x.wav"
        write = partial(audio.write, path, noise(10), 8000)
        as_ordinary_user(lambda write=write: complaint(write, "cannot be written to"))


def write_sphere(path: Path, samples: np.ndarray, rate: int = 16000, coding: str = "pcm") -> Path:
    """A NIST sphere file, big-endian, as the LDC ships them."""
    fields = {
        "sample_count": f"-i {len(samples)}", "sample_n_bytes": "-i 2", "channel_count": "-i 1",
        "sample_byte_format": "-s2 10", "sample_rate": f"-i {rate}", "sample_coding": f"-s{len(coding)} {coding}",
    }  # fmt: skip
    header = "NIST_1A\n   1024\n" + "".join(f"{name} {value}\n" for name, value in fields.items()) + "end_head\n"
    path.write_bytes(header.encode().ljust(1024) + samples.astype(">i2").tobytes())
    return path


def test_sphere_is_read_unless_it_is_compressed_with_shorten(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-(2**15), 2**15, 999, dtype=np.int16)
    path = write_sphere(tmp_path / "01to030v.wv1", samples)
    assert audio.info(path) == audio.AudioInfo(16000, 999, 1, "PCM_16")
    np.testing.assert_array_equal(audio.read(path), samples / 32768)
    shortened = write_sphere(tmp_path / "x.wv1", samples, coding="pcm,embedded-shorten-v2.00")
    complaint(lambda: audio.read(shortened), r"sph2pipe -p -f wav .*x\.wv1 .*x\.wav")


@pytest.mark.parametrize(("num_samples", "kind"), [(8191, "wav"), (16000, "flac")])
def test_sound_for_browsers_is_compressed_unless_it_is_short(num_samples: int, kind: str) -> None:
    tone = 0.5 * np.sin(0.1 * np.arange(num_samples))
    data, found = audio.encode_sound(tone, 8000)
    samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert found == f"audio/{kind}" and rate == 8000
    np.testing.assert_array_equal(samples, audio.quantize_pcm16(tone))
    assert (len(data) < 1.5 * num_samples) == (kind == "flac")
    with pytest.raises(ValueError, match="at least one"):
        audio.encode_sound(tone[:0], 8000)


def test_samples_far_beyond_full_scale_are_refused(tmp_path: Path) -> None:
    for peak in (1e14, 2e15):
        soundfile.write(tmp_path / f"{peak:g}.wav", [0.1, peak], 8000, subtype="FLOAT")
    assert audio.read(tmp_path / "1e+14.wav")[1] == np.float32(1e14)
    complaint(lambda: audio.read(tmp_path / "2e+15.wav"), r"2e\+15\.wav: contains .* beyond 1e\+15 \(full scale is 1\)")
