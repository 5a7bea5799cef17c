"""Separate a signal chunk by chunk as it comes, and join the estimates of its chunks on reading."""

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from sepkit.errors import UserError
from sepkit.inference.diarization.swaps import Orders
from sepkit.inference.long.stitching import Chunking, match_overlap
from sepkit.inference.runners.base import Batches, ModelOutput, Runner
from sepkit.inference.selection import Products


@dataclass
class _Chunk:
    """Numbers kept of a chunk.

    Args:
        length: samples.
        weight: energy of the mixture around its mean, weighted.
        samples: sum of the squared weights, which that energy is of.
        scores: (n,) log-odds, where the model has a scoring head.
        rates: nats, see `rates_of`, if they were asked for.
    """

    length: int
    weight: float
    samples: float
    scores: np.ndarray | None
    rates: dict[str, float] | None


class ChunkedEstimates:
    """Separates a signal that comes in blocks, chunk by chunk; only a file grows with its length.

    Each chunk's estimates are put into the order of the chunk before, see `match_overlap`. They go to a temporary file
    without a name, and a few numbers of each chunk stay in memory. After `finish`, the joined estimates can be read, at
    the model's rate and level, as often as needed.

    Attributes:
        silent: Whether all samples of the mixture are the same.
        num_samples: Samples of the mixture so far.

    Args:
        runner: Runs the model.
        chunking: Chunks of the signal.
        folder: Folder of the temporary file; None: that of the system.
        rates: Whether to measure the rates of the latents.

    Raises:
        UserError: no temporary file can be made.
    """

    def __init__(self, runner: Runner, chunking: Chunking, folder: Path | None = None, rates: bool = False) -> None:
        self._rates = rates
        self._chunking = chunking
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by `close`
        except OSError as error:
            reason = error.strerror or "no reason given"
            raise UserError(f"{folder or tempfile.gettempdir()}: no temporary file can be made ({reason})") from error
        self._buffer = np.zeros(0, np.float32)
        self._batch: list[np.ndarray] = []
        self._batches = Batches(runner, runner.batch_size(chunking.chunk / runner.sample_rate))
        self._chunks: list[_Chunk] = []
        self._hypotheses = n = runner.hypotheses
        self._gram, self._cross, self._sums = np.zeros((n, n)), np.zeros(n), np.zeros(n)
        self._changes: tuple[Orders, np.ndarray] | None = None
        self._tail: np.ndarray | None = None
        self._lowest, self._highest = math.inf, -math.inf

    def push(self, block: np.ndarray) -> None:
        """Take the next samples of the mixture, (t,) float32 at the model's rate.

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

    def finish(self) -> None:
        """End the mixture, which has at least one sample; then its estimates can be read.

        Raises:
            UserError: estimates that are not finite.
        """
        self._separate(last=False)
        self._batch.append(self._buffer)
        self._separate(last=True)

    def arrange(self, orders: Orders, gains: np.ndarray) -> None:
        """Change the order of the joined estimates at gains (n, 1); `products` stay those of before."""
        self._changes = orders, gains

    def _separate(self, last: bool) -> None:
        if not self._batch:
            return
        mixtures = np.stack(self._batch)
        self._batch = []
        for mixture, output in zip(mixtures, self._batches.outputs(mixtures, rates=self._rates), strict=True):
            self._add(mixture, output, last)

    def _add(self, mixture: np.ndarray, output: ModelOutput, last: bool) -> None:
        estimates, order = output.estimates[0], np.arange(self._hypotheses)
        if self._tail is not None:
            order = match_overlap(self._tail, estimates[:, : self._chunking.overlap])
        estimates = estimates[order]
        self._file.write(estimates.tobytes())
        weights = self._chunking.weights(mixture.size, first=not self._chunks, last=last)
        mixture = mixture - mixture.mean(dtype=np.float64)
        weighted = (estimates * weights).astype(np.float64)
        self._gram += weighted @ weighted.T
        self._cross += weighted @ mixture
        self._sums += weighted.sum(-1)
        if self._tail is not None:
            faded = self._tail * (1 - self._chunking.rising())
            shared = faded.astype(np.float64) @ weighted[:, : self._chunking.overlap].T
            self._gram += shared + shared.T
        self._chunks.append(
            _Chunk(
                length=mixture.size,
                weight=float(np.square(weights * mixture).sum()),
                samples=float(np.square(weights, dtype=np.float64).sum()),
                scores=None if output.scores is None else output.scores[0][order],
                rates=output.rates,
            )
        )
        self._tail = estimates[:, -self._chunking.overlap :]

    # ------------------------------------------------------------------------------------------- the joined estimates

    @property
    def silent(self) -> bool:
        """Whether all samples of the mixture are the same."""
        return self._lowest == self._highest

    @property
    def num_samples(self) -> int:
        """Number of samples at the model's rate."""
        return (len(self._chunks) - 1) * self._chunking.hop + self._chunks[-1].length

    def products(self) -> Products:
        """Return inner products of the joined estimates with each other and with the mixture."""
        return Products(self._gram, self._cross, self._sums, self.num_samples)

    def deviation(self) -> float:
        """Return the root mean square of the mixture around the mean of each chunk; 0 for silence."""
        weights = sum(chunk.weight for chunk in self._chunks)
        return math.sqrt(weights / max(1.0, sum(chunk.samples for chunk in self._chunks)))

    def scores(self) -> np.ndarray | None:
        """(n,) log-odds that an estimate is a speaker: the mean over chunks, weighted by energy of the mixture."""
        scores = [chunk.scores for chunk in self._chunks if chunk.scores is not None]
        if not scores:
            return None
        weights = np.array([chunk.weight for chunk in self._chunks])
        weights = weights if weights.sum() > 0 else np.ones(len(weights))
        return np.average(np.stack(scores), axis=0, weights=weights).astype(np.float32)

    def rates(self) -> dict[str, float] | None:
        """Return means over chunks, weighted by their lengths; None unless asked for and variational."""
        rates = [(chunk.rates, chunk.length) for chunk in self._chunks if chunk.rates is not None]
        total = sum(length for _, length in rates)
        return {name: math.fsum(own[name] * n for own, n in rates) / total for name in rates[0][0]} if rates else None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the joined estimates from one sample to another, (n, stop - start) float32."""
        chunking, count = self._chunking, len(self._chunks)
        n = self._hypotheses
        joined = np.zeros((n, stop - start), np.float32)
        first = max(0, -(-(start - chunking.chunk + 1) // chunking.hop))
        for k in range(first, min(count, (stop - 1) // chunking.hop + 1)):
            length, begin = self._chunks[k].length, k * chunking.hop
            low, high = max(start, begin), min(stop, begin + length)
            if low >= high:
                continue
            self._file.seek(4 * n * k * chunking.chunk)
            estimates = np.frombuffer(self._file.read(4 * n * length), np.float32).reshape(n, length)
            weights = chunking.weights(length, first=k == 0, last=k == count - 1)
            inside = slice(low - begin, high - begin)
            joined[:, low - start : high - start] += estimates[:, inside] * weights[inside]
        if self._changes is None:
            return joined
        orders, gains = self._changes
        return orders.arrange(gains * joined, start)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield (n, t) float32, the joined estimates from beginning to end."""
        for start in range(0, self.num_samples, self._chunking.hop):
            yield self.read(start, min(self.num_samples, start + self._chunking.hop))

    def close(self) -> None:
        """Delete the temporary file; nothing can be read afterwards."""
        self._file.close()
