"""Separate a recording of any length in chunks and in bounded memory."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import torch
from tqdm import tqdm

from sepkit.data import audio
from sepkit.data.audio_streams import StreamResampler
from sepkit.errors import UserError
from sepkit.inference.batches import Batches, batch_size
from sepkit.inference.high_band import shares_high_band
from sepkit.inference.levels import Products, distribute_residual
from sepkit.inference.options import HighBand, StitcherKind
from sepkit.inference.separated import Separated
from sepkit.inference.speakers import Chosen
from sepkit.inference.stitching import Chunking, Stitcher
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.speaker_encoder import SpeakerEncoder

_BLOCK_SECONDS = 5.0


class Recording(Protocol):
    """A recording of one channel that can be read more than once."""

    @property
    def sample_rate(self) -> int:
        """Hz."""
        ...

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        ...

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield its samples (t,) float32 in blocks, from beginning to end."""
        ...

    def excerpt(self, start: int, stop: int, sample_rate: int) -> np.ndarray:
        """Return some samples at another rate, (stop - start,).

        Args:
            start: first sample, at that rate.
            stop: end of the samples, at that rate.
            sample_rate: Hz of the result.
        """
        ...


@dataclass
class ArrayRecording:
    """A recording in memory.

    Args:
        samples: (T,) float32.
        sample_rate: Hz.
    """

    samples: np.ndarray
    sample_rate: int

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the samples in order, (t,) each; see `Recording`."""
        size = max(1, round(_BLOCK_SECONDS * self.sample_rate))
        for start in range(0, len(self.samples), size):
            yield self.samples[start : start + size]

    def excerpt(self, start: int, stop: int, sample_rate: int) -> np.ndarray:
        """Return some samples at another rate, (stop - start,); see `Recording`.

        Args:
            start: first sample, at that rate.
            stop: end of the samples, at that rate.
            sample_rate: Hz of the result.
        """
        return audio.resample(self.samples, self.sample_rate, sample_rate)[start:stop]


class FileRecording:
    """A recording in an audio file, one block of which is in memory at a time.

    Args:
        path: of the file.
        channel: which channel, from 0; None: the mean of all.

    Raises:
        UserError: no such file, or not an audio file.
    """

    def __init__(self, path: Path, channel: int | None = None) -> None:
        self.path, self.channel = path, channel
        info = audio.info(path)
        self.sample_rate, self.num_samples = info.sample_rate, info.num_samples

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the samples in order, (t,) each; see `Recording`."""
        return audio.read_blocks(self.path, max(1, round(_BLOCK_SECONDS * self.sample_rate)), self.channel)

    def excerpt(self, start: int, stop: int, sample_rate: int) -> np.ndarray:
        """Return some samples at another rate, (stop - start,); see `Recording`.

        Args:
            start: first sample, at that rate.
            stop: end of the samples, at that rate.
            sample_rate: Hz of the result.
        """
        return audio.read(self.path, start, stop - start, sample_rate, channel=self.channel)


# ---------------------------------------------------------------------------------------------------------- separation


def separate_long(
    model: EncoderMaskerDecoder,
    device: torch.device,
    recording: Recording,
    chunking: Chunking,
    kind: StitcherKind = "profile",
    folder: Path | None = None,
    progress: bool = False,
    rates: bool = False,
    encoder: SpeakerEncoder | None = None,
) -> Joined:
    """Separate a recording chunk by chunk, and return its joined estimates.

    Args:
        model: in evaluation mode, on `device`.
        device: where it computes.
        recording: of any rate.
        chunking: at the model's rate.
        kind: of the stitcher.
        folder: for a temporary file; None: that of the system.
        progress: whether to show a bar on a terminal.
        rates: whether the rates of a variational model are wanted.
        encoder: of voices, for the stitcher "embedding".

    Raises:
        UserError: a recording that cannot be read to its end, or estimates that are not finite.
    """
    resampler = StreamResampler(recording.sample_rate, model.sample_rate)
    pieces = PiecewiseSeparation(model, device, chunking, kind, folder, rates, encoder)
    seconds = round(recording.num_samples / recording.sample_rate)
    try:
        with tqdm(total=seconds, unit="s", leave=False, disable=None if progress else True) as bar:
            for block in recording.blocks():
                pieces.push(resampler.push(block[None])[0])
                bar.update(len(block) / recording.sample_rate)
        pieces.push(resampler.finish()[0])
        return pieces.finish()
    except BaseException:
        pieces.close()
        raise


@dataclass
class _Chunk:
    """Numbers kept of a chunk. `w` are the weights it is joined with, `e` its estimates, `x` the mixture.

    Args:
        length: samples.
        cross: (n,) <w e_i, x>.
        gram: (n, n) <w e_i, w e_j>.
        overlap: (n, n) <w a_i, w e_j> with the estimates a of the chunk before, where they overlap.
        sums: (n,) sums of w e_i.
        weight: energy of the mixture, weighted.
        scores: (n,) log-odds, where the model has a scoring head.
        rates: nats, see `rates_of`, if they were asked for.
    """

    length: int
    cross: np.ndarray
    gram: np.ndarray
    overlap: np.ndarray
    sums: np.ndarray
    weight: float
    scores: np.ndarray | None
    rates: dict[str, float] | None


class PiecewiseSeparation:
    """Separates a signal that comes in blocks, chunk by chunk; only a file grows with its length.

    Estimates of chunks go to a temporary file without a name, and a few numbers of each chunk stay in memory. Once all
    chunks are there, these numbers determine the order of each chunk's estimates, see `Stitcher`.

    Args:
        model: in evaluation mode.
        device: where it computes.
        chunking: at the model's rate.
        kind: of the stitcher.
        folder: for the temporary file; None: that of the system.
        rates: whether the rates of a variational model are wanted.
        encoder: of voices, for the stitcher "embedding".
    """

    def __init__(
        self,
        model: EncoderMaskerDecoder,
        device: torch.device,
        chunking: Chunking,
        kind: StitcherKind = "profile",
        folder: Path | None = None,
        rates: bool = False,
        encoder: SpeakerEncoder | None = None,
    ) -> None:
        self._rates = rates
        self._device, self._chunking = device, chunking
        self._stitcher = Stitcher(chunking, model.sample_rate, kind, encoder)
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by `Joined.close`
        except OSError as error:
            reason = error.strerror or "no reason given"
            raise UserError(f"{folder or tempfile.gettempdir()}: no temporary file can be made ({reason})") from error
        self._buffer = np.zeros(0, np.float32)
        self._batch: list[np.ndarray] = []
        self._batches = Batches(model, batch_size(model, device, chunking.chunk / model.sample_rate))
        self._chunks: list[_Chunk] = []
        self._tail: np.ndarray | None = None
        self._lowest, self._highest = math.inf, -math.inf

    def push(self, block: np.ndarray) -> None:
        """Take the next samples of the mixture.

        Args:
            block: (t,) float32, at the model's rate.

        Raises:
            UserError: estimates that are not finite.
        """
        if len(block):
            self._lowest = min(self._lowest, float(block.min()))
            self._highest = max(self._highest, float(block.max()))
        self._buffer = np.concatenate([self._buffer, block])
        # A chunk is the last one only if no samples follow.
        while len(self._buffer) > self._chunking.chunk:
            self._batch.append(self._buffer[: self._chunking.chunk])
            self._buffer = self._buffer[self._chunking.hop :]
            if len(self._batch) >= self._batches.size:
                self._separate(last=False)

    def finish(self) -> Joined:
        """Return the estimates of all that was pushed, at least one sample.

        Raises:
            UserError: estimates that are not finite.
        """
        self._separate(last=False)
        self._batch.append(self._buffer)
        self._separate(last=True)
        silent = self._lowest == self._highest
        return Joined(self._file, self._chunking, self._chunks, self._stitcher.orders(), silent)

    def close(self) -> None:
        """Delete the temporary file without a result. Not needed after `finish`."""
        self._file.close()

    def _separate(self, last: bool) -> None:
        if not self._batch:
            return
        mixtures = np.stack(self._batch)
        self._batch = []
        outputs = self._batches.outputs(torch.as_tensor(mixtures, device=self._device), rates=self._rates)
        for mixture, output in zip(mixtures, outputs, strict=True):
            scores = None if output.scores is None else output.scores[0]
            self._add(mixture, output.estimates[0], scores, output.rates, last)

    def _add(
        self,
        mixture: np.ndarray,
        estimates: np.ndarray,
        scores: np.ndarray | None,
        rates: dict[str, float] | None,
        last: bool,
    ) -> None:
        self._file.write(estimates.tobytes())
        self._stitcher.add(estimates)
        weights = self._chunking.weights(mixture.size, first=not self._chunks, last=last)
        weighted = estimates * weights
        overlap = self._chunking.overlap
        before = np.zeros_like(weighted[:, :overlap]) if self._tail is None else self._tail
        in_double = weighted.astype(np.float64)
        self._chunks.append(
            _Chunk(
                length=mixture.size,
                cross=in_double @ mixture.astype(np.float64),
                gram=in_double @ in_double.T,
                overlap=before[:, : mixture.size].astype(np.float64) @ in_double[:, :overlap].T,
                sums=in_double.sum(-1),
                weight=float(np.square(weights * mixture, dtype=np.float64).sum()),
                scores=scores,
                rates=rates,
            )
        )
        self._tail = weighted[:, -overlap:]


@dataclass
class Joined:
    """The estimates of a recording, joined from its chunks on reading, at the model's rate and level.

    Args:
        orders: (K, n), [k, j] which estimate of chunk k belongs to joined estimate j.
        silent: whether all samples of the mixture are the same.
    """

    _file: IO[bytes]
    _chunking: Chunking
    _chunks: list[_Chunk]
    orders: np.ndarray
    silent: bool
    num_samples: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_samples = (len(self._chunks) - 1) * self._chunking.hop + self._chunks[-1].length

    def products(self) -> Products:
        """Return inner products of the joined estimates with each other and with the mixture."""
        n = self.orders.shape[1]
        gram, cross, sums = np.zeros((n, n)), np.zeros(n), np.zeros(n)
        for k, (chunk, order) in enumerate(zip(self._chunks, self.orders, strict=True)):
            gram += chunk.gram[np.ix_(order, order)]
            if k:
                shared = chunk.overlap[np.ix_(self.orders[k - 1], order)]
                gram += shared + shared.T
            cross += chunk.cross[order]
            sums += chunk.sums[order]
        return Products(gram, cross, sums, self.num_samples)

    def scores(self) -> np.ndarray | None:
        """(n,) log-odds that an estimate is a speaker: the mean over chunks, weighted by energy of the mixture."""
        if self._chunks[0].scores is None:
            return None
        scores = np.stack([chunk.scores[order] for chunk, order in zip(self._chunks, self.orders, strict=True)])  # type: ignore[index]  # all chunks have scores, or none
        weights = np.array([chunk.weight for chunk in self._chunks])
        weights = weights if weights.sum() > 0 else np.ones(len(weights))
        return np.average(scores, axis=0, weights=weights).astype(np.float32)

    def rates(self) -> dict[str, float] | None:
        """Return means over chunks, weighted by their lengths; None unless asked for and variational."""
        first = self._chunks[0].rates
        if first is None:
            return None
        total = sum(chunk.length for chunk in self._chunks)
        return {
            name: math.fsum(chunk.rates[name] * chunk.length for chunk in self._chunks if chunk.rates) / total
            for name in first
        }

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return a part of the joined estimates, (n, stop - start) float32.

        Args:
            start: first sample, at the model's rate.
            stop: end of the part.
        """
        chunking, count = self._chunking, len(self._chunks)
        n = self.orders.shape[1]
        joined = np.zeros((n, stop - start), np.float32)
        first = max(0, -(-(start - chunking.chunk + 1) // chunking.hop))
        for k in range(first, min(count, (stop - 1) // chunking.hop + 1)):
            length, begin = self._chunks[k].length, k * chunking.hop
            low, high = max(start, begin), min(stop, begin + length)
            if low >= high:
                continue
            self._file.seek(4 * n * k * chunking.chunk)
            estimates = np.frombuffer(self._file.read(4 * n * length), np.float32).reshape(n, length)[self.orders[k]]
            weights = chunking.weights(length, first=k == 0, last=k == count - 1)
            part = slice(low - begin, high - begin)
            joined[:, low - start : high - start] += estimates[:, part] * weights[part]
        return joined

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield (n, t) float32, the joined estimates from beginning to end."""
        for start in range(0, self.num_samples, self._chunking.hop):
            yield self.read(start, min(self.num_samples, start + self._chunking.hop))

    def close(self) -> None:
        """Delete the temporary file; nothing can be read afterwards."""
        self._file.close()


@dataclass
class LongSeparation:
    """A separated long recording: all results, and its estimates block by block.

    Args:
        separated: without estimates.
        joined: estimates of the model; gone after `close`.
        recording: that was separated.
        model_rate: Hz.
        chosen: which estimates are wanted, and at which levels.
        shares: (k,) of the rest that they leave of the mixture, see `residual_shares`; None: it is not distributed.
        high_band: what becomes of what the recording holds above the model's band.
    """

    separated: Separated
    joined: Joined
    recording: Recording
    model_rate: int
    chosen: Chosen
    shares: np.ndarray | None
    high_band: HighBand

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield (k, t) float32, the estimates at the rate, level and length of the recording."""
        mixture = None if self.shares is None else _Reader(self.recording.blocks())
        for block in self._with_high_band():
            if mixture is not None and self.shares is not None:
                block = distribute_residual(mixture.take(block.shape[-1]), block, self.shares)
            yield block

    def _with_high_band(self) -> Iterator[np.ndarray]:
        # It remembers where it is, and blocks are asked for more than once.
        sharing = shares_high_band(self.high_band, self.recording.sample_rate, self.model_rate, self.chosen.kept.size)
        if sharing is None:
            yield from self._fitted()
            return
        mixture = _Reader(self.recording.blocks())
        for block in self._fitted():
            yield sharing.push(mixture.take(block.shape[-1]), block)
        yield sharing.finish()

    def _fitted(self) -> Iterator[np.ndarray]:
        missing = self.recording.num_samples
        for block in self._resampled():
            # Resampling there and back may differ from the recording's length by a few samples.
            block = block[:, :missing]
            missing -= block.shape[-1]
            yield block

    def in_memory(self) -> Separated:
        """Return everything, with the estimates as one array; then the temporary file is gone."""
        estimates, done = np.empty((len(self.chosen.kept), self.recording.num_samples), np.float32), 0
        for block in self.blocks():
            estimates[:, done : done + block.shape[-1]] = block
            done += block.shape[-1]
        self.close()
        self.separated.estimates = estimates
        return self.separated

    def _resampled(self) -> Iterator[np.ndarray]:
        if not self.chosen.kept.size:
            return
        resampler = StreamResampler(self.model_rate, self.recording.sample_rate, len(self.chosen.kept))
        given = 0
        for block in self.joined.blocks():
            yield (ready := resampler.push(self.chosen.outputs(block)))
            given += ready.shape[-1]
        yield (rest := resampler.finish())
        missing = self.recording.num_samples - given - rest.shape[-1]
        if missing > 0:
            yield np.zeros((len(self.chosen.kept), missing), np.float32)

    def close(self) -> None:
        """Delete the estimates."""
        self.joined.close()


class _Reader:
    """Reads blocks of any length from blocks of other lengths."""

    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self._blocks, self._held = blocks, np.zeros(0, np.float32)

    def take(self, count: int) -> np.ndarray:
        while len(self._held) < count:
            self._held = np.concatenate([self._held, next(self._blocks)])
        taken, self._held = self._held[:count], self._held[count:]
        return taken
