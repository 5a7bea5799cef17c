"""Swaps of speakers between estimates, found by voices and undone.

A model may put a turn of a speaker into one estimate and the next turn into another, above all where speakers take
turns. An order of the estimates that changes over time keeps every voice in one place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import FRAME_SECONDS
from sepkit.inference.diarization.clustering import mean_directions, unit_rows
from sepkit.inference.diarization.encoders import Encoder

MOST_ESTIMATES = 4
"""With more, there are too many orders to try."""

Reader = Callable[[int, int], np.ndarray]
"""Returns estimates (n, stop - start) from sample `start` to sample `stop`."""

# An order is chosen for each hop of half a second, from the window of three hops around it. 60 hops are read at once.
_HOP_SECONDS, _AT_ONCE = 0.5, 60
# 12 hours; their embeddings take 350 MB.
_MOST_WINDOWS = 86_400
# Windows this far below the loud ones are pauses. Of the others, an estimate with less of the energy has no voice.
_PAUSE_DB, _LOUD_PERCENTILE, _LEAST_SHARE = 20.0, 95, 0.05
# Windows in which an estimate has this share of the energy contain one voice.
_OWN_SHARE = 0.7
# Another order costs this much cosine of a window, and all together have to gain this much a window. Two speakers more
# alike than this may be one, and a much weaker estimate may be without a speaker. Chosen on dev speakers.
_SWAP_COST, _LEAST_GAIN, _SAME_VOICE, _MOST_RANGE_DB = 1 / 16, 0.002, 0.37, 15.0
_MOST_ROUNDS = 10
# Starts of k-means. Values that differ only in later digits are equal, so that the page of `sepkit web` chooses alike.
_STARTS, _DIGITS = 10, 6
# Orders change at the quietest frame of 20 ms within 0.25 s, over that frame.
_REACH_SECONDS = 0.25


@dataclass(frozen=True)
class Orders:
    """Orders of n estimates over time.

    Args:
        edges: Samples at which the order changes, (E,).
        orders: Orders between them, (E + 1, n); [e, j] is the estimate that comes to place j.
        fade: Samples that a change takes.
    """

    edges: np.ndarray
    orders: np.ndarray
    fade: int

    def arrange(self, estimates: np.ndarray, start: int = 0) -> np.ndarray:
        """Return estimates (n, T), from sample `start` of the recording on, in the order of each time."""
        times, arranged = start + np.arange(estimates.shape[1]), np.zeros_like(estimates)
        first, last = np.searchsorted(self.edges, [start - self.fade, start + len(times) + self.fade])
        bounds = [-np.inf, *self.edges[first:last], np.inf]
        # The weight of an order falls where that of the next one rises, so that the sum of the estimates stays.
        for ends, order in zip(pairwise(bounds), self.orders[first : last + 1], strict=True):
            part = slice(*np.clip(np.add(ends, [-self.fade, self.fade]) - start, 0, len(times)).astype(int))
            rises = [np.clip((times[part] - end) / self.fade + 0.5, 0.0, 1.0).astype(np.float32) for end in ends]
            arranged[:, part] += (rises[0] - rises[1]) * estimates[order, part]
        return arranged


def find_orders(encoder: Encoder, read: Reader, num_samples: int, sample_rate: int) -> Orders | None:
    """Return the orders of n estimates that keep each voice in one place, or None if they are best as they are.

    With v_ik the unit embedding of window k of estimate i, w_ik its share of the energy of all estimates, c_j the
    voices of n speakers and p_k the order of window k, the orders maximize

        sum_k sum_j w_{p_k(j) k} <v_{p_k(j) k}, c_j> - 1/16 (number of k with p_k different from p_{k-1})

    alternately over p (Viterbi) and c (mean directions), from the estimates' own order and from centers of k-means of
    windows of one voice, which starts from ten of them, each with those most unlike it. None is returned if this gains
    less than 0.002 a window, if two speakers may be one (windows of theirs alone have a mean cosine above 0.37), if an
    estimate is more than 15 dB weaker than another, for one estimate or more than four, or for more than 12 hours.

    Args:
        encoder: Speaker encoder.
        read: Reads the estimates.
        num_samples: Number of their samples.
        sample_rate: Their sample rate, Hz.
    """
    hop, n = round(_HOP_SECONDS * sample_rate), len(read(0, 1))
    count = -(-num_samples // hop)
    if not 2 <= n <= MOST_ESTIMATES or count > _MOST_WINDOWS:
        return None
    energies = _energies(read, num_samples, hop)
    totals = energies.sum(1)
    if totals.min() <= 10 ** (-_MOST_RANGE_DB / 10) * totals.max():
        return None
    shares = _shares(energies)
    voices = _voices(encoder, read, num_samples, sample_rate, shares)
    is_alone = shares > _OWN_SHARE
    alone = voices[is_alone]
    if len(alone) < n:
        return None
    weighted = np.multiply(voices, shares[..., None], out=voices)
    orders = np.array(list(permutations(range(n))))
    starts = [unit_rows(weighted.sum(1)), _centers(alone, n)]
    ends = [_follow(weighted, orders, centers) for centers in starts]
    best, states = max(ends, key=lambda end: round(end[0], _DIGITS))
    speakers = np.argsort(orders)[states].T[is_alone]
    means = [alone[speakers == speaker].mean(0) for speaker in range(n) if (speakers == speaker).any()]
    alike = max((float(one @ other) for one, other in combinations(means, 2)), default=1.0)
    gain = best - float(np.linalg.norm(weighted.sum(1), axis=-1).sum())
    if gain < _LEAST_GAIN * count or alike > _SAME_VOICE:
        return None
    changes = np.flatnonzero(np.diff(states)) + 1
    # Most of the recording keeps its order.
    usual = orders[np.bincount(states).argmax()]
    frame = round(FRAME_SECONDS * sample_rate)
    edges = [_quietest(read, k * hop, num_samples, round(_REACH_SECONDS * sample_rate), frame) for k in changes]
    return Orders(np.array(edges), orders[states[[0, *changes]]][:, np.argsort(usual)], frame)


def _energies(read: Reader, num_samples: int, hop: int) -> np.ndarray:
    """Return energies (n, K) of hops."""
    found = []
    for start in range(0, num_samples, _AT_ONCE * hop):
        block = read(start, min(num_samples, start + _AT_ONCE * hop))
        padded = np.pad(block, ((0, 0), (0, -block.shape[1] % hop))).reshape(len(block), -1, hop)
        found.append(np.square(padded, dtype=np.float64).sum(-1))
    return np.concatenate(found, axis=1)


def _shares(energies: np.ndarray) -> np.ndarray:
    """Return the estimates' shares (n, K) in the energy of windows around hops, 0 in pauses and for little of it."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(energies, ((0, 0), (1, 1))), 3, axis=1).sum(-1)
    total = windows.sum(0)
    heard = total > 10 ** (-_PAUSE_DB / 10) * np.percentile(total, _LOUD_PERCENTILE)
    shares = np.where(heard, windows / np.maximum(total, np.finfo(np.float64).tiny), 0.0)
    return np.where(shares < _LEAST_SHARE, 0.0, shares)


def _voices(encoder: Encoder, read: Reader, num_samples: int, sample_rate: int, shares: np.ndarray) -> np.ndarray:
    """Return unit embeddings (n, K, D) of the windows with a share; zeros of the others."""
    hop = round(_HOP_SECONDS * sample_rate)
    voices = np.zeros((*shares.shape, encoder.embedding_size))
    for first in range(0, shares.shape[1], _AT_ONCE):
        chosen = shares[:, first : first + _AT_ONCE] > 0
        start, stop = (first - 1) * hop, (first + chosen.shape[1] + 1) * hop
        block = read(max(0, start), min(num_samples, stop))
        padded = np.pad(block, ((0, 0), (max(0, -start), max(0, stop - num_samples))))
        windows = np.lib.stride_tricks.sliding_window_view(padded, 3 * hop, axis=1)[:, ::hop][chosen]
        if len(windows):
            waveforms = audio.resample(windows.astype(np.float32), sample_rate, encoder.sample_rate)
            voices[:, first : first + _AT_ONCE][chosen] = unit_rows(encoder.embed(waveforms).astype(np.float64))
    return voices


def _centers(voices: np.ndarray, n: int) -> np.ndarray:
    """Return directions (n, D) of voices (N, D) by k-means: of ten starts, from a window and those most unlike it."""
    ends: list[np.ndarray] = []
    for start in range(_STARTS):
        centers = voices[[start * len(voices) // _STARTS]]
        while len(centers) < n:
            centers = np.concatenate([centers, voices[[(voices @ centers.T).max(1).argmin()]]])
        for _ in range(_MOST_ROUNDS):
            centers = mean_directions(voices, (voices @ centers.T).argmax(1), centers)
        ends.append(centers)
    return max(ends, key=lambda centers: round(float((voices @ centers.T).max(1).sum()), _DIGITS))


def _follow(weighted: np.ndarray, orders: np.ndarray, centers: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the largest value that alternating from some centers leads to, and its states (K,)."""
    ends: list[tuple[float, np.ndarray]] = []
    while len(ends) < _MOST_ROUNDS and (len(ends) < 2 or ends[-1][0] > ends[-2][0]):
        cosines = np.einsum("ikd,jd->kij", weighted, centers)
        value, states = _likeliest(cosines[:, orders, np.arange(len(centers))].sum(-1))
        centers = unit_rows(weighted[orders[states].T, np.arange(len(states))].sum(1))
        ends.append((value, states))
    return max(ends, key=lambda end: end[0])


def _likeliest(values: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the largest sum of values (K, S) over states, less the cost of changes, and the states (Viterbi)."""
    cost = _SWAP_COST * (1 - np.eye(values.shape[1]))
    total, came_from = values[0], []
    for value in values[1:]:
        ways = total[:, None] - cost
        came_from.append(ways.argmax(0))
        total = ways.max(0) + value
    states = [total.argmax()]
    for back in reversed(came_from):
        states.append(back[states[-1]])
    return float(total.max()), np.array(states[::-1])


def _quietest(read: Reader, sample: int, num_samples: int, reach: int, frame: int) -> int:
    """Return the sample near another at which a frame of the estimates has the least energy."""
    start, stop = max(0, sample - reach), min(num_samples, sample + reach)
    power = np.square(read(start, stop), dtype=np.float64).sum(0)
    return start + int(np.convolve(power, np.ones(frame), "same").argmin())
