"""Separate a recording of any length in chunks and in bounded memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sepkit.data import audio
from sepkit.data.resampling import StreamResampler
from sepkit.inference.long.chunked import ChunkedSeparation, JoinedEstimates
from sepkit.inference.long.stitching import Chunking
from sepkit.inference.long.upper_band import shares_upper_band
from sepkit.inference.options import HighBand, StitcherKind
from sepkit.inference.runners.base import Runner
from sepkit.inference.selection import Selection, distribute_residual
from sepkit.inference.separated import Separated
from sepkit.inference.waveforms import BlockReader, fit_length

_BLOCK_SECONDS = 5.0


@dataclass
class ArrayRecording:
    """A recording (T,) float32 in memory."""

    samples: np.ndarray
    sample_rate: int

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the samples (t,) in blocks, from beginning to end."""
        size = max(1, round(_BLOCK_SECONDS * self.sample_rate))
        for start in range(0, len(self.samples), size):
            yield self.samples[start : start + size]

    def excerpt(self, start: int, stop: int, sample_rate: int) -> np.ndarray:
        """Return samples `start` to `stop` at another rate, less their mean, (stop - start,)."""
        first, last = _span(start, stop, self.sample_rate / sample_rate)
        return _resampled(self.samples[first:last], self.sample_rate, sample_rate, stop - start)


class FileRecording:
    """A recording in an audio file, one block of which is in memory at a time.

    Args:
        channel: which channel, from 0; None: the mean of all.

    Raises:
        UserError: no such file, or not an audio file.
    """

    def __init__(self, path: Path, channel: int | None = None) -> None:
        self.path, self.channel = path, channel
        info = audio.info(path)
        self.sample_rate, self.num_samples = info.sample_rate, info.num_samples

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the samples (t,) float32 in blocks, from beginning to end."""
        return audio.read_blocks(self.path, max(1, round(_BLOCK_SECONDS * self.sample_rate)), self.channel)

    def excerpt(self, start: int, stop: int, sample_rate: int) -> np.ndarray:
        """Return samples `start` to `stop` at another rate, less their mean, (stop - start,)."""
        first, last = _span(start, stop, self.sample_rate / sample_rate)
        samples = audio.read(self.path, first, min(last, self.num_samples) - first, channel=self.channel)
        return _resampled(samples, self.sample_rate, sample_rate, stop - start)


def _span(start: int, stop: int, ratio: float) -> tuple[int, int]:
    return math.floor(start * ratio), math.ceil(stop * ratio)


def _resampled(samples: np.ndarray, rate: int, wanted_rate: int, count: int) -> np.ndarray:
    # A constant would ring at both ends.
    (centered,) = without_offset([samples])
    return fit_length(audio.resample(centered, rate, wanted_rate)[None], count)[0]


Recording = ArrayRecording | FileRecording


def without_offset(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield blocks (t,) float32 less the mean of the first: a constant rings at both ends of what is resampled."""
    offset = None
    for block in blocks:
        offset = block.mean(dtype=np.float64) if offset is None else offset
        yield (block - offset).astype(np.float32)


# ---------------------------------------------------------------------------------------------------------- separation


def separate_long(
    runner: Runner,
    recording: Recording,
    chunking: Chunking,
    kind: StitcherKind = "profile",
    folder: Path | None = None,
    progress: bool = False,
    rates: bool = False,
) -> JoinedEstimates:
    """Separate a recording chunk by chunk, and return its joined estimates.

    Args:
        folder: for a temporary file; None: that of the system.

    Raises:
        UserError: a recording that cannot be read to its end, or estimates that are not finite.
    """
    resampler = StreamResampler(recording.sample_rate, runner.sample_rate)
    chunks = ChunkedSeparation(runner, chunking, kind, folder, rates)
    seconds = round(recording.num_samples / recording.sample_rate)
    try:
        with tqdm(total=seconds, unit="s", leave=False, disable=None if progress else True) as bar:
            for block in without_offset(recording.blocks()):
                chunks.push(resampler.push(block[None])[0])
                bar.update(len(block) / recording.sample_rate)
        chunks.push(resampler.finish()[0])
        return chunks.finish()
    except BaseException:
        chunks.close()
        raise


@dataclass
class LongSeparation:
    """A separated long recording: all results, and its estimates block by block.

    Args:
        separated: without estimates.
        joined: estimates of the model; gone after `close`.
        shares: (k,) of the rest that they leave of the mixture, see `residual_shares`; None: it is not distributed.
    """

    separated: Separated
    joined: JoinedEstimates
    recording: Recording
    model_rate: int
    selection: Selection
    shares: np.ndarray | None
    high_band: HighBand

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield (k, t) float32, the estimates at the rate, level and length of the recording."""
        mixture = None if self.shares is None else BlockReader(self.recording.blocks())
        for block in self._with_high_band():
            if mixture is not None and self.shares is not None:
                block = distribute_residual(mixture.take(block.shape[-1]), block, self.shares)
            yield block

    def _with_high_band(self) -> Iterator[np.ndarray]:
        # It remembers where it is, and blocks are asked for more than once.
        sharing = shares_upper_band(
            self.high_band, self.recording.sample_rate, self.model_rate, self.selection.kept.size
        )
        if sharing is None:
            yield from self._fitted()
            return
        mixture = BlockReader(without_offset(self.recording.blocks()))
        for block in self._fitted():
            yield sharing.push(mixture.take(block.shape[-1]), block)
        yield sharing.finish()

    def _fitted(self) -> Iterator[np.ndarray]:
        if not (count := self.selection.kept.size):
            return
        resampler = StreamResampler(self.model_rate, self.recording.sample_rate, count)
        resampled = (resampler.push(self.selection.outputs(block)) for block in self.joined.blocks())
        # Resampling there and back may differ from the recording's length by a few samples.
        missing = self.recording.num_samples
        for block in itertools.chain(resampled, map(StreamResampler.finish, [resampler])):
            block = block[:, :missing]
            missing -= block.shape[-1]
            yield block
        if missing:
            yield np.zeros((count, missing), np.float32)

    def in_memory(self) -> Separated:
        """Return everything, with the estimates as one array; then the temporary file is gone."""
        estimates, done = np.empty((len(self.selection.kept), self.recording.num_samples), np.float32), 0
        for block in self.blocks():
            estimates[:, done : done + block.shape[-1]] = block
            done += block.shape[-1]
        self.close()
        self.separated.estimates = estimates
        return self.separated

    def close(self) -> None:
        """Delete the estimates."""
        self.joined.close()
