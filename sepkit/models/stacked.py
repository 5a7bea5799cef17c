"""Stacks of many small networks of one shape: weights lie along a first axis, and one optimizer trains all.

A step of ten networks with ten thousand weights each costs little more than a step of one: most of the time goes into
starting operations. Networks in a stack do not affect one another. The loss is a sum over them, Adam works elementwise,
and each network has its own seed, so training in a stack gives the same network as training alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StackedLinear(nn.Module):
    """S linear layers: x_s W_s + b_s.

    Weights and biases start as those of `torch.nn.Linear`: uniform in +- 1 / sqrt(in_features).

    Args:
        in_features: of each layer.
        out_features: of each layer.
        generators: one per layer; layer s starts from numbers of the s-th alone. Or only S: all start from torch's own.
    """

    def __init__(self, in_features: int, out_features: int, generators: Sequence[torch.Generator] | int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(uniform((in_features, out_features), bound, generators))
        self.bias = nn.Parameter(uniform((1, out_features), bound, generators))

    def forward(self, values: Tensor) -> Tensor:
        """Return the output, (S, B, out).

        Args:
            values: (S or 1, B, in).
        """
        return _affine(values, self.weight, self.bias)


def side_by_side(values: Tensor, layers: Sequence[StackedLinear]) -> tuple[Tensor, ...]:
    """Return the output of each layer, (S, B, out), computed as one product: narrow products cost as much as wide ones.

    Args:
        values: (S or 1, B, in), the same for all layers.
        layers: of one stack.
    """
    weight, bias = (torch.cat([getattr(layer, name) for layer in layers], -1) for name in ("weight", "bias"))
    return _affine(values, weight, bias).split([layer.weight.shape[-1] for layer in layers], -1)


def _affine(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    # The fused product does not broadcast.
    if len(values) == len(weight):
        return torch.baddbmm(bias, values, weight)
    return values @ weight + bias


class StackedModules(nn.Module):
    """S networks of one architecture, of any layers without state, side by side.

    Args:
        networks: whose parameters are copied; none has buffers.

    Raises:
        ValueError: networks with buffers, or of different architectures.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        if any(True for network in networks for _ in network.buffers()):
            raise ValueError("networks with buffers cannot be stacked")
        states = [dict(network.named_parameters()) for network in networks]
        if any({n: v.shape for n, v in s.items()} != {n: v.shape for n, v in states[0].items()} for s in states):
            raise ValueError("networks of different shapes cannot be stacked")
        self._names = list(states[0])
        self.values = nn.ParameterList(torch.stack([s[name].detach() for s in states]) for name in self._names)
        # In a tuple it is no submodule: only its layers are used, never its parameters.
        self._one = (copy.deepcopy(networks[0]),)

    def forward(self, values: Tensor) -> Tensor:
        """Return what each module makes of its own values, (S, B, ...).

        Args:
            values: (S or 1, B, ...).
        """
        state = dict(zip(self._names, self.values, strict=True))
        if len(values) == 1:
            return torch.func.vmap(lambda own: torch.func.functional_call(self._one[0], own, (values[0],)))(state)
        return torch.func.vmap(lambda own, x: torch.func.functional_call(self._one[0], own, (x,)))(state, values)


def uniform(shape: Sequence[int], bound: float, generators: Sequence[torch.Generator] | int) -> Tensor:
    """Return uniform numbers in +- bound, (S, *shape); part s is drawn from the s-th generator.

    Args:
        shape: of each part.
        bound: the largest number.
        generators: S, one for each part; or only S, for torch's own.
    """
    if isinstance(generators, int):
        return torch.empty(generators, *shape).uniform_(-bound, bound)
    return torch.stack([(2 * torch.rand(*shape, generator=generator) - 1) * bound for generator in generators])


def split(state: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the state of each network of a stack, as a stack of one.

    Args:
        state: of `state_dict`, each tensor (S, ...).
    """
    (count,) = {len(tensor) for tensor in state.values()}
    return [{name: tensor[place : place + 1].clone() for name, tensor in state.items()} for place in range(count)]
