"""How many speakers speak: groups with known numbers, and what is told of the runner-up."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.counting import (
    MOST_SPEAKERS,
    SpeakerGains,
    SpeakerTree,
    average_linkage,
    count_speakers,
)


def groups(count: int, each: int, spread: float = 0.15, seed: int = 0) -> np.ndarray:
    """Points about `count` random directions."""
    generator = np.random.default_rng(seed)
    centers = unit_rows(generator.standard_normal((count, 32)))
    return unit_rows(np.repeat(centers, each, axis=0) + spread * generator.standard_normal((count * each, 32)))


@pytest.mark.parametrize("separated", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_count(count, separated):
    points = groups(count, 40 if separated else 10)
    counted = count_speakers(points, np.full(len(points), 1.5), None, separated)
    assert counted.speakers == count and counted.runner_up != count and counted.margin > 0
    assert counted.rule == ("gain" if separated else "distance")


def test_stray_segments_do_not_count():
    points = groups(2, 20)
    stray = unit_rows(np.random.default_rng(9).standard_normal((1, 32)))
    seconds = np.array([1.5] * 40 + [0.5])
    assert count_speakers(np.concatenate([points, stray]), seconds).speakers == 2
    for separated in (False, True):
        alone = count_speakers(stray, np.array([0.5]), None, separated)
        assert (alone.speakers, alone.runner_up) == (1, 2)


def test_segments_between_speakers_are_nobody():
    """Leftovers of one voice under another lie between three speakers: a group to linkage, no gain to k-means."""
    generator = np.random.default_rng(1)
    points, pairs = groups(3, 40), generator.integers(0, 120, (240, 2))
    shares = generator.uniform(0.4, 0.6, (240, 1))
    mixed = unit_rows(shares * points[pairs[:, 0]] + (1 - shares) * points[pairs[:, 1]])
    everything = np.concatenate([points, mixed])
    counting = {"threshold": 0.6}
    seconds = np.full(len(everything), 1.5)
    assert count_speakers(everything, seconds, counting).speakers > 3
    assert count_speakers(everything, seconds, counting, separated=True).speakers == 3


@pytest.mark.parametrize("separated", [False, True])
def test_runner_up_is_what_the_told_change_gives(separated):
    points = groups(4, 30, 0.3)
    counting = {"threshold": 0.5, "second_gain": 0.05, "further_gain": 0.03}
    seconds = np.full(len(points), 1.5)
    counted = count_speakers(points, seconds, counting, separated)
    names = [name for name, value in counting.items() if value == counted.threshold]
    assert names == (["further_gain"] if separated else ["threshold"])
    changed = [
        count_speakers(points, seconds, counting | {names[0]: counted.threshold + sign * amount}, separated).speakers
        for sign in (-1, 1)
        for amount in (counted.margin - 1e-6, counted.margin + 1e-6)
    ]
    assert changed[0] == changed[2] == counted.speakers and counted.runner_up in changed


def test_gains_are_what_k_means_explains():
    """Two opposite voices: one direction explains nothing, two explain everything."""
    points = np.repeat(np.array([[1.0, 0.0], [-1.0, 0.0]]), 50, axis=0)
    gains = SpeakerGains(points).gains
    assert gains[0] == pytest.approx(1 - 2 / 100) and (gains[1:] < 0).all()
    assert SpeakerGains(groups(20, 20, 0.05)).speakers(0.05, 0.001) == MOST_SPEAKERS


def test_long_recordings_are_counted_from_an_even_part():
    points = groups(3, 500)
    assert SpeakerTree(points, np.full(1500, 1.5), {"least_share": 0.0}).speakers(0.0) == 1200
    assert count_speakers(points, np.full(1500, 1.5), None, separated=True).speakers == 3


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
    least = max(0.02 * seconds.sum(), seconds.min())
    speakers = SpeakerTree(points, seconds, {"least_share": 0.02})
    for threshold in np.linspace(0.01, 1.5, 40):
        expected = (np.bincount(fcluster(tree, threshold, "distance"), seconds) >= least).sum()
        assert speakers.speakers(threshold) == max(1, expected)
