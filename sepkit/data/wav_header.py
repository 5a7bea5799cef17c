"""Headers of wav files: written, and read from a pipe, which cannot seek and whose length may not be known yet."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Literal

from sepkit.errors import UserError
from sepkit.limits import CHANNELS, SAMPLE_RATES, WAV_HEADER_BYTES

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_FORMATS: dict[tuple[int, int], Literal["s16le", "f32le"]] = {(_PCM, 16): "s16le", (_FLOAT, 32): "f32le"}
# Sizes that programs write if they do not know the length: 0, or the largest one.
_UNKNOWN_SIZES = (0, 0xFFFFFFFF, 0x7FFFFFFF)
# The most bytes of samples that a header can count.
_MAX_WAV_BYTES = 2**32 - 4096


def wav_header(path: Path, sample_rate: int, num_samples: int, subtype: str, channels: int = 1) -> bytes:
    """Return everything before the samples, as `scipy.io.wavfile` writes it: no time of writing, as libsndfile adds.

    Args:
        path: of the file, for errors.
        sample_rate: Hz.
        num_samples: of each channel.
        subtype: "FLOAT" (32 bits) or "PCM_16".
        channels: how many.

    Raises:
        UserError: more bytes than a header can count.

    Source: Multimedia Programming Interface and Data Specifications 1.0; formats other than PCM have a fact chunk.
    """
    is_float = subtype == "FLOAT"
    width = 4 if is_float else 2
    size = width * channels * num_samples
    if size > _MAX_WAV_BYTES:
        raise UserError(f"{path}: {size} bytes of samples, but a wav file holds at most {_MAX_WAV_BYTES}; write flac")
    step = width * channels
    form = struct.pack(
        "<HHIIHH", _FLOAT if is_float else _PCM, channels, sample_rate, step * sample_rate, step, 8 * width
    )
    chunks = b"WAVE"
    if is_float:
        chunks += b"fmt " + struct.pack("<I", len(form) + 2) + form + b"\x00\x00"
        chunks += b"fact" + struct.pack("<II", 4, num_samples)
    else:
        chunks += b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", size)
    return b"RIFF" + struct.pack("<I", len(chunks) + size) + chunks


@dataclass(frozen=True)
class WavHeader:
    """Format of the interleaved samples after the header; without a size they end with the pipe."""

    sample_rate: int
    channels: int
    sample_format: Literal["s16le", "f32le"]
    size_bytes: int | None


def read_wav_header(source: BufferedIOBase, begin: bytes = b"") -> WavHeader:
    """Return the header of a wav of 16-bit integers or 32-bit floats, read up to its first sample; `begin` was read
    before."""
    left = WAV_HEADER_BYTES

    def read(count: int) -> bytes:
        nonlocal begin, left
        if (left := left - count) < 0:
            raise UserError(
                f"standard input: the wav has more than {WAV_HEADER_BYTES} bytes before its samples; convert it "
                "(ffmpeg -i FILE -f wav -)"
            )
        taken, begin = begin[:count], begin[count:]
        while len(taken) < count:
            more = source.read(count - len(taken))
            if not more:
                raise UserError("standard input: the wav ends within its header; pipe all of it")
            taken += more
        return taken

    riff, _, wave = struct.unpack("<4sI4s", read(12))
    if (riff, wave) != (b"RIFF", b"WAVE"):
        raise UserError("standard input: begins like a wav but is none; expected wav, or raw PCM with --sample-format")
    layout: tuple[int, int, int, int] | None = None
    while True:
        name, size = struct.unpack("<4sI", read(8))
        if name == b"data":
            break
        chunk = read(size + size % 2)
        if name == b"fmt ":
            if size < 16:
                raise UserError(f"standard input: the wav's format has {size} bytes, expected at least 16")
            tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", chunk[:16])
            if tag == _EXTENSIBLE and size >= 26:
                tag = struct.unpack("<H", chunk[24:26])[0]
            layout = tag, channels, rate, bits
    if layout is None:
        raise UserError("standard input: the wav has no format before its samples; write it again")
    tag, channels, rate, bits = layout
    sample_format = _FORMATS.get((tag, bits))
    if sample_format is None:
        raise UserError(
            f"standard input: found a wav of {bits} bits (format {tag}, {channels} channels at {rate} Hz), expected "
            "16-bit integers or 32-bit floats; convert it (ffmpeg -i FILE -c:a pcm_s16le -f wav -)"
        )
    for name, found, (least, most) in (("Hz", rate, SAMPLE_RATES), ("channels", channels, (1, CHANNELS))):
        if not least <= found <= most:
            raise UserError(f"standard input: the wav has {found} {name}, expected {least} to {most}; convert it")
    return WavHeader(rate, channels, sample_format, None if size in _UNKNOWN_SIZES else size)
