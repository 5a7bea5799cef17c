"""How many speakers speak: groups with known numbers, and what is told of the runner-up."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.counting import SpeakerTree, average_linkage, count_speakers
from sepkit.inference.diarization.segments import SpeechSegment, blend_turns, neighbors_in_turns

NOBODY = np.zeros((0, 2), int)


def groups(count: int, each: int, spread: float = 0.15, seed: int = 0) -> np.ndarray:
    """Points about `count` random directions."""
    generator = np.random.default_rng(seed)
    centers = unit_rows(generator.standard_normal((count, 32)))
    return unit_rows(np.repeat(centers, each, axis=0) + spread * generator.standard_normal((count * each, 32)))


def turns(count: int) -> np.ndarray:
    """Two segments a turn."""
    return np.arange(count).reshape(-1, 2)


@pytest.mark.parametrize("spread", [0.02, 0.06, 0.15])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_count_at_any_distance_within_turns(count, spread):
    """No threshold fits all: within speakers, distances differ by a factor of 30."""
    points = groups(count, 20, spread)
    pairs = turns(len(points))
    found = count_speakers(points, blend_turns(points, pairs), pairs, np.full(len(points), 1.5))
    assert found.speakers == count and found.runner_up != count and found.margin > 0
    first, second = points[::2], points[1::2]
    assert found.turn_distance == pytest.approx(np.median(1 - (first * second).sum(1)))


def test_stray_segments_do_not_count():
    points = groups(2, 20)
    stray = unit_rows(np.random.default_rng(9).standard_normal((1, 32)))
    seconds, everything = np.array([1.5] * 40 + [0.5]), np.concatenate([points, stray])
    assert count_speakers(everything, everything, turns(40), seconds).speakers == 2
    alone = count_speakers(stray, stray, NOBODY, np.array([0.5]))
    assert (alone.speakers, alone.runner_up, alone.turn_distance, alone.uncertain) == (1, 2, None, True)


def test_runner_up_is_what_the_told_change_gives():
    points = groups(4, 30, 0.3)
    seconds = np.full(len(points), 1.5)
    found = count_speakers(points, points, turns(len(points)), seconds)
    tree = SpeakerTree(points, seconds)
    near, past = (
        {tree.speakers(found.threshold * (1 + sign * change)) for sign in (-1, 1)}
        for change in (found.margin - 1e-6, found.margin + 1e-6)
    )
    assert near == {found.speakers} and found.runner_up in past
    assert found.uncertain is (found.margin < 0.1)


def test_long_recordings_are_counted_from_an_even_part():
    points = groups(3, 500)
    assert count_speakers(points, points, turns(1500), np.full(1500, 1.5)).speakers == 3


def test_neighbors_are_of_one_turn_and_channel():
    segments = [SpeechSegment(0, 0.0, 1.0), SpeechSegment(1, 0.5, 1.0), SpeechSegment(0, 1.0, 1.0)]
    segments += [SpeechSegment(0, 2.5, 1.0), SpeechSegment(1, 1.5, 1.0)]
    found = neighbors_in_turns(segments)
    assert {tuple(pair) for pair in found.tolist()} == {(0, 2), (1, 4)}
    blended = blend_turns(np.eye(5), found)
    assert np.allclose(blended[0], unit_rows(np.array([1, 0, 0.5, 0, 0]))) and np.allclose(blended[3], np.eye(5)[3])


@pytest.mark.parametrize("count", [1, 2, 3, 60])
def test_groups_are_those_of_scipys_average_linkage(count):
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    points, seconds = groups(count, 5, 0.6), np.random.default_rng(1).uniform(0.5, 2, 5 * count)
    distances = np.clip(1 - points @ points.T, 0, 2)
    np.fill_diagonal(distances, 0.0)
    tree = linkage(squareform(distances, checks=False), "average")
    merges = average_linkage(distances)
    np.testing.assert_allclose([height for _, _, height in merges], tree[:, 2], rtol=1e-12)
    speakers = SpeakerTree(points, seconds)
    for threshold in np.linspace(0.01, 1.5, 40):
        expected = (np.bincount(fcluster(tree, threshold, "distance"), seconds) >= max(0.04 * seconds.sum(), 2)).sum()
        assert speakers.speakers(threshold) == max(1, expected)
