"""How far n points are from the distribution that they stand for: distortion, transport, rate."""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize
import scipy.sparse
import torch
from torch import Tensor

# Rows of a table of distances at a time.
_CHUNK = 1 << 16


def distortion(points: Tensor, centroids: Tensor) -> float:
    """The mean squared distance of points from the nearest of the centroids.

    Args:
        points: (N, d).
        centroids: (n, d).
    """
    nearest = [_squares(part, centroids).amin(1) for part in points.split(_CHUNK)]
    return float(torch.cat(nearest).mean())


def voronoi_weights(points: Tensor, centroids: Tensor) -> Tensor:
    """The share of points that each centroid is the nearest of, (n,); ties go to the lowest index.

    Args:
        points: (N, d).
        centroids: (n, d).
    """
    winners = torch.cat([_squares(part, centroids).argmin(1) for part in points.split(_CHUNK)])
    return torch.bincount(winners, minlength=len(centroids)).to(points.dtype) / len(points)


def squared_wasserstein(points: Tensor, centroids: Tensor, weights: Tensor) -> float:
    """Return W2^2 between equally likely points and weighted centroids.

    The optimal transport is a linear program. With Voronoi weights it is the distortion, which is the least over all
    weights.

    Args:
        points: (N, d).
        centroids: (n, d).
        weights: (n,), of sum one.

    Raises:
        ValueError: weights that are negative, or whose sum is not one.

    Source: CCLVQ paper, proposition 3.1.
    """
    target = weights.double().numpy()
    if (target < 0).any() or abs(target.sum() - 1) > 1e-6:
        raise ValueError(f"expected weights of sum one, none of them negative, found {target.tolist()}")
    cost = _squares(points.double(), centroids.double()).numpy()
    count, n = cost.shape
    # Masses are in units of one point, which keeps the program well scaled.
    each = scipy.sparse.kron(scipy.sparse.identity(count), np.ones((1, n)), format="csr")
    all_of = scipy.sparse.kron(np.ones((1, count)), scipy.sparse.identity(n), format="csr")
    # One equation follows from the others.
    equations = scipy.sparse.vstack([each, all_of[:-1]])
    masses = np.concatenate([np.ones(count), count * target[:-1] / target.sum()])
    found = scipy.optimize.linprog(cost.ravel(), A_eq=equations, b_eq=masses, bounds=(0, None), method="highs")
    if found.status != 0:
        raise RuntimeError(f"the transport was not found: {found.message}")
    return float(found.fun) / count


def matched_squared_wasserstein(first: Tensor, second: Tensor) -> float:
    """Return W2^2 between equally many points on either side, all equally likely: the best one-to-one matching.

    Args:
        first: (N, d).
        second: (N, d).
    """
    cost = _squares(first.double(), second.double()).numpy()
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    return float(cost[rows, columns].mean())


def mutual_information_bits(weights: Tensor) -> float:
    """Return I(hypothesis; point) of an assignment, bits: the mean divergence from the mean row.

    Args:
        weights: (N, n), rows of sum one.
    """
    mean = weights.mean(0)
    ratio = torch.where(weights > 0, weights / mean.clamp_min(torch.finfo(weights.dtype).tiny), 1.0)
    return float((weights * ratio.log2()).sum(1).mean())


def gaussian_rate_bits(variance: float, distortion: float, dimension: int = 1) -> float:
    """Return R(D) of a Gaussian: (d/2) log2(d s^2 / D) bits, 0 from D = d s^2 on.

    Args:
        variance: s^2, in each dimension.
        distortion: D, mean squared error over all dimensions.
        dimension: d.
    """
    return max(0.0, dimension / 2 * math.log2(dimension * variance / distortion))


def shannon_lower_bound_bits(entropy_nats: float, distortion: float, dimension: int) -> float:
    """Return h(Y) - (d/2) log2(2 pi e D / d) bits: no code of this distortion has a lower rate.

    Args:
        entropy_nats: differential entropy h(Y).
        distortion: D, mean squared error over all dimensions.
        dimension: d.

    Source: aMCL paper, eq. 33, where the dimension is one.
    """
    return entropy_nats / math.log(2) - dimension / 2 * math.log2(2 * math.pi * math.e * distortion / dimension)


def precision_recall(real: Tensor, generated: Tensor, neighbors: int = 3) -> tuple[float, float]:
    """Improved precision and recall of generated samples.

    Precision is the share of generated samples within reach of a real one: not farther from it than its k-th nearest
    other real sample. Recall is the same with the roles exchanged.

    Args:
        real: (N, d), N above `neighbors`.
        generated: (M, d), M above `neighbors`.
        neighbors: k.

    Returns:
        Precision and recall.

    Source: Kynkaanniemi et al., "Improved precision and recall metric for assessing generative models", 2019.
    """

    def share_within(samples: Tensor, reference: Tensor) -> float:
        # The nearest point of the reference is the point itself.
        reach = torch.cdist(reference, reference).kthvalue(neighbors + 1, dim=1).values
        return float((torch.cdist(samples, reference) <= reach).any(1).float().mean())

    return share_within(generated, real), share_within(real, generated)


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return half the sum of absolute differences over the last axis.

    Args:
        first: (..., K), distributions.
        second: (..., K), distributions.
    """
    return (first - second).abs().sum(-1) / 2


def _squares(points: Tensor, centroids: Tensor) -> Tensor:
    """(N, n); not from inner products, which round where a centroid is at a point."""
    return torch.cdist(points, centroids, compute_mode="donot_use_mm_for_euclid_dist").square()
