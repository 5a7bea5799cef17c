"""Distortion, transport and rates: against POT, closed forms and each other."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch

from sepkit.studies.quantization.measures import (
    distortion,
    gaussian_rate_bits,
    mutual_information_bits,
    shannon_lower_bound_bits,
    squared_wasserstein,
    total_variation,
    voronoi_weights,
)


def _pot(points: torch.Tensor, centroids: torch.Tensor, weights: torch.Tensor) -> float:
    uniform = np.full(len(points), 1 / len(points))
    cost = torch.cdist(points, centroids).square().numpy()
    return float(ot.emd2(uniform, weights.numpy(), cost, numItermax=1_000_000))


def test_distortion_is_squared_wasserstein_with_voronoi_weights() -> None:
    """Against POT; with other weights it is more, and as POT says."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(500, 3, generator=generator, dtype=torch.float64)
    centroids = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    shares = voronoi_weights(points, centroids)
    found = distortion(points, centroids)
    assert found == pytest.approx(_pot(points, centroids, shares), abs=1e-6)
    assert squared_wasserstein(points, centroids, shares) == pytest.approx(found, abs=1e-6)
    uniform = torch.full((7,), 1 / 7, dtype=torch.float64)
    other = squared_wasserstein(points, centroids, uniform)
    assert other == pytest.approx(_pot(points, centroids, uniform), abs=1e-6) and other > found


def test_conditionally_at_twenty_inputs() -> None:
    """2,000 draws at each x: the mean distortion is the mean of POT's distances; a classifier's weights cost more."""
    generator = torch.Generator().manual_seed(1)
    gaps = []
    for x in torch.linspace(-1, 1, 20, dtype=torch.float64):
        points = x + torch.randn(2000, 1, generator=generator, dtype=torch.float64)
        centroids = x + torch.tensor([[-1.0], [0.2], [1.0]], dtype=torch.float64)
        shares = voronoi_weights(points, centroids)
        gaps.append(abs(distortion(points, centroids) - _pot(points, centroids, shares)))
        classes = torch.softmax(torch.randn(3, generator=generator, dtype=torch.float64), 0)
        uniform = np.full(2000, 1 / 2000)
        line = ot.emd2_1d(points[:, 0].numpy(), centroids[:, 0].numpy(), uniform, classes.numpy(), metric="sqeuclidean")
        assert line >= distortion(points, centroids)
    assert max(gaps) < 1e-6
    assert squared_wasserstein(points[:200], centroids, classes) == pytest.approx(
        _pot(points[:200], centroids, classes), abs=1e-6
    )


def test_bad_weights() -> None:
    """Weights are a distribution."""
    with pytest.raises(ValueError, match="sum one"):
        squared_wasserstein(torch.zeros(3, 1), torch.zeros(2, 1), torch.tensor([0.5, 0.7]))


def test_ties_go_to_the_lowest_index() -> None:
    """Two centroids at one place."""
    assert voronoi_weights(torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [1.0], [3.0]])).tolist() == [0.5, 0, 0.5]


def test_rates() -> None:
    """A Gaussian lies on its Shannon lower bound; information is between 0 and the smaller of log n and entropy."""
    variance, d = 0.7, 2
    entropy = d / 2 * math.log(2 * math.pi * math.e * variance)
    for found in (0.1, 0.5, 1.3):
        expected = gaussian_rate_bits(variance, found, d)
        assert shannon_lower_bound_bits(entropy, found, d) == pytest.approx(expected, abs=1e-12)
    assert gaussian_rate_bits(1.0, 2.0) == 0
    weights = torch.eye(4, dtype=torch.float64)[torch.arange(100) % 4]
    assert mutual_information_bits(weights) == pytest.approx(2)
    assert mutual_information_bits(torch.full((10, 4), 0.25, dtype=torch.float64)) == pytest.approx(0)
    soft = torch.softmax(torch.randn(50, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 1)
    entropy_bits = float(-(soft.mean(0) * soft.mean(0).log2()).sum())
    assert 0 < mutual_information_bits(soft) <= min(math.log2(5), entropy_bits)
    assert float(total_variation(torch.tensor([1.0, 0]), torch.tensor([0.25, 0.75]))) == 0.75
