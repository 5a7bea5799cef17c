"""Experts: who gets a gradient, what a split leaves as it was, and that a stack is its members."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from sepkit.models.stacked import StackedLinear
from sepkit.objectives.assignment import MCL, AnnealedMCL, RelaxedWTA
from sepkit.studies.quantization.config import SinesConfig
from sepkit.studies.quantization.experts import (
    ExpertRuns,
    RowAdam,
    Sines,
    class_probabilities,
    expert_to_split,
    jitter,
    split_classes,
    train_sines,
    winner_losses,
)


def _generators(count: int, first: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(first + place) for place in range(count)]


@dataclass
class _Experts:
    """One run of four linear experts with a linear classifier."""

    experts: StackedLinear
    classifier: StackedLinear

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        predictions = self.experts(x[None])
        return (predictions - y).square().sum(-1).mT[None]


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(12, 2, generator=generator, dtype=torch.float64)


@pytest.fixture
def run() -> _Experts:
    return _Experts(StackedLinear(3, 2, _generators(4)).double(), StackedLinear(3, 4, _generators(1, 9)).double())


def test_only_winners_move(run: _Experts, data: tuple[Tensor, Tensor]) -> None:
    """An expert without samples stays bit for bit, also where earlier steps left it a momentum."""
    x, y = data
    optimizer = RowAdam(run.experts.parameters(), 0.1)
    everyone = torch.ones(4, dtype=torch.bool)
    run.cost(x, y).sum().backward()
    optimizer.step(everyone)
    optimizer.zero_grad()
    with torch.no_grad():
        run.experts.bias[2] += 100.0
    before = [tensor.clone() for tensor in (*optimizer.parameters, *optimizer.first, *optimizer.second)]
    losses = winner_losses(run.cost(x, y), run.classifier(x[None]), MCL())
    losses.experts.sum().backward()
    assert run.experts.weight.grad is not None and not run.experts.weight.grad[2].any()
    assert losses.active.tolist() == [[bool((losses.winners == k).any()) for k in range(4)]]
    assert not losses.active[0, 2] and losses.active.any()
    optimizer.step(losses.active[0])
    after = (*optimizer.parameters, *optimizer.first, *optimizer.second)
    for old, new in zip(before, after, strict=True):
        for expert in range(4):
            assert torch.equal(old[expert], new[expert]) != bool(losses.active[0, expert])


def test_row_adam_is_adam_of_each_network() -> None:
    """Against torch, which skips parameters without gradient."""
    layer = StackedLinear(3, 2, _generators(3)).double()
    own = [torch.nn.ParameterList([layer.weight[k].clone(), layer.bias[k].clone()]) for k in range(3)]
    theirs = [torch.optim.Adam(parameters, lr=0.03) for parameters in own]
    optimizer = RowAdam(layer.parameters(), 0.03)
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        rows = torch.tensor([True, step % 3 == 0, step > 7])
        x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        layer(x[None]).square().sum().backward()
        optimizer.step(rows)
        for k in range(3):
            theirs[k].zero_grad()
            if rows[k]:
                (x @ own[k][0] + own[k][1]).square().sum().backward()
            theirs[k].step()
    for k in range(3):
        torch.testing.assert_close(layer.weight[k], own[k][0], rtol=0, atol=1e-12)
        torch.testing.assert_close(layer.bias[k], own[k][1], rtol=0, atol=1e-12)


def test_noise_decides_who_wins_and_is_no_part_of_the_loss(run: _Experts, data: tuple[Tensor, Tensor]) -> None:
    """The loss is the noise-free cost of the noisy winners; n = 1 is regression, whatever the noise."""
    x, y = data
    cost, logits = run.cost(x, y), run.classifier(x[None])
    noisy = winner_losses(cost, logits, MCL(), noise=5.0, generator=torch.Generator().manual_seed(1))
    plain = winner_losses(cost, logits, MCL())
    assert not torch.equal(noisy.winners, plain.winners)
    picked = cost.gather(2, noisy.winners[..., None])[..., 0]
    torch.testing.assert_close(noisy.experts, picked)
    expected = torch.nn.functional.cross_entropy(logits[0], noisy.winners[0])
    assert float(noisy.classifiers) == pytest.approx(float(expected), abs=1e-12)
    single = winner_losses(cost[..., :1], logits[..., :1], MCL(), noise=3.0, generator=torch.Generator())
    assert torch.equal(single.experts, cost[..., 0]) and float(single.classifiers) == 0


@pytest.mark.parametrize("assignment", [MCL(), AnnealedMCL(0.7), RelaxedWTA(0.3)])
def test_permuting_experts_permutes_everything(assignment, run: _Experts, data: tuple[Tensor, Tensor]) -> None:
    """Losses are the same, winners the permuted ones."""
    x, y = data
    cost, logits = run.cost(x, y), run.classifier(x[None])
    order = torch.tensor([2, 0, 3, 1])
    one = winner_losses(cost, logits, assignment)
    other = winner_losses(cost[..., order], logits[..., order], assignment)
    torch.testing.assert_close(one.experts, other.experts)
    torch.testing.assert_close(one.classifiers, other.classifiers)
    assert torch.equal(one.winners, order[other.winners])


def test_a_split_changes_nothing_before_its_jitter(run: _Experts, data: tuple[Tensor, Tensor]) -> None:
    """Predictions, distortion and the pair's mass; afterwards the halves differ, and more experts never cost more."""
    x, y = data
    experts, classes = RowAdam(run.experts.parameters(), 0.1), RowAdam(run.classifier.parameters(), 0.1)
    awake = torch.tensor([[True, True, True, False]])
    with torch.no_grad():
        cost, before = run.cost(x, y), class_probabilities(run.classifier(x[None]), awake)
    chosen = expert_to_split(cost, awake)
    shares = cost[0, :, :3].amin(1)
    wins = cost[0, :, :3].argmin(1)
    assert int(chosen) == max(range(3), key=lambda k: float(shares[wins == k].sum()))
    target = torch.tensor([3])
    experts.copy_rows(chosen, target)
    bias = run.classifier.bias
    tensors = [*classes.parameters, *classes.first, *classes.second]
    split_classes(tensors, bias, torch.tensor([0]), chosen, target)
    with torch.no_grad():
        after, probabilities = run.cost(x, y), class_probabilities(run.classifier(x[None]), torch.ones_like(awake))
    assert torch.equal(after[..., 3], after[..., int(chosen)])
    assert torch.equal(after.amin(2), cost[..., :3].amin(2))
    pair = probabilities[..., 3] + probabilities[..., int(chosen)]
    torch.testing.assert_close(pair, before[..., int(chosen)], rtol=0, atol=1e-12)
    losses = winner_losses(after, run.classifier(x[None]), MCL())
    assert not losses.active[0, 3]  # ties go to the lowest index: without jitter the copy never wins
    jitter(experts.parameters, target, 0.01, torch.Generator().manual_seed(0))
    moved = run.experts.weight[3] - run.experts.weight[int(chosen)]
    rms = float(run.experts.weight[int(chosen)].square().mean().sqrt())
    assert 0.002 * rms < float(moved.square().mean().sqrt()) < 0.03 * rms
    assert bool(run.experts.bias.isfinite().all())


def test_sleeping_experts_have_no_part(run: _Experts, data: tuple[Tensor, Tensor]) -> None:
    """Neither samples nor mass, even where they would be best."""
    x, y = data
    with torch.no_grad():
        cost = run.cost(x, y)
    cost[..., 1] = 0
    awake = torch.tensor([[True, False, True, True]])
    losses = winner_losses(cost, run.classifier(x[None]), AnnealedMCL(0.5), awake=awake)
    assert not losses.active[0, 1] and bool((losses.winners != 1).all())
    expected = AnnealedMCL(0.5)(cost[0][:, [0, 2, 3], None])
    torch.testing.assert_close(losses.experts[0], expected)
    assert float(class_probabilities(run.classifier(x[None]), awake)[..., 1].max()) == 0
    assert math.isfinite(float(losses.classifiers))


TINY = SinesConfig(seeds=2, examples=200, test_examples=200, steps=20, batch_size=32, hidden=4)


def test_sines_are_what_they_are_said_to_be() -> None:
    """Modes ten apart, with the softmax's probabilities."""
    law = Sines(0.1)
    x, y, mode = law.sample(20_000, torch.Generator().manual_seed(0))
    assert float((y - 10 * (mode + 1)).abs().max()) < 1.7
    share = torch.stack([(mode == k).float().mean() for k in range(3)])
    torch.testing.assert_close(share, law.probabilities(x).mean(0), rtol=0, atol=0.015)


def test_sines_are_learned_by_annealing() -> None:
    """All modes of all runs in few steps; the classifier is near the truth."""
    config = replace(TINY, examples=2000, test_examples=1000, steps=500, batch_size=128, hidden=20)
    found = train_sines(config, "annealed", "standardized")
    assert found["merged"] == 0 and max(found["total_variation"]) < 0.08
    assert 0.08 < min(found["distortion"]) <= max(found["distortion"]) < 1.5


def test_a_run_does_not_know_its_neighbors() -> None:
    """The first of two runs is the run alone, with and without growth."""
    x = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    y = 3 * x.sin() + x
    for kind in ("plain", "annealed"):
        both = ExpertRuns(TINY, kind, torch.ones(2))
        alone = ExpertRuns(TINY, kind, torch.ones(1))
        for number in range(5):
            both.step(number, x, y)
            alone.step(number, x[:1], y[:1])
        torch.testing.assert_close(both.cost(x, y)[:1], alone.cost(x[:1], y[:1]), rtol=1e-4, atol=1e-5)


def test_growth_wakes_experts_one_by_one() -> None:
    """A larger n never has a higher distortion on the same parameters before the jitter."""
    runs = ExpertRuns(replace(TINY, jitter=0.0), "split", torch.ones(2))
    x = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    y = 10 * x.sign()

    def nearest() -> torch.Tensor:
        with torch.no_grad():
            return runs.cost(x, y).where(runs.awake[:, None], torch.inf).amin(2)

    for count in (1, 2):
        assert runs.awake.sum(1).tolist() == [count, count]
        before = nearest()
        runs.grow(x, y)
        assert torch.equal(nearest(), before)
    assert bool(runs.awake.all())
