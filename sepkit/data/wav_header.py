"""Read the header of a wav from a pipe, which cannot seek and whose length may not be known yet."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Literal

from sepkit.errors import UserError

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_FORMATS: dict[tuple[int, int], Literal["s16le", "f32le"]] = {(_PCM, 16): "s16le", (_FLOAT, 32): "f32le"}
# Sizes that programs write if they do not know the length: 0, or the largest one.
_UNKNOWN_SIZES = (0, 0xFFFFFFFF, 0x7FFFFFFF)


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

    def read(count: int) -> bytes:
        nonlocal begin
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
    if sample_format is None or channels < 1 or rate < 1:
        raise UserError(
            f"standard input: found a wav of {bits} bits (format {tag}, {channels} channels at {rate} Hz), expected "
            "16-bit integers or 32-bit floats; convert it (ffmpeg -i FILE -c:a pcm_s16le -f wav -)"
        )
    return WavHeader(rate, channels, sample_format, None if size in _UNKNOWN_SIZES else size)
