"""Free quantizers: optima that are known, fixed points, and what cannot be."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

from sepkit.errors import UserError
from sepkit.studies.quantization.measures import distortion
from sepkit.studies.quantization.quantizers import clvq, lbg, lloyd

COUNT = 100_001
MIDDLES = (torch.arange(COUNT, dtype=torch.float64) + 0.5) / COUNT
NORMAL = torch.from_numpy(norm.ppf(MIDDLES.numpy()))[:, None]
UNIFORM = MIDDLES[:, None]


def test_optimal_quantizers_by_lloyd() -> None:
    """N(0, 1), n = 2: +- sqrt(2 / pi), distortion 1 - 2 / pi; U(0, 1), n = 5: (2 i - 1) / 10, distortion 1 / 300."""
    found = lloyd(NORMAL, torch.tensor([[-0.3], [0.1]])).sort(0).values
    assert found.flatten().tolist() == pytest.approx([-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)], abs=1e-4)
    assert distortion(NORMAL, found) == pytest.approx(1 - 2 / math.pi, abs=2e-4)
    found = lbg(UNIFORM, 5).sort(0).values
    assert found.flatten().tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9], abs=1e-4)
    assert distortion(UNIFORM, found) == pytest.approx(1 / 300, abs=1e-6)


@pytest.mark.parametrize(("points", "count", "least"), [(NORMAL, 2, 1 - 2 / math.pi), (UNIFORM, 5, 1 / 300)])
def test_clvq_comes_near(points: torch.Tensor, count: int, least: float) -> None:
    """Within 1 % of the least distortion."""
    found = distortion(points, clvq(points, count, steps=50_000))
    assert 0.999 * least < found < 1.01 * least


def test_fixed_point_of_lloyd_has_no_gradient() -> None:
    """And away from it only the winner of each point has one: 2 E[1(i wins) (a_i - Y)]."""
    points = torch.randn(400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
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


def test_too_few_points() -> None:
    """Points that are all equal are one point."""
    same = torch.ones(10, 2)
    with pytest.raises(UserError, match="1 distinct points"):
        clvq(same, 2, steps=1)
    with pytest.raises(UserError, match="at least as many as there are centroids, 3"):
        lbg(same, 3)
    assert lbg(same, 1).tolist() == [[1.0, 1.0]]
