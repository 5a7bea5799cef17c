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


@pytest.mark.parametrize(("margin", "uncertain"), [(0.0199, True), (0.02, False), (math.inf, False)])
def test_a_count_is_uncertain_below_its_margin(margin, uncertain):
    assert counting.SpeakerCount(2, 3, margin, 1.0, 0.1).uncertain is uncertain
    assert counting.SpeakerCount(2, 3, margin, 0.7, 0.1).uncertain
    assert counting.SpeakerCount(2, 3, margin, 1.0, None).uncertain


def test_stray_segments_do_not_count():
    points = groups(2, 20)
    stray = unit_rows(np.random.default_rng(9).standard_normal((1, 32)))
    seconds, everything = np.array([1.5] * 40 + [0.5]), np.concatenate([points, stray])
    clusters, found = counting.group_speakers(everything, turns(40), seconds, "auto")
    assert found is not None and found.speakers == 2 and len(clusters.labels) == 41
    _, alone = counting.group_speakers(stray, NOBODY, np.array([0.5]), "auto")
    assert (alone.speakers, alone.runner_up, alone.turn_distance, alone.uncertain) == (1, 2, None, True)


def test_groups_without_clear_speech_do_not_count():
    """A third group, of two speakers at once, counts unless it is known to be unclear, or too few are clear."""
    points, seconds = groups(3, 20), np.full(60, 1.5)
    for clear, expected in ((None, 3), (np.arange(60) < 40, 2), (np.arange(60) < 8, 3)):
        clusters, found = counting.group_speakers(points, turns(60), seconds, "auto", clear=clear)
        assert found is not None and found.speakers == len(clusters.centers) == expected


def test_the_answer_is_the_median_of_the_starts():
    """Nine starts: five say 4, three 5 and one 2."""
    answers = [
        (4, 5, 0.01),
        (4, 3, 0.05),
        (5, 4, 0.2),
        (4, 5, 0.03),
        (2, 3, 0.1),
        (5, 6, 0.1),
        (4, 5, 0.04),
        (5, 4, 0.3),
    ]
    found = counting._median_of([*answers, (4, 5, 0.02)], 0.4)
    assert found == counting.SpeakerCount(4, 5, 0.03, 5 / 9, 0.4) and found.uncertain
    assert counting._median_of([(3, 4, 0.1), (3, 2, 0.2), (3, 2, 0.3)], 0.4) == counting.SpeakerCount(
        3, 2, 0.2, 1.0, 0.4
    )


def test_runner_up_is_what_the_least_change_gives():
    steps = [(-0.3, 3), (-0.05, 3), (0.04, 2), (0.5, 1), (math.inf, 1)]
    assert counting._answers(steps) == (2, 1, 0.04)
    assert counting._answers([(-0.03, 3), *steps[2:]]) == (2, 3, 0.03)
    assert counting._answers([(0.1, 4), *steps]) == (4, 1, 0.1)
    assert counting._answers([(math.inf, 1)]) == (1, 2, math.inf)


def test_limits_by_hand():
    """Groups of 40, 10 and 5 s; the first two overlap for 4 s, the last two for 2 s."""
    rule, together = counting.CountingRule(0.5, 0.2, 0.1, 0.05), np.array([[0.0, 4, 0], [4, 0, 2], [0, 2, 0]])
    limits = rule.limits(0.4, np.array([40.0, 10, 5]), together)
    # Time in overlap: 4, 6 and 2 s of 12, so that 2, 1 and 2 / 3 s are expected of the pairs.
    assert limits[0, 1] == limits[1, 0] == pytest.approx(0.4 - 0.1 * math.log(10) - 0.05 * math.log(4.5 / 2.5))
    assert limits[1, 2] == pytest.approx(0.4 - 0.1 * math.log(5) - 0.05 * math.log(2.5 / 1.5))
    assert limits[0, 2] == pytest.approx(0.4 - 0.1 * math.log(5) - 0.05 * math.log(0.5 / (2 / 3 + 0.5)))
    # 40 s are no better than 20.
    assert limits[0, 0] == pytest.approx(0.4 - 0.1 * math.log(20) - 0.05 * math.log(0.5 / (16 / 12 + 0.5)))
    assert counting.CountingRule().limits(None, np.ones(2), np.zeros((2, 2)))[0, 1] == pytest.approx(0.6)


def test_voices_that_overlap_are_two_and_short_groups_join():
    """Two near groups: one speaker, two if they speak at once; and one again if one of them is short."""
    first, second = np.eye(32)[0], unit_rows(np.array([0.8, 0.6, *np.zeros(30)]))
    generator = np.random.default_rng(0)
    points = unit_rows(np.repeat([first, second], 20, axis=0) + 0.02 * generator.standard_normal((40, 32)))
    rule = counting.CountingRule(0.0, 0.4, 0.05, 0.1)
    pairs = np.stack([np.arange(20), np.arange(20, 40)], 1)
    for overlaps, length, expected in (
        (None, 1.5, 1),
        ((pairs, np.full(20, 1.0)), 1.5, 2),
        ((pairs, np.full(20, 0.1)), 0.2, 1),
    ):
        seconds = np.repeat([1.5, length], 20)
        _, found = counting.group_speakers(points, turns(40), seconds, "auto", rule, overlaps=overlaps)
        assert found.speakers == expected, length


@pytest.mark.parametrize(("likeness", "apart"), [(0.6, True), (0.2, False)])
def test_segments_at_the_same_time_are_two_speakers_where_that_is_nearly_as_likely(likeness, apart):
    """The last segment is at the same time as the first one, and nearest to its speaker, but also near to the other."""
    doubtful = np.array([[0.65, likeness, *np.zeros(30)]])
    doubtful[0, 2] = math.sqrt(1 - (doubtful**2).sum())
    points = np.concatenate([np.repeat(np.eye(32)[:2], 20, axis=0), doubtful])
    overlaps = (np.array([[0, 40]]), np.array([0.5]))
    for given, expected in ((overlaps, apart), ((overlaps[0], np.array([0.4])), False), (None, False)):
        clusters, _ = counting.group_speakers(points, turns(40), np.full(41, 1.5), 2, overlaps=given)
        assert bool(clusters.labels[40] == clusters.labels[20]) is expected


def test_many_segments_are_counted():
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


def test_merges_are_those_of_scipys_average_linkage():
    """With as many first groups as segments and a limit of 0, distances are the heights of the tree."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    points, rule = groups(4, 5, 0.6), counting.CountingRule(0.0, 0.0)
    distances = np.clip(1 - points @ points.T, 0, 2)
    np.fill_diagonal(distances, 0.0)
    heights = linkage(squareform(distances, checks=False), "average")[:, 2]
    steps = counting.merge_groups(points, np.arange(20), np.ones(20), np.full(20, 3.0), None, 0.0, rule)
    np.testing.assert_allclose([beyond for beyond, _ in steps[:-1]], heights - 1e-6, rtol=1e-9)
    assert [count for _, count in steps] == list(range(20, 0, -1))


def test_an_encoder_states_how_its_speakers_are_counted():
    shipped = counting.CountingRule(turn_distances=0.65, distance=0.425, length=0.1, overlap=0.075)
    assert counting.rule_of(load_encoder("meetings_8k").info) == shipped
    assert counting.rule_of({}) == counting.CountingRule()
    for stated in (*({"distance": bad} for bad in ("0.2", math.nan, -1)), {"share": 1.0}, [0.6, 0.2], "0.6"):
        with pytest.raises(UserError, match=r"^info\.counting of the speaker encoder: found .*, expected turn_d"):
            counting.rule_of({"counting": stated})
