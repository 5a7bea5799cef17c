"""Separation of live sound: blocks of any size go in, and estimates come out as soon as they are final."""

from __future__ import annotations

from typing import Any

import numpy as np

from sepkit.data.resampling import PolyphaseStream
from sepkit.errors import UserError
from sepkit.inference.options import Levels
from sepkit.inference.runners.base import Runner
from sepkit.inference.waveforms import as_given, is_tensor, to_mono


class Stream:
    """One recording that passes through a causal model block by block. `Separator.streaming` makes it.

    The output blocks together are as long as the input blocks. At the rate and levels of the model they equal the
    estimates of the whole recording, for any block sizes. At another rate, input and output are resampled by
    `sepkit.data.resampling`, whose delay is part of the latency.

    >>> import numpy as np, sepkit
    >>> stream = sepkit.load_model("boxed_8k_causal").streaming()
    >>> with stream:
    ...     parts = [stream.push(np.zeros(500, np.float32)) for _ in range(3)] + [stream.finish()]
    >>> sum(part.shape[-1] for part in parts)
    1500

    Attributes:
        sample_rate: Hz, of input and output.
        latency_seconds: longest time from the start of a sample to its estimates, without the length of blocks and the
            time of computing.

    Args:
        runner: Runner of a causal model.

    Raises:
        UserError: a model that is not causal.
    """

    def __init__(self, runner: Runner, sample_rate: int, levels: Levels = "model") -> None:
        self._stream = runner.stream()
        self.sample_rate = sample_rate
        self.hypotheses = runner.hypotheses
        self._into = PolyphaseStream(sample_rate, runner.sample_rate)
        self._back = PolyphaseStream(runner.sample_rate, sample_rate, self.hypotheses)
        self._gains = RunningGains(self.hypotheses) if levels == "mixture" else None
        self.latency_seconds = (
            1 / sample_rate
            + self._stream.lookahead_samples / runner.sample_rate
            + self._into.delay_seconds
            + self._back.delay_seconds
        )
        self._as_tensor = False
        self._offset: np.float32 | None = None
        self._pushed, self._returned, self._closed = 0, 0, False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream: nothing can be pushed any more."""
        self._closed = True

    def push(self, block: Any) -> Any:
        """Return the next final estimates (n, k), float32: an array, or a CPU tensor if the block is a tensor.

        Args:
            block: (T,) or (C, T) floating-point samples, the next of the recording; several channels are averaged.
                T may be 0.

        Raises:
            UserError: samples that are no finite floating-point numbers, a wrong shape, or a stream that has ended;
                the stream stays as it was before the block.
        """
        self._check_open()
        samples = to_mono(block, "block")
        if not np.isfinite(samples).all():
            position = self._pushed + int(np.flatnonzero(~np.isfinite(samples))[0])
            raise UserError(
                f"block: sample {position} of the stream is NaN or infinite, expected finite numbers; leave it out"
            )
        self._as_tensor = is_tensor(block)
        if self._offset is None and samples.size:
            # A constant would ring at the beginning of a resampled recording.
            self._offset = samples[0]
        self._pushed += samples.size
        mixture = self._into.push((samples - (self._offset or 0.0)).astype(np.float32)[None])
        return self._give(self._back.push(self._estimates(mixture)))

    def finish(self) -> Any:
        """Return the estimates (n, k) of all samples that still have none; the stream ends.

        Raises:
            UserError: a stream that has ended.
        """
        self._check_open()
        self._closed = True
        parts = [
            self._back.push(self._estimates(self._into.finish())),
            self._back.push(self._leveled(self._stream.finish())),
            self._back.finish(),
        ]
        return self._give(np.concatenate(parts, axis=-1)[:, : self._pushed - self._returned])

    def _check_open(self) -> None:
        if self._closed:
            raise UserError("streaming: the stream has ended; open a new one with Separator.streaming()")

    def _estimates(self, mixture: np.ndarray) -> np.ndarray:
        """Return final estimates, (n, k), after the next samples (1, T) at the rate of the model."""
        if self._gains is not None:
            self._gains.hear(mixture[0])
        return self._leveled(self._stream.push(mixture[0]))

    def _leveled(self, estimates: np.ndarray) -> np.ndarray:
        if not np.isfinite(estimates).all():
            raise UserError("streaming: the model's estimates are not finite; weights or the input's level are broken")
        return estimates if self._gains is None else self._gains.scale(estimates)

    def _give(self, estimates: np.ndarray) -> Any:
        self._returned += estimates.shape[-1]
        return as_given(estimates) if self._as_tensor else estimates


class RunningGains:
    """Levels at which estimates explain the mixture best, given the samples so far.

        g_i(t) = sum_{u <= t} (x(u) - m(t)) s_i(u) / sum_{u <= t} s_i(u)^2,  m(t) the mean of x up to t

    At the end it is the gain of the whole recording. It moves in the first tenths of a second, but no sample is ever
    stronger than the root of the energy of the mixture so far.
    """

    def __init__(self, hypotheses: int) -> None:
        self._mixture = np.zeros(0)
        self._products = np.zeros((hypotheses, 1))
        self._energies = np.zeros((hypotheses, 1))
        self._sums = np.zeros((hypotheses, 1))
        self._total, self._count = 0.0, 0

    def hear(self, mixture: np.ndarray) -> None:
        """Keep the next samples (T,) of the mixture until their estimates come."""
        self._mixture = np.concatenate([self._mixture, mixture])

    def scale(self, estimates: np.ndarray) -> np.ndarray:
        """Return the next estimates, each sample at the gain of its time, (n, k); zeros while an estimate is silent."""
        count = estimates.shape[-1]
        if count == 0:
            return estimates
        mixture, self._mixture = self._mixture[:count], self._mixture[count:]
        exact = estimates.astype(np.float64)
        products = self._products + np.cumsum(mixture * exact, axis=-1)
        energies = self._energies + np.cumsum(exact * exact, axis=-1)
        sums, totals = self._sums + np.cumsum(exact, axis=-1), self._total + np.cumsum(mixture, dtype=np.float64)
        means = totals / np.arange(self._count + 1, self._count + count + 1)
        self._products, self._energies, self._sums = products[:, -1:], energies[:, -1:], sums[:, -1:]
        self._total, self._count = totals[-1], self._count + count
        gains = np.divide(products - means * sums, energies, out=np.zeros_like(products), where=energies > 0)
        return (gains * exact).astype(np.float32)
