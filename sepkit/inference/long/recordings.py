"""Recordings in memory and in files, read block by block, and estimates rendered at their rate and level."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sepkit.data import audio
from sepkit.data.resampling import StreamResampler
from sepkit.inference.long.chunked import ChunkedEstimates
from sepkit.inference.long.upper_band import UpperBandSharing
from sepkit.inference.selection import Selection, distribute_residual
from sepkit.inference.waveforms import BlockReader, fit_length

_BLOCK_SECONDS = 5.0


class Recording(ABC):
    """A recording of one channel, read block by block or in excerpts.

    Attributes:
        sample_rate: Sampling rate, Hz.
        num_samples: Number of samples.
    """

    sample_rate: int
    num_samples: int

    @abstractmethod
    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the samples (t,) float32 in blocks, from beginning to end."""

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """Return samples from one to another, at most to the end, (t,) float32."""

    def whole(self) -> ArrayRecording:
        """Return the recording in memory, as one block."""
        return ArrayRecording(self.read(0, self.num_samples), self.sample_rate, math.inf)

    def at_rate(self, sample_rate: int, progress: bool = False) -> Iterator[np.ndarray]:
        """Yield the samples (t,) at another rate, less the mean of the first block, see `without_offset`.

        Args:
            sample_rate: Sampling rate of the result, Hz.
            progress: Whether to show a bar on a terminal.
        """
        resampler = StreamResampler(self.sample_rate, sample_rate)
        seconds = round(self.num_samples / self.sample_rate)
        with tqdm(total=seconds, unit="s", leave=False, disable=None if progress else True) as bar:
            for block in without_offset(self.blocks()):
                yield resampler.push(block[None])[0]
                bar.update(len(block) / self.sample_rate)
        yield resampler.finish()[0]

    def excerpt(self, start: int, stop: int, sample_rate: int) -> np.ndarray:
        """Return samples `start` to `stop` at another rate, less their mean, (stop - start,)."""
        ratio = self.sample_rate / sample_rate
        samples = self.read(math.floor(start * ratio), math.ceil(stop * ratio))
        # A constant would ring at both ends.
        (centered,) = without_offset([samples])
        return fit_length(audio.resample(centered, self.sample_rate, sample_rate)[None], stop - start)[0]


class ArrayRecording(Recording):
    """A recording in memory.

    Args:
        samples: Samples of one channel, (T,) float32.
        sample_rate: Sampling rate, Hz.
        block_seconds: Length of its blocks; inf: one block.
    """

    def __init__(self, samples: np.ndarray, sample_rate: int, block_seconds: float = _BLOCK_SECONDS) -> None:
        self.samples, self.sample_rate, self.num_samples = samples, sample_rate, len(samples)
        self._block = max(1, round(min(block_seconds * sample_rate, self.num_samples)))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the samples (t,) float32 in blocks, from beginning to end."""
        for start in range(0, self.num_samples, self._block):
            yield self.read(start, start + self._block)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return samples from one to another, at most to the end, (t,) float32."""
        return self.samples[start:stop]


class FileRecording(Recording):
    """A recording in an audio file, with one block in memory at a time.

    Args:
        path: Audio file.
        channel: Channel to take, from 0; None: the mean of all.

    Raises:
        UserError: no such file, or not an audio file.
    """

    def __init__(self, path: Path, channel: int | None = None) -> None:
        self.path, self.channel = path, channel
        info = audio.info(path)
        self.sample_rate, self.num_samples = info.sample_rate, info.num_samples
        # ffmpeg decodes from the beginning, so its decoder stays open from one window to the next.
        self._is_seekable = info.subtype != "FFMPEG"
        self._blocks, self._held, self._begin = iter(()), np.zeros(0, np.float32), self.num_samples

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the samples (t,) float32 in blocks, from beginning to end."""
        return audio.read_blocks(self.path, max(1, round(_BLOCK_SECONDS * self.sample_rate)), self.channel)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return samples from one to another, at most to the end, (t,) float32."""
        stop = min(stop, self.num_samples)
        if self._is_seekable:
            return audio.read(self.path, start, stop - start, channel=self.channel)
        if start < self._begin:
            self._blocks, self._held, self._begin = self.blocks(), np.zeros(0, np.float32), 0
        while self._begin + len(self._held) < stop:
            dropped = min(start - self._begin, len(self._held))
            self._held = np.concatenate([self._held[dropped:], next(self._blocks)])
            self._begin += dropped
        return self._held[start - self._begin : stop - self._begin]

    def whole(self) -> ArrayRecording:
        """Return the recording in memory, as one block."""
        return ArrayRecording(audio.read(self.path, channel=self.channel), self.sample_rate, math.inf)


def without_offset(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield blocks (t,) float32 less the mean of the first: a constant rings at both ends of what is resampled."""
    offset = None
    for block in blocks:
        offset = block.mean(dtype=np.float64) if offset is None else offset
        yield (block - offset).astype(np.float32)


@dataclass(frozen=True)
class Rendered:
    """The estimates that were kept, at the rate, level and length of the recording, each time that they are read.

    Args:
        recording: The recording that was separated.
        model_rate: Sampling rate of the model, Hz.
        selection: Hypotheses that are kept, with gains to the level of the recording.
        estimates: Estimates of the model, (n, T), or those of chunks.
        shares: Shares of the outputs in the rest that they leave of the mixture, (k,), see `Selection.shares`; None: it
            is not distributed.
    """

    recording: Recording
    model_rate: int
    selection: Selection
    estimates: np.ndarray | ChunkedEstimates
    shares: np.ndarray | None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of outputs, and of samples of each."""
        return len(self.selection.kept), self.recording.num_samples

    def close(self) -> None:
        """Delete the estimates of chunks; nothing can be read afterwards."""
        if isinstance(self.estimates, ChunkedEstimates):
            self.estimates.close()

    def in_memory(self) -> np.ndarray:
        """Return the estimates as one array, (k, T) float32."""
        outputs, done = np.empty(self.shape, np.float32), 0
        for block in self.blocks():
            outputs[:, done : done + block.shape[-1]] = block
            done += block.shape[-1]
        return outputs

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the estimates (k, t) float32, from beginning to end."""
        if self.shares is None:
            yield from self._with_upper_band()
            return
        mixture = BlockReader(self.recording.blocks())
        for block in self._with_upper_band():
            yield distribute_residual(mixture.take(block.shape[-1]), block, self.shares)

    def _with_upper_band(self) -> Iterator[np.ndarray]:
        count, rate = len(self.selection.kept), self.recording.sample_rate
        if rate <= self.model_rate or not count:
            yield from self._resampled()
            return
        mixture = BlockReader(without_offset(self.recording.blocks()))
        sharing = UpperBandSharing(rate, self.model_rate, count)
        for block in self._resampled():
            yield sharing.push(mixture.take(block.shape[-1]), block)
        yield sharing.finish()

    def _resampled(self) -> Iterator[np.ndarray]:
        if not (count := len(self.selection.kept)):
            return
        resampler = StreamResampler(self.model_rate, self.recording.sample_rate, count)
        made = self.estimates.blocks() if isinstance(self.estimates, ChunkedEstimates) else [self.estimates]
        resampled = (resampler.push(self.selection.outputs(block)) for block in made)
        # Resampling there and back may differ from the recording's length by a few samples.
        missing = self.recording.num_samples
        for block in itertools.chain(resampled, map(StreamResampler.finish, [resampler])):
            block = block[:, :missing]
            missing -= block.shape[-1]
            yield block
        if missing:
            yield np.zeros((count, missing), np.float32)
