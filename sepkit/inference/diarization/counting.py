"""Count speakers: groups of segments that are further apart than the segments of one turn.

How far apart two segments of one speaker are depends on the encoder, the language, the noise and on separation. Turns
show it: nearly every turn has one speaker. Two groups are therefore one speaker if their mean cosine distance is
below a multiple of the median distance between neighboring segments of a turn. The multiple is the only number that was
chosen, on development meetings (`egs/speaker_clustering/MEETINGS.md`).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from sepkit.inference.diarization.clustering import Clusters, spherical_k_means, unit_rows
from sepkit.inference.diarization.encoders import numbers_in

# Mean cosine distance where no turn has two segments.
_THRESHOLD_WITHOUT_TURNS = 0.6
# Groups with less of all speech, or fewer seconds, are no speakers: they are noise, or what is left of other voices.
_LEAST_SHARE, _LEAST_SECONDS = 0.04, 2.0
# Counts whose threshold is nearer than this to that of another count were wrong in most development meetings.
_CERTAIN_MARGIN = 0.1
# Weight of a segment's neighbors in a turn, which are added to it.
_NEIGHBOR_WEIGHT = 1.0
# Fewer clear segments do not determine a number.
_LEAST_CLEAR = 10
# Starts of k-means. With them its error rate on development meetings is within 0.2 points of that of Ward linkage.
_RESTARTS = 20
# Distances between all pairs take memory with the square of their number.
_MOST_COUNTED = 1200


@dataclass(frozen=True)
class SpeakerCount:
    """How many speakers speak.

    Args:
        speakers: the answer.
        runner_up: the next best one.
        margin: relative change of the threshold that gives the runner-up; small: nearly the runner-up.
        threshold: mean cosine distance above which groups are different speakers.
        turn_distance: median cosine distance between neighboring segments of a turn; None: no turn has two segments.
    """

    speakers: int
    runner_up: int
    margin: float
    threshold: float
    turn_distance: float | None

    @property
    def uncertain(self) -> bool:
        """Whether the runner-up is nearly as good, or the threshold is a guess."""
        return self.turn_distance is None or self.margin < _CERTAIN_MARGIN

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for a JSON file."""
        margin = self.margin if math.isfinite(self.margin) else None
        return asdict(self) | {"margin": margin, "uncertain": self.uncertain}


@dataclass(frozen=True)
class CountingRule:
    """The mean cosine distance above which two groups are two speakers: a multiple of that within turns, and more.

    Args:
        turn_distances: the multiple.
        distance: what is added; its size is that of the embeddings of one encoder.
    """

    turn_distances: float = 1.15
    distance: float = 0.0

    def threshold(self, turn_distance: float) -> float:
        """Return the distance, given the median one within turns."""
        return max(1e-6, self.turn_distances * turn_distance + self.distance)


def rule_of(info: Mapping[str, Any]) -> CountingRule:
    """Return the rule that was saved beside an encoder's weights, or one that suits any encoder.

    Raises:
        UserError: it is no rule, see `numbers_in`.
    """
    return CountingRule(**numbers_in(info, "counting"))


def group_speakers(
    embeddings: np.ndarray,
    neighbors: np.ndarray,
    seconds: np.ndarray,
    speakers: int | Literal["auto"],
    rule: CountingRule = CountingRule(),
    clear: np.ndarray | None = None,
) -> tuple[Clusters, SpeakerCount | None]:
    """Return clusters of the segments of N >= 1, those of spherical k-means, and how their number was found.

    It is None if the number is given. Otherwise it is that of the groups of average linkage that have enough speech.

    Args:
        embeddings: (N, D).
        neighbors: (P, 2) which segments follow each other in a turn, see `neighbors_in_turns`.
        seconds: (N,) their lengths.
        speakers: their number; auto: it is found.
        rule: Rule of the encoder, see `rule_of`.
        clear: (N,) bool, segments that the number is found by if they are enough, see `clear_segments`; None: all.

    Raises:
        UserError: fewer segments than speakers.

    Source: average linkage with a threshold, as in J. Han, K. J. Kim and S. S. Narayanan, "Strategies to improve the
    robustness of agglomerative hierarchical clustering under data source variation for speaker diarization", 2008.
    """
    blended, counted = blend_turns(embeddings, neighbors), None
    if speakers == "auto":
        points = unit_rows(np.asarray(embeddings, np.float64))
        chosen = np.ones(len(seconds), bool) if clear is None or clear.sum() < _LEAST_CLEAR else clear
        tree = SpeakerTree(blended[chosen], seconds[chosen])
        first, second = np.asarray(neighbors, int).reshape(-1, 2).T
        apart = 1 - (points[first] * points[second]).sum(-1)
        turn_distance = float(np.median(apart)) if len(apart) else None
        threshold = _THRESHOLD_WITHOUT_TURNS if turn_distance is None else rule.threshold(turn_distance)
        counted = SpeakerCount(tree.speakers(threshold), *tree.runner_up(threshold), threshold, turn_distance)
        speakers = counted.speakers
    return spherical_k_means(blended, speakers, restarts=_RESTARTS), counted


def blend_turns(values: np.ndarray, neighbors: np.ndarray) -> np.ndarray:
    """Return unit vectors of segments, each with those before and after it in the same turn added, (N, D).

    A segment is short for a voice. What is said before and after it without a pause is mostly said by the same speaker.

    Args:
        values: (N, D) embeddings.
        neighbors: (P, 2), of `neighbors_in_turns`.
    """
    points = unit_rows(np.asarray(values, np.float64))
    blended = points.copy()
    first, second = np.asarray(neighbors, int).reshape(-1, 2).T
    np.add.at(blended, first, _NEIGHBOR_WEIGHT * points[second])
    np.add.at(blended, second, _NEIGHBOR_WEIGHT * points[first])
    return unit_rows(blended)


class SpeakerTree:
    """Groups of segments at any threshold, by average linkage of cosine distances.

    Groups with little speech are not counted: they resemble no speaker.

    Args:
        embeddings: (N, D) of N >= 1 segments; of more than 1200, as many evenly from all.
        seconds: (N,) their lengths.
    """

    def __init__(self, embeddings: np.ndarray, seconds: np.ndarray) -> None:
        chosen = np.linspace(0, len(embeddings) - 1, min(len(embeddings), _MOST_COUNTED)).astype(int)
        self._points = unit_rows(np.asarray(embeddings, np.float64)[chosen])
        self._seconds = np.asarray(seconds, float)[chosen]
        self._least = float(max(_LEAST_SHARE * self._seconds.sum(), _LEAST_SECONDS))
        distances = np.clip(1 - self._points @ self._points.T, 0, 2)
        merges = average_linkage(0.5 * (distances + distances.T))
        self._heights = np.array([height for _, _, height in merges])
        # After k merges, the group of each segment, and the number of groups with enough speech.
        self._groups = [np.arange(len(chosen))]
        for one, other, _ in merges:
            groups = self._groups[-1]
            self._groups.append(np.where(groups == groups[one], groups[other], groups))
        self._counts = [int((np.bincount(own, self._seconds) >= self._least).sum()) for own in self._groups]

    def speakers(self, threshold: float) -> int:
        """Return the number of groups that have enough speech, at least 1; nearer ones than the threshold are one."""
        return max(1, self._counts[np.searchsorted(self._heights, threshold, side="right")])

    def runner_up(self, threshold: float) -> tuple[int, float]:
        """Return the answer that the least change of a threshold gives instead, and that change over the threshold."""
        answer = self.speakers(threshold)
        for height in sorted(np.unique(self._heights).tolist(), key=lambda height: abs(height - threshold)):
            for limit in (math.nextafter(height, 0), math.nextafter(height, 3)):
                if (other := self.speakers(limit)) != answer:
                    return other, abs(height - threshold) / threshold
        return answer + 1, math.inf


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
