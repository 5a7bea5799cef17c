"""Resample and write recordings of any length block by block, in bounded memory.

The result does not depend on the blocks: it equals that of `sepkit.data.audio` on the whole recording.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr

from sepkit.data._opening import write_flac
from sepkit.data.audio import quantize_pcm16, resampled_length
from sepkit.data.wav_header import wav_header
from sepkit.files import atomic_output


class StreamResampler:
    """Resamples a signal that comes in blocks, with no delay left in the result.

    The output blocks, joined, are `sepkit.data.audio.resample(..., "soxr_hq")` of the joined input blocks.
    """

    def __init__(self, from_rate: int, to_rate: int, channels: int = 1) -> None:
        self._rates = (from_rate, to_rate)
        self._channels = channels
        self._stream = (
            None if from_rate == to_rate else soxr.ResampleStream(from_rate, to_rate, channels, "float32", "HQ")
        )
        self._taken = self._given = 0

    def push(self, block: np.ndarray) -> np.ndarray:
        """Take the next samples (C, T) float32, T >= 0; return the outputs (C, t) that are ready, often none at
        first."""
        self._taken += block.shape[-1]
        return self._pass(block, last=False)

    def finish(self) -> np.ndarray:
        """Return the remaining outputs (C, t), so that all together are `resampled_length`; nothing may follow."""
        rest = self._pass(np.zeros((self._channels, 0), np.float32), last=True)
        missing = resampled_length(self._taken, *self._rates) - self._given
        return np.pad(rest, ((0, 0), (0, missing))) if missing > 0 else rest[:, : rest.shape[-1] + missing]

    def _pass(self, block: np.ndarray, last: bool) -> np.ndarray:
        if self._stream is None:
            self._given += block.shape[-1]
            return np.asarray(block, np.float32)
        if not last and block.shape[-1] == 0:
            return np.zeros((self._channels, 0), np.float32)
        columns = np.ascontiguousarray(block.T, np.float32)
        # For one channel soxr takes and returns (T,).
        resampled = self._stream.resample_chunk(columns if self._channels > 1 else columns[:, 0], last=last)
        resampled = resampled.reshape(-1, self._channels).T
        self._given += resampled.shape[-1]
        return resampled


class BlockWriter:
    """An open audio file of one channel whose length is known; see `write_blocks`."""

    def __init__(self, path: Path, temporary: Path, sample_rate: int, num_samples: int, subtype: str) -> None:
        self._path = path
        self._subtype = subtype
        self._missing = num_samples
        self._stack = ExitStack()
        self._flac: soundfile.SoundFile | None = None
        if path.suffix.lower() == ".flac":
            self._flac = self._stack.enter_context(write_flac(path, temporary, sample_rate, 1))
            return
        header = wav_header(path, sample_rate, num_samples, subtype)
        self._wav = self._stack.enter_context(open(temporary, "wb"))  # noqa: SIM115
        self._wav.write(header)

    def write(self, block: np.ndarray) -> None:
        """Append samples (T,), full scale 1. ValueError: some are not finite, or more than were announced."""
        if not np.isfinite(block).all():
            raise ValueError(f"{self._path}: samples that are not finite numbers are not written")
        self._missing -= len(block)
        if self._missing < 0:
            raise ValueError(f"{self._path}: {-self._missing} samples more than were announced")
        samples = block.astype("<f4") if self._subtype == "FLOAT" else quantize_pcm16(block)
        if self._flac is not None:
            self._flac.write(samples)
        else:
            self._wav.write(samples.astype("<f4" if self._subtype == "FLOAT" else "<i2").tobytes())

    def close(self) -> None:
        """Close the file, which may be incomplete; raise OSError if it could not be written to the end."""
        self._stack.close()

    def check_complete(self) -> None:
        """Raise ValueError unless all announced samples have been written."""
        if self._missing:
            raise ValueError(f"{self._path}: {self._missing} samples fewer than were announced")


@contextmanager
def write_blocks(
    path: str | os.PathLike[str], sample_rate: int, num_samples: int, subtype: Literal["FLOAT", "PCM_16"] = "FLOAT"
) -> Iterator[BlockWriter]:
    """Open an audio file and yield its writer. The file appears when the `with` block ends without an error.

    The same samples give the same bytes as `sepkit.data.audio.write`, except for how FLAC is divided into frames.

    Args:
        subtype: "FLOAT" keeps float32 values, also beyond +-1; "PCM_16" quantizes to the nearest value and saturates.

    Raises:
        ValueError: a format that cannot hold the subtype, or another number of samples than was announced.
    """
    path = Path(path)
    if (path.suffix.lower(), subtype) not in {(".wav", "FLOAT"), (".wav", "PCM_16"), (".flac", "PCM_16")}:
        raise ValueError(f"{path}: {subtype} cannot be written so; use .wav, or .flac for PCM_16")
    with atomic_output(path) as temporary:
        writer = BlockWriter(path, temporary, sample_rate, num_samples, subtype)
        try:
            yield writer
        finally:
            writer.close()
        writer.check_complete()
