"""Separate experts with a classifier (CCLVQ): winner steps in which experts without samples do not move.

R runs with n experts each are one stack of R n networks; rows of parameters are ordered run by run. Experts may sleep:
they have no part in anything until a split wakes them (`splitting.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sepkit.objectives.assignment import Assignment
from sepkit.objectives.scoring import score_loss

# Of a sleeping expert: finite, so that its product with a share of zero is zero.
_NO_LOGIT = -1e9


class RowAdam:
    """Adam on stacked parameters, row by row: networks without samples keep weights, moments and number of steps.

    Adam with a zero gradient would move them on by their momentum.

    Args:
        parameters: tensors (S, ...).
        learning_rate: of all.
        betas: decay of the moments.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate, self.betas, self.eps = learning_rate, betas, eps
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = torch.zeros(len(self.parameters[0]), dtype=torch.float64)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rows: Tensor) -> None:
        """Take one step of some of the networks; the others stay as they are, bit for bit.

        Args:
            rows: (S,) bool, which of them.
        """
        if not bool(rows.any()):
            return
        self.steps += rows.cpu()
        decays = [1 - beta ** self.steps.clamp_min(1) for beta in self.betas]
        for parameter, first, second in zip(self.parameters, self.first, self.second, strict=True):
            if parameter.grad is None:
                continue
            shape = (-1, *[1] * (parameter.ndim - 1))
            moving = rows.view(shape).to(parameter.device)
            one, two = (decay.view(shape).to(parameter) for decay in decays)
            new_first = first.lerp(parameter.grad, 1 - self.betas[0])
            new_second = self.betas[1] * second + (1 - self.betas[1]) * parameter.grad.square()
            change = self.learning_rate * (new_first / one) / (new_second.sqrt() / two.sqrt() + self.eps)
            first.copy_(new_first.where(moving, first))
            second.copy_(new_second.where(moving, second))
            parameter.copy_((parameter - change).where(moving, parameter))

    @torch.no_grad()
    def copy_rows(self, source: Tensor, target: Tensor) -> None:
        """Give some networks the parameters, moments and number of steps of others.

        Args:
            source: (K,) indices of networks.
            target: (K,) indices of those that become equal to them.
        """
        for tensor in (*self.parameters, *self.first, *self.second, self.steps):
            tensor[target] = tensor[source]


@dataclass(frozen=True)
class WinnerLosses:
    """What a step of experts and classifiers goes by.

    Args:
        experts: (R,) losses of the experts; their gradient reaches winners alone if the assignment is hard.
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
    reduction: Literal["sum", "mean"] = "sum",
    noise: Tensor | float = 0.0,
    generator: torch.Generator | None = None,
) -> WinnerLosses:
    """The losses of Algorithm 1: who wins is decided with noise, what winning costs is without.

    Args:
        cost: (R, B, n) of each expert for each sample.
        logits: (R, B, n) of the classifier.
        assignment: MCL for the paper's rule; any other in its place.
        awake: (R, n) bool; None: all experts.
        reduction: over the samples of a batch: their sum, as in the paper, or their mean.
        noise: deviation of the noise in the assignment, in units of the run's median winner cost; one number or (R,).
        generator: of the noise.

    Source: CCLVQ paper, algorithm 1 and appendix B.3.
    """
    runs, batch, n = cost.shape
    if awake is None:
        awake = torch.ones(runs, n, dtype=torch.bool, device=cost.device)
    judged = cost.detach()
    noise = torch.as_tensor(noise, dtype=cost.dtype).expand(runs)
    if bool((noise > 0).any()):
        unit = judged.where(awake[:, None], torch.inf).amin(2).median(1).values
        drawn = torch.randn(judged.shape, generator=generator, dtype=cost.dtype)
        judged = judged + (noise * unit)[:, None, None] * drawn
    judged = judged.where(awake[:, None], torch.inf).reshape(runs * batch, n, 1)
    weights = assignment.weights(judged)
    matched = assignment.value(cost.reshape(runs * batch, n, 1), weights).view(runs, batch)
    logits = logits.where(awake[:, None], _NO_LOGIT).reshape(runs * batch, n)
    scored = score_loss(logits, judged, kind="cross_entropy").view(runs, batch)
    return WinnerLosses(
        matched.sum(1) if reduction == "sum" else matched.mean(1),
        scored.mean(1),
        (weights.view(runs, batch, n) > 0).any(1),
        judged.view(runs, batch, n).argmin(2),
    )


def class_probabilities(logits: Tensor, awake: Tensor | None = None) -> Tensor:
    """The classifier's distribution over the experts that are awake, (R, B, n).

    Args:
        logits: (R, B, n).
        awake: (R, n) bool; None: all are.
    """
    if awake is not None:
        logits = logits.where(awake[:, None], _NO_LOGIT)
    return logits.softmax(-1)
