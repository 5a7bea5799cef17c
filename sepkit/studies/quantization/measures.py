"""How far n points are from the distribution that they stand for: distortion, transport, rate, coverage."""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

# Rows of a table of distances at a time.
_CHUNK = 1 << 16
_MOST_ROUNDS = 10_000
# A sample is off every mode if it is farther from all centers than this many deviations.
_OFF = 3.0
# A mode is hit if it has this share of its own share of the samples.
_HIT = 0.1

FLOOR_OFF_MODES = math.exp(-(_OFF**2) / 2)
"""Share of true samples that count as off every mode: a Gaussian in the plane is farther than r deviations with
probability exp(-r^2 / 2)."""


def distortion(points: Tensor, centroids: Tensor) -> float:
    """Return the mean squared distance of points (N, d) from the nearest of the centroids (n, d).

    It is the squared Wasserstein distance between the points and the centroids with the shares of points they win.

    Source: CCLVQ paper, proposition 3.1.
    """
    nearest = [_squares(part, centroids).amin(1) for part in points.split(_CHUNK)]
    return float(torch.cat(nearest).mean())


def lloyd(points: Tensor, start: Tensor, tolerance: float = 1e-9) -> Tensor:
    """Return centroids (n, d) at a fixed point: each is the mean of the points (N, d) that it is the nearest of.

    A centroid that is nearest to no point stays.

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


def squared_wasserstein(first: Tensor, second: Tensor) -> float:
    """Return W2^2 between equally many points on either side, (N, d), all equally likely: their best matching."""
    cost = _squares(first.double(), second.double()).numpy()
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    return float(cost[rows, columns].mean())


def mutual_information_bits(weights: Tensor) -> float:
    """Return I(hypothesis; point) of an assignment (N, n), bits: the mean divergence of its rows from their mean."""
    mean = weights.mean(0)
    ratio = torch.where(weights > 0, weights / mean.clamp_min(torch.finfo(weights.dtype).tiny), 1.0)
    return float((weights * ratio.log2()).sum(1).mean())


def shannon_lower_bound_bits(entropy_nats: float, distortion: np.ndarray | float, dimension: int) -> np.ndarray:
    """Return h(Y) - (d/2) log2(2 pi e D / d) bits: no code of mean squared error D has a lower rate. A Gaussian
    reaches it.

    Source: aMCL paper, eq. 33, where the dimension is one.
    """
    return entropy_nats / math.log(2) - dimension / 2 * np.log2(2 * math.pi * math.e * distortion / dimension)


def precision_recall(real: Tensor, generated: Tensor, neighbors: int = 3) -> tuple[float, float]:
    """Return improved precision and recall of generated samples.

    Precision is the share of generated samples within reach of a real one: not farther from it than its k-th nearest
    other real sample. Recall is the same with the roles exchanged.

    Source: Kynkaanniemi et al., "Improved precision and recall metric for assessing generative models", 2019.
    """

    def share_within(samples: Tensor, reference: Tensor) -> float:
        # The nearest point of the reference is the point itself.
        reach = torch.cdist(reference, reference).kthvalue(neighbors + 1, dim=1).values
        return float((torch.cdist(samples, reference) <= reach).any(1).float().mean())

    return share_within(generated, real), share_within(real, generated)


def mode_coverage(samples: Tensor, centers: Tensor, deviation: float) -> tuple[float, int]:
    """Return the share of samples (N, 2) that are off every mode, and the number of modes (K, 2) that are hit.

    A sample farther than three deviations from all centers is off every mode. A mode with at least a tenth of its share
    of the samples is hit.
    """
    nearest = torch.cdist(samples, centers).min(1)
    near = nearest.values <= _OFF * deviation
    hits = torch.bincount(nearest.indices[near], minlength=len(centers)) / len(samples)
    return 1 - float(near.float().mean()), int((hits > _HIT / len(centers)).sum())


def _squares(points: Tensor, centroids: Tensor) -> Tensor:
    """(N, n); not from inner products, which round where a centroid is at a point."""
    return torch.cdist(points, centroids, compute_mode="donot_use_mm_for_euclid_dist").square()
