"""Assignments against brute force and closed forms; ties, inactive sources, values that are not finite, gradients."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepkit.config import AnnealedMCLConfig, AssignmentConfig, RelaxedWTAConfig, TruncatedLinearConfig
from sepkit.errors import UserError
from sepkit.objectives.assignment import MCL, PIT, AnnealedMCL, RelaxedWTA, Sinkhorn, TooFewHypothesesError
from sepkit.registry import build, registered
from sepkit.schedules import TruncatedExponential

HEADS = {"pit": PIT(), "mcl": MCL(), "relaxed_wta": RelaxedWTA(0.1), "amcl": AnnealedMCL(2.0), "sinkhorn": Sinkhorn(1)}
every_head = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
SIZES = [(1, 1), (2, 2), (3, 2), (4, 4), (5, 3), (7, 7), (9, 4)]


def costs(n: int, m: int, seed: int = 0, batch_size: int = 6) -> torch.Tensor:
    return 10 * torch.randn(batch_size, n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def some_active(m: int, seed: int = 0, batch_size: int = 6) -> torch.Tensor:
    active = torch.rand(batch_size, m, generator=torch.Generator().manual_seed(seed)) < 0.6
    active[0], active[1] = True, False
    return active


def brute_force_pit(cost: torch.Tensor, active: torch.Tensor) -> tuple[float, tuple[int, ...]]:
    """Return the least sum over all injections of the active columns of one matrix, and the first injection with it."""
    columns = [j for j in range(cost.shape[1]) if active[j]]
    injections = itertools.permutations(range(cost.shape[0]), len(columns))
    return min((sum(cost[i, j].item() for i, j in zip(rows, columns, strict=True)), rows) for rows in injections)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("all_active", [True, False])
def test_pit(n, m, all_active):
    """Both ways agree to 1e-10: enumeration (small) and scipy (7 x 7, 9 x 4). Inactive columns hold NaN."""
    cost, active = costs(n, m), torch.ones(6, m, dtype=torch.bool) if all_active else some_active(m)
    cost = cost.where(active[:, None], torch.nan)
    weights, value, matches = PIT().weights(cost, active), PIT()(cost, active), PIT().matches(cost, active)
    for b in range(6):
        total, rows = brute_force_pit(cost[b], active[b])
        assert value[b].item() == pytest.approx(total / max(int(active[b].sum()), 1), abs=1e-10)
        assert tuple(matches[b][active[b]].tolist()) == rows
        assert (matches[b][~active[b]] == -1).all()
        assert (weights[b].sum(0) == active[b]).all() and (weights[b].sum(1) <= 1).all()


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize(
    ("head", "epsilon"), [(MCL(), 0.0), *((RelaxedWTA(epsilon), epsilon) for epsilon in (0.0, 0.05, 1.0))]
)
def test_mcl_and_relaxed_wta(n, m, head, epsilon):
    """The value is (1 - epsilon) times the best and epsilon times the mean of the others; MCL's is the best."""
    cost, active = costs(n, m), some_active(m)
    value = head(cost.where(active[:, None], torch.nan), active)
    best = cost.amin(1)
    columns = best if n == 1 else (1 - epsilon) * best + epsilon * (cost.sum(1) - best) / (n - 1)
    torch.testing.assert_close(value, (columns * active).sum(1) / active.sum(1).clamp_min(1), atol=1e-10, rtol=0)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("temperature", [1e6, 10.0, 1.0, 0.1, 1e-4, 0.0])
def test_amcl(n, m, temperature):
    """Weights are the softmin over hypotheses, column by column; they are hard from 1e-4 down."""
    cost, active = costs(n, m), some_active(m)
    value = AnnealedMCL(temperature)(cost.where(active[:, None], torch.nan), active)
    best = cost.amin(1, keepdim=True)
    unnormalized = torch.exp(-(cost - best) / temperature) if temperature > 1e-4 else (cost == best).double()
    columns = (unnormalized * cost).sum(1) / unnormalized.sum(1)
    torch.testing.assert_close(value, (columns * active).sum(1) / active.sum(1).clamp_min(1), atol=1e-10, rtol=0)


def test_amcl_limits():
    """An infinite temperature gives the mean, the floor and zero give MCL."""
    cost = costs(4, 3)
    torch.testing.assert_close(AnnealedMCL(float("inf"))(cost), cost.mean((1, 2)))
    for temperature in (0.0, 1e-4):
        assert torch.equal(AnnealedMCL(temperature).weights(cost), MCL().weights(cost))
    assert torch.equal(AnnealedMCL(0.5, floor=0.5).weights(cost), MCL().weights(cost))

    tied = torch.full((1, 4, 3), 2.5, dtype=torch.float64)
    for temperature in (1e6, 1.0, 0.0):
        assert AnnealedMCL(temperature)(tied).item() == pytest.approx(2.5, abs=1e-10)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (8, 5), (8, 8), (20, 20)])
@pytest.mark.parametrize("regularization", [1e-4, 1e-2, 0.1, 1.0, 10.0])
def test_sinkhorn_is_feasible_and_optimal(n, m, regularization):
    """Sources have mass 1, hypotheses at most 1, and the cost plus entropy is within its bound of PIT's."""
    cost = costs(n, m, batch_size=40)
    plan = Sinkhorn(regularization).weights(cost)
    torch.testing.assert_close(plan.sum(1), torch.ones(40, m, dtype=torch.float64), atol=1e-9, rtol=0)
    assert (plan >= 0).all() and (plan.sum(2) <= 1 + 1e-9).all()
    excess = (plan * cost).sum((1, 2)) - m * PIT()(cost)
    assert (excess >= -1e-7).all()
    # The entropic plan is at most regularization * (largest entropy) above the best one.
    assert (excess <= regularization * n * torch.tensor(float(m + 1)).log()).all()


def test_sinkhorn_shares_among_equals():
    """Two equal hypotheses carry half a source each."""
    plan = Sinkhorn(1e-3).weights(torch.tensor([[[1.0], [1.0], [5.0]]], dtype=torch.float64))
    torch.testing.assert_close(plan[0, :, 0], torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), atol=1e-9, rtol=0)


@every_head
def test_value_and_gradient_are_the_weighted_cost(head):
    """The value is <weights, cost> / active sources; its gradient is just the weights over their number."""
    cost, active = costs(4, 3).where(some_active(3)[:, None], torch.nan).requires_grad_(), some_active(3)
    weights, value = head.weights(cost, active), head(cost, active)
    assert not weights.requires_grad
    count = active.sum(1).clamp_min(1)
    torch.testing.assert_close(value, (weights * cost.detach().nan_to_num()).sum((1, 2)) / count, atol=1e-12, rtol=0)
    (gradient,) = torch.autograd.grad(value.sum(), cost)
    torch.testing.assert_close(gradient, weights / count[:, None, None], atol=1e-12, rtol=0)
    assert value[1] == 0 and (gradient[1] == 0).all()


@every_head
def test_every_active_column_has_weight_one(head):
    """An inactive column has weight zero. The dtype stays float32."""
    cost, active = costs(4, 3).float(), some_active(3)
    weights = head.weights(cost, active)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(1), active.float())
    torch.testing.assert_close(head.weights(cost), head.weights(cost, torch.ones(6, 3, dtype=torch.bool)))


@every_head
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), n=st.integers(3, 7), m=st.integers(1, 3))
def test_equivariance(head, seed, n, m):
    """Permuting hypotheses or sources permutes the weights, and leaves the value alone."""
    cost, active = costs(n, m, seed), some_active(m, seed)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(n, generator=generator), torch.randperm(m, generator=generator)
    permuted = cost[:, rows][:, :, columns], active[:, columns]
    expected = head.weights(cost, active)[:, rows][:, :, columns]
    torch.testing.assert_close(head.weights(*permuted), expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(head(*permuted), head(cost, active), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("n", [2, 5, 7, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_go_to_the_lowest_index(n, dtype):
    """If all are equal, PIT keeps the order and the MCL family takes hypothesis 0. Of equal ones the lower wins."""
    equal = torch.full((2, n, n), 3.3, dtype=dtype)
    assert torch.equal(PIT().weights(equal), torch.eye(n, dtype=dtype).expand(2, n, n))
    for head in (MCL(), RelaxedWTA(0.0), AnnealedMCL(0.0)):
        assert (head.weights(equal)[:, 0] == 1).all()
    cost = costs(n, n).to(dtype)
    cost[:, -1] = cost[:, 0]
    matches = PIT().matches(cost)
    first, last = (matches == 0).int().argmax(1), (matches == n - 1).int().argmax(1)
    assert (first < last).all()


def test_pit_prefers_the_lower_of_equal_spare_hypotheses():
    """It does if more hypotheses than sources are equally good."""
    for n in (4, 30):
        assert PIT().matches(torch.zeros(1, n, 2)).tolist() == [[0, 1]]
        assert PIT().matches(torch.zeros(1, n, 7)).tolist() == [list(range(7))] if n > 7 else True


@pytest.mark.parametrize("head", [PIT(), Sinkhorn()], ids=["pit", "sinkhorn"])
def test_fewer_hypotheses_than_active_sources(head):
    """They are refused in one line, a UserError and a ValueError; fewer active sources are matched."""
    with pytest.raises(TooFewHypothesesError, match=r"2 hypotheses .* 3 active sources") as caught:
        head(costs(2, 3))
    assert isinstance(caught.value, UserError) and isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    cost = costs(2, 3)
    active = torch.tensor([[True, False, True]]).expand(6, 3)
    torch.testing.assert_close(head.weights(cost, active)[:, :, [0, 2]], head.weights(cost[:, :, [0, 2]]))


@pytest.mark.parametrize("head", [MCL(), RelaxedWTA(), AnnealedMCL()], ids=["mcl", "relaxed_wta", "amcl"])
def test_the_mcl_family_takes_fewer_hypotheses_than_sources(head):
    """One hypothesis then wins several sources."""
    torch.testing.assert_close(head.weights(costs(2, 5)).sum(1), torch.ones(6, 5, dtype=torch.float64))


@every_head
def test_nan_is_the_last_choice_and_is_seen(head):
    """A NaN hypothesis wins only if all do, yet the value is NaN; other utterances are not affected."""
    cost = costs(4, 2)
    clean = head(cost)
    cost[2, 1] = torch.nan
    weights, value = head.weights(cost), head(cost)
    assert weights.isfinite().all()
    assert (weights[2, 1] <= (0.1 / 3 if isinstance(head, RelaxedWTA) else 1e-12)).all()
    assert value[2].isnan()
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(value[others], clean[others])
    cost = torch.full((1, 3, 2), torch.nan)
    assert head.weights(cost).isfinite().all() and head(cost).isnan().all()


@pytest.mark.parametrize("head", [PIT(), MCL(), AnnealedMCL(2.0), Sinkhorn(0.1)], ids=lambda head: type(head).__name__)
def test_infinite_costs(head):
    """+inf is avoided if possible, and -inf is taken."""
    infinity = torch.inf
    value = head(torch.tensor([[[1.0, infinity], [infinity, 2.0]]], dtype=torch.float64))
    torch.testing.assert_close(value, torch.tensor([1.5], dtype=torch.float64))
    assert head(torch.tensor([[[-infinity, 1.0], [1.0, 2.0]]]))[0] == -infinity


@every_head
def test_no_sources_at_all(head):
    """With m = 0, or all inactive, the value is zero and connected to the graph."""
    assert head(torch.zeros(2, 3, 0)).tolist() == [0.0, 0.0]
    cost = torch.full((2, 3, 2), torch.nan, requires_grad=True)
    value = head(cost, torch.zeros(2, 2, dtype=torch.bool))
    value.sum().backward()
    assert value.tolist() == [0.0, 0.0] and (cost.grad == 0).all()


@every_head
def test_shapes_that_do_not_fit(head):
    """Each message names the expected shape."""
    with pytest.raises(ValueError, match="cost of shape"):
        head(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="n >= 1"):
        head(torch.zeros(1, 0, 2))
    with pytest.raises(ValueError, match=r"active of shape \(1, 2\)"):
        head(torch.zeros(1, 2, 2), torch.ones(1, 3, dtype=torch.bool))


def test_parameters_can_be_set_and_are_checked():
    """They are checked at construction and later."""
    for make, name, bad in (
        (RelaxedWTA, "epsilon", (-0.1, 1.1, float("nan"))),
        (AnnealedMCL, "temperature", (-1.0, float("nan"))),
        (Sinkhorn, "regularization", (0.0, -1.0, float("nan"))),
    ):
        head = make(0.25)
        assert getattr(head, name) == 0.25
        setattr(head, name, 0.5)
        assert getattr(head, name) == 0.5
        for value in bad:
            with pytest.raises(ValueError, match=name):
                make(value)
            with pytest.raises(ValueError, match=name):
                setattr(head, name, value)


def test_schedules_drive_parameters():
    """They have the value at t = 0 until progress is set; values set by hand stay until then."""
    head = AnnealedMCL(TruncatedExponential(5.0, 0.9, 100))
    assert head.temperature == 5.0
    head.set_progress(2.5)
    assert head.temperature == pytest.approx(5 * 0.9**2.5)
    head.set_progress(100)
    assert head.temperature == 0.0
    head = build(RelaxedWTAConfig(epsilon=TruncatedLinearConfig(initial=0.4, end=10)))
    head.set_progress(5)
    assert head.epsilon == pytest.approx(0.2) and build(AnnealedMCLConfig()).temperature == 5.0


@pytest.mark.parametrize("name", sorted(AssignmentConfig.choices))
def test_defaults_are_those_of_the_configuration(name: str) -> None:
    """Annealed MCL alone starts where a run of it starts."""
    config = AssignmentConfig.choices[name]()
    by_name, alone = build(config), registered(config)()
    assert type(by_name) is type(HEADS[name]) and alone.one_to_one == (name in ("pit", "sinkhorn"))
    for epoch in (0.0, 7.0, 300.0):
        by_name.set_progress(epoch)
        alone.set_progress(epoch)
        assert alone.scheduled == by_name.scheduled
    assert getattr(alone, "floor", None) == getattr(by_name, "floor", None)
