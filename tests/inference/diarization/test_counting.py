"""How many speakers speak: groups with known numbers, and what is told of the runner-up."""

import math

import numpy as np
import pytest

from sepkit.errors import UserError
from sepkit.inference.diarization import counting
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.encoders import load_encoder
from sepkit.inference.diarization.segments import SpeechSegment, neighbors_in_turns

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
    clusters, found = counting.group_speakers(points, turns(len(points)), np.full(len(points), 1.5), "auto")
    assert [len(set(own.tolist())) for own in clusters.labels.reshape(count, 20)] == [1] * count
    assert found is not None and found.speakers == count == len(set(clusters.labels.tolist()))
    assert found.runner_up != count and found.margin > 0
    first, second = points[::2], points[1::2]
    assert found.turn_distance == pytest.approx(np.median(1 - (first * second).sum(1)))


@pytest.mark.parametrize(("margin", "uncertain"), [(0.0999, True), (0.1, False), (math.inf, False)])
def test_a_count_is_uncertain_below_its_margin(margin, uncertain):
    assert counting.SpeakerCount(2, 3, margin, 0.5, 0.1).uncertain is uncertain
    assert counting.SpeakerCount(2, 3, margin, 0.5, None).uncertain


def test_stray_segments_do_not_count():
    points = groups(2, 20)
    stray = unit_rows(np.random.default_rng(9).standard_normal((1, 32)))
    seconds, everything = np.array([1.5] * 40 + [0.5]), np.concatenate([points, stray])
    clusters, found = counting.group_speakers(everything, turns(40), seconds, "auto")
    assert found is not None and found.speakers == 2 and len(clusters.labels) == 41
    _, alone = counting.group_speakers(stray, NOBODY, np.array([0.5]), "auto")
    assert (alone.speakers, alone.runner_up, alone.turn_distance, alone.uncertain) == (1, 2, None, True)


def test_the_number_is_found_by_clear_segments():
    """A third group, of two speakers at once, counts unless it is known to be unclear, or too few are clear."""
    points, seconds = groups(3, 20), np.full(60, 1.5)
    for clear, expected in ((None, 3), (np.arange(60) < 40, 2), (np.arange(60) < 8, 3)):
        clusters, found = counting.group_speakers(points, turns(60), seconds, "auto", clear=clear)
        assert found is not None and found.speakers == len(clusters.centers) == expected


def test_runner_up_is_what_the_told_change_gives():
    points = groups(4, 30, 0.3)
    seconds = np.full(len(points), 1.5)
    pairs = turns(len(points))
    _, found = counting.group_speakers(points, pairs, seconds, "auto")
    tree = counting.SpeakerTree(counting.blend_turns(points, pairs), seconds)

    def at(margin: float) -> set[int]:
        return {tree.speakers(found.threshold * (1 + sign * margin)) for sign in (-1, 1)}

    near, past = at(found.margin - 1e-6), at(found.margin + 1e-6)
    assert near == {found.speakers} and found.runner_up in past
    assert found.uncertain is (found.margin < 0.1)


def test_long_recordings_are_counted_from_an_even_part():
    clusters, found = counting.group_speakers(groups(3, 500), turns(1500), np.full(1500, 1.5), "auto")
    assert found is not None and found.speakers == 3
    np.testing.assert_array_equal(np.bincount(clusters.labels), [500] * 3)


def test_a_given_number_is_kept():
    """Below and above the number that is there, too; at it, clusters are the groups."""
    points, seconds = groups(3, 20), np.full(60, 1.5)
    for number in (1, 2, 3, 4, 20):
        clusters, counted = counting.group_speakers(points, turns(60), seconds, number)
        assert counted is None and len(clusters.centers) == number == len(set(clusters.labels.tolist()))
        np.testing.assert_allclose(clusters.posterior.sum(1), 1)
        if number == 3:
            assert [len(set(own.tolist())) for own in clusters.labels.reshape(3, 20)] == [1, 1, 1]
    with pytest.raises(UserError, match="found 60 segments of speech, expected at least 61"):
        counting.group_speakers(points, turns(60), seconds, 61)


def test_a_given_number_spends_no_group_on_an_outlier():
    """Two near speakers and three segments that sound like no one: the speakers are told apart."""
    first, second = np.eye(32)[0], unit_rows(np.array([0.85, 0.53, *np.zeros(30)]))
    generator = np.random.default_rng(0)
    points = unit_rows(np.repeat([first, second], 30, axis=0) + 0.05 * generator.standard_normal((60, 32)))
    points = np.concatenate([points, -np.eye(32)[5:8]])
    found, counted = counting.group_speakers(points, NOBODY, np.full(63, 1.5), 2)
    assert counted is None
    assert len({*found.labels[:30]}) == len({*found.labels[30:60]}) == 1 and found.labels[0] != found.labels[30]


def test_neighbors_are_of_one_turn_and_channel():
    segments = [SpeechSegment(0, 0.0, 1.0), SpeechSegment(1, 0.5, 1.0), SpeechSegment(0, 1.0, 1.0)]
    segments += [SpeechSegment(0, 2.5, 1.0), SpeechSegment(1, 1.5, 1.0)]
    found = neighbors_in_turns(segments)
    assert {tuple(pair) for pair in found.tolist()} == {(0, 2), (1, 4)}
    blended = counting.blend_turns(np.eye(5), found)
    assert np.allclose(blended[0], unit_rows(np.array([1, 0, 1, 0, 0]))) and np.allclose(blended[3], np.eye(5)[3])


@pytest.mark.parametrize("count", [1, 2, 3, 60])
def test_groups_are_those_of_scipys_average_linkage(count):
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    points, seconds = groups(count, 5, 0.6), np.random.default_rng(1).uniform(0.5, 2, 5 * count)
    distances = np.clip(1 - points @ points.T, 0, 2)
    np.fill_diagonal(distances, 0.0)
    tree = linkage(squareform(distances, checks=False), "average")
    np.testing.assert_allclose([height for _, _, height in counting.average_linkage(distances)], tree[:, 2], rtol=1e-12)
    speakers = counting.SpeakerTree(points, seconds)
    for threshold in np.linspace(0.01, 1.5, 40):
        expected = (np.bincount(fcluster(tree, threshold, "distance"), seconds) >= max(0.04 * seconds.sum(), 2)).sum()
        assert speakers.speakers(threshold) == max(1, expected)


def test_an_encoder_states_how_its_speakers_are_counted():
    assert counting.rule_of(load_encoder("meetings_8k").info) == counting.CountingRule(turn_distances=0.6, distance=0.2)
    assert counting.rule_of({}) == counting.CountingRule()
    assert counting.CountingRule(0.6, 0.2).threshold(0.5) == pytest.approx(0.5)
    for stated in (*({"distance": bad} for bad in ("0.2", math.nan, -1)), {"share": 1.0}, [0.6, 0.2], "0.6"):
        with pytest.raises(UserError, match=r"^info\.counting of the speaker encoder: found .*, expected turn_d"):
            counting.rule_of({"counting": stated})
