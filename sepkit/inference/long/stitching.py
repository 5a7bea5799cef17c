"""Long recordings in chunks: their places, their joining, and which estimate of a chunk is which speaker.

Chunks overlap. There, estimates of one fade into those of the next with weights that sum to one: both are estimates of
the same signal, so no window is applied before. A model gives the speakers of every chunk in its own order. Orders are
chosen for all chunks at once, from evidence that adds up:

* overlaps: estimates of one speaker are alike there, while there is sound (`Overlap`);
* voices: an estimate sounds like its speaker in all other chunks, also across silence
  (`sepkit.inference.diarization.profiles`).

Either may be wrong: a model may swap speakers inside a chunk, and the rest of one speaker in the other's estimate
sounds like both. Neither is trusted fully: we assume that each gives a random answer 10 % of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from sepkit.inference.diarization.profiles import Profiles, RunningProfiles, measure_voices
from sepkit.matching import linear_sum_assignment

# Evidence of a second of overlap in which estimates agree, nats; and how often an overlap, or a voice, misleads. Tuned
# on conversations of speakers that are in neither training nor test; half or twice as much does nearly as well.
_NATS_PER_SECOND = 3.0
_OVERLAP_MISLEADS, _VOICE_MISLEADS = 0.1, 0.1
_FRAME_SECONDS = 0.032
# Frames far below the recording's mean power count less and less.
_QUIET_RATIO = 10**-2.5
# With more estimates there are too many orders (5! = 120) to try all.
_MOST_IN_ALL_ORDERS = 5
_MOST_ROUNDS = 20


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


@dataclass
class ChunkEvidence:
    """Evidence about the order of a chunk's estimates.

    Args:
        agreement: (n, n) seconds, [i, j] how long estimate i of the chunk before agrees with j of this one.
        correlation: (n, n) of the same, over all of the overlap at once.
        voices: result of `measure_voices`.
    """

    agreement: np.ndarray
    correlation: np.ndarray
    voices: dict


def compare_overlap(
    before: np.ndarray, after: np.ndarray, sample_rate: int, mean_power: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, n) seconds of agreement and (n, n) correlations, see `ChunkEvidence`.

    Agreement is the sum over frames of <a_i, b_j> / P, times a frame's length, with P the mean energy of both chunks'
    estimates in the frame. A loud frame counts as much as any with speech, silence nothing.

    Args:
        before: (n, L) estimates of a chunk in the overlap.
        after: (n, L) those of the next one.
        mean_power: Mean power of the sum of estimates over the recording so far.
    """
    n, length = before.shape
    frame = min(length, max(1, round(_FRAME_SECONDS * sample_rate)))
    inside = length // frame * frame
    a = before[:, :inside].reshape(n, -1, frame).transpose(1, 0, 2)
    b = after[:, :inside].reshape(n, -1, frame).transpose(1, 2, 0)
    products = (a @ b).astype(np.float64)
    energies = 0.5 * (np.square(a, dtype=np.float64).sum((1, 2)) + np.square(b, dtype=np.float64).sum((1, 2)))
    scale = energies + _QUIET_RATIO * mean_power * frame + np.finfo(np.float64).tiny
    agreement = (products / scale[:, None, None]).sum(0) * frame / sample_rate
    before, after = before.astype(np.float64), after.astype(np.float64)
    norms = np.linalg.norm(before, axis=1)[:, None] * np.linalg.norm(after, axis=1)
    return agreement, np.divide(before @ after.T, norms, out=np.zeros((n, n)), where=norms > 0)


class Stitcher:
    """Collects the evidence of chunks as they come, and orders their estimates at the end.

    Args:
        chunking: Chunks of the signal.
        sample_rate: Sampling rate of the estimates, Hz.
        by_voices: Whether the orders of all chunks are chosen together, from overlaps and traits of voices. Otherwise,
            for outputs that hold one speaker after another, they follow from chunk to chunk by the correlation of the
            overlap alone.
    """

    def __init__(self, chunking: Chunking, sample_rate: int, by_voices: bool = True) -> None:
        self.chunking, self.sample_rate, self.by_voices = chunking, sample_rate, by_voices
        self.evidence: list[ChunkEvidence] = []
        self._tail: np.ndarray | None = None
        self._energy, self._samples = 0.0, 0

    def add(self, estimates: np.ndarray) -> None:
        """Take the estimates (n, T) of the next chunk, which are not kept."""
        overlap = self.chunking.overlap
        self._energy += float(np.square(estimates, dtype=np.float64).sum())
        self._samples += estimates.shape[-1]
        power = self._energy / self._samples
        n = len(estimates)
        agreement, correlation = np.zeros((n, n)), np.zeros((n, n))
        if self._tail is not None:
            agreement, correlation = compare_overlap(self._tail, estimates[:, :overlap], self.sample_rate, power)
        voices = measure_voices(estimates, self.sample_rate, power) if self.by_voices else {}
        self.evidence.append(ChunkEvidence(agreement, correlation, voices))
        self._tail = estimates[:, -overlap:].copy()

    def orders(self) -> np.ndarray:
        """Return (K, n) int64, [k, j] which estimate of chunk k is speaker j; the first chunk keeps its order."""
        if self.by_voices:
            return best_orders(self.evidence, self.chunking.hop / self.sample_rate)
        return _chain([chunk.correlation for chunk in self.evidence])


def _chain(likeness: Sequence[np.ndarray]) -> np.ndarray:
    """Return orders from chunk to chunk, by the best matching of each with the one before."""
    orders = [np.arange(len(likeness[0]))]
    for matrix in likeness[1:]:
        orders.append(linear_sum_assignment(matrix[orders[-1]], maximize=True)[1])
    return np.stack(orders)


def best_orders(evidence: Sequence[ChunkEvidence], hop_seconds: float) -> np.ndarray:
    """Return the orders that overlaps and voices together make most likely, (K, n); the first chunk keeps its own.

    In turns, profiles are made of all other chunks, and the likeliest sequence of orders is found for them (Viterbi),
    until nothing changes. This may end where each half of a recording only agrees with itself. So it begins from
    several sequences, and takes the likeliest end. The sequences are: from chunk to chunk with profiles of the speakers
    so far; by overlaps alone; and the model's own, since many models keep speakers in their places.

    Args:
        hop_seconds: Time from one chunk's start to the next, seconds.
    """
    profiles = Profiles([chunk.voices for chunk in evidence], hop_seconds)
    overlaps = [_NATS_PER_SECOND * chunk.agreement for chunk in evidence]
    n = len(overlaps[0])
    if n > _MOST_IN_ALL_ORDERS:
        return _from_first(_go_through(overlaps, profiles.running(), None))
    table = _Orders(n)
    starts = [
        _go_through(overlaps, profiles.running(), table),
        _chain(overlaps),
        np.tile(np.arange(n), (len(overlaps), 1)),
    ]
    # The sequences that each start leads to, with their likelihoods, until one was seen before.
    ends: dict[bytes, tuple[float, np.ndarray]] = {}
    for start in starts:
        orders = _from_first(start)
        for _ in range(_MOST_ROUNDS):
            if orders.tobytes() in ends:
                break
            voices = profiles.log_likelihoods(orders)
            ends[orders.tobytes()] = _log_likelihood(orders, overlaps, voices, table), orders
            orders = _from_first(_likeliest(overlaps, voices, table))
    return max(ends.values(), key=lambda end: end[0])[1]


def _from_first(orders: np.ndarray) -> np.ndarray:
    """Return the same assignment, with speakers named after the first chunk's estimates."""
    return orders[:, np.argsort(orders[0])]


class _Orders:
    """All orders of n things: (n!, n), and [s, t] the order that leads from order s to order t."""

    def __init__(self, n: int) -> None:
        self.all = np.array(list(permutations(range(n))))
        self._numbers = {tuple(order): index for index, order in enumerate(self.all.tolist())}
        self.between = np.array([self.numbers(self.all[:, back]) for back in np.argsort(self.all, axis=1)])
        self._columns = np.arange(n)

    def numbers(self, orders: np.ndarray) -> np.ndarray:
        """Return (K,) the numbers of orders (K, n) among all."""
        return np.array([self._numbers[tuple(order)] for order in orders.tolist()])

    def of_pairs(self, nats: np.ndarray, misleads: float) -> np.ndarray:
        """Return (..., n!) logarithms of orders' probabilities, from nats [..., i, j] for i belonging to j.

        `misleads` is the probability that the order has nothing to do with them.
        """
        sums = nats[..., self._columns, self.all].sum(-1)
        likely = np.exp(sums - sums.max(-1, keepdims=True))
        likely /= likely.sum(-1, keepdims=True)
        return np.log((1 - misleads) * likely + misleads / len(self.all))

    def of_voices(self, nats: np.ndarray) -> np.ndarray:
        """Return (..., n!) for nats [..., i, j] of estimate i being speaker j."""
        return self.of_pairs(np.swapaxes(nats, -1, -2), _VOICE_MISLEADS)

    def of_overlap(self, nats: np.ndarray) -> np.ndarray:
        """Return (n!, n!) for nats [i, j] of estimate i being followed by j, [s, t] from order s to order t."""
        return self.of_pairs(nats, _OVERLAP_MISLEADS)[self.between]


def _go_through(overlaps: Sequence[np.ndarray], running: RunningProfiles, table: _Orders | None) -> np.ndarray:
    """Return orders from chunk to chunk, by the overlap with the one before and profiles of all before."""
    orders: list[np.ndarray] = []
    for k, overlap in enumerate(overlaps):
        voices = running.log_likelihood(k)
        before = orders[-1] if orders else np.arange(len(overlap))
        if table is None:
            order = linear_sum_assignment(voices.T + overlap[before], maximize=True)[1]
        else:
            chances = table.of_voices(voices) + table.of_pairs(overlap[before], _OVERLAP_MISLEADS)
            order = table.all[chances.argmax()]
        orders.append(order)
        running.add(k, order)
    return np.stack(orders)


def _log_likelihood(orders: np.ndarray, overlaps: Sequence[np.ndarray], voices: np.ndarray, table: _Orders) -> float:
    """Return the log likelihood of a sequence of orders, nats, with profiles of all other chunks in these orders."""
    states = table.numbers(orders)
    total = float(table.of_voices(voices)[np.arange(len(states)), states].sum())
    return total + sum(
        float(table.of_overlap(overlap)[before, after])
        for overlap, before, after in zip(overlaps[1:], states[:-1], states[1:], strict=True)
    )


def _likeliest(overlaps: Sequence[np.ndarray], voices: np.ndarray, table: _Orders) -> np.ndarray:
    """Return the likeliest sequence of orders (Viterbi)."""
    alone = table.of_voices(voices)
    total, came_from = alone[0], []
    for k in range(1, len(overlaps)):
        ways = total[:, None] + table.of_overlap(overlaps[k])
        came_from.append(ways.argmax(0))
        total = ways.max(0) + alone[k]
    states = [total.argmax()]
    for back in reversed(came_from):
        states.append(back[states[-1]])
    return table.all[states[::-1]]
