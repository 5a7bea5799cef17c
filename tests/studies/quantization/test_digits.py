"""Experts that restore digits: who learns from what, growth, and the command at a tiny size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sepkit.studies.quantization.config import DigitsConfig
from sepkit.studies.quantization.digits import DigitExperts, spoil

TINY = DigitsConfig(channels=(4, 4), classifier_channels=(2, 2, 4), steps=4, batch_size=8)


def some_digits(count: int = 12) -> torch.Tensor:
    return torch.randint(2, (count, 1, 28, 28), generator=torch.Generator().manual_seed(0)).float()


def test_digits_are_spoiled_as_asked() -> None:
    """Pixels that are there stay; noise is as strong as the configuration says."""
    images, generator = torch.ones(200, 1, 28, 28), torch.Generator().manual_seed(0)
    upper = spoil("upper", TINY, images, generator)
    assert not upper[:, :, :20].any() and bool((upper[:, :, 20:] == 1).all())
    noise = spoil("noise", TINY, images, generator) - images
    assert float(noise.std()) == pytest.approx(1, abs=0.01)


def test_only_the_nearest_expert_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with moments from earlier steps; and it learns from its own images alone."""
    runs = DigitExperts(TINY, 3, seed=0)
    runs.awake[:] = True
    images = some_digits()
    spoiled = spoil("upper", TINY, images, torch.Generator())
    won = [[1, 0, 2], [0, 1, 2]]
    monkeypatch.setattr(runs, "cost", lambda *_: torch.tensor(won, dtype=torch.float).repeat(6, 1))
    runs.step(spoiled, images)
    won[:] = [[0, 1, 1], [0, 1, 1]]
    before = [[p.clone() for p in network.parameters()] for network in runs.networks]
    runs.step(spoiled, images)
    moved = [
        any(not torch.equal(p, q) for p, q in zip(network.parameters(), old, strict=True))
        for network, old in zip(runs.networks, before, strict=True)
    ]
    assert moved == [True, False, False]


def test_one_expert_is_regression() -> None:
    """The same steps as those of a network alone, bit for bit."""
    runs = DigitExperts(TINY, 1, seed=0)
    alone = DigitExperts(TINY, 1, seed=0).networks[0].train()
    optimizer = torch.optim.Adam(alone.parameters(), lr=TINY.learning_rate, fused=True)
    images = some_digits()
    spoiled = spoil("upper", TINY, images, torch.Generator())
    for _ in range(2):
        loss = runs.step(spoiled, images)
        optimizer.zero_grad()
        squares = (alone(spoiled) - images).square()
        assert loss == pytest.approx(squares.sum((1, 2, 3)).mean().item(), rel=1e-5)
        squares.mean((1, 2, 3)).sum().backward()
        optimizer.step()
    for found, expected in zip(runs.networks[0].parameters(), alone.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_a_split_changes_nothing_before_its_jitter() -> None:
    """Distances stay, the classifier divides its mass, and moments go with the weights."""
    runs = DigitExperts(replace(TINY, jitter=0.0), 3, seed=0)
    images = some_digits()
    spoiled = spoil("upper", TINY, images, torch.Generator())
    runs.step(spoiled, images)
    runs.grow(spoiled, images)
    assert runs.awake.tolist() == [[True, True, False]]
    runs.step(spoiled, images)
    cost, mass = runs.cost(spoiled, images)[:, :2].amin(1), runs.probabilities(spoiled)
    runs.grow(spoiled, images)
    after, divided = runs.cost(spoiled, images), runs.probabilities(spoiled)
    assert torch.equal(after.amin(1), cost) and bool(runs.awake.all())
    source = next(k for k in range(2) if torch.equal(after[:, k], after[:, 2]))
    torch.testing.assert_close(divided[:, source] + divided[:, 2], mass[:, source])
    torch.testing.assert_close(divided[:, 1 - source], mass[:, 1 - source])
    kept, copied = (list(runs.steps[place].state.values()) for place in (source, 2))
    assert kept and len(kept) == len(copied)
    for one, other in zip(kept, copied, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
