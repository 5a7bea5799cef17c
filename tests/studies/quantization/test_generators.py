"""Generators under one discriminator: who learns from which latent, when training ends, and what is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sepkit.studies.quantization.config import GeneratorsConfig
from sepkit.studies.quantization.generators import GeneratorRuns, ReLUNetworks, train_generators

TINY = GeneratorsConfig(seeds=2, hidden=[6], steps=3, batch_size=8, samples=60, manifold_samples=40)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_only_the_generator_that_is_believed_most_learns() -> None:
    """Of the latents that it makes the most believed samples of, each teaches it alone."""
    runs = GeneratorRuns(TINY, 3, [1, 2])
    latents, everybody = drawn(2, 8, 2), torch.ones(2, dtype=torch.bool)
    runs.judge(latents, drawn(2, 8, 2, seed=1), everybody)
    with torch.no_grad():
        believed = runs.discriminators(runs.make(latents).flatten(1, 2)).view(2, 3, 8)
    winners = believed.argmax(1)
    before = [value.clone() for value in runs.generators.values]
    runs.learn(latents, everybody)
    wins = torch.stack([torch.bincount(row, minlength=3) for row in winners])
    assert torch.equal(runs.learned, wins.float())
    moved = torch.stack([(v != b).flatten(1).any(1) for v, b in zip(runs.generators.values, before, strict=True)]).any(
        0
    )
    assert torch.equal(moved, wins.flatten() > 0) and int(moved.sum()) > 0
    # A run that is over stays as it is.
    before = [value[:3].clone() for value in runs.generators.values]
    runs.learn(latents, torch.tensor([False, True]))
    assert all(torch.equal(v[:3], b) for v, b in zip(runs.generators.values, before, strict=True))


def test_the_discriminator_sees_the_hinge_loss_of_all_generators() -> None:
    runs = GeneratorRuns(TINY, 2, [1])
    latents, real = drawn(1, 8, 2), drawn(1, 8, 2, seed=1)
    network = runs.discriminators
    with torch.no_grad():
        made = runs.make(latents)
    believed = [network(part)[0, :, 0] for part in (real, made[:, 0], made[:, 1])]
    loss = (1 - believed[0]).relu().mean() + ((1 + believed[1]).relu().mean() + (1 + believed[2]).relu().mean()) / 2
    expected = torch.autograd.grad(loss, list(network.parameters()))
    runs.judge(latents, real, torch.ones(1, dtype=torch.bool))
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient)


def test_training_ends_when_each_generator_has_had_its_batches() -> None:
    """A run alone takes the same steps as beside others."""
    one = train_generators(TINY, "ring", 1)
    assert one["steps"] == [[3], [3]] and one["updates"] == [[3.0], [3.0]] and one["entropy"] == [1.0, 1.0]
    several = train_generators(TINY, "ring", 2)
    for updates, (steps,) in zip(several["updates"], several["steps"], strict=True):
        assert sum(updates) == steps and (min(updates) >= 3 or steps == 9)
    alone = train_generators(replace(TINY, seeds=1), "ring", 2)
    assert alone["updates"] == several["updates"][:1] and alone["steps"] == several["steps"][:1]
    apart = train_generators(TINY, "ring", 1, independent=2)
    assert apart["entropy"] == [1.0, 1.0] and np.shape(apart["updates"]) == (2, 2)


def test_networks_of_a_stack_are_what_torch_makes_of_their_seeds() -> None:
    stack, x = ReLUNetworks([2, 5, 3], [7, 8]), drawn(2, 4, 2)
    for place, seed in enumerate((7, 8)):
        torch.manual_seed(seed)
        alone = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
        torch.testing.assert_close(stack(x)[place], alone(x[place]))
    stack(x)[1].sum().backward()
    assert all(bool(p.grad[1].any()) and not p.grad[0].any() for p in stack.parameters() if p.grad is not None)
