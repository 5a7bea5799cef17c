"""Identify audio files by their first bytes; read and write the header of wav files.

A file is read by its content: its name may have any ending.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import IO

import numpy as np

from sepkit.errors import UserError
from sepkit.limits import CHANNELS, SAMPLE_RATES, WAV_HEADER_BYTES

WAV_SUBTYPES = {
    (1, 8): "PCM_U8", (1, 16): "PCM_16", (1, 24): "PCM_24", (1, 32): "PCM_32", (3, 32): "FLOAT", (3, 64): "DOUBLE",
    (6, 8): "ALAW", (7, 8): "ULAW",
}  # fmt: skip
"""libsndfile's names of samples in a wav by the number of the coding and bits."""
SMALLEST_UNKNOWN_SIZE = 0x7FFFF000
"""Programs that cannot know the length write 0, or this size (sox), or a larger one (arecord, ffmpeg)."""
WAV_BEGINS = (b"RIFF", b"RF64", b"BW64")
"""First bytes of a wav, the last two of one of more than 4 GB."""
MAX_WAV_BYTES = 2**32 - 4096
"""The most bytes of samples that the header of a wav can count."""
# How a recording begins, with enough of what follows that samples, or a text about these formats, do not begin so. A
# search is fast only if all of them begin with plain bytes.
_RIFF = rb"RIFF.{4}(?:WAVE[\w ]{4}.{3}\0|AVI LIST)"
_RECORDING = re.compile(
    b"|".join([
        _RIFF, rb"RF64.{4}WAVE", rb"BW64.{4}WAVE", rb"RIFX.{4}WAVE.{4}\0",
        rb"fLaC[\0\x80]\0\0\x22",
        rb"OggS\0[\2\6].{27}", rb"FORM.{4}AIF[FC].{4}\0", rb"\.snd\0\0.{6}\0{3}[\x01-\x1b]\0.{3}\0{3}",
        rb"dns\..{2}\0\0.{4}[\x01-\x1b]\0{3}.{3}\0.\0{3}", rb"caff\0\x01\0\0desc",
        rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb", rb"NIST_1A\n +\d+\n", rb"Creative Voice File\x1a",
        rb"wvpk.{12}\0{4}.{5}[\x08-\x0f\x18-\x1f]", rb"TTA1[\1\2]\0.\0.\0", rb"MAC [\x6e-\x9f]\x0f\0\0\x34\0{3}",
        rb"#!AMR(?:-WB)?\n", rb"0&\xb2u\x8ef\xcf\x11\xa6\xd9\0\xaa\0\x62\xce\x6c", rb"FLV\x01[\1-\5]\0{3}\t",
        rb"\x1aE\xdf\xa3.{1,60}(?:matroska|webm)", rb"ftyp[ -z]{4}",
    ]),
    re.DOTALL,
)  # fmt: skip
# The same for others, which samples seldom begin with: IRCAM, SoX, MPEG-TS, tags before an mp3, 8SVX, AVR, PAF and PVF.
_NO_PCM = re.compile(rb"d\xa3[\1-\4]\0|\.SoX|XoS\.|ID3[\2-\4]\0|G.{187}G.{187}G|FORM.{4}[18]|2BIT| paf|PVF1", re.DOTALL)
# Two frames of mp2 or mp3, or one of DTS: digital silence in these formats does not look like noise. Of 34 million
# excerpts of speech, 18 begin like this.
_FRAME = rb"[\x10-\xef][\0\4@DPT`dpt\x80\x84\xc0\xc4]"
_FRAMES = re.compile(rb"(?s)\x7f\xfe\x80\x01|(\xff[\xe2-\xe5\xf2-\xf5\xfa-\xfd])%b.{20,1725}?\1%b" % (_FRAME, _FRAME))
# First bytes of the first packet of FLAC in an Ogg.
_FLAC_IN_OGG = b"\x7fFLAC"
# Levels and shares. Data are loud noise if, for either pair, more than this share of the values exceeds the level.
# Compressed data, read as 16-bit samples, are loud white noise; floats have exponents near the second level. Of 64,000
# excerpts (4 kB) of speech normalized to full scale, including loud [s], none is taken for noise (7 if clipped by 3.5
# dB). All excerpts of the same speech as mp2, mp3, AAC, AC-3, MPEG-TS and floats are, and 84 % of those with swapped
# bytes: quiet ones are not white.
_NOISE_SHARES = ((0.75, 0.05), (0.4, 0.42))
# Fewer than any header has, more than any pattern takes, and bytes that are read at a time.
_LEAST_HEADER, _LONGEST, _SEARCH_BYTES = 16, 80, 1 << 20
# What may follow the sound of a file: names of chunks, which are text, other text, and tags of whole files.
_CHUNK, _TEXT, _TAGS = (
    re.compile(rb"(?=[ -~]{4}.{4})", re.DOTALL),
    re.compile(rb"[\s -~]*\0*"),
    (b"TAG", b"APETAGEX", b"ID3"),
)
# By libsndfile's names: the name and size of a chunk. Source: AIFF-C, Apple Core Audio Format, Sony Wave64, whose size
# includes both.
_CHUNKS = {"AIFF": ">4sI", "CAF": ">4sQ", "W64": "<16sQ"}
# The bits of each byte in reverse order.
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
# More may follow the bytes that an mp3 states: tags, which hold no sound.
_TAG_BYTES = 512


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
    form = struct.pack("<HHIIHH", 3 if is_float else 1, channels, sample_rate, step * sample_rate, step, 8 * width)
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
    def subtype(self) -> str:
        """libsndfile's name of the samples, or a description."""
        return WAV_SUBTYPES.get((self.tag, self.bits), f"{self.bits} bits, format {self.tag}")


def is_pcm16(begin: bytes) -> bool:
    """Return whether the first bytes of a recording can be raw 16-bit samples: neither a known format nor loud white
    noise, which compressed data look like if they are read as samples.

    Args:
        begin: First bytes. With 2 kB or more, speech is not taken for noise unless it is clipped.
    """
    if _RECORDING.search(begin, 0, _LONGEST) or _NO_PCM.match(begin) or _FRAMES.match(begin):
        return False
    samples = np.frombuffer(begin, "<i2", len(begin) // 2) / 32768
    is_white = float(samples[1:] @ samples[:-1]) < 0.3 * float(samples @ samples)
    return not is_white or all(np.mean(np.abs(samples) > level) <= share for level, share in _NOISE_SHARES)


def read_wav_header(source: IO[bytes] | BufferedIOBase, name: str = "standard input") -> WavHeader:
    """Return the header of a wav or RF64, read up to its first sample.

    Args:
        source: file or pipe; it is not sought in.
        name: Name of the source, for errors.
    """
    left = WAV_HEADER_BYTES

    def read(count: int) -> bytes:
        nonlocal left
        left -= count
        data = source.read(count) if left >= 0 else b""
        if len(data) < count:
            end = f"has more than {WAV_HEADER_BYTES} bytes before its samples" if left < 0 else "ends within its header"
            raise UserError(f"{name}: the wav {end}; convert it (ffmpeg -i FILE -f wav -)")
        return data

    riff = source.read(12)
    if not riff:
        raise UserError(f"{name}: is empty; pipe a recording into it")
    if riff[:4] not in WAV_BEGINS or riff[8:] != b"WAVE":
        raise UserError(
            f"{name}: is no wav; name the format of raw PCM (--sample-format s16le), or convert the recording "
            "(ffmpeg -i FILE -f wav - | sepkit stream -)"
        )
    form, long_size = b"", 0
    while True:
        chunk, size = struct.unpack("<4sI", read(8))
        if chunk == b"data":
            break
        content = read(size + size % 2)
        if chunk == b"ds64" and size >= 16:
            long_size = struct.unpack("<Q", content[8:16])[0]
        if chunk == b"fmt ":
            form = content[:size]
    if len(form) < 16:
        raise UserError(f"{name}: the wav has no format before its samples; write it again")
    tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", form[:16])
    if tag == 0xFFFE and len(form) >= 26:
        tag = struct.unpack("<H", form[24:26])[0]
    for unit, found, (least, most) in (("Hz", rate, SAMPLE_RATES), ("channels", channels, (1, CHANNELS))):
        if not least <= found <= most:
            raise UserError(f"{name}: the wav has {found} {unit}, expected {least} to {most}; convert it")
    if size == 0 or size >= SMALLEST_UNKNOWN_SIZE:
        size = long_size if not riff.startswith(b"RIFF") else 0
    return WavHeader(rate, channels, tag, bits, size or None)


def skip_tags(file: IO[bytes], begin: int = 0) -> int:
    """Go to the first byte at or after one that belongs to no ID3 tag, and return its number."""
    file.seek(begin)
    while (head := file.read(10)).startswith(b"ID3") and len(head) == 10:
        begin += 10 + sum((byte & 127) << 7 * place for place, byte in enumerate(head[9:5:-1]))
        file.seek(begin)
    return file.seek(begin)


def check_alone(file: IO[bytes], begin: int, name: str, is_pcm: bool = False) -> bool:
    """Check that a file contains one recording and, if it is an Ogg, that its pages are undamaged. Return whether it is
    an Ogg with more than one stream.

    Args:
        file: Recording, whose bytes are all read.
        begin: First byte that belongs to no tag.
        name: Name of the file, for errors.
        is_pcm: Whether the file contains uncompressed samples. These may be many gigabytes, so only a second wav is
            searched for, which is fast; otherwise, every known format is.

    Raises:
        UserError: Another recording follows the first, where decoders would stop, or a page of an Ogg is damaged.
    """
    file.seek(begin)
    head, at, kinds = file.read(1 << 13), 0, []
    while head[at : at + 6] == b"OggS\0\2":
        kinds.append(head[at + 28 : at + 33])
        at += 28 + head[at + 27]
    # FLAC in Matroska has its own first bytes.
    start = at or max(_LEAST_HEADER, head.find(b"fLaC") + 4 if head.startswith(b"\x1aE\xdf\xa3") else 0)
    chained = len(kinds) > 1
    for where, found in _recordings(file, begin + start, re.compile(_RIFF, re.DOTALL) if is_pcm else _RECORDING):
        if found[28:33] not in kinds or found[28:33] == _FLAC_IN_OGG:
            raise _another(name, where)
        chained = True
    if kinds:
        _check_pages(file, begin, name)
    return chained


def _check_pages(file: IO[bytes], at: int, name: str) -> None:
    """Raise UserError if a page of an Ogg is missing, truncated or changed: decoders may stop there without an error.

    Source: RFC 3533. Its checksum is that of zlib with all bits reversed and without the inversions.
    """
    file.seek(at)
    numbers: dict[bytes, int | None] = {}
    while (head := file.read(27)).startswith(b"OggS"):
        sizes = file.read(sum(head[26:]))
        page = head[:22] + bytes(4) + head[26:] + sizes + file.read(sum(sizes))
        checksum = (zlib.crc32(page.translate(_REVERSED), 2**32 - 1) ^ (2**32 - 1)).to_bytes(4, "big")
        stream, number = head[14:18], int.from_bytes(head[18:22], "little")
        # In a chain, the next stream may have the same serial number.
        if checksum.translate(_REVERSED) != head[22:26] or (number and numbers.get(stream) not in (None, number)):
            break
        # A recording of a running stream has its first pages, without sound, and goes on with any number.
        numbers[stream] = number + 1 if any(head[6:14]) else None
        at += len(page)
    file.seek(at)
    if (rest := file.read(_SEARCH_BYTES)).strip(b"\0") and not rest.startswith(_TAGS):
        raise UserError(
            f"{name}: damaged or truncated (the Ogg page at byte {at} is missing, incomplete or changed); get the file "
            "again, or keep what can be decoded (ffmpeg -i FILE REST.wav)"
        )


def check_end(file: IO[bytes], end: int, name: str, kind: str = "WAV") -> None:
    """Raise UserError if sound or another recording follows the samples of a file, not only chunks, text and zeros.

    Args:
        file: Recording.
        end: First byte behind the samples that its header counts.
        name: Name of the file, for errors.
        kind: libsndfile's name of the format.
    """
    # Not every program pads a chunk of odd length.
    if first := next(_recordings(file, max(0, end - 1)), None):
        raise _another(name, first[0])
    head, at, size = struct.Struct(_CHUNKS.get(kind, "<4sI")), end, file.seek(0, 2)
    while at + 8 <= size:
        at = skip_tags(file, at)
        rest = file.read(_SEARCH_BYTES)
        if rest.startswith(b"\0"):
            at += len(rest) - len(rest.lstrip(b"\0"))
        elif rest.startswith((b"TAG", b"APETAGEX")) or _TEXT.fullmatch(rest):
            return
        else:
            length = head.unpack(rest[: head.size].ljust(head.size))[1] + (0 if kind == "W64" else head.size)
            at += length
            if rest.startswith((b"data", b"SSND")) or not _CHUNK.match(rest) or at > size + 1 or length < head.size:
                remedy = "ffmpeg -ignore_length 1 -i FILE WHOLE.wav" if kind == "WAV" else "correct its header"
                raise UserError(
                    f"{name}: more sound follows the samples that its header counts: the recorder stopped early; "
                    f"finish it ({remedy}), or cut it"
                )


def end_of_samples(file: IO[bytes], begin: int) -> int:
    """Return the first byte of the chunks that a wav of unknown length ends with, or its size.

    Args:
        file: Recording.
        begin: First byte of its samples.
    """
    size = file.seek(0, 2)
    start = file.seek(max(begin, size - _SEARCH_BYTES))
    tail = file.read()
    ends = {len(tail)}
    for found in reversed([*_CHUNK.finditer(tail)]):
        (length,) = struct.unpack_from("<I", tail, found.start() + 4)
        if not ends.isdisjoint({found.start() + 8 + length, found.start() + 8 + length + length % 2}):
            ends.add(found.start())
    return start + min(ends)


def states_length(file: IO[bytes], begin: int) -> bool:
    """Whether the first frame of an mp3 states how many frames follow, and counts all bytes up to the end of the file.

    Args:
        file: Recording.
        begin: First byte that belongs to no tag.

    Source: the Xing header, which LAME and ffmpeg write; it has 1 and 2 as flags of these fields.
    """
    size = file.seek(0, 2) - begin
    file.seek(begin)
    head = file.read(80)
    at = max(head.find(name, 0, 64) for name in (b"Xing", b"Info"))
    flags, _, stated = struct.unpack(">III", head[at + 4 : at + 16].ljust(12, b"\0"))
    return at > 0 and flags & 3 == 3 and stated >= size - _TAG_BYTES


def _another(name: str, at: int) -> UserError:
    return UserError(
        f"{name}: another recording follows the first, from byte {at} on; expected one; split the file "
        f"(head -c {at} FILE > FIRST; tail -c +{at + 1} FILE > SECOND); ffmpeg -f concat joins the two"
    )


def _recordings(file: IO[bytes], start: int, pattern: re.Pattern[bytes] = _RECORDING) -> Iterator[tuple[int, bytes]]:
    """Yield where recordings begin in a file at or after a byte, and their first bytes."""
    file.seek(start)
    rest = b""
    while data := file.read(_SEARCH_BYTES):
        block, here = rest + data, file.tell()
        for found in pattern.finditer(block):
            # An MP4 begins with the size of its first box, of less than 256 bytes.
            at = found.start() - 4 * found[0].startswith(b"ftyp")
            if found.start() == at or block[max(at, 0) : at + 3] == bytes(3):
                yield here - len(block) + at, found[0]
                file.seek(here)
        rest = block[-_LONGEST:]
