"""n points for a distribution without input: stochastic winner updates (CLVQ), Lloyd's algorithm, growth by splitting.

Deterministic annealing is `sepkit.studies.quantization.deterministic_annealing.anneal_points`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sepkit.errors import UserError

_MOST_ROUNDS = 10_000


def clvq(
    points: Tensor,
    count: int,
    *,
    steps: int,
    gain: float = 50.0,
    offset: float = 100.0,
    largest: float = 0.5,
    seed: int = 0,
) -> Tensor:
    """(n, d) centroids after stochastic steps: the winner of a random point moves towards it.

    a <- a - gamma_t (a - y), gamma_t = min(gain / (offset + t), largest): gamma is twice the learning rate, for the
    gradient of |a - y|^2 is 2 (a - y).

    Args:
        points: (N, d).
        count: n.
        steps: how many points are drawn, with replacement.
        gain: of the step size.
        offset: of the step size.
        largest: step size.
        seed: of the start, n distinct points, and of the draws.

    Raises:
        UserError: fewer distinct points than centroids.

    Source: CCLVQ paper, section 3.4.
    """
    generator = np.random.default_rng(seed)
    values = points.double().numpy()
    distinct = np.unique(values, axis=0)
    _check_count(len(distinct), count)
    centroids = distinct[generator.choice(len(distinct), count, replace=False)]
    drawn = generator.integers(len(values), size=steps)
    sizes = np.minimum(gain / (offset + np.arange(steps)), largest)
    for place, size in zip(drawn.tolist(), sizes.tolist(), strict=True):
        difference = centroids - values[place]
        winner = int((difference * difference).sum(1).argmin())
        centroids[winner] -= size * difference[winner]
    return torch.from_numpy(centroids)


def lloyd(points: Tensor, start: Tensor, tolerance: float = 1e-9) -> Tensor:
    """(n, d) centroids at a fixed point: each is the mean of the points that it is the nearest of.

    A centroid that is nearest to no point stays.

    Args:
        points: (N, d).
        start: (n, d).
        tolerance: the largest move that counts as none.

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


def lbg(points: Tensor, count: int, *, jitter: float = 1e-2, seed: int = 0) -> Tensor:
    """(n, d) centroids grown from the mean: the one of most distortion is split, then Lloyd's algorithm, until n.

    Args:
        points: (N, d).
        count: n.
        jitter: distance of the two halves, as a share of the points' deviation.
        seed: of the directions of splits.

    Raises:
        UserError: fewer distinct points than centroids.

    Source: Linde, Buzo and Gray, "An algorithm for vector quantizer design", 1980.
    """
    _check_count(len(points.unique(dim=0)), count)
    generator = torch.Generator().manual_seed(seed)
    length = jitter * float((points - points.mean(0)).square().mean().sqrt())
    centroids = points.mean(0, keepdim=True)
    while len(centroids) < count:
        nearest = torch.cdist(points, centroids).min(1)
        shares = torch.zeros(len(centroids), dtype=points.dtype)
        shares.index_add_(0, nearest.indices, nearest.values.square())
        push = length * torch.randn(points.shape[1], generator=generator, dtype=points.dtype)
        chosen = int(shares.argmax())
        halves = torch.stack([centroids[chosen] - push, centroids[chosen] + push])
        others = centroids[torch.arange(len(centroids)) != chosen]
        centroids = lloyd(points, torch.cat([others, halves]))
    return centroids


def _check_count(distinct: int, count: int) -> None:
    if not 1 <= count <= distinct:
        raise UserError(f"found {distinct} distinct points, expected at least as many as there are centroids, {count}")
