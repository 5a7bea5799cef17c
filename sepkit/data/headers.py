"""Identify audio files by their first bytes; read and write the header of wav files.

A file is read by its content: its name may have any ending.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Literal

from sepkit.errors import UserError
from sepkit.limits import CHANNELS, SAMPLE_RATES, WAV_HEADER_BYTES

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_FORMATS: dict[tuple[int, int], Literal["s16le", "f32le"]] = {(_PCM, 16): "s16le", (_FLOAT, 32): "f32le"}
SMALLEST_UNKNOWN_SIZE = 0x7FFFF000
"""Programs that cannot know the length write 0, or this size (sox), or a larger one (arecord, ffmpeg)."""
WAV_BEGINS = (b"RIFF", b"RF64", b"BW64")
"""First bytes of a wav, the last two of one of more than 4 GB."""
MAX_WAV_BYTES = 2**32 - 4096
"""The most bytes of samples that the header of a wav can count."""
# Where a container's first bytes are, these bytes, and, if no decoder goes on with a second file behind the first, a
# pattern of what follows them.
_BEGINS: tuple[tuple[int, bytes, bytes | None, str], ...] = (
    (0, b"fLaC", rb"[\0\x80]\0\0\x22", "FLAC"), (0, b"OggS", None, "Ogg"), (0, b"ID3", None, "MP3"),
    (0, b"FORM", rb".{4}AIF[FC].{4}\0", "AIFF"), (0, b".snd", rb"\0\0.{6}\0{3}[\x01-\x1b]\0.{3}\0{3}", "AU"),
    (0, b"dns.", rb".{2}\0\0.{4}[\x01-\x1b]\0{3}.{3}\0.\0{3}", "AU"), (0, b"caff", rb"\0\x01\0\0desc", "CAF"),
    (0, b"riff", rb"\x2e\x91\xcf\x11\xa5\xd6\x28\xdb", "W64"), (0, b"RIFX", rb".{4}WAVE.{4}\0", "RIFX"),
    (0, b"NIST_1A", rb"\n +\d+\n", "NIST sphere"), (0, b"Creative Voice", rb" File\x1a", "VOC"),
    (0, b"wvpk", rb".{12}\0{4}.{5}[\x08-\x0f\x18-\x1f]", "WavPack"),
    (0, b"TTA1", rb"[\x01\x02]\0.\0.\0", "TTA"), (0, b"MAC ", rb"[\x6e-\x9f]\x0f\0\0\x34\0{3}", "Monkey's Audio"),
    (0, b"#!AMR", rb"(?:-WB)?\n", "AMR"), (0, b"\x0bw", None, "AC-3"),
    (0, b"0&\xb2u\x8ef\xcf\x11", rb"\xa6\xd9\0\xaa\0\x62\xce\x6c", "WMA"),
    (0, b"FLV\1", rb"[\x01-\x05]\0{3}\t", "FLV"),
    (0, b"\x1aE\xdf\xa3", rb".{1,60}(?:matroska|webm)", "Matroska or WebM"),
    (4, b"ftyp", rb"(?<=\0{3}.ftyp)[ -z]{4}", "MP4 or M4A"),
    *((4, box, None, "MP4 or M4A") for box in (b"moov", b"mdat", b"wide")),
    (0, b"\x1f\x8b\x08", None, "gzip"), (0, b"PK\3\4", None, "zip"), (0, b"\0\0\1\xba", None, "MPEG"),
    (0, b"\x7f\xfe\x80\1", None, "DTS"),
)  # fmt: skip
# With the size of the chunk that follows, here and above, so that a text about these formats is no recording.
_RIFF = rb"R(?:IFF|F64).{4}(?:WAVE[\w ]{4}.{3}\0|AVI LIST)"
_OGG, _FLAC_IN_OGG = rb"OggS\0[\x02\x06]", rb"OggS\0\x02.{22}\x7fFLAC"
_ANY = b"|".join([_RIFF, _OGG, *(re.escape(begin) + more for _, begin, more, _ in _BEGINS if more)])
# Fewer than any header has, more than any pattern takes, and bytes that are searched at a time.
_LEAST_HEADER, _LONGEST, _SEARCH_BYTES = 16, 80, 1 << 20
_OF_LIBSNDFILE = ("FLAC", "AIFF", "AU", "CAF", "W64", "RIFX", "NIST sphere")
# kbit/s of MPEG audio of layer III by whether it is MPEG-1, from index 1.
_KBITS = {
    True: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
# More than a frame and the beginning of the next.
_HEAD_BYTES = 1 << 13
# More may follow the bytes that an mp3 states: tags, which hold no sound.
_TAG_BYTES = 512
# The most that is taken for padding behind the chunks of a wav, whatever it holds.
PADDING_BYTES = 1 << 13


def wav_header(path: Path, sample_rate: int, num_samples: int, subtype: str, channels: int = 1) -> bytes:
    """Return everything before the samples, as `scipy.io.wavfile` writes it: no time of writing, as libsndfile adds.

    Args:
        path: Path of the file, for errors.
        sample_rate: Hz.
        num_samples: Samples per channel.
        subtype: "FLOAT" (32 bits) or "PCM_16".
        channels: Number of channels.

    Raises:
        UserError: more bytes than a header can count.

    Source: Multimedia Programming Interface and Data Specifications 1.0; formats other than PCM have a fact chunk.
    """
    is_float = subtype == "FLOAT"
    width = 4 if is_float else 2
    step = width * channels
    size = step * num_samples
    if size > MAX_WAV_BYTES:
        raise UserError(f"{path}: {size} bytes of samples, but a wav file contains at most {MAX_WAV_BYTES}; write flac")
    tag = _FLOAT if is_float else _PCM
    form = struct.pack("<HHIIHH", tag, channels, sample_rate, step * sample_rate, step, 8 * width)
    chunks = [(b"fmt ", form + b"\0\0"), (b"fact", struct.pack("<I", num_samples))] if is_float else [(b"fmt ", form)]
    head = b"WAVE" + b"".join(name + struct.pack("<I", len(content)) + content for name, content in chunks)
    return b"RIFF" + struct.pack("<I", len(head) + 8 + size) + head + b"data" + struct.pack("<I", size)


@dataclass(frozen=True)
class WavHeader:
    """The header of a wav; without a size, samples continue to the end of the file or pipe.

    Args:
        tag: number of the coding: 1 for integers, 3 for floats.
        bits: Bits per sample.
        size_bytes: Size of all samples, bytes.
    """

    sample_rate: int
    channels: int
    tag: int
    bits: int
    size_bytes: int | None

    @property
    def sample_format(self) -> Literal["s16le", "f32le"]:
        """Format of the samples in a pipe. UserError: one that pipes do not take."""
        found = _FORMATS.get((self.tag, self.bits))
        if found is None:
            raise UserError(
                f"standard input: found a wav of {self.bits} bits (format {self.tag}, {self.channels} channels at "
                f"{self.sample_rate} Hz), expected 16-bit integers or 32-bit floats; convert it "
                "(ffmpeg -i FILE -c:a pcm_s16le -f wav -)"
            )
        return found


def read_wav_header(source: IO[bytes] | BufferedIOBase, begin: bytes = b"", name: str = "standard input") -> WavHeader:
    """Return the header of a wav or RF64, read up to its first sample.

    Args:
        source: file or pipe; it is not sought in.
        begin: Bytes read before.
        name: Name of the source, for errors.
    """
    left = WAV_HEADER_BYTES

    def read(count: int) -> bytes:
        nonlocal begin, left
        if (left := left - count) < 0:
            raise UserError(
                f"{name}: the wav has more than {WAV_HEADER_BYTES} bytes before its samples; convert it "
                "(ffmpeg -i FILE -f wav -)"
            )
        taken, begin = begin[:count], begin[count:]
        while len(taken) < count:
            more = source.read(count - len(taken))
            if not more:
                raise UserError(f"{name}: the wav ends within its header; pipe all of it")
            taken += more
        return taken

    riff, _, wave = struct.unpack("<4sI4s", read(12))
    if riff not in WAV_BEGINS or wave != b"WAVE":
        raise UserError(f"{name}: begins like a wav but is none; expected wav, or raw PCM with --sample-format")
    form, long_size = b"", 0
    while True:
        chunk, size = struct.unpack("<4sI", read(8))
        if chunk == b"data":
            break
        content = read(size + size % 2)
        if chunk == b"ds64" and size >= 16:
            long_size = struct.unpack("<Q", content[8:16])[0]
        if chunk == b"fmt ":
            if size < 16:
                raise UserError(f"{name}: the wav's format has {size} bytes, expected at least 16")
            form = content[:size]
    if not form:
        raise UserError(f"{name}: the wav has no format before its samples; write it again")
    tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", form[:16])
    if tag == _EXTENSIBLE and len(form) >= 26:
        tag = struct.unpack("<H", form[24:26])[0]
    for unit, found, (least, most) in (("Hz", rate, SAMPLE_RATES), ("channels", channels, (1, CHANNELS))):
        if not least <= found <= most:
            raise UserError(f"{name}: the wav has {found} {unit}, expected {least} to {most}; convert it")
    if size == 0 or size >= SMALLEST_UNKNOWN_SIZE:
        return WavHeader(rate, channels, tag, bits, long_size if riff != b"RIFF" and long_size else None)
    return WavHeader(rate, channels, tag, bits, size)


def container_of(head: bytes) -> str:
    """Return the name of the format, other than wav, that begins with these bytes; empty for what may be raw samples.

    Args:
        head: 16 bytes or more, for MP3 and AAC as many as `frame_bytes` says.
    """
    for at, begin, _, name in _BEGINS:
        if head.startswith(begin, at):
            return name
    return "MP3 or AAC" if _is_framed(head) else ""


def frame_bytes(head: bytes) -> int:
    """Return how many bytes show whether these begin a frame of MP3 or AAC that another follows; 0: they do not.

    Source: ISO/IEC 11172-3, 2.4.1.3; 13818-3 for low rates; 13818-7 for AAC (ADTS).
    """
    if len(head) < 6 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return 0
    version, layer, index, rate = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4, head[2] >> 2 & 3
    if layer == 0 and version > 1:
        return ((head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5) + 2
    if layer != 1 or version == 1 or index in (0, 15) or rate == 3:
        return 0
    hz = (44100, 48000, 32000)[rate] >> (2, 0, 1, 0)[version]
    samples_in_bytes = 144 if version == 3 else 72
    return samples_in_bytes * 1000 * _KBITS[version == 3][index - 1] // hz + (head[2] >> 1 & 1) + 2


def _is_framed(head: bytes) -> bool:
    size = frame_bytes(head)
    return 8 < size <= len(head) and head[size - 2 : size] == head[:2]


def decoder_of(file: IO[bytes], name: str) -> Literal["libsndfile", "libsndfile, mp3", "ffmpeg", "ffmpeg, in parts"]:
    """Return what can decode a file: libsndfile if it might, ffmpeg for what libsndfile mistakes for something else.

    libsndfile believes the first header of joined files, and a guess if an mp3 does not state its length; it takes the
    headers within a VOC file for samples. Those are for ffmpeg, which may find headers between the parts.

    Args:
        name: Name of the file; libsndfile takes anything called .mp3 for one.

    Raises:
        UserError: Sound that no decoder reads behind the first recording, or behind what a wav's header counts.
    """
    size = file.seek(0, 2)
    file.seek(0)
    head, begin = file.read(_HEAD_BYTES), 0
    while head.startswith(b"ID3") and len(head) > 10:
        begin += 10 + sum((byte & 127) << 7 * place for place, byte in enumerate(head[9:5:-1]))
        file.seek(begin)
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"OggS"):
        if b"\x7fFLAC" in head:
            _check_single(file, name, head.find(b"\x7fFLAC"), _FLAC_IN_OGG)
        return "libsndfile" if _find(file, 4, _OGG) is None else "ffmpeg, in parts"
    if head[:4] in WAV_BEGINS:
        _check_counted(file, begin, size, name)
    for at, first, more, _ in _BEGINS:
        if more and head.startswith(first, at):
            _check_single(file, name, begin + _LEAST_HEADER, re.escape(first) + more)
    if head.startswith(b"Creative Voice"):
        return "ffmpeg"
    if head.startswith(b"caff") and b"data" + b"\xff" * 8 in head:
        return "ffmpeg, in parts"
    if head.startswith(b"riff") and _has_more_than_samples(head, size):
        return "ffmpeg"
    container = container_of(head)
    if _is_framed(head):
        if not head[1] & 6:
            return "ffmpeg"
        if _states_length(head, size - begin):
            return "libsndfile, mp3"
        container = ""
    elif not (begin or name.lower().endswith((".mp1", ".mp2", ".mp3", ".mpga"))) or head[:4] in WAV_BEGINS:
        return "libsndfile"
    if container:
        return "libsndfile" if container in _OF_LIBSNDFILE else "ffmpeg"
    _check_single(file, name, begin, _ANY)
    return "ffmpeg, in parts"


def _has_more_than_samples(head: bytes, size: int) -> bool:
    """Whether a W64 has chunks behind its samples, which libsndfile takes for samples.

    Source: Sony Wave64. A chunk has a name of 16 bytes and a size of 8, which includes both, and is padded to 8 bytes.
    """
    at = 40
    while at + 24 <= len(head):
        length = int.from_bytes(head[at + 16 : at + 24], "little")
        if head.startswith(b"data", at):
            return 24 <= length <= size - at - 8
        at += max(24, (length + 7) // 8 * 8)
    return False


def _check_counted(file: IO[bytes], begin: int, size: int, name: str) -> None:
    """Raise UserError if sound follows what a wav's header counts: chunks of text and padding may follow."""
    at, counted, long_length = begin + 12, 0, 0
    while at + 8 <= size:
        # Not every program pads a chunk of odd length.
        _check_single(file, name, at - 1, _ANY, PADDING_BYTES)
        file.seek(at)
        rest = file.read(PADDING_BYTES)
        chunk, length = struct.unpack("<4sI", rest[:8])
        if counted and (chunk == b"data" or not 32 <= min(chunk) <= max(chunk) < 127):
            if chunk == b"data" or (size - at > PADDING_BYTES and rest.strip(b"\0")):
                raise UserError(
                    f"{name}: more sound follows the {counted} bytes that its header counts: the recorder stopped "
                    "early; finish it (ffmpeg -ignore_length 1 -i FILE WHOLE.wav), or cut it"
                )
            return _check_single(file, name, at, _ANY)
        if chunk == b"ds64":
            long_length = int.from_bytes(rest[16:24], "little")
        if chunk == b"data":
            if length == 2**32 - 1 and long_length:
                counted = length = long_length
            elif 0 < length < SMALLEST_UNKNOWN_SIZE:
                counted = length
            else:
                return _check_single(file, name, at, _RIFF)
        at += 8 + length + length % 2


def goes_on(tail: bytes) -> bool:
    """Whether the bytes behind what a wav's header counts are sound or another recording, not a chunk or padding.

    Args:
        tail: the next 8 KiB and a byte, or all that there are.
    """
    is_chunk = tail[:4] != b"data" and min(tail[:4], default=32) >= 32 and max(tail[:4], default=32) < 127
    is_long = len(tail) > PADDING_BYTES and any(tail)
    return re.search(_ANY, tail, re.DOTALL) is not None or (is_long and not is_chunk)


def _check_single(file: IO[bytes], name: str, start: int, pattern: bytes, count: int | None = None) -> None:
    """Raise UserError if another recording begins in a file, at or after a byte."""
    at = _find(file, start, pattern, count)
    if at is not None:
        raise UserError(
            f"{name}: another recording follows the first, from byte {at} on; expected one; split the file "
            f"(head -c {at} FILE > FIRST; tail -c +{at + 1} FILE > SECOND); ffmpeg -f concat joins the two"
        )


def _find(file: IO[bytes], start: int, pattern: bytes, count: int | None = None) -> int | None:
    """Return where a pattern begins in a file at or after a byte, within a number of bytes; None if nowhere."""
    file.seek(start)
    rest, compiled = b"", re.compile(pattern, re.DOTALL)
    while data := file.read(count or _SEARCH_BYTES):
        block = rest + data
        if found := compiled.search(block):
            # An MP4 begins with the size of its first box.
            return file.tell() - len(block) + found.start() - 4 * found[0].startswith(b"ftyp")
        if count:
            return None
        rest = block[-_LONGEST:]
    return None


def _states_length(head: bytes, size: int) -> bool:
    """Whether the first frame of an mp3 states how many frames follow, and counts all bytes up to the end of the file.

    Source: the Xing header, which LAME and ffmpeg write; it has 1 and 2 as flags of these fields.
    """
    at = max(head.find(name, 0, 64) for name in (b"Xing", b"Info"))
    if at < 0:
        return False
    flags, _, stated = struct.unpack(">III", head[at + 4 : at + 16].ljust(12, b"\0"))
    return flags & 3 == 3 and stated >= size - _TAG_BYTES
