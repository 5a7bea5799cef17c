"""Raw PCM through a stream: bytes in any portions, both formats, both ends of the pipe."""

import io
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from sepkit.cli.main import main
from sepkit.config import RecurrentConfig
from sepkit.data.audio import quantize_pcm16
from sepkit.data.headers import is_pcm16
from sepkit.errors import UserError
from sepkit.inference import Separator
from sepkit.inference.live.pipe import Pipe, open_pipe, separate_pipe
from sepkit.models import build_model, save_model
from tests.complaint import complaint
from tests.tiny_models import RECURRENT

CONFIG = replace(RECURRENT, masker=RecurrentConfig(hidden_size=4, num_layers=1, bidirectional=False))


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, the first one alone, cutting through samples."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(min(7, size or 7, 1 + self.tell()))

    def readinto(self, buffer, /) -> int:
        return io.BytesIO(self.read1(len(buffer))).readinto(buffer)


@pytest.fixture
def separator():
    return Separator(build_model(CONFIG))


def mixture(num_samples: int) -> np.ndarray:
    return 0.2 * np.random.default_rng(0).standard_normal(num_samples).astype(np.float32)


def wav(samples: np.ndarray, rate: int = 8000, **format: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, **{"format": "WAV", "subtype": "PCM_16", **format})
    return buffer.getvalue()


def offline(separator: Separator, samples: np.ndarray) -> np.ndarray:
    """The estimates of the whole recording at once."""
    return separator.runner.run(samples[None]).estimates[0]


@pytest.mark.parametrize("source", [io.BytesIO, Trickle])
def test_floats_come_out_interleaved(separator, source):
    samples, sink = mixture(333), io.BytesIO()
    report = separate_pipe(separator.streaming(), Pipe(source(samples.tobytes()), "f32le"), sink)
    found = np.frombuffer(sink.getvalue(), "<f4").reshape(-1, 2).T
    np.testing.assert_allclose(found, offline(separator, samples), atol=1e-6)
    assert report.num_samples == 333 and report.dropped_bytes == 0


def test_integers_have_full_scale_one_and_what_clips_is_counted(separator):
    samples = np.round(32768 * mixture(333)).astype("<i2")
    expected = offline(separator, samples.astype(np.float32) / 32768)
    with torch.no_grad():
        next(iter(separator.model.filterbank.decoder.parameters())).mul_(1.2 / float(np.abs(expected).max()))
    expected *= 1.2 / np.abs(expected).max()
    sink = io.BytesIO()
    report = separate_pipe(separator.streaming(), Pipe(Trickle(samples.tobytes())), sink)
    found = np.frombuffer(sink.getvalue(), "<i2").reshape(-1, 2).T / 32768
    np.testing.assert_allclose(found, expected.clip(-1, 32767 / 32768), atol=1.1 / 32768)
    assert report.clipped == np.count_nonzero(np.abs(expected) >= 1) > 0
    assert f"{report.clipped} samples clipped" in str(report)


def test_half_a_sample_at_the_end_is_told(separator):
    sink = io.BytesIO()
    report = separate_pipe(separator.streaming(), Pipe(io.BytesIO(bytes(11))), sink)
    assert len(sink.getvalue()) == 2 * 2 * report.num_samples == 20
    assert "1 bytes at the end are no whole sample" in str(report)


@pytest.mark.parametrize("sound", [b"", wav(np.zeros(0))])
def test_an_empty_pipe_is_one_line(separator, sound):
    for pipe in (Pipe(io.BytesIO()), *([open_pipe(io.BytesIO(sound))] if sound else [])):
        complaint(lambda pipe=pipe: separate_pipe(separator.streaming(), pipe, io.BytesIO()), "contains no samples")
    complaint(lambda: open_pipe(io.BytesIO()), "standard input: is empty")


def test_bad_samples_and_formats_are_one_line(separator):
    with pytest.raises(UserError, match="sample 2 of the stream is NaN"):
        pipe = Pipe(io.BytesIO(np.array([0, 0, np.nan], "<f4").tobytes()), "f32le")
        separate_pipe(separator.streaming(), pipe, io.BytesIO())
    with pytest.raises(UserError, match=r"^--sample-format mulaw: expected one of s16le, f32le"):
        separate_pipe(separator.streaming(), Pipe(io.BytesIO(), "mulaw"), io.BytesIO())  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------------- wavs


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize("container", ["WAV", "WAVEX"])
def test_channels_of_a_wav_are_averaged(separator, subtype, container):
    left, right = mixture(300), mixture(600)[300:]
    sound = wav(np.stack([left, right], 1), format=container, subtype=subtype)
    sink = io.BytesIO()
    # What stands after the samples is none of them.
    pipe = open_pipe(Trickle(sound + b"LIST\4\0\0\0left"))
    assert (pipe.sample_rate, pipe.channels) == (8000, 2)
    report = separate_pipe(separator.streaming(), pipe, sink)
    dtype, scale, atol = ("<i2", 32768, 2e-4) if subtype == "PCM_16" else ("<f4", 1, 1e-6)
    found = np.frombuffer(sink.getvalue(), dtype).reshape(-1, 2).T / scale
    np.testing.assert_allclose(found, offline(separator, (left + right) / 2), atol=atol)
    assert report.num_samples == 300 and report.dropped_bytes == 0


@pytest.mark.parametrize("more", [wav(mixture(300)), b"\1\0" * 50, b"data" + bytes([0, 4, 0, 0]) + b"\1" * 9000])
def test_sound_behind_what_a_wav_counts_is_no_end(separator, more):
    sink = io.BytesIO()
    pipe = open_pipe(io.BytesIO(wav(mixture(300)) + more))
    line = complaint(lambda: separate_pipe(separator.streaming(), pipe, sink))
    assert re.search("more sound follows the samples|another recording follows", line)
    assert len(sink.getvalue()) == 300 * 2 * 2


@pytest.mark.parametrize("quiet", [0, 9000])
def test_channels_that_cancel_are_one_line(separator, quiet):
    sound = np.pad(mixture(300), (quiet, 0))
    pipe = open_pipe(io.BytesIO(wav(np.stack([sound, -sound], 1))))
    assert "the channels cancel" in complaint(lambda: separate_pipe(separator.streaming(), pipe, io.BytesIO()))


def test_a_wav_of_unknown_length_goes_on_until_its_end():
    sound = wav(mixture(300))
    assert struct.unpack("<I", sound[40:44]) == (600,)
    # As ffmpeg, sox, arecord and others write it.
    for unknown in (0, 0x7FFFF000, 0x7FFFFF00, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        pipe = open_pipe(io.BytesIO(sound[:40] + struct.pack("<I", unknown) + sound[44:]))
        assert pipe.size_bytes is None
        assert pipe.read() == sound[44:] and pipe.read() == b""


@pytest.mark.parametrize(
    ("sound", "options", "words"),
    [
        (wav(mixture(9), subtype="PCM_24"), (), "found a wav of PCM_24, expected 16-bit integers or 32-bit floats"),
        (wav(mixture(9))[:30], (), "ends within its header"),
        (b"RIFF\0\0\0\0AVI " + bytes(20), (), "is no wav"),
        (wav(mixture(9)), (16000,), "--sample-rate 16000: the wav has 8000 Hz"),
        (wav(mixture(9), 1), (), "the wav has 1 Hz, expected 1000 to 768000"),
        (wav(mixture(9), 2**31 - 1), (), "the wav has 2147483647 Hz, expected 1000 to 768000"),
        (wav(np.zeros((9, 257))), (), "the wav has 257 channels, expected 1 to 256"),
        (wav(mixture(9))[:36] + b"LIST\xf0\xff\xff\xff" + bytes(99), (), "more than 65536 bytes before its samples"),
        (wav(mixture(9))[:36] + b"LIST\0\0\0\0" * 9000, (), "more than 65536 bytes before its samples"),
    ],
)
def test_other_wavs_are_one_line(sound, options, words):
    complaint(lambda: open_pipe(io.BytesIO(sound), *options), words)


def test_rf64_is_read_like_a_wav():
    sound = wav(mixture(300), format="RF64")
    assert sound.startswith(b"RF64")
    pipe = open_pipe(io.BytesIO(sound + b"LIST"))
    assert (pipe.sample_rate, pipe.sample_format, pipe.size_bytes) == (8000, "s16le", 600)
    # The size is not known before the end.
    at = sound.index(b"ds64") + 8
    pipe = open_pipe(io.BytesIO(sound[:at] + bytes(24) + sound[at + 24 :]))
    assert pipe.size_bytes is None and pipe.read() == sound[-600:]


KINDS = ["FLAC", "OGG", "AIFF", "AU", "W64", "NIST", "CAF", "MP3", "VOC", "IRCAM", "SVX", "AVR", "PAF", "PVF"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_wav_is_not_taken_for_samples(kind):
    subtype = {"OGG": "VORBIS", "MP3": "MPEG_LAYER_III"}.get(kind, "PCM_16")
    # Silence comes first, in which compressed data are no noise.
    sound = wav(np.pad(mixture(16000), (9000, 0)), format=kind, subtype=subtype)
    complaint(lambda: open_pipe(Trickle(sound), 8000), r"standard input: is no wav; .*--sample-format s16le.*ffmpeg -i")
    complaint(lambda: open_pipe(io.BytesIO(wav(mixture(9), endian="BIG"))), "is no wav")


def test_samples_without_a_name_are_16_bit_integers_unless_they_are_loud_white_noise():
    rng = np.random.default_rng(0)
    slow = (0.3 * np.sin(np.arange(900) / 5))[None]
    for sound in (wav(slow, format="RAW"), wav(0.05 * rng.standard_normal((1, 900)), format="RAW"), bytes(99), b"\1"):
        pipe = open_pipe(io.BytesIO(sound), 8000)
        assert (pipe.sample_format, pipe.sample_rate, pipe.read()) == ("s16le", 8000, sound)
    for sound in (rng.bytes(900), slow.astype("<f4").tobytes(), b"ID3\4\0" + bytes(99), b".SoX" + bytes(99)):
        complaint(partial(open_pipe, io.BytesIO(sound), 8000), "is no wav")


ESPEAK, FFMPEG = shutil.which("espeak-ng"), shutil.which("ffmpeg")


@pytest.mark.skipif(not (ESPEAK and FFMPEG), reason="needs espeak-ng and ffmpeg: apt-get install espeak-ng ffmpeg")
def test_a_loud_fricative_is_speech_and_its_encodings_are_not(tmp_path):
    source = tmp_path / "s.wav"
    subprocess.run(["espeak-ng", "-w", source, "[[s]]"], check=True)
    sound, rate = soundfile.read(source)
    sound /= np.abs(sound).max()
    excerpts = [sound[at : at + 2048] for at in range(0, len(sound) - 2048, 256)]
    # Its neighbors are not alike, at -13 dB.
    assert any(part @ part > 0.05 * len(part) and part[1:] @ part[:-1] < 0 for part in excerpts)
    assert all(is_pcm16(quantize_pcm16(part).tobytes()) for part in excerpts)
    soundfile.write(source, sound, rate)
    formats = ["mp2", "mpegts", "latm -c:a aac", "adts", "ac3", "f32le", "f32be", "s16be", "s24le"]
    # Frames of silence.
    formats += [f"{format} -af adelay=2000" for format in ("mp2", "mp3 -id3v2_version 0", "dts -strict -2")]
    for options in formats:
        command = f"ffmpeg -v error -i {source} -f {options} -"
        made = subprocess.run(command.split(), capture_output=True, check=True).stdout
        complaint(partial(open_pipe, io.BytesIO(made), 8000), "is no wav")


def test_what_begins_like_a_wav_is_pcm_if_a_format_is_named():
    pipe = open_pipe(io.BytesIO(b"RIFFRIFF"), 8000, "s16le")
    assert pipe.read() == b"RIFFRIFF" and pipe.sample_rate == 8000


# ------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def model(tmp_path, separator):
    return str(save_model(separator.model, tmp_path / "model"))


def command(model: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "sepkit", "stream", "--model", model, "--device", "cpu", *options]


def test_command_from_pipe_to_pipe(model, separator):
    samples = mixture(4000)
    line = [*command(model, "--levels", "model"), "-"]
    done = subprocess.run(line, input=wav(samples, subtype="FLOAT"), capture_output=True, check=True)
    found = np.frombuffer(done.stdout, "<f4").reshape(-1, 2).T
    np.testing.assert_allclose(found, offline(separator, samples), atol=1e-6)
    assert b"2 channels of f32le at 8000 Hz, latency 2.00 ms" in done.stderr
    assert b"separated 0.50 s" in done.stderr


def test_command_answers_before_the_input_ends_and_ends_when_nobody_listens(model):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command(model), **pipes) as process:
        process.stdin.write(bytes(2 * 800))
        process.stdin.flush()
        assert len(process.stdout.read(4 * 700)) == 4 * 700
        process.stdout.close()
        try:
            for _ in range(100):
                process.stdin.write(bytes(2 * 8000))
                process.stdin.flush()
        except BrokenPipeError:
            pass
        process.stdin = None
        assert process.wait(60) == 0
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("options", [["x.wav"], ["--out", "out"], ["--rttm"], ["--processes", "2"]])
def test_options_for_files_do_not_go_with_pipes(model, options, capsys):
    assert main(["stream", *options, "--model", model]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and options[0] in captured.err and captured.err.count("\n") == 1


# --------------------------------------------------------------------------------------------------------- microphone


def test_the_microphone_of_the_documents(separator, monkeypatch):
    """A sound card that plays 0.1 s of a recording to docs/stream.md's example, and hears what that plays."""
    page = (Path(__file__).parents[3] / "docs" / "stream.md").read_text()
    namespace = {}
    exec(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0], namespace)
    recording, played = mixture(800), []

    class Card:
        position = 0

        def __init__(self, rate, channels, dtype):
            assert (rate, channels, dtype) == (8000, (1, 2), "float32")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def read(self, frames):
            self.position += frames
            return recording[self.position - frames : self.position, None], False

        def write(self, data):
            assert data.dtype == np.float32 and data.flags.c_contiguous
            played.append(data)

    monkeypatch.setitem(sys.modules, "sounddevice", SimpleNamespace(Stream=Card))
    namespace["listen"](separator, seconds=0.1)
    with separator.streaming(levels="mixture") as stream:
        expected = np.concatenate([stream.push(recording), stream.finish()], -1)
    np.testing.assert_allclose(np.concatenate(played), expected.T, atol=1e-6)
