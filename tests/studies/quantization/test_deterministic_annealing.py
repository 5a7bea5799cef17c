"""Free hypotheses for points: derivatives, minima, saddle points, and splits against eq. 13 and 14."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

from sepkit.studies.quantization.deterministic_annealing import (
    anneal_points,
    count_groups,
    settle_points,
    three_gaussians,
)
from sepkit.studies.quantization.laws import ThreeGaussians


def points(count: int = 60, dimensions: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, dimensions, generator=generator, dtype=torch.float64)


def free_energy(y: np.ndarray, hypotheses: np.ndarray, temperature: float) -> float:
    """From the definition."""
    distances = ((y[:, None] - hypotheses[None]) ** 2).sum(-1)
    return float(-temperature * np.mean(np.log(np.mean(np.exp(-distances / temperature), axis=1))))


def test_the_energy_is_least_and_hypotheses_are_means() -> None:
    """SciPy's BFGS on the definition agrees, from the same start."""
    y, temperature = points(), 0.5
    start = y[:3] + 0.1
    found = settle_points(y, start, temperature)
    peer = scipy.optimize.minimize(
        lambda x: free_energy(y.numpy(), x.reshape(3, 2), temperature), start.flatten().numpy(), options={"gtol": 1e-9}
    )
    assert free_energy(y.numpy(), found.numpy(), temperature) == pytest.approx(peer.fun, abs=1e-9)
    weights = (-torch.cdist(y, found).square() / temperature).softmax(1)
    means = weights.mT @ y / weights.sum(0)[:, None]
    assert found.numpy() == pytest.approx(means.numpy(), abs=1e-5)


def test_a_saddle_point_is_left_just_below_its_critical_temperature() -> None:
    """Half a percent below, a push of a thousandth suffices; averaging takes a thousand steps to leave it."""
    y = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    start = torch.tensor([[1e-3, 0.0], [-1e-3, 0.0]], dtype=torch.float64)
    above, below = settle_points(y, start, 2.01), settle_points(y, start, 1.99)
    assert (above[0] - above[1]).norm() < 1e-3 and (below[0] - below[1]).norm() > 0.1


def test_two_points_split_at_twice_their_variance() -> None:
    """Points at +-a: covariance a^2, T_c = 2 a^2."""
    found = anneal_points(torch.tensor([[-1.5, 0.0], [1.5, 0.0]]), 2)
    (split,) = found["splits"]
    assert (split["groups_before"], split["groups_after"]) == (1, 2)
    assert [found["critical_temperature"], split["predicted_temperature"]] == pytest.approx([4.5, 4.5], rel=1e-3)
    assert split["temperature"] == pytest.approx(4.5, rel=0.02)


def test_a_gaussian_splits_along_its_longest_axis() -> None:
    """At twice the largest eigenvalue that NumPy finds."""
    y = points(400, 3) * torch.tensor([0.3, 2.0, 0.5]) + 100
    critical = 2 * np.linalg.eigvalsh(np.cov(y.numpy().T, bias=True))[-1]
    found = anneal_points(y, 2)
    assert found["critical_temperature"] == pytest.approx(critical)
    assert found["splits"][0]["temperature"] == pytest.approx(critical, rel=0.02)
    places = np.array(found["places"])
    assert places[0] == pytest.approx(y.mean(0).expand(2, 3).numpy(), abs=0.02)
    assert np.abs(places[-1, 0] - places[-1, 1]).argmax() == 1


def test_the_three_gaussians_of_the_paper() -> None:
    """Splits are seen where eq. 13 says: at 2 (2/9 + .01), and below 2 sigma^2 = .02 in each Gaussian."""
    found = anneal_points(three_gaussians(1500), 6)
    assert found["splits"][0]["temperature"] == pytest.approx(0.4644, rel=0.1)
    assert (found["groups"][0], found["groups"][-1]) == (1, 6) and 3 in found["groups"]
    late = [split["temperature"] for split in found["splits"] if split["groups_before"] >= 3]
    assert late == pytest.approx([0.02] * 3, rel=0.1)
    ratios = [split["temperature"] / split["predicted_temperature"] for split in found["splits"]]
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.02)


def test_moving_splits_are_ordered_by_input() -> None:
    """The farther the Gaussians are apart, the higher the temperature of the first split."""
    law = ThreeGaussians(moving=True)
    seen = []
    for x in (0.3, 0.6, 0.9):
        y = law.sample(torch.full((1500,), x), torch.Generator().manual_seed(1))
        found = anneal_points(y, 3, end_ratio=0.7)
        assert found["splits"][0]["temperature"] == pytest.approx(found["critical_temperature"], rel=0.02)
        seen.append(found["splits"][0]["temperature"])
    assert seen == sorted(seen)


def test_groups_are_counted_by_temperature() -> None:
    """Places nearer than .05 sqrt(T / 2) are one, and so are chains of them."""
    y = torch.tensor([[0.0, 0.0], [0.01, 0.0], [1.0, 0.0]])
    assert count_groups(y, 0.5) == 2 and count_groups(y, 0.01) == 3
    assert count_groups(torch.linspace(0, 1, 50)[:, None], 2.0) == 1
