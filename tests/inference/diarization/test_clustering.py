"""Clusters of voices on directions that are known."""

import numpy as np
import pytest

from sepkit.evaluation.clusters import adjusted_rand_index
from sepkit.inference.diarization.clustering import likeness, posterior_of, spherical_k_means, unit_rows
from tests.complaint import complaint
from tests.inference.diarization.test_counting import groups


@pytest.mark.parametrize("count", [1, 2, 5])
def test_k_means_finds_groups(count):
    points, labels = groups(count, 12), np.repeat(np.arange(count), 12)
    found = spherical_k_means(points, count)
    assert adjusted_rand_index(labels.tolist(), found.labels.tolist()) == 1
    np.testing.assert_allclose(np.linalg.norm(found.centers, axis=1), 1)
    np.testing.assert_allclose(found.posterior.sum(1), 1)
    assert (found.posterior.argmax(1) == found.labels).all()


def test_k_means_does_not_depend_on_lengths_and_repeats_itself():
    points = groups(4, 10, spread=0.4)
    longer = points * np.linspace(1, 9, len(points))[:, None]
    first, second = spherical_k_means(points, 4, seed=3), spherical_k_means(longer, 4, seed=3)
    assert (first.labels == second.labels).all()


def test_equal_points_and_as_many_clusters_as_points():
    assert len(spherical_k_means(np.ones((4, 3)), 2).labels) == 4
    assert sorted(spherical_k_means(np.eye(3), 3).labels.tolist()) == [0, 1, 2]


def test_fewer_points_than_clusters_are_refused():
    complaint(lambda: spherical_k_means(np.eye(2), 3), "found 2 segments of speech, expected at least 3")


def test_posterior_is_sharper_for_tighter_groups():
    sure, labels = [], np.repeat(np.arange(3), 20)
    for points in (groups(3, 20, spread) for spread in (0.05, 0.5)):
        centers = unit_rows(np.stack([points[labels == k].sum(0) for k in range(3)]))
        sure.append(posterior_of(points, centers, labels).max(1).mean())
    assert sure[0] > sure[1]


def test_likeness_is_what_two_voices_share_beyond_the_ten_nearest_of_a_cohort():
    one, two = np.array([[1.0, 0.0]]), np.array([[0.6, 0.8]])
    assert likeness(one, two) == pytest.approx(0.6)
    # Both resemble two voices by 0.5 and 0.7 in the mean; of fifteen, the ten nearest by 1 and 0.6.
    assert likeness(one, two, np.eye(2)) == pytest.approx(0.6 - 0.5 * (0.5 + 0.7))
    assert likeness(one, two, np.repeat([[1.0, 0.0], [0.0, -1.0]], [10, 5], axis=0)) == pytest.approx(0.6 - 0.8)
