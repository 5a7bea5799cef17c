"""Experts: who gets a gradient, what a split leaves as it was, and that a stack is its members."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sepkit.models.stacked import StackedLinear
from sepkit.objectives.assignment import MCL, AnnealedMCL
from sepkit.studies.quantization import experts
from sepkit.studies.quantization.config import SinesConfig

TINY = SinesConfig(seeds=2, examples=200, test_examples=200, steps=20, batch_size=32, hidden=4)


def _generators(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(place) for place in range(count)]


def _cost_and_logits() -> tuple[Tensor, Tensor]:
    """Of one run of four experts on twelve samples."""
    cost, logits = (torch.rand(1, 12, 4, generator=generator, dtype=torch.float64) for generator in _generators(2))
    return cost, logits


def test_only_winners_have_a_gradient() -> None:
    """An expert that wins no sample is not active."""
    cost, logits = _cost_and_logits()
    cost[..., 2] += 100
    losses = experts.winner_losses(cost.requires_grad_(), logits, MCL())
    losses.experts.sum().backward()
    won = torch.nn.functional.one_hot(cost.argmin(2), 4)
    assert cost.grad is not None and torch.equal(cost.grad, won.double())
    assert torch.equal(losses.active, won.any(1)) and not losses.active[0, 2]


def test_row_adam_is_adam_of_each_network() -> None:
    """Against torch, which skips parameters without gradient; rows that stay do so bit for bit."""
    layer = StackedLinear(3, 2, _generators(3)).double()
    own = [torch.nn.ParameterList([layer.weight[k].clone(), layer.bias[k].clone()]) for k in range(3)]
    theirs = [torch.optim.Adam(parameters, lr=0.03) for parameters in own]
    optimizer = experts.RowAdam(layer.parameters(), 0.03)
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        rows = torch.tensor([True, step % 3 == 0, step > 7])
        x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        layer(x[None]).square().sum().backward()
        before = layer.weight.detach().clone()
        optimizer.step(rows)
        assert torch.equal(layer.weight[~rows], before[~rows])
        for k in range(3):
            theirs[k].zero_grad()
            if rows[k]:
                (x @ own[k][0] + own[k][1]).square().sum().backward()
            theirs[k].step()
    for k in range(3):
        torch.testing.assert_close(layer.weight[k], own[k][0], rtol=0, atol=1e-12)
        torch.testing.assert_close(layer.bias[k], own[k][1], rtol=0, atol=1e-12)


def test_noise_decides_who_wins_and_is_no_part_of_the_loss() -> None:
    """The loss is the noise-free cost of the noisy winners; n = 1 is regression, whatever the noise."""
    cost, logits = _cost_and_logits()
    noisy = experts.winner_losses(cost, logits, MCL(), noise=5.0, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(noisy.winners, experts.winner_losses(cost, logits, MCL()).winners)
    torch.testing.assert_close(noisy.experts, cost.gather(2, noisy.winners[..., None])[..., 0])
    expected = torch.nn.functional.cross_entropy(logits[0], noisy.winners[0])
    assert float(noisy.classifiers) == pytest.approx(float(expected), abs=1e-12)
    single = experts.winner_losses(cost[..., :1], logits[..., :1], MCL(), noise=3.0, generator=torch.Generator())
    assert torch.equal(single.experts, cost[..., 0]) and float(single.classifiers) == 0


def test_sleeping_experts_have_no_part() -> None:
    """Neither samples nor mass, even where they would be best."""
    cost, logits = _cost_and_logits()
    cost[..., 1] = 0
    awake = torch.tensor([[True, False, True, True]])
    losses = experts.winner_losses(cost, logits, AnnealedMCL(0.5), awake=awake)
    assert not losses.active[0, 1] and bool((losses.winners != 1).all())
    torch.testing.assert_close(losses.experts[0], AnnealedMCL(0.5)(cost[0][:, [0, 2, 3], None]))
    assert float(experts.class_probabilities(logits, awake)[..., 1].max()) == 0 and bool(losses.classifiers.isfinite())


def test_sines_are_what_they_are_said_to_be() -> None:
    """Modes ten apart, with the softmax's probabilities."""
    law = experts.Sines(0.1)
    x, y, mode = law.sample(20_000, torch.Generator().manual_seed(0))
    assert float((y - 10 * (mode + 1)).abs().max()) < 1.7
    share = torch.stack([(mode == k).float().mean() for k in range(3)])
    torch.testing.assert_close(share, law.probabilities(x).mean(0), rtol=0, atol=0.015)


def test_sines_are_learned_by_annealing() -> None:
    """All modes of all runs in few steps; the classifier is near the truth."""
    config = replace(TINY, examples=2000, test_examples=1000, steps=500, batch_size=128, hidden=20)
    found = experts.train_sines(config, "annealed", "standardized")
    assert found["merged"] == 0 and max(found["total_variation"]) < 0.08
    assert 0.08 < min(found["distortion"]) <= max(found["distortion"]) < 1.5


def test_a_run_does_not_know_its_neighbors() -> None:
    """The first of two runs is the run alone, with and without growth."""
    x = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    y = 3 * x.sin() + x
    for kind in ("plain", "annealed"):
        both = experts.ExpertRuns(TINY, kind, torch.ones(2))
        alone = experts.ExpertRuns(TINY, kind, torch.ones(1))
        for number in range(5):
            both.step(number, x, y)
            alone.step(number, x[:1], y[:1])
        torch.testing.assert_close(both.cost(x, y)[:1], alone.cost(x[:1], y[:1]), rtol=1e-4, atol=1e-5)


def test_growth_copies_the_expert_with_the_largest_share() -> None:
    """Before the jitter neither the distortion nor the mass of the pair changes, and moments go with the weights."""
    runs = experts.ExpertRuns(replace(TINY, jitter=0.0), "split", torch.ones(2))
    x = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    y = 10 * x.sign()

    def seen() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            cost = runs.cost(x, y).where(runs.awake[:, None], torch.inf)
            return cost, experts.class_probabilities(runs.classifiers(x.unsqueeze(-1)), runs.awake)

    for count in (1, 2):
        assert runs.awake.sum(1).tolist() == [count, count]
        runs.step(count, x, y)
        cost, mass = seen()
        nearest, winners = cost.min(2)
        runs.grow(x, y)
        after, divided = seen()
        assert torch.equal(after.amin(2), nearest)
        for run in range(2):
            source = max(range(count), key=lambda k, run=run: float(nearest[run][winners[run] == k].sum()))
            torch.testing.assert_close(divided[run, :, source] + divided[run, :, count], mass[run, :, source])
            for tensor in (*runs.expert_steps.parameters, *runs.expert_steps.first, *runs.expert_steps.second):
                assert torch.equal(tensor[3 * run + source], tensor[3 * run + count])
    assert bool(runs.awake.all())


def test_jitter_is_relative_to_each_tensor() -> None:
    """Of the chosen rows alone."""
    before = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    moved = before.clone()
    experts.jitter([moved], torch.tensor([1]), 0.01, torch.Generator().manual_seed(1))
    assert torch.equal(moved[::2], before[::2])
    assert float((moved - before)[1].norm() / before[1].norm()) == pytest.approx(0.01, rel=0.5)
