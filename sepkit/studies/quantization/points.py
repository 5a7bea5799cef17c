"""Networks that predict n points with scores, as a stack that is trained at once, by the ways of matching by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from sepkit.choices import did_you_mean
from sepkit.errors import UserError
from sepkit.models.stacked import StackedLinear
from sepkit.objectives.assignment import MCL, AnnealedMCL, Assignment, RelaxedWTA
from sepkit.objectives.scoring import score_loss
from sepkit.schedules import TruncatedExponential, TruncatedLinear

METHODS = ("mcl", "amcl_linear", "amcl_exponential", "relaxed_wta_EPSILON", "relaxed_wta_annealed")
"""Ways of matching; EPSILON is a number, as in relaxed_wta_0.1."""

_RELAXED = "relaxed_wta_"


def build_method(
    name: str, *, temperature: float, decay: float, epochs: float, floor: float, epsilon: float
) -> Assignment:
    """Return the assignment of this name; `set_progress(epoch)` moves it along its schedule. A linear temperature, or
    an annealed epsilon, is zero at `epochs`."""
    if name == "mcl":
        return MCL()
    if name == "amcl_linear":
        return AnnealedMCL(TruncatedLinear(temperature, epochs), floor=floor, unit="cost")
    if name == "amcl_exponential":
        return AnnealedMCL(TruncatedExponential(temperature, decay), floor=floor, unit="cost")
    if name == "relaxed_wta_annealed":
        return RelaxedWTA(TruncatedLinear(epsilon, epochs))
    if name.startswith(_RELAXED):
        try:
            fixed = float(name.removeprefix(_RELAXED))
        except ValueError:
            fixed = math.nan
        if not 0 <= fixed <= 1:
            raise UserError(f"--methods: found {name!r}, expected relaxed_wta_ and a number from 0 to 1, or annealed")
        return RelaxedWTA(fixed)
    raise UserError(f"--methods: found {name!r}{did_you_mean(name, METHODS)}, expected {', '.join(METHODS)}")


class HypothesisNetworks(nn.Module):
    """S networks: ReLU layers, then n points with a score each, in (-1, 1) if `bounded`.

    Args:
        generators: one a network, from which alone its weights follow.

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
        """Return the points (S, B, n, d_y) and the logits of their scores (S, B, n) for inputs (S or 1, B, d_x)."""
        for layer in self.hidden:
            x = layer(x).relu()
        # One product: a narrow one costs as much as a wide one.
        last = self.points, self.scorers
        weight, bias = (torch.cat([getattr(layer, name) for layer in last], -1) for name in ("weight", "bias"))
        points, scores = torch.baddbmm(bias, x, weight).split([layer.weight.shape[-1] for layer in last], -1)
        points = points.unflatten(-1, (-1, self.outputs))
        return points.tanh() if self.bounded else points, scores


def squared_distances(points: Tensor, targets: Tensor) -> Tensor:
    """Return |f_k - y|^2, (..., n), of points (..., n, d) from targets (..., d)."""
    return (points - targets.unsqueeze(-2)).square().sum(-1)


def point_losses(
    points: Tensor, scores: Tensor, targets: Tensor, assignment: Assignment
) -> tuple[Tensor, Tensor, Tensor]:
    """Return two losses (S, B), cost under the assignment's weights and the scores' cross-entropy against who won, and
    the squared distances (S, B, n).

    Source: aMCL paper, eq. 4 to 8; reference code annealed_mcl for the scores.
    """
    distances = squared_distances(points, targets)
    cost = distances.flatten(0, -2).unsqueeze(-1)
    shape = distances.shape[:-1]
    scoring = score_loss(scores.flatten(0, -2), cost)
    return assignment(cost).view(shape), scoring.view(shape), distances


def weighted_mean(points: Tensor, scores: Tensor) -> Tensor:
    """Return the mean of points (..., n, d), weighted with the sigmoids of their scores over their sum, (..., d).

    The paper prints the sum without normalization, the reference code divides.
    """
    weights = scores.sigmoid()
    return (weights.unsqueeze(-1) * points).sum(-2) / weights.sum(-1, keepdim=True)
