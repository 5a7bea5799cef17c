"""Stacks of small networks: each layer is a linear layer of its own, and stacks are taken apart and joined."""

from __future__ import annotations

import pytest
import torch

from sepkit.models.stacked import StackedLinear, StackedModules, side_by_side, split


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


def test_layers_side_by_side_are_what_they_are_alone() -> None:
    """Outputs and gradients."""
    layers = [StackedLinear(3, width, _generators(1, 2)).double() for width in (5, 1)]
    for values in (torch.randn(2, 7, 3).double(), torch.randn(1, 7, 3).double()):
        outputs = side_by_side(values, layers)
        for layer, output in zip(layers, outputs, strict=True):
            torch.testing.assert_close(output, layer(values))
            expected = torch.autograd.grad(layer(values).square().sum(), list(layer.parameters()))
            found = torch.autograd.grad(output.square().sum(), list(layer.parameters()), retain_graph=True)
            torch.testing.assert_close(found, expected)


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
    state = StackedLinear(3, 2, _generators(1, 2, 3)).state_dict()
    parts = split(state)
    assert len(parts) == 3 and parts[1]["weight"].shape == (1, 3, 2)
    assert all(torch.equal(torch.cat([part[name] for part in parts]), tensor) for name, tensor in state.items())


def test_modules_side_by_side_are_what_they_are_alone() -> None:
    """Convolutions and norms, with inputs of their own and with one for all; gradients stay apart."""

    def network() -> torch.nn.Module:
        layers = torch.nn.Conv2d(1, 4, 3, stride=2), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(), torch.nn.Flatten()
        return torch.nn.Sequential(*layers, torch.nn.Linear(4 * 9, 2))

    networks = [network() for _ in range(3)]
    stack = StackedModules(networks)
    values, shared = torch.randn(3, 5, 1, 8, 8), torch.randn(1, 5, 1, 8, 8)
    for place, alone in enumerate(networks):
        torch.testing.assert_close(stack(values)[place], alone(values[place]))
        torch.testing.assert_close(stack(shared)[place], alone(shared[0]))
    stack(values)[1].sum().backward()
    assert all(bool(p.grad[1].any()) and not p.grad[0].any() for p in stack.parameters() if p.grad is not None)
    with pytest.raises(ValueError, match="buffers"):
        StackedModules([torch.nn.BatchNorm1d(2)])
    with pytest.raises(ValueError, match="shapes"):
        StackedModules([torch.nn.Linear(1, 2), torch.nn.Linear(2, 2)])
