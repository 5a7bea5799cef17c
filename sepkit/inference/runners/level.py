"""One level inside: what a model gets has zero mean and the deviation it was trained with, whatever was recorded."""

from __future__ import annotations

from typing import Protocol

import numpy as np

NOMINAL_DEVIATION = 0.05
"""For models whose training level is not known: -26 dB of full scale, the nominal speech level of ITU-T P.56."""

_MEMORY_SECONDS = 10.0
# Sums with a decaying weight are computed in blocks, within which the inverse of the weight stays near 1.
_BLOCK = 4096
# A deviation below this share of the mean is the rounding of float32, not sound.
_ROUNDING = 1e-7


class BlockRunner(Protocol):
    """A recording that passes through a causal model block by block, at the model's rate and level.

    Attributes:
        lookahead_samples: Largest number of samples that must follow one before its estimates are final.
    """

    lookahead_samples: int

    def push(self, mixture: np.ndarray) -> np.ndarray:
        """Take the next samples (T,) float32; return the next final estimates (n, T'), float32."""
        ...

    def finish(self) -> np.ndarray:
        """End the recording; return the estimates (n, T') of all samples that still have none."""
        ...


def standardize(mixtures: np.ndarray, deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return mixtures with zero mean and a given deviation, (B, T) float32, and the factors back, (B, 1) float64.

    A constant mixture becomes zeros, with a factor of 0.

    Args:
        mixtures: Samples, (B, T).
        deviation: Root mean square of the result.
    """
    means = mixtures.mean(-1, keepdims=True, dtype=np.float64)
    centered = mixtures - means
    return _scaled(centered, means, np.sqrt(np.square(centered).mean(-1, keepdims=True)), deviation)


def _scaled(
    centered: np.ndarray, means: np.ndarray, deviations: np.ndarray, deviation: float
) -> tuple[np.ndarray, np.ndarray]:
    heard = deviations > _ROUNDING * np.abs(means)
    standardized = np.divide(deviation * centered, deviations, out=np.zeros_like(centered), where=heard)
    return standardized.astype(np.float32), np.where(heard, deviations / deviation, 0.0)


class RunningLevel:
    """Brings mixtures that come block by block to a deviation, by the samples so far.

        w(t) = sum_{u <= t} a^(t - u),  m(t) = sum_{u <= t} a^(t - u) x(u) / w(t),
        d(t)^2 = sum_{u <= t} a^(t - u) x(u)^2 / w(t) - m(t)^2

    A sample becomes (x(t) - m(t)) / d(t), times the deviation. The weight a decays to 1/e in 10 s, so that the level
    follows speakers who come nearer.

    Args:
        sample_rate: Sampling rate, Hz.
        deviation: Root mean square to bring mixtures to.
        batch_size: Mixtures side by side, B.
    """

    def __init__(self, sample_rate: int, deviation: float, batch_size: int = 1) -> None:
        self._decay = np.exp(-1 / (_MEMORY_SECONDS * sample_rate))
        self._deviation = deviation
        self._weight = 0.0
        self._sums, self._squares = np.zeros((batch_size, 1)), np.zeros((batch_size, 1))

    def standardize(self, mixtures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next samples (B, T) standardized, float32, and the factors back, (B, T) float64."""
        starts = range(0, max(1, mixtures.shape[-1]), _BLOCK)
        parts = [self._standardize(mixtures[:, start : start + _BLOCK].astype(np.float64)) for start in starts]
        standardized, factors = zip(*parts, strict=True)
        return np.concatenate(standardized, axis=-1), np.concatenate(factors, axis=-1)

    def _standardize(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        decays = self._decay ** np.arange(1, block.shape[-1] + 1)
        weights = decays * (self._weight + np.cumsum(1 / decays))
        sums = decays * (self._sums + np.cumsum(block / decays, axis=-1))
        squares = decays * (self._squares + np.cumsum(np.square(block) / decays, axis=-1))
        if block.shape[-1]:
            self._weight, self._sums, self._squares = weights[-1], sums[:, -1:], squares[:, -1:]
        means = sums / weights
        deviations = np.sqrt(np.maximum(squares / weights - np.square(means), 0.0))
        return _scaled(block - means, means, deviations, self._deviation)


class ModelLevel:
    """The level of one model: that of the whole recording, or of the samples so far if the model is causal.

    A causal model gets the level that its stream gets, so that both give the same estimates.

    Args:
        sample_rate: Sampling rate of the model, Hz.
        signal_std: Deviation of the training mixtures; exactly 1 if it was never measured.
        causal: Whether the model can run block by block.
    """

    def __init__(self, sample_rate: int, signal_std: float, causal: bool) -> None:
        self.sample_rate, self.causal = sample_rate, causal
        self.deviation = NOMINAL_DEVIATION if signal_std == 1.0 else signal_std

    def standardize(self, mixtures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mixtures (B, T) at the level of the model, float32, and the factors back, (B, 1) or (B, T) float64."""
        if self.causal:
            return RunningLevel(self.sample_rate, self.deviation, len(mixtures)).standardize(mixtures)
        return standardize(mixtures, self.deviation)

    def blocks(self, blocks: BlockRunner) -> LeveledBlocks:
        """Return the way of a recording of any level through the model, given that of one at the model's level."""
        return LeveledBlocks(blocks, RunningLevel(self.sample_rate, self.deviation))


class LeveledBlocks:
    """A causal model's blocks at the running level of the recording; see `BlockRunner`.

    Args:
        blocks: Way of a recording through the model, at the model's level.
        level: Running level of the recording.
    """

    def __init__(self, blocks: BlockRunner, level: RunningLevel) -> None:
        self._blocks, self._level = blocks, level
        self.lookahead_samples = blocks.lookahead_samples
        self._factors = np.zeros((1, 0))

    def push(self, mixture: np.ndarray) -> np.ndarray:
        """Take the next samples (T,) float32; return the next final estimates (n, T'), float32."""
        standardized, factors = self._level.standardize(mixture[None])
        self._factors = np.concatenate([self._factors, factors], axis=-1)
        return self._back(self._blocks.push(standardized[0]))

    def finish(self) -> np.ndarray:
        """End the recording; return the estimates (n, T') of all samples that still have none."""
        return self._back(self._blocks.finish())

    def _back(self, estimates: np.ndarray) -> np.ndarray:
        count = estimates.shape[-1]
        factors, self._factors = self._factors[:, :count], self._factors[:, count:]
        return (factors * estimates).astype(np.float32)
