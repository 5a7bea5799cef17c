"""Stacks of small networks: each layer is a linear layer of its own, and stacks are taken apart and joined."""

from __future__ import annotations

import pytest
import torch

from sepkit.models.stacked import StackedLinear, split


def _generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_each_layer_is_a_linear_layer() -> None:
    stack = StackedLinear(3, 5, _generators(1, 2, 3, 4))
    values = torch.randn(4, 7, 3)
    shared = torch.randn(1, 7, 3)
    for place in range(4):
        layer = torch.nn.Linear(3, 5)
        layer.weight.data, layer.bias.data = stack.weight[place].T, stack.bias[place, 0]
        torch.testing.assert_close(stack(values)[place], layer(values[place]))
        torch.testing.assert_close(stack(shared)[place], layer(shared[0]))


def test_weights_follow_from_each_seed_alone_and_are_as_large_as_those_of_torch() -> None:
    stack = StackedLinear(64, 256, _generators(5, 6))
    alone = StackedLinear(64, 256, _generators(6))
    assert torch.equal(stack.weight[1:], alone.weight) and not torch.equal(stack.weight[:1], alone.weight)
    together = StackedLinear(64, 256, 2)
    assert not torch.equal(together.weight[0], together.weight[1])
    torch.testing.assert_close(together.weight.std(), alone.weight.std(), rtol=0.02, atol=0)
    reference = torch.nn.Linear(64, 256)
    assert stack.weight.abs().max() <= 1 / 8
    assert stack.weight.std().item() == pytest.approx(reference.weight.std().item(), rel=0.05)


def test_adam_treats_a_network_of_a_stack_as_if_it_were_alone() -> None:
    stack, alone = StackedLinear(3, 2, _generators(1, 2)), StackedLinear(3, 2, _generators(2))
    values = torch.randn(2, 9, 3)
    for model, inputs in ((stack, values), (alone, values[1:])):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(inputs).square().mean((1, 2)).sum().backward()
            optimizer.step()
    torch.testing.assert_close(stack.weight[1], alone.weight[0])


def test_stacks_are_taken_apart() -> None:
    stack = StackedLinear(3, 2, _generators(1, 2, 3))
    parts = split(stack.state_dict())
    assert len(parts) == 3 and parts[1]["weight"].shape == (1, 3, 2)
    assert torch.equal(torch.cat([part["bias"] for part in parts]), stack.bias)
