"""Distortion, transport, rates and coverage: against POT, closed forms and definitions."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from scipy.stats import norm

from sepkit.studies.quantization.laws import MODE_DEVIATION, mode_centers, sample_modes
from sepkit.studies.quantization.measures import (
    FLOOR_OFF_MODES,
    distortion,
    lloyd,
    mode_coverage,
    mutual_information_bits,
    precision_recall,
    shannon_lower_bound_bits,
    squared_wasserstein,
)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distortion_is_squared_wasserstein_with_voronoi_weights() -> None:
    """Proposition 3.1, against POT; with other weights it is more."""
    points, centroids = drawn(500, 3), drawn(7, 3, seed=1)
    cost = torch.cdist(points, centroids).square()
    voronoi = torch.bincount(cost.argmin(1), minlength=7).numpy() / 500
    found = distortion(points, centroids)
    transport = lambda weights: float(ot.emd2(np.full(500, 1 / 500), weights, cost.numpy(), numItermax=1_000_000))  # noqa: E731
    assert found == pytest.approx(transport(voronoi), abs=1e-6)
    assert found < transport(np.full(7, 1 / 7))


def test_matched_transport() -> None:
    first, second = drawn(12, 2), drawn(12, 2, seed=1)
    uniform = np.full(12, 1 / 12)
    expected = ot.emd2(uniform, uniform, torch.cdist(first, second).square().numpy())
    assert squared_wasserstein(first, second) == pytest.approx(expected, abs=1e-9)


def test_optimal_quantizers_by_lloyd() -> None:
    """N(0, 1), n = 2: +- sqrt(2 / pi), distortion 1 - 2 / pi; U(0, 1), n = 5: (2 i - 1) / 10, distortion 1 / 300."""
    uniform = ((torch.arange(100_001, dtype=torch.float64) + 0.5) / 100_001)[:, None]
    normal = torch.from_numpy(norm.ppf(uniform.numpy()))
    found = lloyd(normal, torch.tensor([[-0.3], [0.1]])).sort(0).values
    assert found.flatten().tolist() == pytest.approx([-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)], abs=1e-4)
    assert distortion(normal, found) == pytest.approx(1 - 2 / math.pi, abs=2e-4)
    found = lloyd(uniform, uniform[[10, 30_000, 50_000, 60_000, 90_000]]).sort(0).values
    assert found.flatten().tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9], abs=1e-4)
    assert distortion(uniform, found) == pytest.approx(1 / 300, abs=1e-6)


def test_fixed_point_of_lloyd_has_no_gradient() -> None:
    """Away from it only the winner of each point has one, 2 E[1(i wins) (a_i - Y)]; a centroid without points stays."""
    points = drawn(400, 2)
    centroids = lloyd(points, points[:4]).requires_grad_()
    torch.cdist(points, centroids).square().amin(1).mean().backward()
    assert centroids.grad is not None and float(centroids.grad.abs().max()) < 1e-9
    start = points[:4].clone().requires_grad_()
    squares = torch.cdist(points, start).square()
    squares.amin(1).mean().backward()
    wins = torch.nn.functional.one_hot(squares.argmin(1), 4).double()
    expected = 2 * (wins.sum(0)[:, None] * start - wins.mT @ points).detach() / 400
    assert start.grad is not None
    torch.testing.assert_close(start.grad, expected)
    assert lloyd(points, torch.tensor([[0.0, 0.0], [99.0, 99.0]]))[1].tolist() == [99, 99]


def test_rates() -> None:
    """A Gaussian lies on its Shannon lower bound; information is between 0 and the smaller of log n and entropy."""
    variance, d = 0.7, 2
    entropy = d / 2 * math.log(2 * math.pi * math.e * variance)
    for found in (0.1, 0.5, 1.3):
        expected = d / 2 * math.log2(d * variance / found)
        assert shannon_lower_bound_bits(entropy, found, d) == pytest.approx(expected, abs=1e-12)
    weights = torch.eye(4, dtype=torch.float64)[torch.arange(100) % 4]
    assert mutual_information_bits(weights) == pytest.approx(2)
    assert mutual_information_bits(torch.full((10, 4), 0.25, dtype=torch.float64)) == pytest.approx(0)
    soft = torch.softmax(drawn(50, 5), 1)
    entropy_bits = float(-(soft.mean(0) * soft.mean(0).log2()).sum())
    assert 0 < mutual_information_bits(soft) <= min(math.log2(5), entropy_bits)


def test_precision_and_recall_against_the_definition() -> None:
    """Of equal sets 1, of sets far apart 0, and else what a loop over points counts."""
    real, generated = drawn(30, 2), 0.5 * drawn(25, 2, seed=1) + 0.5

    def share(samples: torch.Tensor, reference: torch.Tensor) -> float:
        within = 0
        for sample in samples:
            reach = [(reference - point).norm(dim=1).sort().values[3] for point in reference]
            within += any((sample - point).norm() <= r for point, r in zip(reference, reach, strict=True))
        return within / len(samples)

    precision, recall = precision_recall(real, generated)
    assert precision == pytest.approx(share(generated, real)) and recall == pytest.approx(share(real, generated))
    assert recall < precision
    assert precision_recall(real, real) == (1, 1) and precision_recall(real, real + 100) == (0, 0)


def test_coverage_of_modes() -> None:
    """True samples are off every mode as often as they should be; a mode that is left out is not hit."""
    centers, generator = mode_centers("grid"), torch.Generator().manual_seed(0)
    off, hit = mode_coverage(sample_modes(centers, 20_000, generator), centers, MODE_DEVIATION)
    assert off == pytest.approx(FLOOR_OFF_MODES, abs=0.003) and hit == 25
    assert mode_coverage(sample_modes(centers[:-4], 5000, generator), centers, MODE_DEVIATION)[1] == 21
    assert mode_coverage(torch.full((10, 2), 50.0), centers, MODE_DEVIATION) == (1, 0)
