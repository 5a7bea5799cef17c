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
RULE, NO_OVERLAPS = counting.CountingRule(), (NOBODY, np.zeros(0), np.zeros(0, int))


def grouped(points, neighbors, seconds, speakers, rule=RULE, clear=None, overlaps=NO_OVERLAPS):
    """Speakers of segments that are all clear, and do not overlap, unless something else is given."""
    clear = np.ones(len(points), bool) if clear is None else clear
    return counting.group_speakers(points, neighbors, seconds, speakers, rule, clear, overlaps)


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
    clusters, found = grouped(points, turns(len(points)), np.full(len(points), 1.5), "auto")
    assert [len(set(own.tolist())) for own in clusters.labels.reshape(count, 20)] == [1] * count
    assert found is not None and found.speakers == count == len(set(clusters.labels.tolist()))
    assert found.runner_up != count and found.margin > 0
    first, second = points[::2], points[1::2]
    assert found.turn_distance == pytest.approx(np.median(1 - (first * second).sum(1)))


@pytest.mark.parametrize(("margin", "uncertain"), [(0.0199, True), (0.0201, False), (math.inf, False)])
def test_a_count_is_uncertain_below_its_margin(margin, uncertain):
    assert counting.SpeakerCount(2, 3, margin, 8 / 9, 0.4, 60.0).uncertain is uncertain
    assert counting.SpeakerCount(2, 3, margin, 7 / 9, 0.4, 60.0).uncertain
    assert counting.SpeakerCount(2, 3, margin, 1.0, None, 60.0).uncertain


@pytest.mark.parametrize(("speakers", "seconds", "uncertain"), [(2, 30.0, False), (3, 99.9, True), (3, 100.0, False)])
def test_more_than_two_speakers_in_little_speech_are_uncertain(speakers, seconds, uncertain):
    assert counting.SpeakerCount(speakers, 2, 0.3, 1.0, 0.4, seconds).uncertain is uncertain


def test_stray_segments_do_not_count():
    points = groups(2, 20)
    stray = unit_rows(np.random.default_rng(9).standard_normal((1, 32)))
    seconds, everything = np.array([1.5] * 40 + [0.5]), np.concatenate([points, stray])
    clusters, found = grouped(everything, turns(40), seconds, "auto")
    assert found is not None and found.speakers == 2 and len(clusters.labels) == 41
    _, alone = grouped(stray, NOBODY, np.array([0.5]), "auto")
    assert (alone.speakers, alone.runner_up, alone.turn_distance, alone.uncertain) == (1, 2, None, True)


def test_groups_without_clear_speech_do_not_count():
    """A third group, of two speakers at once, counts unless it is known to be unclear, or too few are clear."""
    points, seconds = groups(3, 20), np.full(60, 1.5)
    for clear, expected in ((None, 3), (np.arange(60) < 40, 2), (np.arange(60) < 8, 3)):
        clusters, found = grouped(points, turns(60), seconds, "auto", clear=clear)
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
    found = counting._median_of([*answers, (4, 5, 0.02)], 0.4, 200.0)
    assert found == counting.SpeakerCount(4, 5, 0.03, 5 / 9, 0.4, 200.0) and found.uncertain
    assert counting._median_of([(3, 4, 0.1), (3, 2, 0.2), (3, 2, 0.3)], 0.4, 200.0) == counting.SpeakerCount(
        3, 2, 0.2, 1.0, 0.4, 200.0
    )


def test_runner_up_is_what_the_least_change_gives():
    steps = [(-0.3, 3), (-0.05, 3), (0.04, 2), (0.5, 1), (math.inf, 1)]
    assert counting._answers(steps) == (2, 1, 0.04)
    assert counting._answers([(-0.03, 3), *steps[2:]]) == (2, 3, 0.03)
    assert counting._answers([(0.1, 4), *steps]) == (4, 1, 0.1)
    assert counting._answers([(math.inf, 1)]) == (1, 2, math.inf)


def test_limits_by_hand():
    """Of 40, 10 and 5 s: the first two groups overlap for 4 s, the last two for 2 s, elsewhere for 1 s."""
    rule, together = counting.CountingRule(0.5, 0.2, 0.1, 0.05), np.zeros((2, 3, 3))
    together[0] = [[0, 4, 0], [4, 0, 2], [0, 2, 0]]
    together[1, 1, 2] = together[1, 2, 1] = 1
    limits = rule.limits(0.4, np.array([40.0, 10, 5]), together)
    # Of 12 s, the groups have 4, 6 and 2: 2, 1 and 2 / 3 s are expected. In the other recording, half of 1 s.
    assert limits[0, 1] == limits[1, 0] == pytest.approx(0.4 - 0.05 * math.log(4.5 / 2.5))
    assert limits[1, 2] == pytest.approx(0.4 + 0.1 * math.log(8.25 / 5) - 0.05 * math.log(3.5 / 2.0))
    assert limits[0, 2] == pytest.approx(0.4 + 0.1 * math.log(8.25 / 5) - 0.05 * math.log(0.5 / (2 / 3 + 0.5)))
    # Of 55 s of speech, 8.25 s are long: 10 s are no better, and 40 s neither.
    assert limits[0, 0] == pytest.approx(0.4 - 0.05 * math.log(0.5 / (16 / 12 + 0.5)))
    # Of three minutes of speech, 20 s are.
    limits = rule.limits(0.4, np.array([40.0, 10, 130]), np.zeros((0, 3, 3)))
    assert limits[0, 1] == pytest.approx(0.4 + 0.1 * math.log(2)) and limits[0, 2] == pytest.approx(0.4)
    assert counting.CountingRule().limits(None, np.ones(2), np.zeros((0, 2, 2)))[0, 1] == pytest.approx(0.6)


def test_merges_equal_those_of_all_pairs():
    """Distances and limits before each merge, against means over the segments of the groups."""
    generator = np.random.default_rng(3)
    points, groups = unit_rows(generator.standard_normal((12, 8)) + 0.5), np.arange(12) // 2
    weights, seconds = generator.uniform(0.1, 1, 12), generator.uniform(1, 9, 12)
    pairs = generator.permuted(np.tile(np.arange(12), (9, 1)), axis=1)[:, :2]
    overlaps = pairs, generator.uniform(0.1, 2, 9), np.arange(9) // 5
    rule, together = counting.CountingRule(0.6, 0.2, 0.1, 0.08), np.zeros((2, 12, 12))
    np.add.at(together, (overlaps[2], *pairs.T), overlaps[1])
    together += together.transpose(0, 2, 1)
    for beyond, count in counting.merge_groups(points, groups.copy(), weights, seconds, overlaps, 0.4, rule)[:-1]:
        names = np.unique(groups)
        member = (groups == names[:, None]).astype(float)
        lengths, clear = member @ seconds, member @ (weights * seconds)
        shares = member * weights / (member @ weights)[:, None]
        limits = rule.limits(0.4, lengths, member @ together @ member.T)
        differences = shares @ (1 - points @ points.T) @ shares.T - limits + 9 * np.eye(len(member))
        assert beyond == pytest.approx(differences.min())
        assert count == ((lengths >= 0.04 * lengths.sum()) & (lengths >= 2) & (clear >= 0.04 * clear.sum())).sum()
        one, other = np.unravel_index(differences.argmin(), differences.shape)
        groups[groups == names[other]] = names[one]


def test_several_starts_are_used(monkeypatch):
    seeds, k_means = [], counting.spherical_k_means

    def noted(points, clusters, seed=0, **more):
        seeds.append(seed)
        return k_means(points, clusters, seed, **more)

    monkeypatch.setattr(counting, "spherical_k_means", noted)
    _, found = grouped(groups(3, 20), turns(60), np.full(60, 1.5), "auto")
    assert found.share == 1.0 and seeds == [*range(9), 0]


def test_voices_that_overlap_are_two_and_short_groups_join():
    """Two near groups: one speaker, two if they speak at once; and one again if one of them is short."""
    first, second = np.eye(32)[0], unit_rows(np.array([0.8, 0.6, *np.zeros(30)]))
    generator = np.random.default_rng(0)
    points = unit_rows(np.repeat([first, second], 20, axis=0) + 0.02 * generator.standard_normal((40, 32)))
    rule = counting.CountingRule(0.0, 0.25, 0.05, 0.1)
    pairs = np.stack([np.arange(20), np.arange(20, 40)], 1)
    for overlaps, length, expected in (
        (NO_OVERLAPS, 1.5, 1),
        ((pairs, np.full(20, 1.0), np.zeros(20, int)), 1.5, 2),
        ((pairs, np.full(20, 0.1), np.zeros(20, int)), 0.2, 1),
    ):
        seconds = np.repeat([1.5, length], 20)
        _, found = grouped(points, turns(40), seconds, "auto", rule, overlaps=overlaps)
        assert found.speakers == expected, length


@pytest.mark.parametrize(("gap", "apart"), [(0.09, True), (0.15, False)])
def test_overlapping_segments_are_two_speakers_where_that_is_nearly_as_likely(gap, apart):
    """The last two segments overlap with the first one, the second of them for longer."""
    clusters = counting.Clusters(np.array([0, 0, 0]), np.eye(4)[:2], np.array([[1.0, 0], [0.9, 0.1], [0.8, 0.2]]))
    points = np.array([[1.0, 0, 0, 0], [0.6, 0.6 - gap, 0.5, 0], [0.6, 0.6 - gap, 0, 0.5]])
    pairs, where = np.array([[0, 1], [0, 2]]), np.zeros(2, int)
    # 0.44 s are less than 30 % of 1.5 s.
    counting._tell_apart(clusters, points, np.full(3, 1.5), (pairs, np.array([0.44, 0.5]), where), 0.12)
    assert clusters.labels.tolist() == [0, 0, 1 if apart else 0]
    assert clusters.posterior[2].tolist() == pytest.approx([0.0, 1.0] if apart else [0.8, 0.2])
    counting._tell_apart(clusters, points, np.full(3, 1.5), (pairs, np.array([0.46, 0.5]), where), 0.12)
    assert clusters.labels.tolist() == ([0, 1, 1] if apart else [0, 0, 0])


def test_many_segments_are_counted():
    clusters, found = grouped(groups(3, 500), turns(1500), np.full(1500, 1.5), "auto")
    assert found is not None and found.speakers == 3
    np.testing.assert_array_equal(np.bincount(clusters.labels), [500] * 3)


def test_a_given_number_is_kept():
    """Below and above the number that is there, too; at it, clusters are the groups."""
    points, seconds = groups(3, 20), np.full(60, 1.5)
    for number in (1, 2, 3, 4, 20):
        clusters, counted = grouped(points, turns(60), seconds, number)
        assert counted is None and len(clusters.centers) == number == len(set(clusters.labels.tolist()))
        np.testing.assert_allclose(clusters.posterior.sum(1), 1)
        if number == 3:
            assert [len(set(own.tolist())) for own in clusters.labels.reshape(3, 20)] == [1, 1, 1]
    with pytest.raises(UserError, match="found 60 segments of speech, expected at least 61"):
        grouped(points, turns(60), seconds, 61)


def test_a_given_number_spends_no_group_on_an_outlier():
    """Two near speakers and three segments that sound like no one: the speakers are told apart."""
    first, second = np.eye(32)[0], unit_rows(np.array([0.85, 0.53, *np.zeros(30)]))
    generator = np.random.default_rng(0)
    points = unit_rows(np.repeat([first, second], 30, axis=0) + 0.05 * generator.standard_normal((60, 32)))
    points = np.concatenate([points, -np.eye(32)[5:8]])
    found, counted = grouped(points, NOBODY, np.full(63, 1.5), 2)
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
    steps = counting.merge_groups(points, np.arange(20), np.ones(20), np.full(20, 3.0), NO_OVERLAPS, 0.0, rule)
    np.testing.assert_allclose([beyond for beyond, _ in steps[:-1]], heights - 1e-6, rtol=1e-9)
    assert [count for _, count in steps] == list(range(20, 0, -1))


def test_an_encoder_states_how_its_speakers_are_counted():
    shipped = counting.CountingRule(turn_distances=0.79, distance=0.05, length=0.24, overlap=0.115)
    assert counting.rule_of(load_encoder().info) == shipped
    assert counting.rule_of({}) == counting.CountingRule()
    for stated in (*({"distance": bad} for bad in ("0.2", math.nan, -1, True)), {"share": 1.0}, [0.6, 0.2], "0.6"):
        with pytest.raises(UserError, match=r"^the speaker encoder: counting: found .*, expected numbers among turn_d"):
            counting.rule_of({"counting": stated})
