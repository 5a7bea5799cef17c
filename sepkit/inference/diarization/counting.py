"""How many speakers speak: from distances between voices, or from what each further speaker explains of them.

Recordings of one speaker each differ clearly, and average linkage counts them. Of the estimates of a separated
recording, each holds what is left of the other voice. Such segments lie between all speakers, and average linkage joins
speakers through them. There, speakers are counted by what they explain: k-means may form one group more, and that is a
speaker if the segments become enough more alike to the mean direction of their group. Segments between speakers gain
little by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sepkit.inference.diarization.clustering import spherical_k_means, unit_rows

DEFAULT_THRESHOLD = 0.6
"""Mean cosine distance above which two groups of segments are different speakers, for encoders without their own."""

DEFAULT_GAINS = 0.05, 0.021
"""Mean cosine likeness that a second speaker adds, and a further one, for encoders without their own."""

MOST_SPEAKERS = 12
"""As many speakers are looked for in estimates; more have to be given."""

# Groups with less of all speech are no speakers.
_LEAST_SHARE = 0.02
# Distances between all pairs take memory with the square of their number.
_MOST_COUNTED = 1200
_RESTARTS = 4
# k-means gains the more in N segments of one voice the fewer they are. Seen on dev: about this, over N. A second group
# is half of one voice alone, a further one is a part of one among several voices and gains less.
_CHANCE_OF_SECOND, _CHANCE_OF_FURTHER = 2.0, 0.5


@dataclass(frozen=True)
class SpeakerCount:
    """How many speakers speak.

    Args:
        speakers: the answer.
        runner_up: the next best one.
        margin: how far what decides is from its threshold; small: nearly the runner-up.
        threshold: that decides between the answer and the runner-up.
        rule: distance: of mean cosine distances between groups; gain: of the mean cosine likeness that a speaker adds.
    """

    speakers: int
    runner_up: int
    margin: float
    threshold: float
    rule: Literal["distance", "gain"]


def count_speakers(
    embeddings: np.ndarray, seconds: np.ndarray, counting: Mapping[str, Any] | None = None, separated: bool = False
) -> SpeakerCount:
    """Return how many speakers the segments are of.

    Args:
        embeddings: (N, D) of N >= 1 segments.
        seconds: (N,) their lengths.
        counting: what an encoder's `info` says of it: `threshold` (mean cosine distance) and `least_share`, what a
            speaker speaks at least of all; `second_gain` and `further_gain` (mean cosine likeness); None: defaults.
        separated: whether they are of several estimates of one recording.
    """
    counting = counting or {}
    if separated:
        second = float(counting.get("second_gain", DEFAULT_GAINS[0]))
        further = float(counting.get("further_gain", DEFAULT_GAINS[1]))
        gains = SpeakerGains(embeddings)
        return _counted(gains.speakers(second, further), gains.others(second, further), second, "gain")
    threshold = float(counting.get("threshold", DEFAULT_THRESHOLD))
    tree = SpeakerTree(embeddings, seconds, counting)
    return _counted(tree.speakers(threshold), tree.others(threshold), threshold, "distance")


def _counted(
    answer: int, others: Iterator[tuple[float, float, int]], threshold: float, rule: Literal["distance", "gain"]
) -> SpeakerCount:
    """Return the count with the answer that the least change of a threshold would give instead.

    Args:
        answer: the count.
        others: (change, threshold, answer after it).
        threshold: to tell if no change gives another answer.
    """
    changes = sorted(other for other in others if other[2] != answer)
    if not changes:
        return SpeakerCount(answer, answer + 1, math.inf, threshold, rule)
    margin, decided, runner_up = changes[0]
    return SpeakerCount(answer, runner_up, margin, decided, rule)


def _chosen(count: int) -> np.ndarray:
    """Return numbers of the segments that are looked at: all, or 1200 evenly from all."""
    return np.linspace(0, count - 1, min(count, _MOST_COUNTED)).astype(int)


class SpeakerTree:
    """Groups of segments at any threshold, by average linkage of cosine distances.

    Groups with little speech are not counted: they are segments that sound like nobody in particular.

    Args:
        embeddings: (N, D) of N >= 1 segments; of more than 1200, as many evenly from all.
        seconds: (N,) their lengths.
    """

    def __init__(self, embeddings: np.ndarray, seconds: np.ndarray, counting: Mapping[str, Any] | None = None) -> None:
        chosen = _chosen(len(embeddings))
        points, seconds = unit_rows(np.asarray(embeddings, np.float64)[chosen]), np.asarray(seconds, float)[chosen]
        share = float((counting or {}).get("least_share", _LEAST_SHARE))
        least = float(max(share * seconds.sum(), seconds.min()))
        distances = np.clip(1 - points @ points.T, 0, 2)
        merges = average_linkage(0.5 * (distances + distances.T))
        self._heights = np.array([height for _, _, height in merges])
        # After k merges, the number of groups with enough speech.
        self._counts = [int((seconds >= least).sum())]
        group, speech = list(range(len(points))), seconds.tolist()
        for one, other, _ in merges:
            left, right = _found(group, one), _found(group, other)
            both = speech[left] + speech[right]
            gone = (speech[left] >= least) + (speech[right] >= least)
            self._counts.append(self._counts[-1] - gone + (both >= least))
            group[left], speech[right] = right, both

    def speakers(self, threshold: float) -> int:
        """Return the number of groups that have enough speech, at least 1; nearer ones than the threshold are one."""
        return max(1, self._counts[np.searchsorted(self._heights, threshold, side="right")])

    def others(self, threshold: float) -> Iterator[tuple[float, float, int]]:
        """Yield changes of the threshold, the threshold, and the answers after them; the least first."""
        answer = self.speakers(threshold)
        for height in sorted(np.unique(self._heights).tolist(), key=lambda height: abs(height - threshold)):
            for limit in (math.nextafter(height, 0), math.nextafter(height, 3)):
                if (other := self.speakers(limit)) != answer:
                    yield abs(height - threshold), threshold, other
                    return


def average_linkage(distances: np.ndarray) -> list[tuple[int, int, float]]:
    """Return the merges of average linkage by height: a point of each of the two groups, and their mean distance.

    Args:
        distances: (N, N) symmetric, N >= 1.

    Source: the nearest-neighbor chain, D. Muellner, "Modern hierarchical, agglomerative clustering algorithms", 2011.
    """
    distances = distances.copy()
    np.fill_diagonal(distances, np.inf)
    sizes, chain, merges = np.ones(len(distances)), [], []
    while len(merges) < len(distances) - 1:
        if not chain:
            chain = [int(np.flatnonzero(sizes)[0])]
        nearest = int(distances[chain[-1]].argmin())
        if len(chain) < 2 or distances[chain[-1], nearest] < distances[chain[-1], chain[-2]]:
            chain.append(nearest)
            continue
        # Two groups that are each other's nearest: the second takes the place of both.
        one, other = chain.pop(), chain.pop()
        merges.append((one, other, float(distances[one, other])))
        mean = (sizes[one] * distances[one] + sizes[other] * distances[other]) / (sizes[one] + sizes[other])
        distances[other] = distances[:, other] = mean
        distances[one] = distances[:, one] = np.inf
        distances[other, other] = np.inf
        sizes[other], sizes[one] = sizes[one] + sizes[other], 0
    return sorted(merges, key=lambda merge: merge[2])


def _found(group: list[int], point: int) -> int:
    """Return the number of a point's group, and shorten the way to it."""
    while group[point] != point:
        group[point] = point = group[group[point]]
    return point


class SpeakerGains:
    """How much more alike segments are to the mean direction of their group with each further group.

    Args:
        embeddings: (N, D) of N >= 1 segments; of more than 1200, as many evenly from all.

    Attributes:
        gains: (K,) mean cosine likeness that the second, third ... speaker adds, less what segments of one voice gain.
    """

    def __init__(self, embeddings: np.ndarray) -> None:
        points = unit_rows(np.asarray(embeddings, np.float64)[_chosen(len(embeddings))])
        likeness, centers = [], None
        for speakers in range(1, max(1, min(MOST_SPEAKERS, len(points) - 1)) + 1):
            found = spherical_k_means(points, speakers, restarts=_RESTARTS, begin=centers)
            centers = found.centers
            likeness.append(float((points * found.centers[found.labels]).sum(-1).mean()))
        chance = np.full(len(likeness) - 1, _CHANCE_OF_FURTHER)
        chance[:1] = _CHANCE_OF_SECOND
        self.gains = np.diff(likeness) - chance / len(points)

    def speakers(self, second: float, further: float) -> int:
        """Return the largest number of speakers of whom the last one adds enough, at least 1.

        Args:
            second: what the second speaker adds at least, mean cosine likeness.
            further: what each other speaker adds at least.
        """
        if not len(self.gains) or self.gains[0] <= second:
            return 1
        return 2 + int(np.flatnonzero(np.append(True, self.gains[1:] > further))[-1])

    def others(self, second: float, further: float) -> Iterator[tuple[float, float, int]]:
        """Yield changes of a threshold, that threshold, and the answers after them."""
        for place, gain in enumerate(self.gains.tolist()):
            for limit in (math.nextafter(gain, -1), gain):
                if place == 0:
                    yield abs(gain - second), second, self.speakers(limit, further)
                else:
                    yield abs(gain - further), further, self.speakers(second, limit)
