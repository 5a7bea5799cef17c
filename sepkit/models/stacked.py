"""Stacks of many small networks of one shape: weights lie along a first axis, and one optimizer trains all.

A step of ten networks with ten thousand weights each costs little more than a step of one: most of the time goes into
starting operations. Networks in a stack do not affect one another. The loss is a sum over them, Adam works elementwise,
and each network has its own seed, so training in a stack gives the same network as training alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StackedLinear(nn.Module):
    """S linear layers: x_s W_s + b_s.

    Weights and biases start as those of `torch.nn.Linear`: uniform in +- 1 / sqrt(in_features).

    Args:
        generators: one per layer; layer s starts from numbers of the s-th alone. Or only S: all start from torch's own.
    """

    def __init__(self, in_features: int, out_features: int, generators: Sequence[torch.Generator] | int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(uniform((in_features, out_features), bound, generators))
        self.bias = nn.Parameter(uniform((1, out_features), bound, generators))

    def forward(self, values: Tensor) -> Tensor:
        """Return the output, (S, B, out), of values (S or 1, B, in)."""
        # The fused product does not broadcast.
        if len(values) == len(self.weight):
            return torch.baddbmm(self.bias, values, self.weight)
        return values @ self.weight + self.bias


def uniform(shape: Sequence[int], bound: float, generators: Sequence[torch.Generator] | int) -> Tensor:
    """Return uniform numbers in +- bound, (S, *shape); part s is drawn from the s-th generator.

    Args:
        shape: of each part.
        generators: S, one for each part; or only S, for torch's own.
    """
    if isinstance(generators, int):
        return torch.empty(generators, *shape).uniform_(-bound, bound)
    return torch.stack([(2 * torch.rand(*shape, generator=generator) - 1) * bound for generator in generators])


def split(state: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the state of each network of a stack, of which every tensor is (S, ...), as a stack of one."""
    (count,) = {len(tensor) for tensor in state.values()}
    return [{name: tensor[place : place + 1].clone() for name, tensor in state.items()} for place in range(count)]
