"""n points for a distribution: competitive learning (CLVQ), Lloyd's algorithm, LBG, deterministic annealing, networks.

The quality of points is their distortion, the mean squared distance to the nearest of them.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.optimize
import torch
from scipy.sparse.csgraph import connected_components
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
_MOST_ROUNDS = 10_000
# In units of the length sqrt(T / 2) that belongs to a temperature: hypotheses nearer to each other than the first are
# one group; each settling starts with a push of the second.
_GROUP_LIMIT = 0.05
_PUSH = 1e-3
# Of the free energy in that unit: far smaller than what a push beside a saddle point makes.
_LEAST_SLOPE = 1e-10


# ---------------------------------------------------------------------------------------------------------- free points


def squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """Return |y - a_k|^2, (N, n), not from inner products, which round where a centroid is at a point.

    Args:
        points: (N, d) points y.
        centroids: (n, d) centroids a_k.
    """
    return torch.cdist(points, centroids, compute_mode="donot_use_mm_for_euclid_dist").square()


def distortion(points: Tensor, centroids: Tensor) -> float:
    """Return the mean squared distance of points from the nearest centroid.

    It is the squared Wasserstein distance between the points and the centroids with their Voronoi weights.

    Args:
        points: (N, d) points.
        centroids: (n, d) centroids.

    Source: CCLVQ paper, proposition 3.1.
    """
    return float(squared_distances(points, centroids).amin(1).mean())


def clvq(points: Tensor, count: int, steps: int, seed: int = 0) -> Tensor:
    """Return centroids (n, d) by competitive learning: the nearest one of a random point moves towards it.

        a <- a - gamma_t (a - y),   gamma_t = min(50 / (100 + t), 1 / 2)

    gamma is twice the learning rate, since the gradient of |a - y|^2 is 2 (a - y). It falls as 1 / t, so that centroids
    end as means of the points that they won.

    Args:
        points: (N, d) points.
        count: Number n of centroids, which start as n distinct points.
        steps: Number of points that are drawn, with replacement.
        seed: Seed of the start and of the draws.

    Raises:
        UserError: fewer distinct points than centroids.

    Source: CCLVQ paper, section 3.4; the step size is ours.
    """
    generator = np.random.default_rng(seed)
    values = points.double().numpy()
    distinct = np.unique(values, axis=0)
    _check_count(len(distinct), count)
    centroids = distinct[generator.choice(len(distinct), count, replace=False)]
    drawn = values[generator.integers(len(values), size=steps)]
    for point, size in zip(drawn, np.minimum(50 / (100 + np.arange(steps)), 0.5), strict=True):
        differences = centroids - point
        winner = np.square(differences).sum(1).argmin()
        centroids[winner] -= size * differences[winner]
    return torch.from_numpy(centroids)


def lbg(points: Tensor, count: int, tolerance: float = 1e-9, jitter: float = 1e-2, seed: int = 0) -> Tensor:
    """Return centroids (n, d) grown from the mean: the one with most distortion is split, then Lloyd's algorithm.

    Args:
        points: (N, d) points.
        count: Number n of centroids.
        tolerance: Largest move of a centroid at the end that counts as none.
        jitter: Distance of two halves, as a share of the deviation of the points.
        seed: Seed of the directions of splits.

    Raises:
        UserError: fewer distinct points than centroids.

    Source: Linde, Buzo and Gray, "An algorithm for vector quantizer design", 1980.
    """
    _check_count(len(points.unique(dim=0)), count)
    generator = torch.Generator().manual_seed(seed)
    length = jitter * points.std(0, correction=0).square().mean().sqrt()
    centroids = points.mean(0, keepdim=True)
    while len(centroids) < count:
        nearest = squared_distances(points, centroids).min(1)
        shares = torch.zeros(len(centroids), dtype=points.dtype).index_add_(0, nearest.indices, nearest.values)
        push = length * torch.randn(points.shape[1], generator=generator, dtype=points.dtype)
        halves = centroids[shares.argmax()] + torch.stack([-push, push])
        others = centroids[torch.arange(len(centroids)) != shares.argmax()]
        centroids = lloyd(points, torch.cat([others, halves]), tolerance=float(length) / 10)
    return lloyd(points, centroids, tolerance)


def _check_count(distinct: int, count: int) -> None:
    if not 1 <= count <= distinct:
        raise UserError(f"found {distinct} distinct points, expected at least as many as there are centroids, {count}")


def lloyd(points: Tensor, start: Tensor, tolerance: float = 1e-9) -> Tensor:
    """Return centroids (n, d) at a fixed point: each is the mean of the points (N, d) that it is the nearest of.

    A centroid that is nearest to no point stays.

    Args:
        points: (N, d) points.
        start: (n, d) centroids to start from.
        tolerance: Largest move that counts as none.

    Source: Lloyd, "Least squares quantization in PCM", 1982.
    """
    centroids = start.to(points.dtype)
    for _ in range(_MOST_ROUNDS):
        winners = torch.cdist(points, centroids).argmin(1)
        sums = torch.zeros_like(centroids).index_add_(0, winners, points)
        counts = torch.bincount(winners, minlength=len(centroids)).unsqueeze(1)
        moved = (sums / counts.clamp_min(1)).where(counts > 0, centroids)
        if float((moved - centroids).abs().max()) <= tolerance:
            return moved
        centroids = moved
    return centroids


def mutual_information_bits(weights: Tensor) -> float:
    """Return I(hypothesis; point) of an assignment (N, n), bits: the mean divergence of its rows from their mean."""
    ratio = torch.where(weights > 0, weights / weights.mean(0).clamp_min(torch.finfo(weights.dtype).tiny), 1.0)
    return float((weights * ratio.log2()).sum(1).mean())


# ---------------------------------------------------------------------------------------------- deterministic annealing


def anneal_points(points: Tensor, hypotheses: int, *, end_ratio: float = 1e-3, seed: int = 0) -> dict[str, Any]:
    """Return where n hypotheses rest at each temperature for points (N, d), and where groups split, found to a
    percent.

    The annealing ends when all hypotheses are apart, or at `end_ratio` of the first critical temperature.

    Args:
        points: (N, d) points.
        hypotheses: Number n of hypotheses.
        end_ratio: Lowest temperature, as a share of 2 lambda_max of the points' covariance (eq. 14).
        seed: Seed of the pushes that let groups split.

    Returns:
        critical_temperature (eq. 14); temperatures, groups (their number) and places (n, d) at each; splits: rows of
        temperature, groups_before, groups_after, and predicted_temperature, the largest 2 lambda_max of a group (eq.
        13).

    Source: Rose, "Deterministic annealing for clustering, compression, classification, regression", 1998; aMCL paper,
    section 4.3.
    """
    points = points.detach().double()
    covariance = points.mT.cov(correction=0)
    critical = 2 * float(torch.linalg.eigvalsh(covariance)[-1])
    generator = torch.Generator().manual_seed(seed)
    splits: list[dict[str, float]] = []
    states: list[tuple[float, int, Tensor]] = []

    def settled(start: Tensor, temperature: float) -> tuple[float, int, Tensor]:
        push = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        places = settle_points(points, start + _PUSH * math.sqrt(temperature / 2) * push, temperature)
        return temperature, count_groups(places, temperature), places

    # No eigenvalue exceeds the trace, so the first split is certainly below this.
    state = settled(points.mean(0).expand(hypotheses, -1), 4 * float(covariance.trace()))
    while True:
        states.append(state)
        if state[1] >= hypotheses or 0.9 * state[0] < end_ratio * critical:
            break
        above, state = state, settled(state[2], 0.9 * state[0])
        while state[1] > above[1] and above[0] > 1.01 * state[0]:
            trial = settled(above[2], math.sqrt(above[0] * state[0]))
            above, state = (above, trial) if trial[1] > above[1] else (trial, state)
        if state[1] > above[1]:
            split = {"temperature": math.sqrt(above[0] * state[0]), "groups_before": above[1], "groups_after": state[1]}
            splits.append(split | {"predicted_temperature": group_temperature(points, above[2], above[0])})
    temperatures, groups, places = zip(*states, strict=True)
    found = {"temperatures": temperatures, "groups": groups, "places": [p.tolist() for p in places]}
    return {"critical_temperature": critical, "splits": splits} | found


def group_temperature(points: Tensor, hypotheses: Tensor, temperature: float) -> float:
    """Return the temperature below which a group of two hypotheses or more splits: the largest 2 lambda_max.

    lambda_max is of the covariance of the points weighted by the group's share at `temperature`. It is 0 without such a
    group.

    Args:
        points: (N, d) points.
        hypotheses: (n, d) hypotheses at rest.
        temperature: Temperature at which they rest.

    Source: aMCL paper, eq. 13.
    """
    near = torch.cdist(hypotheses, hypotheses) < _GROUP_LIMIT * math.sqrt(temperature / 2)
    shares = (-torch.cdist(points, hypotheses).square() / temperature).softmax(1)
    largest = 0.0
    for k in (near.sum(1) > 1).nonzero()[:, 0].tolist():
        difference, share = points - hypotheses[k], shares[:, k : k + 1]
        covariance = (share * difference).mT @ difference / share.sum()
        largest = max(largest, 2 * float(torch.linalg.eigvalsh(covariance)[-1]))
    return largest


def count_groups(hypotheses: Tensor, temperature: float) -> int:
    """Return the number of groups of (n, d) hypotheses: chains whose links are shorter than 0.05 sqrt(T / 2)."""
    near = squared_distances(hypotheses, hypotheses) < _GROUP_LIMIT**2 * temperature / 2
    return int(connected_components(near.numpy(), return_labels=False))


def settle_points(points: Tensor, start: Tensor, temperature: float) -> Tensor:
    """Return the (n, d) hypotheses of least free energy below a start, float64.

    The free energy is -T sum_y log mean_k exp(-|f_k - y|^2 / T). Its stationary points are f_k = sum_y q y / sum_y q
    with q = softmin_k(|f_k - y|^2 / T). Repeated averaging gets there too, but it slows down just below a critical
    temperature, where it has to leave a saddle point.

    Args:
        points: (N, d) points, float64.
        start: (n, d) hypotheses to start from.
        temperature: Temperature T, in the unit of squared distances.
    """
    unit = math.sqrt(temperature / 2)
    y = points / unit

    def energy(place: np.ndarray) -> tuple[float, np.ndarray]:
        hypotheses = torch.from_numpy(place).view_as(start)
        exponents = squared_distances(y, hypotheses) / -2
        weights = exponents.softmax(1)
        gradient = weights.sum(0).unsqueeze(1) * hypotheses - weights.mT @ y
        return -float(exponents.logsumexp(1).mean()), (gradient / len(y)).flatten().numpy()

    options = {"gtol": _LEAST_SLOPE, "ftol": 0.0, "maxiter": _MOST_ROUNDS, "maxfun": 2 * _MOST_ROUNDS}
    begin = (start / unit).flatten().numpy()
    found = scipy.optimize.minimize(energy, begin, jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x).view_as(start) * unit


# -------------------------------------------------------------------------------------------------- points of networks


def build_method(
    name: str, *, temperature: float, decay: float, epochs: float, floor: float, epsilon: float
) -> Assignment:
    """Return the assignment of this name; `set_progress(epoch)` moves it along its schedule.

    Args:
        name: Name of `METHODS`.
        temperature: Initial temperature of annealed MCL, in the unit of the squared error.
        decay: Factor on an exponential temperature, per epoch.
        epochs: Epoch at which a linear temperature or an annealed epsilon is zero.
        floor: Temperature below which matching is hard.
        epsilon: Initial epsilon of relaxed WTA with annealed epsilon.

    Raises:
        UserError: an unknown name, or an epsilon that is no number from 0 to 1.
    """
    builders = {
        "mcl": MCL,
        "amcl_linear": lambda: AnnealedMCL(TruncatedLinear(temperature, epochs), floor=floor, unit="cost"),
        "amcl_exponential": lambda: AnnealedMCL(TruncatedExponential(temperature, decay), floor=floor, unit="cost"),
        "relaxed_wta_annealed": lambda: RelaxedWTA(TruncatedLinear(epsilon, epochs)),
    }
    if name in builders:
        return builders[name]()
    if not name.startswith(_RELAXED):
        raise UserError(f"--methods: found {name!r}{did_you_mean(name, METHODS)}, expected {', '.join(METHODS)}")
    try:
        fixed = float(name.removeprefix(_RELAXED))
    except ValueError:
        fixed = math.nan
    if not 0 <= fixed <= 1:
        raise UserError(f"--methods: found {name!r}, expected relaxed_wta_ and a number from 0 to 1, or annealed")
    return RelaxedWTA(fixed)


class HypothesisNetworks(nn.Module):
    """S networks, trained as one stack: ReLU layers, then n points with a score each.

    Args:
        inputs: Dimension d_x of the input.
        hidden: Widths of the layers.
        hypotheses: Number n of points.
        outputs: Dimension d_y of a point.
        generators: One generator a network, from which alone its weights follow.
        bounded: Whether coordinates are between -1 and 1.

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


def point_losses(
    points: Tensor, scores: Tensor, targets: Tensor, assignment: Assignment
) -> tuple[Tensor, Tensor, Tensor]:
    """Return two losses (..., ), cost under the assignment's weights and the scores' cross-entropy against who won, and
    the squared distances (..., n).

    Args:
        points: (..., n, d) predicted points.
        scores: (..., n) logits of their scores.
        targets: (..., d) true points.
        assignment: Way of matching.

    Source: aMCL paper, eq. 4 to 8; reference code annealed_mcl for the scores.
    """
    distances = (points - targets.unsqueeze(-2)).square().sum(-1)
    cost = distances.flatten(0, -2).unsqueeze(-1)
    scoring = score_loss(scores.flatten(0, -2), cost)
    return assignment(cost).view(distances.shape[:-1]), scoring.view(distances.shape[:-1]), distances


def weighted_mean(points: Tensor, scores: Tensor) -> Tensor:
    """Return the mean of points (..., n, d), weighted with the sigmoids of their scores over their sum, (..., d).

    The paper prints the sum without normalization, the reference code divides.

    Args:
        points: (..., n, d) predicted points.
        scores: (..., n) logits of their scores.
    """
    weights = scores.sigmoid()
    return (weights.unsqueeze(-1) * points).sum(-2) / weights.sum(-1, keepdim=True)
