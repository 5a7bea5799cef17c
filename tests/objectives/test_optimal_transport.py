"""Sinkhorn against POT: the exact plan at a small regularization, the entropic one at a moderate."""

import numpy as np
import pytest
import torch

from sepkit.objectives.assignment import PIT, Sinkhorn

ot = pytest.importorskip("ot", reason="POT is missing: pip install 'sepkit[dev]'")

SIZES = [(2, 1), (2, 2), (3, 2), (5, 5), (6, 3), (9, 4), (12, 12), (20, 7)]
BATCH = 5


def problem(n: int, m: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Costs with NaN in the columns of inactive sources; all sources of the first matrix are active."""
    generator = torch.Generator().manual_seed(100 * n + m + seed)
    cost = 10 * torch.randn(BATCH, n, m, dtype=torch.float64, generator=generator)
    active = torch.rand(BATCH, m, generator=generator) < 0.6
    active[0] = True
    return cost.where(active[:, None], torch.nan), active


def balanced(cost: torch.Tensor, active: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masses of hypotheses and of sources, and costs, of one matrix: what is left of the hypotheses goes to a dummy."""
    n, count = cost.shape[0], int(active.sum())
    columns, masses = cost[:, active].numpy(), np.ones(count)
    if count < n:
        columns, masses = np.hstack([columns, np.zeros((n, 1))]), np.append(masses, float(n - count))
    return np.ones(n), masses, columns


def of_active(plan: np.ndarray, active: torch.Tensor) -> torch.Tensor:
    """The plan without the dummy, zero in the columns of inactive sources."""
    weights = torch.zeros(plan.shape[0], len(active), dtype=torch.float64)
    weights[:, active] = torch.from_numpy(plan[:, : int(active.sum())])
    return weights


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_exact_plan(n, m):
    """At a regularization of 1e-3 (costs of 10 dB) the plan is the exact one, and so is PIT's; values to 1e-10."""
    cost, active = problem(n, m)
    plan, value = Sinkhorn(1e-3).weights(cost, active), Sinkhorn(1e-3)(cost, active)
    matched, least = PIT().weights(cost, active), PIT()(cost, active)
    for b in range(BATCH):
        masses, other_masses, columns = balanced(cost[b], active[b])
        exact, log = ot.emd(masses, other_masses, columns, log=True)
        expected = log["cost"] / max(int(active[b].sum()), 1)
        torch.testing.assert_close(matched[b], of_active(exact, active[b]), atol=1e-12, rtol=0)
        assert least[b].item() == pytest.approx(expected, abs=1e-10)
        torch.testing.assert_close(plan[b], of_active(exact, active[b]), atol=1e-6, rtol=0)
        assert value[b].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("regularization", [5.0, 20.0, 100.0])
def test_entropic_plan(n, m, regularization):
    """Plan and value agree to 1e-10 where POT's alternating updates converge."""
    cost, active = problem(n, m)
    plan, value = Sinkhorn(regularization).weights(cost, active), Sinkhorn(regularization)(cost, active)
    for b in range(BATCH):
        how = {"method": "sinkhorn_log", "stopThr": 1e-13, "numItermax": 20_000}
        found = ot.sinkhorn(*balanced(cost[b], active[b]), regularization, **how)
        expected = of_active(found, active[b])
        torch.testing.assert_close(plan[b], expected, atol=1e-10, rtol=0)
        total = (expected * cost[b].nan_to_num()).sum() / active[b].sum().clamp_min(1)
        torch.testing.assert_close(value[b], total, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (4, 2), (5, 5)])
def test_value_at_ties(n, m):
    """With equal optima, any plan found costs as much as the exact one."""
    cost = torch.randint(0, 3, (BATCH, n, m), generator=torch.Generator().manual_seed(n)).double()
    value, least = Sinkhorn(1e-3)(cost), PIT()(cost)
    for b in range(BATCH):
        exact = ot.emd2(*balanced(cost[b], torch.ones(m, dtype=torch.bool))) / m
        assert least[b].item() == pytest.approx(exact, abs=1e-10)
        assert value[b].item() == pytest.approx(exact, abs=1e-6)
