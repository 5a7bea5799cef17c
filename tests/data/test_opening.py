"""The one reader against the ffmpeg program: encodings, rates and channels; whole, in windows and in blocks."""

import io
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sepkit.data import audio
from sepkit.errors import UserError
from tests.complaint import complaint

SECONDS = 3
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="the program ffmpeg is not installed")

# Encoding: ending of the file, options of ffmpeg. What needs a rate of its own has it.
ENCODINGS: dict[str, tuple[str, list[str]]] = {
    "pcm_u8": ("wav", ["-c:a", "pcm_u8"]),
    "pcm_s16": ("wav", ["-c:a", "pcm_s16le"]),
    "pcm_s24": ("wav", ["-c:a", "pcm_s24le"]),
    "pcm_f32": ("wav", ["-c:a", "pcm_f32le"]),
    "mulaw": ("wav", ["-c:a", "pcm_mulaw"]),
    "ima_adpcm": ("wav", ["-c:a", "adpcm_ima_wav"]),
    "ms_adpcm": ("wav", ["-c:a", "adpcm_ms"]),
    "rf64": ("wav", ["-rf64", "always"]),
    "mp3_in_wav": ("wav", ["-c:a", "libmp3lame"]),
    "g722_in_wav": ("wav", ["-c:a", "g722", "-ar", "16000", "-ac", "1"]),
    "aiff": ("aiff", []),
    "au": ("au", []),
    "w64": ("w64", []),
    "caf": ("caf", []),
    "voc": ("voc", []),
    "flac": ("flac", []),
    "flac_in_ogg": ("oga", ["-c:a", "flac"]),
    "alac": ("m4a", ["-c:a", "alac"]),
    "vorbis": ("ogg", ["-c:a", "libvorbis", "-q:a", "3"]),
    "vorbis_low": ("ogg", ["-c:a", "libvorbis", "-q:a", "-1"]),
    "mp3_cbr": ("mp3", ["-c:a", "libmp3lame", "-b:a", "64k"]),
    "mp3_low": ("mp3", ["-c:a", "libmp3lame", "-b:a", "32k"]),
    "mp3_vbr": ("mp3", ["-c:a", "libmp3lame", "-q:a", "5"]),
    "mp3_vbr_low": ("mp3", ["-c:a", "libmp3lame", "-q:a", "9"]),
    "mp3_vbr_no_length": ("mp3", ["-c:a", "libmp3lame", "-q:a", "5", "-write_xing", "0"]),
    "mp3_cbr_no_length": ("mp3", ["-c:a", "libmp3lame", "-b:a", "64k", "-write_xing", "0"]),
    "mp2": ("mp2", ["-c:a", "mp2"]),
    "aac": ("aac", ["-c:a", "aac"]),
    "m4a": ("m4a", ["-c:a", "aac"]),
    "mka": ("mka", ["-c:a", "aac"]),
    "webm": ("webm", ["-c:a", "libopus"]),
    "wma": ("wma", ["-c:a", "wmav2"]),
    "wavpack": ("wv", ["-c:a", "wavpack"]),
    "tta": ("tta", ["-c:a", "tta"]),
    "ac3": ("ac3", ["-c:a", "ac3", "-ar", "44100"]),
}


def signal_of(rate: int, channels: int, seconds: float = SECONDS) -> np.ndarray:
    """Sweeps that come and go with some noise, (T, C) float32; channels differ."""
    time_axis = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(0).standard_normal((time_axis.size, channels))
    tones = np.stack([np.sin(2 * np.pi * (150 + 90 * c + 200 * time_axis) * time_axis) for c in range(channels)], 1)
    loudness = np.clip(np.sin(2 * np.pi * 1.3 * time_axis), 0, 1)[:, None]
    return (0.4 * loudness * tones + 0.01 * noise).astype(np.float32)


def encode(path: Path, rate: int, channels: int, options: list[str], seconds: float = SECONDS) -> Path:
    source = path.with_suffix(".source.wav")
    soundfile.write(source, signal_of(rate, channels, seconds), rate, subtype="FLOAT")
    command = ["ffmpeg", "-nostdin", "-v", "error", "-y", "-i", source, *options, path]
    made = subprocess.run(command, capture_output=True, text=True)
    source.unlink()
    if made.returncode:
        pytest.skip(f"this ffmpeg does not encode it: {made.stderr.strip().splitlines()[-1]}")
    return path


def by_ffmpeg(path: Path, channels: int) -> np.ndarray:
    """What the program decodes, (T, C): the independent reader."""
    command = ["ffmpeg", "-nostdin", "-v", "error", "-i", path, "-f", "f32le", "-"]
    return np.frombuffer(subprocess.run(command, capture_output=True).stdout, "<f4").reshape(-1, channels)


def check_windows(path: Path, whole: np.ndarray, atol: float = 0.0) -> None:
    """Every window is that part of the whole, and so are the blocks."""
    info = audio.info(path)
    assert info.num_samples == len(whole)
    length = len(whole)
    drawn = np.random.default_rng(1).integers(0, length - 500, 6)
    starts = [length - 2000, *drawn, 1, *range(length - 1550, length, 450)]
    for start in starts[:2] if info.subtype == "FFMPEG" else starts:  # every window starts the program
        count = min(500, length - int(start))
        np.testing.assert_allclose(audio.read(path, int(start), count), whole[start : start + count], atol=atol, rtol=0)
    complaint(lambda: audio.read(path, length - 10, 11), "were asked for")
    np.testing.assert_array_equal(np.concatenate(list(audio.read_blocks(path, 3333))), whole)
    part = np.concatenate(list(audio.read_blocks(path, 333, start=1000, stop=2001)))
    np.testing.assert_allclose(part, whole[1000:2001], atol=atol, rtol=0)


@needs_ffmpeg
@pytest.mark.parametrize(
    ("encoding", "rate", "channels"),
    [(name, 16000, 2) for name in ENCODINGS]
    # What libsndfile decodes at another rate, too: it seeks differently there.
    + [(name, 44100, 1) for name in ENCODINGS if name.startswith(("pcm", "ima", "ms", "flac", "vorbis", "mp3"))],
)
def test_every_encoding_is_read_as_ffmpeg_reads_it(encoding: str, rate: int, channels: int, tmp_path: Path) -> None:
    suffix, options = ENCODINGS[encoding]
    path = encode(tmp_path / f"x.{suffix}", rate, channels, options)
    channels = audio.info(path).channels
    expected = by_ffmpeg(path, channels)
    assert len(expected) > SECONDS * 0.9 * audio.info(path).sample_rate
    whole = audio.read(path)
    assert len(whole) == len(expected)
    # Decoders of IMA ADPCM round differently.
    np.testing.assert_allclose(whole, expected.mean(axis=1), atol=5e-3 if encoding == "ima_adpcm" else 2e-5)
    decoded, found = audio.decode(io.BytesIO(path.read_bytes()))
    assert found == audio.info(path).sample_rate
    np.testing.assert_array_equal(decoded.T.mean(axis=1) if channels > 1 else decoded[0], whole)
    check_windows(path, whole)


@needs_ffmpeg
@pytest.mark.parametrize("rate", [8000, 48000])
def test_opus_is_as_long_as_what_was_encoded(rate: int, tmp_path: Path) -> None:
    path = encode(tmp_path / "x.opus", rate, 1, ["-c:a", "libopus", "-b:a", "64k"])
    whole = audio.read(path)
    assert audio.info(path).sample_rate == rate and len(whole) == SECONDS * rate
    assert np.corrcoef(whole, signal_of(rate, 1)[:, 0])[0, 1] > 0.99
    check_windows(path, whole, atol=1e-7)


@needs_ffmpeg
def test_windows_far_into_an_mp3_are_those_of_the_whole(tmp_path: Path) -> None:
    for name, options in (("low", ["-b:a", "8k"]), ("variable", ["-q:a", "9"])):
        path = encode(tmp_path / f"{name}.mp3", 8000, 1, ["-c:a", "libmp3lame", *options], seconds=200)
        check_windows(path, audio.read(path), atol=1e-6)


@needs_ffmpeg
@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("mp3", ["-q:a", "5"]),
        ("mp3", ["-b:a", "32k"]),
        ("ogg", ["-c:a", "libvorbis"]),
        # Streams of one serial number.
        ("ogg", ["-c:a", "libvorbis", "-bitexact"]),
        ("opus", ["-c:a", "libopus"]),
    ],
)
def test_joined_files_are_read_to_their_end(suffix: str, options: list[str], tmp_path: Path) -> None:
    first = encode(tmp_path / f"a.{suffix}", 48000, 1, options)
    second = encode(tmp_path / f"b.{suffix}", 48000, 1, options, seconds=2)
    path = tmp_path / f"joined.{suffix}"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    expected = by_ffmpeg(path, 1)[:, 0]
    assert 5 * 48000 <= len(expected) < 5.2 * 48000
    np.testing.assert_array_equal(audio.read(path), expected)
    check_windows(path, expected)


NOT_JOINED = [
    "3gp", "aiff", "au", "avi", "caf", "flac", "flv", "m4a", "mka", "mov", "mp4", "oga", "tta", "voc", "w64", "wav",
    "webm", "wma", "wv",
]  # fmt: skip


@needs_ffmpeg
@pytest.mark.parametrize("suffix", NOT_JOINED)
def test_joined_files_that_no_decoder_reads_whole_are_split_as_the_message_says(suffix: str, tmp_path: Path) -> None:
    options = {"3gp": ["-c:a", "aac"], "flv": ["-ar", "44100"], "oga": ["-c:a", "flac"]}.get(suffix, [])
    first = encode(tmp_path / f"a.{suffix}", 16000, 1, options).read_bytes()
    second = encode(tmp_path / f"b.{suffix}", 16000, 1, options, seconds=1).read_bytes()
    path = tmp_path / f"joined.{suffix}"
    for one, other in ((first, second), (second, first), (first, first)):
        path.write_bytes(one + other)
        readers = [audio.read, audio.cancelled, lambda path: audio.decode(io.BytesIO(path.read_bytes()))]
        # The header of a FLAC is read without the rest.
        for read in readers if suffix == "flac" else [audio.info, *readers]:
            words = r"another recording follows.*head -c (\d+) FILE.*tail -c \+(\d+) F"
            with pytest.raises(UserError, match=words) as told:
                read(path)
            at, after = map(int, re.findall(r"-c \+?(\d+)", str(told.value)))
            assert (at, after) == (len(one), len(one) + 1)
    # What is no sound: padding, an ID3 tag of version 1, an APE tag.
    path.write_bytes(first)
    expected = audio.read(path)
    for tail in (bytes(4096), b"TAG" + b"x" * 125, b"APETAGEX" + struct.pack("<4I8x", 2000, 32, 0, 1 << 31)):
        if suffix not in ("oga", "wv"):  # libsndfile and ffmpeg take it for sound or damage
            path.write_bytes(first + tail)
            np.testing.assert_array_equal(audio.read(path), expected)


@needs_ffmpeg
@pytest.mark.parametrize("suffix", ["mp3", "flac", "m4a", "ogg", "opus", "mka", "aiff", "aac", "ts"])
def test_a_file_of_another_format_is_no_part_of_the_first(suffix: str, tmp_path: Path) -> None:
    first = encode(tmp_path / f"a.{suffix}", 48000, 1, []).read_bytes()
    for other in {"wav", "flac", "ogg", "opus", "m4a"} - {suffix}:
        second = encode(tmp_path / f"b.{other}", 48000, 1, ["-c:a", "flac"] * (other == "ogg")).read_bytes()
        (path := tmp_path / "joined").write_bytes(first + second)
        complaint(lambda path=path: audio.read(path), f"another recording follows the first, from byte {len(first)} on")


def test_a_chunk_behind_the_samples_of_a_w64_is_no_sound(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-9000, 9000, 9000).astype("<i2")
    soundfile.write(path := tmp_path / "x.w64", samples, 8000, format="W64", subtype="PCM_16")
    with path.open("ab") as file:
        file.write(b"list" + path.read_bytes()[4:16] + struct.pack("<Q", 2024) + bytes(range(200)) * 10)
    np.testing.assert_array_equal(audio.read(path), samples / np.float32(32768))
    assert audio.info(path).num_samples == 9000


@pytest.mark.skipif(shutil.which("sox") is None, reason="the program sox is not installed")
@pytest.mark.parametrize("kind", ["w64", "caf"])
def test_a_header_that_sox_repeats_in_a_pipe_is_no_sound(kind: str, tmp_path: Path) -> None:
    command = ["sox", "-n", "-r", "16000", "-t", kind, "-", "synth", "1", "sine", "440"]
    (tmp_path / "x").write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    complaint(lambda: audio.info(tmp_path / "x"), "another recording follows the first")


@needs_ffmpeg
@pytest.mark.parametrize("suffix", ["mp3", "wav", "flac"])
def test_the_ending_of_a_name_does_not_matter(suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for made in ("m4a", "wv", "flac", "wav", "mp3"):
        path = encode(tmp_path / f"x.{made}", 16000, 1, [])
        expected = audio.read(path)
        path = path.rename(tmp_path / f"y.{suffix}")
        np.testing.assert_array_equal(audio.read(path), expected)
    assert capfd.readouterr().err == ""


def test_what_libsndfile_cannot_seek_in_is_read_in_windows(tmp_path: Path) -> None:
    # libsndfile's own sequential decoding is the reference.
    for kind, subtype in (("WAV", "GSM610"), ("WAV", "G721_32"), ("AU", "G723_40"), ("WAV", "NMS_ADPCM_32")):
        path = tmp_path / f"{subtype}.wav"
        soundfile.write(path, signal_of(8000, 1), 8000, format=kind, subtype=subtype)
        with soundfile.SoundFile(path) as file:
            # The fact chunk of the GSM file states 24000 samples, as ffmpeg and sox read; libsndfile gives 24320.
            check_windows(path, file.read(24000 if subtype == "GSM610" else file.frames, dtype="float32"))


# ------------------------------------------------------------------------------------------------- lengths not known


@needs_ffmpeg
def test_flac_from_a_pipe_is_counted(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", signal_of(16000, 2), 16000)
    command = ["ffmpeg", "-nostdin", "-v", "error", "-i", tmp_path / "x.wav", "-f", "flac", "-"]
    path = tmp_path / "x.flac"
    path.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    assert soundfile.info(path).frames > 2**62
    whole = audio.read(tmp_path / "x.wav")
    np.testing.assert_array_equal(audio.read(path), whole)
    check_windows(path, whole)


def unfinished(riff: bytes, sizes: tuple[int, int], form: bytes, samples: bytes, before: bytes = b"") -> bytes:
    """A wav whose header was never completed."""
    head = riff + struct.pack("<I", sizes[0]) + b"WAVE" + before + b"fmt " + struct.pack("<I", len(form)) + form
    return head + b"data" + struct.pack("<I", sizes[1]) + samples


def form_of(tag: int, channels: int, bits: int, extensible: bool = False) -> bytes:
    step = channels * bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, 8000, 8000 * step, step, bits)
    guid = struct.pack("<H", tag) + b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    return form + (struct.pack("<HHI", 22, bits, 0) + guid if extensible else b"")


@pytest.mark.parametrize("tag_bits", [(1, 16), (1, 24), (3, 32)])
@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("riff", "sizes", "before"),
    [
        (b"RIFF", (0, 0), b""), (b"RIFF", (36, 0), b""), (b"RIFF", (0, 0), b"JUNK" + struct.pack("<I", 28) + bytes(28)),
        (b"RIFF", (2**32 - 1, 2**32 - 1), b""), (b"RIFF", (0x7FFFF024, 0x7FFFF000), b""),
        (b"RF64", (2**32 - 1, 2**32 - 1), b"ds64" + struct.pack("<I", 28) + bytes(28)),
        (b"RF64", (2**32 - 1, 0), b"ds64" + struct.pack("<I", 28) + bytes(28)),
    ],
)  # fmt: skip
def test_a_wav_of_a_killed_recorder_is_read_to_its_end(tag_bits, extensible, riff, sizes, before, tmp_path) -> None:
    tag, bits = tag_bits
    samples = signal_of(8000, 2, 0.5)
    if tag == 3:
        data, expected = samples.astype("<f4").tobytes(), samples
    else:
        whole = np.round(samples * 2 ** (bits - 1)).astype("<i4")
        data = whole.view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
        expected = (whole / 2 ** (bits - 1)).astype(np.float32)
    content = unfinished(riff, sizes, form_of(tag, 2, bits, extensible), data + b"\1", before)
    path = tmp_path / "x.wav"
    path.write_bytes(content)
    np.testing.assert_array_equal(audio.read(path), expected.mean(axis=1))
    assert audio.info(path).num_samples == len(expected)
    assert audio.info(path).subtype == {16: "PCM_16", 24: "PCM_24", 32: "FLOAT"}[bits]
    check_windows(path, audio.read(path))
    np.testing.assert_array_equal(audio.decode(io.BytesIO(content))[0], expected.T)


def test_a_wav_without_samples_stays_empty(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", np.zeros((0, 2)), 8000)
    (tmp_path / "y.wav").write_bytes(unfinished(b"RIFF", (48, 0), form_of(1, 1, 16), b"LIST\4\0\0\0INFO"))
    for name in ("x.wav", "y.wav"):
        complaint(lambda name=name: audio.info(tmp_path / name), "contains no samples")


def test_a_wav_beyond_the_size_that_its_header_gives_up_at_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(unfinished(b"RIFF", (0x7FFFF024, 0x7FFFF000), form_of(1, 1, 16), b"\1\1" * 100))
    os.truncate(path, 44 + 0x7FFFF000 + 2000)  # the rest takes no room on the disk
    assert audio.info(path).num_samples == (0x7FFFF000 + 2000) // 2
    np.testing.assert_array_equal(audio.read(path, 0x7FFFF000 // 2 - 10, 1010), np.zeros(1010))


# ------------------------------------------------------------------------------------------------------- the program


PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{0}\n",
    "ended": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{0}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile '{0}'\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet '
    'mimeType="audio/mp4"><Representation id="0"><BaseURL>{0}</BaseURL></Representation></AdaptationSet></Period>'
    "</MPD>",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "ffmetadata": ";FFMETADATA1\ntitle={0}\n",
}


@needs_ffmpeg
@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_text_that_names_other_files_is_not_followed(kind: str, tmp_path: Path) -> None:
    other = encode(tmp_path / "private.ts", 16000, 1, ["-c:a", "aac", "-f", "mpegts"])
    for suffix in (".m4a", ".mp3", ".m3u8"):
        path = tmp_path / f"list{suffix}"
        path.write_text(PLAYLISTS[kind].format(other))
        # ffmpeg does not know DASH of an ending of its own.
        reason = r"\(ffmpeg: a format that can name other files, or a rare one\)" if kind != "dash" else ""
        told = f"cannot be read as audio {reason}.*get the file again, or save it"
        complaint(lambda path=path: audio.read(path), told)


@needs_ffmpeg
@pytest.mark.parametrize("name", ["concat:a|b.m4a", "file:x.m4a", "-i.m4a", "%03d.m4a", "http:x.m4a", "data:,x.m4a"])
def test_names_that_look_like_protocols_are_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encode(tmp_path / "x.m4a", 16000, 1, []).rename(tmp_path / name)
    assert audio.info(name).num_samples == len(audio.read(name)) > 0


def _processes_reading(path: Path) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"ffmpeg") and f"file:{path}".encode() in words:
            found.append(int(folder.name))
    return found


@needs_ffmpeg
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a program with the one that started it")
def test_ffmpeg_ends_with_a_killed_parent_and_not_with_a_thread(tmp_path: Path) -> None:
    path = encode(tmp_path / "x.m4a", 16000, 1, [], seconds=60)
    script = (
        "import sys, threading, time; from sepkit.data import audio; blocks = audio.read_blocks(sys.argv[1], 1000)\n"
        "thread = threading.Thread(target=lambda: next(blocks)); thread.start(); thread.join(); time.sleep(0.2)\n"
        "next(blocks); print('reading', flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"reading\n"
    assert len(_processes_reading(path)) == 1
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _processes_reading(path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _processes_reading(path) == []


@needs_ffmpeg
def test_threads_and_forked_processes_read_side_by_side(tmp_path: Path) -> None:
    path = encode(tmp_path / "x.m4a", 16000, 1, [])
    whole, found = audio.read(path), []
    threads = [threading.Thread(target=lambda: found.append(audio.read(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(np.array_equal(one, whole) for one in found)
    if hasattr(os, "fork"):
        child = os.fork()
        if not child:
            os._exit(0 if np.array_equal(audio.read(path), whole) else 1)
        assert os.waitpid(child, 0)[1] == 0


# ----------------------------------------------------------------------------------------- channels that cancel


@pytest.mark.parametrize(("factor", "cancels"), [(-1.0, True), (-0.9, True), (-0.4, False), (0.9, False), (1.0, False)])
def test_channels_that_cancel_are_not_averaged(factor: float, cancels: bool, tmp_path: Path) -> None:
    voice = signal_of(16000, 1)[:, 0] + np.float32(0.05)
    path = audio.write(tmp_path / "x.wav", np.stack([factor * voice, voice]), 16000)
    assert audio.cancelled(path) == ((0 if factor == -1 else 1) if cancels else None)
    np.testing.assert_allclose(audio.read(path), (1 + factor) / 2 * voice, atol=1e-6)
    if not cancels:
        audio.check_mean(path)
        return
    complaint(lambda: audio.check_mean(path), r"its channels cancel in their mean.*c0=c[01]")


@pytest.mark.parametrize("channels", [2, 8, 64])
def test_ordinary_recordings_of_several_channels_do_not_cancel(channels: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    unrelated = 0.1 * generator.standard_normal((channels, 16000))
    # Microphones apart: each hears both voices a little later, and its own noise.
    voices = signal_of(16000, 2, 1).T
    delays = generator.integers(0, 40, (channels, 2))
    apart = [sum(np.roll(voice, d) for voice, d in zip(voices, own, strict=True)) for own in delays]
    constant = np.full((channels, 16000), 0.5) * (-1.0) ** np.arange(channels)[:, None] + 0.001 * unrelated
    for waveform in (unrelated, np.stack(apart) + 0.01 * unrelated, constant, np.zeros((channels, 16000))):
        path = audio.write(tmp_path / "x.wav", waveform, 16000)
        assert audio.cancelled(path) is None
        assert len(audio.read(path)) == 16000


def test_a_wav_that_counts_fewer_samples_than_it_holds_is_refused(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-9000, 9000, 9000).astype("<i2")
    data, path = samples.tobytes(), tmp_path / "x.wav"
    whole = unfinished(b"RIFF", (len(data) + 36, len(data)), form_of(1, 1, 16), data)
    stopped = unfinished(b"RIFF", (4036, 4000), form_of(1, 1, 16), data)
    ds64 = b"ds64" + struct.pack("<IQQQI", 28, len(data), 4000, 2000, 0)
    large = unfinished(b"RF64", (2**32 - 1, 2**32 - 1), form_of(1, 1, 16), data, ds64)
    for content in (stopped, large, whole + b"data" + struct.pack("<I", 4) + data[:4]):
        path.write_bytes(content)
        complaint(lambda: audio.info(path), "more sound follows .*ffmpeg -ignore_length 1")
    # A second file, however short, after samples of an odd length that nothing pads too, and one of another format.
    odd = unfinished(b"RIFF", (2037, 2001), form_of(1, 1, 8), data[:2001])
    for first in (whole, odd, unfinished(b"RIFF", (0, 0), form_of(1, 1, 16), data)):
        for second in (odd, whole, whole[:1000], b"fLaC\0\0\0\x22" + bytes(300)):
            if first in (whole, odd) or second[:4] == b"RIFF":
                path.write_bytes(first + second)
                complaint(lambda: audio.info(path), f"another recording follows the first, from byte {len(first)} on")
    # A text that names the two words of a wav four bytes apart is none; padding of any length hides none.
    path.write_bytes(whole + b"LIST" + struct.pack("<I", 40) + b"INFOICMT\x1c\0\0\0made of RIFF or WAVE, or so..")
    assert audio.info(path).num_samples == len(samples)
    path.write_bytes(whole + b"LIST" + struct.pack("<I", 40) + b"INFOICMT\x1c\0\0\0FORM or AIFF, RIFX or WAVE..")
    assert audio.info(path).num_samples == len(samples)
    path.write_bytes(whole + bytes(10000) + whole)
    complaint(lambda: audio.info(path), f"another recording follows the first, from byte {len(whole) + 10000} on")
    path.write_bytes(stopped)
    if shutil.which("ffmpeg"):
        command = ["ffmpeg", "-v", "error", "-ignore_length", "1", "-i", path, tmp_path / "whole.wav"]
        subprocess.run(command, check=True)
        np.testing.assert_array_equal(audio.read(tmp_path / "whole.wav"), samples / np.float32(32768))
    # What is no sound: text, padding, and a byte too much.
    for rest in (b"LIST" + struct.pack("<I", 20000) + b"x" * 20000, bytes(70000), b"TAG" + b"x" * 125, b"\1"):
        path.write_bytes(whole + rest)
        np.testing.assert_array_equal(audio.read(path), samples / np.float32(32768))


@pytest.mark.parametrize("kind", ["AIFF", "AU", "CAF", "W64", "FLAC", "WAV"])
def test_a_header_that_counts_a_part_of_the_samples_is_refused(kind: str, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-9000, 9000, 9000).astype("<i2")
    soundfile.write(path := tmp_path / "x", samples, 8000, "PCM_16", format=kind)
    whole = bytearray(path.read_bytes())
    np.testing.assert_array_equal(audio.read(path), samples / np.float32(32768))
    # Where the header counts bytes or samples; headers have 0, 4 or 24 bytes more.
    at, form, more = {
        "AIFF": (whole.find(b"SSND") + 4, ">I", 8),
        "AU": (8, ">I", 0),
        "CAF": (whole.find(b"data") + 4, ">Q", 4),
        "W64": (whole.find(b"data\xf3") + 16, "<Q", 24),
        "FLAC": (22, ">I", 0),
        "WAV": (whole.find(b"data") + 4, "<I", 0),
    }[kind]
    (counted,) = struct.unpack_from(form, whole, at)
    assert counted == (9000 if kind == "FLAC" else 18000 + more)
    for missing in (5, 200, 4000):
        struct.pack_into(form, whole, at, counted - (missing if kind == "FLAC" else 2 * missing))
        path.write_bytes(whole)
        complaint(lambda: audio.read(path), "more sound follows")
        if kind != "FLAC":  # whose header is read without the rest
            complaint(lambda: audio.info(path), "more sound follows")


@pytest.mark.parametrize(("riff", "size"), [(18062, 0), (0, 0), (2**32 - 1, 2**32 - 1)])
def test_chunks_behind_samples_of_unknown_number_are_no_sound(riff: int, size: int, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-9000, 9000, 9000).astype("<i2")
    notes = b"LIST" + struct.pack("<I", 9) + b"INFOabcde\0" + b"id3 \x02\0\0\0xy"
    (tmp_path / "x.wav").write_bytes(unfinished(b"RIFF", (riff, size), form_of(1, 1, 16), samples.tobytes() + notes))
    np.testing.assert_array_equal(audio.read(tmp_path / "x.wav"), samples / np.float32(32768))


@needs_ffmpeg
def test_a_recording_of_a_running_stream_begins_with_any_page(tmp_path: Path) -> None:
    """Internet radio: the headers of the stream, then pages from where the listener came; those before are no hole."""
    path = encode(tmp_path / "x.ogg", 16000, 1, ["-c:a", "libvorbis", "-page_duration", "200000"])
    pages = [b"OggS" + page for page in path.read_bytes().split(b"OggS")[1:]]
    assert len(pages) > 6 and not any(pages[1][6:14]) and any(pages[2][6:14])
    path.write_bytes(b"".join(pages[:2] + pages[4:]))
    read = audio.read(path)
    assert 1000 < len(read) == audio.info(path).num_samples
    np.testing.assert_allclose(read, by_ffmpeg(path, 1)[-len(read) :, 0], atol=1e-4)


@needs_ffmpeg
@pytest.mark.parametrize("suffix", ["mka", "webm", "ts", "ogg", "opus", "oga", "spx", "wv", "tta"])
def test_a_hole_is_no_shorter_recording(suffix: str, tmp_path: Path) -> None:
    codec = {"mka": ["-c:a", "aac"], "ts": ["-c:a", "aac"], "oga": ["-c:a", "flac"]}
    path = encode(tmp_path / f"x.{suffix}", 48000 if suffix != "spx" else 16000, 1, codec.get(suffix, []))
    whole, middle = path.read_bytes(), path.stat().st_size // 2 // 188 * 188
    assert len(audio.read(path)) >= audio.info(path).sample_rate * SECONDS
    contents = [whole[:middle] + hole + whole[middle + 188 * 60 :] for hole in (b"\xaa" * 2000, b"")]
    # Where ffmpeg stops depends on its threads.
    told, last = "ffmpeg.*get the file again", whole.rfind(b"OggS")
    if last > 0 or suffix in ("wv", "tta"):  # what has checksums
        contents += [whole[:at] + b"\0\1\2\3" * 9 + whole[at + 36 :] for at in (middle, middle + 99)]
    if last > 0:  # without a page, and cut within the last
        contents += [whole[: whole.rfind(b"OggS", 0, last)] + whole[last:], whole[:-7]]
        told = r"truncated \(the Ogg page at byte \d+ is missing.*get the file again"
    for content in contents:
        path.write_bytes(content)
        complaint(lambda: audio.read(path), told)


@needs_ffmpeg
def test_a_second_track_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = (encode(tmp_path / f"{k}.m4a", 16000, 1, [], seconds=k) for k in (1, 2))
    command = ["ffmpeg", "-v", "error", "-i", first, "-i", second, "-map", "0", "-map", "1", "-c", "copy"]
    subprocess.run([*command, path := tmp_path / "both.mp4"], check=True)
    np.testing.assert_array_equal(audio.read(path), audio.read(first))
    assert re.fullmatch(r"warning: \S+both.mp4: has 2 audio tracks, .*first.*\n", capfd.readouterr().err)


@needs_ffmpeg
def test_au_and_caf_without_a_length_are_counted(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-9000, 9000, 9000).astype(">i2")
    (tmp_path / "x.au").write_bytes(b".snd" + struct.pack(">5I", 24, 0, 3, 8000, 1) + samples.tobytes())
    (tmp_path / "y.au").write_bytes(b".snd" + struct.pack(">5I", 0, 18000, 3, 8000, 1) + samples.tobytes())
    raw = ["ffmpeg", "-v", "error", "-f", "s16be", "-ar", "8000", "-i", "-", "-f", "caf", "-"]
    made = subprocess.run(raw, input=samples.tobytes(), capture_output=True, check=True).stdout
    (tmp_path / "x.caf").write_bytes(made)
    for name in ("x.au", "x.caf", "y.au"):
        np.testing.assert_array_equal(audio.read(tmp_path / name, 5000, 9), samples[5000:5009] / np.float32(32768))
        assert audio.info(tmp_path / name).num_samples == 9000
        np.testing.assert_array_equal(audio.read(tmp_path / name), samples / np.float32(32768))
