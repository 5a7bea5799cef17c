"""Separate from one pipe, a wav or raw PCM, to another, as raw PCM."""

import io
import time
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any, BinaryIO

import numpy as np

from sepkit.data.audio import loudest_if_cancelled, quantize_pcm16
from sepkit.data.headers import WAV_BEGINS, check_end, is_pcm16, read_wav_header
from sepkit.errors import UserError
from sepkit.inference.live.streaming import Stream
from sepkit.inference.options import SampleFormat

_FORMATS: dict[str, SampleFormat] = {"PCM_16": "s16le", "FLOAT": "f32le"}
_TYPES = {"s16le": np.dtype("<i2"), "f32le": np.dtype("<f4")}
# The most that is read at a time; a pipe that holds less is read at once.
_READ_BYTES = 1 << 15
# The most that is looked at behind what a wav counts.
_TAIL_BYTES = 1 << 20
# Fewest and most bytes that decide whether a pipe is raw PCM. The first 512 bytes of an MP3 that libsndfile wrote pass
# as PCM. With more bytes than the most, swapped samples pass more often.
_DECIDING_BYTES = (1 << 10, 1 << 13)


class _Replayed(io.RawIOBase):
    """Bytes that were read already, then the rest of their source."""

    def __init__(self, begin: bytes, source: BufferedIOBase) -> None:
        self._begin, self._source = begin, source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._begin[: len(buffer)] or self._source.read1(len(buffer))
        self._begin = self._begin[len(data) :]
        buffer[: len(data)] = data
        return len(data)


@dataclass
class Pipe:
    """Samples that come through a pipe.

    Args:
        sample_rate: Hz; None: that of the model.
        channels: interleaved; they are averaged.
        size_bytes: Size of all samples, bytes; None: until the source ends.
    """

    source: BufferedIOBase
    sample_format: SampleFormat = "s16le"
    sample_rate: int | None = None
    channels: int = 1
    size_bytes: int | None = None

    def read(self) -> bytes:
        """Return the next bytes, as soon as there are any; none at the end."""
        most = _READ_BYTES if self.size_bytes is None else min(_READ_BYTES, self.size_bytes)
        # read1 returns what is available, while read would wait for the whole amount.
        data = self.source.read1(most) if most else b""
        if self.size_bytes is not None:
            self.size_bytes -= len(data)
        return data


def open_pipe(
    source: BufferedIOBase, sample_rate: int | None = None, sample_format: SampleFormat | None = None
) -> Pipe:
    """Return a pipe of a wav, whose header gives the format, or of raw mono PCM.

    Args:
        sample_rate: Hz; None: that of a wav, and for PCM that of the model.
        sample_format: of PCM; None: a wav, or 16-bit integers if the first bytes can be such samples.

    Raises:
        UserError: a wav of another rate, or one that cannot be read; another format than wav.
    """
    if sample_format:
        return Pipe(source, sample_format, sample_rate)
    begin = b""
    # A sender may write a single byte first.
    while len(begin) < _DECIDING_BYTES[0] and (more := source.read1(_DECIDING_BYTES[1])):
        begin += more
    source = io.BufferedReader(_Replayed(begin, source))
    if begin and begin[:4] not in WAV_BEGINS and is_pcm16(begin):
        return Pipe(source, "s16le", sample_rate)
    header = read_wav_header(source)
    if sample_rate not in (None, header.sample_rate):
        raise UserError(f"--sample-rate {sample_rate}: the wav has {header.sample_rate} Hz; leave it out")
    if header.subtype not in _FORMATS:
        raise UserError(
            f"standard input: found a wav of {header.subtype}, expected 16-bit integers or 32-bit floats; convert it "
            "(ffmpeg -i FILE -c:a pcm_s16le -f wav -)"
        )
    return Pipe(source, _FORMATS[header.subtype], header.sample_rate, header.channels, header.size_bytes)


@dataclass
class PipeReport:
    """Report of a separated pipe.

    Args:
        num_samples: Samples of the mixture.
        clipped: samples of the estimates that were beyond the full scale of 16-bit integers.
        dropped_bytes: behind the last whole sample.
        compute_seconds: spent on separation.
    """

    num_samples: int = 0
    clipped: int = 0
    dropped_bytes: int = 0
    compute_seconds: float = 0.0
    sample_rate: int = 1

    def __str__(self) -> str:
        seconds = self.num_samples / self.sample_rate
        factor = f", real-time factor {self.compute_seconds / seconds:.3f}" if seconds else ""
        clipped = f"; {self.clipped} samples clipped, f32le clips none" if self.clipped else ""
        dropped = f"; {self.dropped_bytes} bytes at the end are no whole sample" if self.dropped_bytes else ""
        return f"separated {seconds:.2f} s{factor}{clipped}{dropped}"


def separate_pipe(stream: Stream, pipe: Pipe, sink: BinaryIO) -> PipeReport:
    """Separate a pipe until it ends; write estimates to a sink interleaved, each block at once; return a report.

    Args:
        stream: fresh, at the rate of the pipe; it ends with it.
        sink: binary file; gets n channels in the format of the pipe, as many frames as that has.

    Raises:
        UserError: samples that are not finite, or an unknown format.
        BrokenPipeError: the reader of the sink is gone.
    """
    if pipe.sample_format not in _TYPES:
        raise UserError(f"--sample-format {pipe.sample_format}: expected one of {', '.join(_TYPES)}")
    dtype = _TYPES[pipe.sample_format]
    frame_bytes = dtype.itemsize * pipe.channels
    report = PipeReport(sample_rate=stream.sample_rate)
    # Blocks of the first second with sound, to see whether the channels cancel.
    first: list[np.ndarray] | None = [] if pipe.channels > 1 else None
    rest, ended = b"", False
    while not ended:
        data = pipe.read()
        ended = not data
        started = time.perf_counter()
        if ended:
            _check_channels(first or [])
            report.dropped_bytes = len(rest)
            estimates = stream.finish()
        else:
            data = rest + data
            whole = len(data) // frame_bytes * frame_bytes
            rest = data[whole:]
            block = np.frombuffer(data[:whole], dtype).reshape(-1, pipe.channels).T.astype(np.float32)
            report.num_samples += block.shape[-1]
            if first is not None:
                first.append(block.T)
                if sum(map(len, first)) >= stream.sample_rate:
                    _check_channels(first)
                    first = None if any(map(np.any, first)) else []
            estimates = stream.push(block / 32768 if pipe.sample_format == "s16le" else block)
        report.compute_seconds += time.perf_counter() - started
        if estimates.size:
            if pipe.sample_format == "s16le":
                report.clipped += int(np.count_nonzero((estimates < -1) | (estimates >= 1)))
                estimates = quantize_pcm16(estimates)
            sink.write(estimates.T.astype(dtype).tobytes())
            sink.flush()
    if not report.num_samples:
        raise UserError("standard input: contains no samples; pipe a recording into it")
    if pipe.size_bytes is not None:
        check_end(io.BytesIO(pipe.source.read(_TAIL_BYTES)), 0, "standard input")
    return report


def _check_channels(blocks: list[np.ndarray]) -> None:
    if loudest_if_cancelled(blocks) is not None:
        raise UserError(
            "standard input: the channels cancel in their mean (one is inverted); pipe one of them "
            "(ffmpeg -i FILE -af pan=mono|c0=c0 -f wav - | sepkit stream -)"
        )
