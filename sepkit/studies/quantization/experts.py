"""Separate experts with a classifier (CCLVQ): winner steps in which experts without samples do not move, and growth.

R runs with n experts each are one stack of R n networks; rows of parameters are ordered run by run. Experts may sleep:
they have no part in anything until a split wakes them. A split copies the expert with the largest share
(`RowAdam.copy_rows`) and divides its class; before the jitter it changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from sepkit.objectives.assignment import Assignment
from sepkit.objectives.scoring import score_loss

Network = TypeVar("Network", bound=nn.Module)

# Of a sleeping expert: finite, so that its product with a share of zero is zero.
_NO_LOGIT = -1e9
_EPS = 1e-8


def seeded(seed: int, build: Callable[[], Network]) -> Network:
    """Return a network whose weights follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


class RowAdam:
    """Adam on stacked parameters, row by row: networks without samples keep weights, moments and number of steps.

    Adam with a zero gradient would move them on by their momentum.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate, self.betas = learning_rate, betas
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = torch.zeros(len(self.parameters[0]), dtype=torch.float64)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rows: Tensor) -> None:
        """Take one step of the networks in `rows`, (S,) bool; the others stay as they are, bit for bit."""
        if not bool(rows.any()):
            return
        self.steps += rows
        decays = [1 - beta ** self.steps.clamp_min(1) for beta in self.betas]
        for parameter, first, second in zip(self.parameters, self.first, self.second, strict=True):
            if parameter.grad is None:
                continue
            shape = (-1, *[1] * (parameter.ndim - 1))
            moving = rows.view(shape)
            one, two = (decay.view(shape).to(parameter) for decay in decays)
            new_first = first.lerp(parameter.grad, 1 - self.betas[0])
            new_second = self.betas[1] * second + (1 - self.betas[1]) * parameter.grad.square()
            change = self.learning_rate * (new_first / one) / (new_second.sqrt() / two.sqrt() + _EPS)
            first.copy_(new_first.where(moving, first))
            second.copy_(new_second.where(moving, second))
            parameter.copy_((parameter - change).where(moving, parameter))

    @torch.no_grad()
    def copy_rows(self, source: Tensor, target: Tensor) -> None:
        """Give the networks `target`, (K,) indices, the parameters, moments and steps of the networks `source`."""
        for tensor in (*self.parameters, *self.first, *self.second, self.steps):
            tensor[target] = tensor[source]


@dataclass(frozen=True)
class WinnerLosses:
    """What a step of experts and classifiers goes by.

    Args:
        experts: (R, B) losses of the experts; their gradient reaches winners alone if the assignment is hard.
        classifiers: (R,) mean cross-entropy of the assignments.
        active: (R, n) bool, experts with samples.
        winners: (R, B) indices.
    """

    experts: Tensor
    classifiers: Tensor
    active: Tensor
    winners: Tensor


def winner_losses(
    cost: Tensor,
    logits: Tensor,
    assignment: Assignment,
    *,
    awake: Tensor | None = None,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> WinnerLosses:
    """Return the losses of Algorithm 1 for cost and logits (R, B, n): who wins is decided with noise, what winning
    costs is without.

    Args:
        assignment: MCL for the paper's rule.
        awake: (R, n) bool; None: all experts. Noise is in units of the run's median winner cost.

    Source: CCLVQ paper, algorithm 1 and appendix B.3.
    """
    runs, batch, n = cost.shape
    if awake is None:
        awake = torch.ones(runs, n, dtype=torch.bool)
    judged = cost.detach()
    if noise:
        unit = judged.where(awake[:, None], torch.inf).amin(2).median(1).values
        drawn = torch.randn(judged.shape, generator=generator, dtype=cost.dtype)
        judged = judged + (noise * unit)[:, None, None] * drawn
    judged = judged.where(awake[:, None], torch.inf).reshape(runs * batch, n, 1)
    weights = assignment.weights(judged)
    matched = assignment.value(cost.reshape(runs * batch, n, 1), weights).view(runs, batch)
    logits = logits.where(awake[:, None], _NO_LOGIT).reshape(runs * batch, n)
    scored = score_loss(logits, judged, kind="cross_entropy").view(runs, batch)
    return WinnerLosses(
        matched, scored.mean(1), (weights.view(runs, batch, n) > 0).any(1), judged.view(runs, batch, n).argmin(2)
    )


def class_probabilities(logits: Tensor, awake: Tensor) -> Tensor:
    """Return the classifier's distribution over the experts that are awake, (R, n) bool, of logits (R, B, n)."""
    return logits.where(awake[:, None], _NO_LOGIT).softmax(-1)


def expert_to_split(cost: Tensor, awake: Tensor) -> Tensor:
    """Return the expert of each run with the largest share of the distortion, (R,), for cost (R, N, n) of fixed
    samples.

    Source: CCLVQ paper, section 4.1.
    """
    nearest = cost.where(awake[:, None], torch.inf).min(2)
    shares = torch.zeros(cost.shape[0], cost.shape[2], dtype=cost.dtype)
    return shares.scatter_add_(1, nearest.indices, nearest.values).where(awake, -1.0).argmax(1)


@torch.no_grad()
def jitter(parameters: Iterable[Tensor], rows: Tensor, size: float, generator: torch.Generator) -> None:
    """Push networks by normal noise of `size` times the RMS of each of their tensors.

    Parameters are (S, ...), rows (K,) indices of networks. The RMS is that of one network's tensor; its deviation would
    be undefined for a bias of one element. A size of 0.01 keeps what they predict nearly as it was.
    """
    for parameter in parameters:
        chosen = parameter[rows]
        rms = chosen.flatten(1).square().mean(1).sqrt().view(-1, *[1] * (chosen.ndim - 1))
        noise = torch.randn(chosen.shape, generator=generator, dtype=chosen.dtype)
        parameter[rows] = chosen + size * rms * noise


@torch.no_grad()
def split_classes(
    tensors: Sequence[Tensor], biases: Tensor, runs: Tensor, source: Tensor | int, target: Tensor | int
) -> None:
    """Divide the mass of class `source` equally between it and class `target`, in each of some runs.

    Tensors (R, ..., n) are weights, biases (also given alone, (R, 1, n)) and their moments; runs and classes have (K,)
    indices. Weights are copied with their moments, and log 2 is taken off both biases.
    """
    for tensor in tensors:
        tensor[runs, :, target] = tensor[runs, :, source]
    biases[runs, 0, source] -= math.log(2)
    biases[runs, 0, target] -= math.log(2)
