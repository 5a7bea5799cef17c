"""Raw PCM in from one pipe, the estimates' raw PCM out into another."""

from __future__ import annotations

import time
from dataclasses import dataclass
from io import BufferedIOBase
from typing import BinaryIO

import numpy as np

from sepkit.data.audio import quantize_pcm16
from sepkit.errors import UserError
from sepkit.inference.options import SampleFormat
from sepkit.inference.streaming import Stream

_TYPES = {"s16le": np.dtype("<i2"), "f32le": np.dtype("<f4")}
# The most that is read at a time; a pipe that holds less is not waited for.
_READ_BYTES = 1 << 15


@dataclass
class PipeReport:
    """What went through.

    Args:
        num_samples: of the mixture.
        clipped: samples of the estimates that were beyond the full scale of 16-bit integers.
        dropped_bytes: behind the last whole sample.
        compute_seconds: spent on separation.
        sample_rate: Hz.
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


def separate_pipe(
    stream: Stream, source: BufferedIOBase, sink: BinaryIO, sample_format: SampleFormat = "s16le"
) -> PipeReport:
    """Separates mono PCM from `source` until it ends; estimates go to `sink` interleaved, each block at once.

    Args:
        stream: fresh; it ends with the source.
        source: buffered binary file. What it has is taken as it comes.
        sink: binary file; gets n channels, as many frames as the source has samples.
        sample_format: of both.

    Raises:
        UserError: samples that are not finite, or an unknown format.
        BrokenPipeError: nobody reads the sink any more.
    """
    if sample_format not in _TYPES:
        raise UserError(f"--sample-format {sample_format}: expected one of {', '.join(_TYPES)}")
    dtype = _TYPES[sample_format]
    report = PipeReport(sample_rate=stream.sample_rate)
    rest = b""
    ended = False
    while not ended:
        # read1 gives what there is, as soon as there is any; read would wait for all.
        data = source.read1(_READ_BYTES)
        ended = not data
        started = time.perf_counter()
        if ended:
            report.dropped_bytes = len(rest)
            estimates = stream.finish()
        else:
            data = rest + data
            whole = len(data) // dtype.itemsize * dtype.itemsize
            rest = data[whole:]
            samples = np.frombuffer(data[:whole], dtype)
            report.num_samples += samples.size
            block = samples.astype(np.float32)
            estimates = stream.push(block / 32768 if sample_format == "s16le" else block)
        report.compute_seconds += time.perf_counter() - started
        if estimates.size:
            sink.write(_encoded(estimates, sample_format, report))
            sink.flush()
    return report


def _encoded(estimates: np.ndarray, sample_format: SampleFormat, report: PipeReport) -> bytes:
    if sample_format == "f32le":
        return estimates.T.astype("<f4").tobytes()
    report.clipped += int(np.count_nonzero((estimates < -1) | (estimates >= 1)))
    return quantize_pcm16(estimates).T.astype("<i2").tobytes()
