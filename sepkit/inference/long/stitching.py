"""Long recordings in chunks: their places, their joining, and the order of each chunk's estimates.

Chunks overlap. There, estimates of one fade into those of the next with weights that sum to one: both are estimates of
the same signal, so no window is applied before. A model gives the speakers of every chunk in its own order. From chunk
to chunk, estimates are matched by their correlation in the overlap. This fails if a model swaps speakers inside a
chunk, or if no one is speaking in an overlap; `sepkit.inference.diarization.swaps` corrects such swaps later.
"""

from dataclasses import dataclass

import numpy as np

from sepkit.matching import linear_sum_assignment


@dataclass(frozen=True)
class Chunking:
    """How a signal is cut.

    Args:
        chunk: samples of a chunk; the last one has what is left, always more than `overlap`.
        overlap: samples that neighbors share, at most half a chunk.
    """

    chunk: int
    overlap: int

    @property
    def hop(self) -> int:
        """Samples from one beginning to the next."""
        return self.chunk - self.overlap

    def rising(self) -> np.ndarray:
        """(overlap,) float32 weights of the later chunk where two overlap; the earlier one has 1 minus that."""
        return (np.sin(0.5 * np.pi * (np.arange(self.overlap) + 0.5) / max(1, self.overlap)) ** 2).astype(np.float32)

    def weights(self, length: int, first: bool, last: bool) -> np.ndarray:
        """Return the weights of a chunk, (length,) float32; those of all chunks sum to 1 at every sample.

        Args:
            length: Length of the chunk, samples; the last one may be shorter.
        """
        weights = np.ones(length, np.float32)
        if not first:
            weights[: self.overlap] = self.rising()
        if not last:
            weights[length - self.overlap :] = 1 - self.rising()
        return weights


def chunking_of(sample_rate: int, chunk_seconds: float, overlap_seconds: float) -> Chunking:
    """Return the chunking in samples; the overlap is at most half a chunk."""
    chunk = round(chunk_seconds * sample_rate)
    return Chunking(chunk, min(max(1, round(overlap_seconds * sample_rate)), chunk // 2))


def match_overlap(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the order p (n,) in which estimates of a chunk correlate best with those of the chunk before.

    It maximizes the sum over j of <a_j, b_p(j)> / (|a_j| |b_p(j)|), 0 for silence, of estimates a before and b after.

    Args:
        before: Estimates of the chunk before in the overlap, (n, L).
        after: Estimates of the chunk, (n, L).
    """
    before, after = before.astype(np.float64), after.astype(np.float64)
    norms = np.linalg.norm(before, axis=1)[:, None] * np.linalg.norm(after, axis=1)
    correlations = np.divide(before @ after.T, norms, out=np.zeros_like(norms), where=norms > 0)
    return linear_sum_assignment(correlations, maximize=True)[1]
