"""Groups of free hypotheses against hypotheses that settle one by one."""

from __future__ import annotations

import math

import pytest
import scipy.optimize
import torch

from sepkit.annealing.groups import Groups, count_groups, part_groups, settle_groups
from sepkit.annealing.points import three_gaussians
from sepkit.annealing.settling import settle_points


def settled(points: torch.Tensor, groups: Groups, temperature: float) -> Groups:
    return part_groups(points, settle_groups(points, groups, temperature, generator()), temperature, generator())


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("temperature", [0.6, 0.3, 0.04, 0.016])
def test_the_free_energy_is_that_of_hypotheses_that_settle_one_by_one(temperature: float) -> None:
    points = three_gaussians(300)
    start = Groups(points.mean(0, keepdim=True), torch.zeros(8, dtype=torch.long))
    groups = start
    # Down in steps, as annealing does: below the first split there are several minima.
    for step in [0.6, 0.3, 0.04, 0.016]:
        groups = settled(points, groups, step)
        if step == temperature:
            break
    each = settle_points(points, groups.hypotheses, temperature)
    assert torch.equal(groups.copies, groups.members.bincount()) and int(groups.copies.sum()) == 8
    assert count_groups(each, temperature) == len(groups)
    torch.testing.assert_close(each, groups.hypotheses, rtol=0, atol=0.05 * math.sqrt(temperature / 2))


def test_a_group_is_unstable_exactly_below_the_critical_temperature_of_its_share() -> None:
    """The second derivative of the free energy along a difference within the group changes its sign there."""
    points = three_gaussians(300)
    groups = settled(points, Groups(points.mean(0, keepdim=True), torch.zeros(6, dtype=torch.long)), 0.1)
    group = int(groups.copies.argmax())
    one, other = (groups.members == group).nonzero()[:2, 0].tolist()

    def curvature(temperature: float) -> float:
        critical = groups.critical_temperatures(points, temperature)
        assert critical[groups.copies == 1].eq(0).all()

        def energy(h: float, angle: float) -> float:
            moved = groups.hypotheses.clone()
            along = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
            moved[one] += h * along
            moved[other] -= h * along
            squares = torch.cdist(points, moved, compute_mode="donot_use_mm_for_euclid_dist").square()
            return float(-temperature * (-squares / temperature).logsumexp(1).mean())

        h = 1e-3
        second = [
            (energy(h, angle) - 2 * energy(0, angle) + energy(-h, angle)) / h**2
            for angle in torch.linspace(0, math.pi, 60).tolist()
        ]
        return min(second) / abs(second[0])

    def margin(temperature: float) -> float:
        return temperature - float(groups.critical_temperatures(points, temperature)[group])

    at = scipy.optimize.brentq(margin, 1e-3, 1.0)
    assert isinstance(at, float) and curvature(1.02 * at) > 0 > curvature(0.98 * at)


def test_members_of_an_unstable_group_join_others() -> None:
    """Two Gaussians with one hypothesis each, and many between them, which cannot stay there."""
    points = three_gaussians(300)[:, :1]
    points = torch.cat([points[0::3], points[2::3]])
    places = torch.tensor([[-0.5], [0.0], [0.5]], dtype=torch.float64)
    groups = settled(points, Groups(places, torch.tensor([0, 1, 1, 1, 1, 2])), 0.1)
    assert len(groups) == 2 and groups.places.abs().flatten().tolist() == pytest.approx([0.5, 0.5], abs=0.05)


def test_near_groups_merge() -> None:
    points = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    apart = Groups(torch.tensor([[-0.01], [0.02]], dtype=torch.float64), torch.tensor([0, 1, 1]))
    together = settle_groups(points, apart, 3.0, generator())
    assert len(together) == 1 and together.members.tolist() == [0, 0, 0]
    # Half of the hypotheses go to each point where they may part, as far as they can be counted.
    parted = settled(points, together, 1.0)
    assert len(parted) == 2 and sorted(parted.copies.tolist()) == [1, 2]
