"""More experts while training goes on: the one with the largest share is doubled, and the two drift apart.

`RowAdam.copy_rows` makes the copy. Before the jitter a split changes nothing: both halves predict what the one did,
and the classifier divides its mass.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from sepkit.studies.quantization.experts import RowAdam


def expert_to_split(cost: Tensor, awake: Tensor, by: Literal["distortion", "samples"] = "distortion") -> Tensor:
    """(R,) the expert of each run with the largest share of the distortion, or with most samples.

    Args:
        cost: (R, N, n) on a fixed set of samples, not on one batch.
        awake: (R, n) bool.
        by: what shares are of.

    Source: CCLVQ paper, section 4.1.
    """
    nearest = cost.where(awake[:, None], torch.inf).min(2)
    amounts = nearest.values if by == "distortion" else torch.ones_like(nearest.values)
    shares = torch.zeros(cost.shape[0], cost.shape[2], dtype=cost.dtype).scatter_add_(1, nearest.indices, amounts)
    return shares.where(awake, -1.0).argmax(1)


@torch.no_grad()
def jitter_rows(optimizer: RowAdam, rows: Tensor, size: float, generator: torch.Generator) -> None:
    """Push the parameters of networks by normal noise of `size` times the RMS of each of their tensors.

    The RMS is that of one network's tensor; its deviation would be undefined for a bias of one element.

    Args:
        optimizer: of the networks.
        rows: (K,) which.
        size: 0.01 keeps what they predict nearly as it was.
        generator: of the noise.
    """
    for parameter in optimizer.parameters:
        chosen = parameter[rows]
        rms = chosen.flatten(1).square().mean(1).sqrt().view(-1, *[1] * (chosen.ndim - 1))
        noise = torch.randn(chosen.shape, generator=generator, dtype=chosen.dtype)
        parameter[rows] = chosen + size * rms * noise


@torch.no_grad()
def jitter_network(network: nn.Module, size: float, generator: torch.Generator) -> None:
    """The same as `jitter_rows` for a network of its own.

    Args:
        network: whose parameters are pushed.
        size: in units of the RMS of each of its tensors.
        generator: of the noise.
    """
    for parameter in network.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter += size * parameter.square().mean().sqrt() * noise


@torch.no_grad()
def split_classes(
    optimizer: RowAdam, weight: Tensor, bias: Tensor, runs: Tensor, source: Tensor, target: Tensor
) -> None:
    """Divide the mass of class `source` equally between it and class `target`, in each of these runs.

    The row of the last layer is copied with its moments, and log 2 is taken off both biases.

    Args:
        optimizer: of the classifiers.
        weight: (R, hidden, n) of their last layer.
        bias: (R, 1, n).
        runs: (K,) which.
        source: (K,) classes.
        target: (K,) classes.
    """
    for place, parameter in enumerate(optimizer.parameters):
        if parameter is weight or parameter is bias:
            for tensor in (parameter, optimizer.first[place], optimizer.second[place]):
                tensor[runs, :, target] = tensor[runs, :, source]
    bias[runs, 0, source] -= math.log(2)
    bias[runs, 0, target] -= math.log(2)


@torch.no_grad()
def split_last_layer(optimizer: torch.optim.Optimizer, last: nn.Linear, source: int, target: int) -> None:
    """The same as `split_classes` for the last layer of a classifier of its own.

    Args:
        optimizer: of the classifier; the row's moments are copied, too.
        last: its last layer.
        source: class whose mass is divided.
        target: class that gets half of it.
    """
    for parameter in (last.weight, last.bias):
        moments = [m for m in optimizer.state.get(parameter, {}).values() if m.shape == parameter.shape]
        for tensor in (parameter, *moments):
            tensor[target] = tensor[source]
    last.bias[[source, target]] -= math.log(2)
