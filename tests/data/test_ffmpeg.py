"""Formats that libsndfile cannot read: with a stand-in for ffmpeg, and with the real one where it is installed."""

import io
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sepkit.data import _ffmpeg, audio
from sepkit.errors import UserError
from sepkit.inference.batch.inputs import find_recordings
from tests.complaint import complaint

RATE = 16000
# Files of these tests hold what ffmpeg would write behind bytes that no format begins with; one whose name begins with
# "broken" ends early, with a reason.
MARK = b"no format"
STAND_IN = """#!/bin/sh
for word in "$@"; do case $word in file:*) file=${word#file:} ;; esac; done
case $(basename "$file") in
  broken*) tail -c +10 "$file" | head -c 40000; echo "Invalid data found" >&2; exit 69 ;;
  stuck*) exec sleep 60 ;;
  silent_film*) echo "Stream map '0:a:0' matches no streams." >&2; exit 1 ;;
  *) tail -c +10 "$file" ;;
esac
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def write_au(path: Path, seed: int = 0, num_samples: int = 100_000) -> np.ndarray:
    waveform = np.random.default_rng(seed).standard_normal((num_samples, 2)).astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    soundfile.write(buffer, waveform, RATE, "FLOAT", format="AU")
    path.write_bytes(MARK + buffer.getvalue())
    return waveform


def test_what_ffmpeg_decodes_is_read_like_any_other_file(stand_in: None, tmp_path: Path) -> None:
    path = tmp_path / "talk: one.m4a"
    waveform = write_au(path)
    assert audio.info(path) == audio.AudioInfo(RATE, 100_000, 2, "FFMPEG")
    np.testing.assert_array_equal(audio.read(path, channel=1), waveform[:, 1])
    np.testing.assert_array_equal(audio.read(path), waveform.mean(axis=1))
    for start, count in ((70_000, 5), (99_990, 10), (0, 3)):
        np.testing.assert_array_equal(audio.read(path, start, count, channel=0), waveform[start : start + count, 0])
    np.testing.assert_array_equal(np.concatenate(list(audio.read_blocks(path, 33_333))), waveform.mean(axis=1))
    slower = audio.read(path, 1000, 500, sample_rate=8000, resampler="scipy_poly", channel=0)
    np.testing.assert_array_equal(slower, audio.resample(waveform[:, 0], RATE, 8000, "scipy_poly")[1000:1500])


def test_ffmpeg_that_fails_is_one_line(stand_in: None, tmp_path: Path) -> None:
    for name, words in (
        ("broken.mp4", r"broken.mp4: ffmpeg failed after sample 4\d{3} \(Invalid data found\); get the file again"),
        ("silent_film.mkv", "silent_film.mkv: contains no sound; leave out the file"),
    ):
        write_au(tmp_path / name)
        complaint(lambda name=name: audio.read(tmp_path / name), words)
    complaint(lambda: audio.info(tmp_path / "absent.m4a"), r"absent.m4a: no such file")


def test_an_ffmpeg_that_gives_nothing_is_ended(stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ffmpeg, "_WAIT_SECONDS", 0.5)
    write_au(tmp_path / "stuck.mkv", num_samples=9)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"stuck.mkv: cannot be read as audio \(ffmpeg: it gave nothing for"):
        audio.read(tmp_path / "stuck.mkv")
    assert time.monotonic() - began < 30


def test_nothing_is_skipped_in_silence(absent: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.m4a", "b.M4A", "c.mp4"):
        write_au(tmp_path / "in" / name)
    audio.write(tmp_path / "in" / "d.wav", np.ones(9), RATE)
    line = "warning: 3 file(s) skipped: .m4a, .mp4; install ffmpeg\n"
    assert [path.name for path in audio.find_audio_files(tmp_path / "in")] == ["d.wav"]
    assert capsys.readouterr().err == line
    assert [path.name for path in find_recordings([tmp_path / "in"], tmp_path / "out")] == ["d.wav"]
    assert capsys.readouterr().err == line
    line = r"a.m4a: cannot be read as audio \(.* the program ffmpeg, which reads more, is not .*install ffmpeg"
    complaint(lambda: audio.info(tmp_path / "in" / "a.m4a"), line)


def test_with_ffmpeg_all_are_found(stand_in: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_au(tmp_path / "in" / "a.m4a")
    audio.write(tmp_path / "in" / "d.wav", np.ones(9), RATE)
    assert [path.name for path in audio.find_audio_files(tmp_path / "in")] == ["a.m4a", "d.wav"]
    assert capsys.readouterr().err == ""
