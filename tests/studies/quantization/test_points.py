"""Networks on point targets: hand values of the losses, and a stack that is its members."""

from __future__ import annotations

import math

import pytest
import torch

from sepkit.errors import UserError
from sepkit.objectives.assignment import MCL, AnnealedMCL, RelaxedWTA
from sepkit.studies.quantization.points import HypothesisNetworks, build_method, point_losses, weighted_mean

ANNEALING = {"temperature": 0.5, "decay": 0.95, "epochs": 1000, "floor": 5e-4, "epsilon": 0.5}


def _generators(seeds: list[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_hand_values() -> None:
    """Squared distances 1, 4 and 9 from the target, by three kinds of matching."""
    points = torch.tensor([[[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]]], dtype=torch.float64)
    scores, target = torch.zeros(1, 1, 3, dtype=torch.float64), torch.zeros(1, 1, 2, dtype=torch.float64)
    matching, scoring, distances = point_losses(points, scores, target, MCL())
    assert float(matching) == pytest.approx(1, abs=1e-6) and distances.flatten().tolist() == [1, 4, 9]
    assert float(scoring) == pytest.approx(math.log(2), abs=1e-6)
    relaxed = point_losses(points, scores, target, RelaxedWTA(0.1))[0]
    assert float(relaxed) == pytest.approx(0.9 * 1 + 0.05 * (4 + 9), abs=1e-6)
    weights = [math.exp(-d / 2) for d in (1, 4, 9)]
    soft = sum(w * d for w, d in zip(weights, (1, 4, 9), strict=True)) / sum(weights)
    assert float(point_losses(points, scores, target, AnnealedMCL(2.0))[0]) == pytest.approx(soft, abs=1e-6)
    assert weighted_mean(points, scores)[0, 0].tolist() == pytest.approx([4 / 3, 2 / 3])


def test_a_stack_is_its_networks() -> None:
    """Twenty steps of three networks at once, and of each alone: 1e-10 in float64."""
    x = torch.randn(3, 30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.randn(3, 30, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def train(places: list[int]) -> list[torch.Tensor]:
        networks = HypothesisNetworks(2, [8], 4, 1, _generators(places)).double()
        optimizer = torch.optim.Adam(networks.parameters(), lr=0.01)
        assignment = build_method("amcl_exponential", **ANNEALING)
        for step in range(20):
            assignment.set_progress(step)
            points, scores = networks(x[places])
            matching, scoring, _ = point_losses(points, scores, y[places], assignment)
            optimizer.zero_grad()
            (matching + scoring).mean(1).sum().backward()
            optimizer.step()
        return [parameter.detach() for parameter in networks.parameters()]

    together, alone = train([0, 1, 2]), [train([place]) for place in range(3)]
    for place in range(3):
        for whole, part in zip(together, alone[place], strict=True):
            torch.testing.assert_close(whole[place], part[0], rtol=0, atol=1e-10)


def test_one_hypothesis_is_regression() -> None:
    """Every method's loss is the squared error, and the weighted mean the prediction."""
    networks = HypothesisNetworks(2, [4], 1, 1, _generators([0]))
    x = torch.randn(1, 6, 2, generator=torch.Generator().manual_seed(0))
    points, scores = networks(x)
    target = torch.ones(1, 6, 1)
    for method in ("mcl", "amcl_linear", "relaxed_wta_0.5"):
        matching, _, _ = point_losses(points, scores, target, build_method(method, **ANNEALING))
        assert torch.equal(matching, (points[..., 0, 0] - 1).square())
    torch.testing.assert_close(weighted_mean(points, scores), points[..., 0, :])


def test_methods_follow_their_schedules() -> None:
    """Temperatures and epsilon by epoch, and hard matching below the floor."""
    linear, exponential = (build_method(f"amcl_{kind}", **ANNEALING) for kind in ("linear", "exponential"))
    relaxed = build_method("relaxed_wta_annealed", **ANNEALING)
    for assignment in (linear, exponential, relaxed):
        assignment.set_progress(500)
    assert linear.scheduled == {"temperature": 0.25} and relaxed.scheduled == {"epsilon": 0.25}
    assert exponential.scheduled["temperature"] == pytest.approx(0.5 * 0.95**500)
    cost = torch.tensor([[[1.0], [1.00001]]])
    assert exponential.weights(cost).flatten().tolist() == [1, 0]


@pytest.mark.parametrize("name", ["relaxed_wta_2", "relaxed_wta_x", "relaxed", "wta"])
def test_unknown_methods(name: str) -> None:
    """One line that says what there is."""
    with pytest.raises(UserError, match="--methods: found"):
        build_method(name, **ANNEALING)
