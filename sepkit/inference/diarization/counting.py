"""Count speakers: groups of segments that are further apart than the segments of one turn.

How far apart two segments of one speaker are depends on the encoder, the language, the noise and on separation. Turns
show it: nearly every turn has one speaker. Two groups are therefore one speaker if their mean cosine distance is
below a limit that grows with the median distance between neighboring segments of a turn. The limit is higher for a
short group, whose mean is uncertain, and lower for two groups that overlap in time, as two speakers do. The numbers in
it were fitted on development meetings (`egs/speaker_clustering/MEETINGS.md`).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from sepkit.inference.diarization.clustering import Clusters, spherical_k_means, unit_rows
from sepkit.inference.diarization.encoders import numbers_in
from sepkit.inference.diarization.segments import Overlaps

# Mean cosine distance where no turn has two segments.
_LIMIT_WITHOUT_TURNS = 0.6
# Groups with less of all speech or of clear speech, or fewer seconds, are no speakers: they are noise, or what is left
# of other speakers.
_LEAST_SHARE, _LEAST_SECONDS = 0.04, 2.0
# Counts that a smaller change of all limits alters (in median distances within turns), or that fewer starts find, were
# often wrong in dev meetings.
_CERTAIN_MARGIN, _CERTAIN_SHARE = 0.05, 0.8
# Of counts beyond two in less speech, four in ten were wrong, whatever their margin.
_CERTAIN_SECONDS = 100.0
# Fewer clear segments do not determine a number.
_LEAST_CLEAR = 10
# Weight of a segment that is not clear, in its group.
_UNCLEAR_WEIGHT = 0.05
# Means of longer groups are no better: what is left is how much one speaker varies. In short recordings all groups are
# short, so this share of all speech is long, too.
_LONG_SECONDS, _LONG_SHARE = 20.0, 0.15
# Overlap that is added to what is found and to what is expected, so that both are positive, seconds.
_SOME_OVERLAP = 0.5
# Groups of k-means that merging begins with, and how often it begins. Shares of 4 % allow hardly more speakers.
_FIRST_GROUPS, _STARTS = 24, 9
# Two segments of one cluster that overlap by this share of the shorter are split if one is nearly as similar to another
# cluster: cosine similarities differ by less than this multiple of the median distance within turns.
_OVERLAP_SHARE, _NEARLY_AS_NEAR = 0.3, 0.3
# Starts of the final k-means. The error rate on dev meetings is within 0.2 points of that of Ward linkage.
_RESTARTS = 20


@dataclass(frozen=True)
class SpeakerCount:
    """How many speakers speak.

    Args:
        speakers: the answer.
        runner_up: the next best one.
        margin: Change of all limits, in cosine distance, that gives another answer; small: nearly another one.
        share: Share of the starts that give this answer.
        turn_distance: median cosine distance between neighboring segments of a turn; None: no turn has two segments.
        speech_seconds: Length of all segments.
    """

    speakers: int
    runner_up: int
    margin: float
    share: float
    turn_distance: float | None
    speech_seconds: float

    @property
    def uncertain(self) -> bool:
        """Whether starts disagree, another answer is nearly as good, speech is short, or the limit is a guess."""
        distance, short = self.turn_distance, self.speakers > 2 and self.speech_seconds < _CERTAIN_SECONDS
        return short or distance is None or self.margin < _CERTAIN_MARGIN * distance or self.share < _CERTAIN_SHARE

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for a JSON file."""
        margin = self.margin if math.isfinite(self.margin) else None
        return asdict(self) | {"margin": margin, "uncertain": self.uncertain}


@dataclass(frozen=True)
class CountingRule:
    """The mean cosine distance below which two groups of segments are one speaker.

        a d + b - c log(s / l) - o log((u + 0.5 s) / (v + 0.5 s))

    d is the median distance between neighboring segments of a turn, s the length of the shorter group (at most l), and
    l is 20 s, or 15 % of all speech if that is less. u is the time in which the groups overlap, and v the time in which
    they would if overlaps were independent of groups, in each recording.

    Args:
        turn_distances: Factor a of the median distance within turns.
        distance: Distance b; its size is that of the embeddings of one encoder.
        length: Weight c, which raises the limit of short groups.
        overlap: Weight o, which lowers the limit of groups that often overlap.
    """

    turn_distances: float = 1.15
    distance: float = 0.0
    length: float = 0.0
    overlap: float = 0.0

    def limits(self, turn_distance: float | None, seconds: np.ndarray, together: np.ndarray) -> np.ndarray:
        """Return the limit for each pair of groups, (K, K).

        Args:
            turn_distance: d; None: a d + b is 0.6.
            seconds: Lengths of the groups, (K,).
            together: Times in which segments of two groups overlap in each recording, (R, K, K), symmetric; of one
                group, twice.
        """
        same = _LIMIT_WITHOUT_TURNS
        if turn_distance is not None:
            same = max(1e-6, self.turn_distances * turn_distance + self.distance)
        each = together.sum(1)
        expected = each.T @ (each / np.maximum(each.sum(1, keepdims=True), 1e-9))
        unusual = np.log((together.sum(0) + _SOME_OVERLAP) / (expected + _SOME_OVERLAP))
        long = min(_LONG_SECONDS, _LONG_SHARE * seconds.sum())
        shorter = np.minimum(np.minimum.outer(seconds, seconds) / long, 1.0)
        return same - self.length * np.log(shorter) - self.overlap * unusual


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
    rule: CountingRule,
    clear: np.ndarray,
    overlaps: Overlaps,
) -> tuple[Clusters, SpeakerCount | None]:
    """Return clusters of N >= 1 segments by spherical k-means, and the result of counting (None: the number is given).

    The number of speakers is that of merged groups with enough speech. Segments that overlap in time are in different
    clusters where that is nearly as likely.

    Args:
        embeddings: (N, D).
        neighbors: (P, 2) which segments follow each other in a turn, see `neighbors_in_turns`.
        seconds: (N,) their lengths.
        speakers: their number; auto: it is found.
        rule: Rule of the encoder, see `rule_of`.
        clear: (N,) bool, segments that matter most for the number if they are enough, see `clear_segments`.
        overlaps: Overlaps of the segments, see `overlaps_of`.

    Raises:
        UserError: fewer segments than speakers.

    Source: average linkage with a limit that depends on the recording, as in J. Han, K. J. Kim and S. S. Narayanan,
    "Strategies to improve the robustness of agglomerative hierarchical clustering under data source variation for
    speaker diarization", 2008.
    """
    points, seconds = unit_rows(np.asarray(embeddings, np.float64)), np.asarray(seconds, float)
    first, second = np.asarray(neighbors, int).reshape(-1, 2).T
    apart = 1 - (points[first] * points[second]).sum(-1)
    turn_distance = float(np.median(apart)) if len(apart) else None
    blended, counted = blend_turns(points, neighbors), None
    if speakers == "auto":
        weights = np.ones(len(points))
        if clear.sum() >= _LEAST_CLEAR:
            weights[~clear] = _UNCLEAR_WEIGHT
        answers = []
        for start in range(_STARTS):
            groups = spherical_k_means(blended, min(_FIRST_GROUPS, len(points)), start, restarts=1).labels
            answers.append(_answers(merge_groups(blended, groups, weights, seconds, overlaps, turn_distance, rule)))
        counted = _median_of(answers, turn_distance, float(seconds.sum()))
        speakers = counted.speakers
    clusters = spherical_k_means(blended, speakers, restarts=_RESTARTS)
    if speakers > 1 and turn_distance is not None:
        _tell_apart(clusters, points, seconds, overlaps, _NEARLY_AS_NEAR * turn_distance)
    return clusters, counted


def _tell_apart(clusters: Clusters, points: np.ndarray, seconds: np.ndarray, overlaps: Overlaps, nearly: float) -> None:
    """Split pairs of segments of one cluster that overlap, if one of them is nearly as similar to another cluster.

    Args:
        clusters: Clusters of the segments, which are changed.
        points: (N, D) unit vectors of the segments.
        seconds: (N,) their lengths.
        overlaps: Overlaps of the segments; the longest ones come first.
        nearly: Differences of cosine similarities below this are small.
    """
    near, labels, posterior = points @ clusters.centers.T, clusters.labels, clusters.posterior
    pairs, times, _ = overlaps
    for pair, time in sorted(zip(pairs.tolist(), times.tolist(), strict=True), key=lambda each: -each[1]):
        own = labels[pair[0]]
        if labels[pair[1]] != own or time < _OVERLAP_SHARE * seconds[pair].min():
            continue
        others = near[pair]
        others[:, own] = -np.inf
        loss = near[pair, own] - others.max(1)
        if loss.min() < nearly:
            moved = pair[loss.argmin()]
            labels[moved] = others[loss.argmin()].argmax()
            # Two overlapping segments have two speakers.
            rest = np.where(np.arange(len(clusters.centers)) == own, 0.0, np.maximum(posterior[moved], 1e-300))
            posterior[moved] = rest / rest.sum()


def blend_turns(values: np.ndarray, neighbors: np.ndarray) -> np.ndarray:
    """Return unit vectors of segments, each with those before and after it in the same turn added, (N, D).

    One segment is short. What is said before and after it without a pause is mostly said by the same speaker.

    Args:
        values: (N, D) embeddings.
        neighbors: (P, 2), of `neighbors_in_turns`.
    """
    points = unit_rows(np.asarray(values, np.float64))
    blended = points.copy()
    first, second = np.asarray(neighbors, int).reshape(-1, 2).T
    np.add.at(blended, first, points[second])
    np.add.at(blended, second, points[first])
    return unit_rows(blended)


def merge_groups(
    points: np.ndarray,
    groups: np.ndarray,
    weights: np.ndarray,
    seconds: np.ndarray,
    overlaps: Overlaps,
    turn_distance: float | None,
    rule: CountingRule,
) -> list[tuple[float, int]]:
    """Return, before each merge of two groups of segments: their distance minus its limit, and the number of speakers.

    The two groups whose distance is furthest below its limit are merged, until one is left; its distance is infinite.
    Groups with little speech are not counted: they resemble no speaker.

    Args:
        points: (N, D) unit vectors of N >= 1 segments.
        groups: (N,) int, the groups that it begins with.
        weights: (N,) of segments within their group.
        seconds: (N,) their lengths.
        overlaps: Overlaps of the segments.
        turn_distance: Median cosine distance within turns.
        rule: Rule of the encoder.
    """
    _, groups = np.unique(groups, return_inverse=True)
    member = np.eye(int(groups.max()) + 1)[groups].T
    sums, sizes = member @ (weights[:, None] * points), member @ weights
    lengths, clear = member @ seconds, member @ (weights * seconds)
    pairs, times, where = overlaps
    recordings, where = np.unique(where, return_inverse=True)
    together = np.zeros((len(recordings), len(member), len(member)))
    np.add.at(together, (where, *groups[pairs.T]), times)
    together += together.transpose(0, 2, 1)
    least, least_clear = max(_LEAST_SHARE * lengths.sum(), _LEAST_SECONDS), _LEAST_SHARE * clear.sum()
    steps = []
    while len(sums) > 1:
        distances = 1 - sums @ sums.T / np.outer(sizes, sizes)
        beyond = distances - rule.limits(turn_distance, lengths, together)
        np.fill_diagonal(beyond, np.inf)
        one, other = np.unravel_index(beyond.argmin(), beyond.shape)
        speakers = (lengths >= least) & (clear >= least_clear)
        steps.append((float(beyond[one, other]), max(1, int(speakers.sum()))))
        rest = np.arange(len(sums)) != other
        for values in (sums, sizes, lengths, clear, together.swapaxes(0, 1), together.swapaxes(0, 2)):
            values[one] += values[other]
        sums, sizes, lengths, clear = sums[rest], sizes[rest], lengths[rest], clear[rest]
        together = together[:, rest][:, :, rest]
    return [*steps, (math.inf, 1)]


def _answers(steps: list[tuple[float, int]]) -> tuple[int, int, float]:
    """Return the number of speakers, what the least change of all limits gives instead, and that change."""
    at = lambda change: next(count for beyond, count in steps if beyond > change)  # noqa: E731
    answer = at(0.0)
    for beyond in sorted((beyond for beyond, _ in steps[:-1]), key=abs):
        for change in (math.nextafter(beyond, -math.inf), beyond):
            if at(change) != answer:
                return answer, at(change), abs(beyond)
    return answer, answer + 1, math.inf


def _median_of(
    answers: list[tuple[int, int, float]], turn_distance: float | None, speech_seconds: float
) -> SpeakerCount:
    """Return the median answer of several starts; the runner-up is the most frequent other one, if there is one."""
    median = sorted(count for count, _, _ in answers)[len(answers) // 2]
    others = [count for count, _, _ in answers if count != median] or [second for _, second, _ in answers]
    runner_up = max(sorted(set(others)), key=others.count)
    margins = sorted(margin for count, _, margin in answers if count == median)
    margin, share = margins[len(margins) // 2], len(margins) / len(answers)
    return SpeakerCount(median, runner_up, margin, share, turn_distance, speech_seconds)
