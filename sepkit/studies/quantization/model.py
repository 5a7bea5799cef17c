"""Networks that predict n points: an MLP with a head and a score a hypothesis, as a stack that is trained at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from sepkit.models.stacked import StackedLinear, side_by_side
from sepkit.objectives.assignment import Assignment
from sepkit.objectives.scoring import score_loss


class HypothesisNetworks(nn.Module):
    """S independent networks: ReLU layers, then n points with a score each.

    Args:
        inputs: d_x.
        hidden: widths of the layers.
        hypotheses: n.
        outputs: d_y.
        generators: one a network; what network s starts from depends on the s-th alone.
        bounded: whether points end in tanh.

    Source: aMCL paper, appendix D.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        hypotheses: int,
        outputs: int,
        generators: Sequence[torch.Generator],
        bounded: bool = False,
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(StackedLinear(*pair, generators) for pair in pairwise(widths))
        self.points = StackedLinear(widths[-1], hypotheses * outputs, generators)
        self.scorers = StackedLinear(widths[-1], hypotheses, generators)
        self.outputs, self.bounded = outputs, bounded

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The points (S, B, n, d_y) and the logits of their scores (S, B, n).

        Args:
            x: (S or 1, B, d_x).
        """
        for layer in self.hidden:
            x = layer(x).relu()
        points, scores = side_by_side(x, [self.points, self.scorers])
        points = points.unflatten(-1, (-1, self.outputs))
        return points.tanh() if self.bounded else points, scores


@dataclass(frozen=True)
class PointLosses:
    """What a stack is trained by and measured with, (S, B).

    Args:
        matching: the cost under the assignment's weights.
        scoring: binary cross-entropy of the scores against who won.
        distances: (S, B, n) squared ones.
    """

    matching: Tensor
    scoring: Tensor
    distances: Tensor

    @property
    def nearest(self) -> Tensor:
        """Squared distance to the nearest hypothesis, (S, B), without gradient."""
        return self.distances.detach().amin(-1)


def squared_distances(points: Tensor, targets: Tensor) -> Tensor:
    """Return |f_k - y|^2, (..., n).

    Args:
        points: f, (..., n, d).
        targets: y, (..., d).
    """
    return (points - targets.unsqueeze(-2)).square().sum(-1)


def point_losses(points: Tensor, scores: Tensor, targets: Tensor, assignment: Assignment) -> PointLosses:
    """The losses of every example of every network of a stack.

    Args:
        points: (S, B, n, d).
        scores: (S, B, n) logits.
        targets: (S or 1, B, d).
        assignment: of all networks; a target is one source, so that costs are (S B, n, 1).

    Source: aMCL paper, eq. 4 to 8; reference code annealed_mcl for the scores.
    """
    distances = squared_distances(points, targets)
    cost = distances.flatten(0, -2).unsqueeze(-1)
    shape = distances.shape[:-1]
    scoring = score_loss(scores.flatten(0, -2), cost)
    return PointLosses(assignment(cost).view(shape), scoring.view(shape), distances)


def weighted_mean(points: Tensor, scores: Tensor) -> Tensor:
    """The mean of points, weighted with the sigmoids of their scores over their sum, (..., d).

    The paper prints the sum without normalization, the reference code divides.

    Args:
        points: (..., n, d).
        scores: (..., n) logits.
    """
    weights = scores.sigmoid()
    return (weights.unsqueeze(-1) * points).sum(-2) / weights.sum(-1, keepdim=True)
