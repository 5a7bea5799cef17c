"""Settling of free hypotheses: derivatives, minima, saddle points."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

from sepkit.annealing import settling
from sepkit.annealing.settling import settle_points


def points(count: int = 60, dimensions: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, dimensions, generator=generator, dtype=torch.float64)


def free_energy(y: np.ndarray, hypotheses: np.ndarray, temperature: float) -> float:
    """From the definition."""
    distances = ((y[:, None] - hypotheses[None]) ** 2).sum(-1)
    return float(-temperature * np.mean(np.log(np.mean(np.exp(-distances / temperature), axis=1))))


def test_derivatives_against_differences() -> None:
    energy = settling._FreeEnergy(points(), 0.8, torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64))
    place = np.random.default_rng(1).standard_normal(6)
    value = lambda x: energy.value_and_gradient(x)[0]  # noqa: E731
    gradient = lambda x: energy.value_and_gradient(x)[1]  # noqa: E731
    assert gradient(place) == pytest.approx(scipy.optimize.approx_fprime(place, value), abs=1e-6)
    columns = np.stack([energy.curvature(place, along) for along in np.eye(6)], axis=1)
    assert energy.hessian(place) == pytest.approx(columns, abs=1e-12)
    step = 1e-5
    differences = [
        (gradient(place + step * along) - gradient(place - step * along)) / (2 * step) for along in np.eye(6)
    ]
    assert columns == pytest.approx(np.stack(differences, axis=1), abs=1e-8)


@pytest.mark.parametrize("most_dense", [0, 256])
def test_the_energy_is_least_and_hypotheses_are_means(monkeypatch: pytest.MonkeyPatch, most_dense: int) -> None:
    """Both ways of solving agree with SciPy's BFGS on the definition, from the same start."""
    monkeypatch.setattr(settling, "_MOST_DENSE", most_dense)
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
