"""Deterministic annealing: free hypotheses settle at a minimum of the free energy while the temperature falls.

The free energy is -T sum_y log mean_k exp(-|f_k - y|^2 / T). Its stationary points are f_k = sum_y q y / sum_y q with
q = softmin_k(|f_k - y|^2 / T). Repeated averaging gets there too, but it slows down just below a critical temperature,
where it has to leave a saddle point.

Source: Rose, "Deterministic annealing for clustering, compression, classification, regression", 1998; aMCL paper,
section 4.3.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

# In units of the length sqrt(T / 2) that belongs to a temperature: hypotheses nearer to each other than the first are
# one group; each settling starts with a push of the second.
_GROUP_LIMIT = 0.05
_PUSH = 1e-3
_MAX_STEPS = 10_000
# Of the free energy in that unit: far smaller than what a push beside a saddle point makes.
_LEAST_SLOPE = 1e-10


def three_gaussians(count: int = 3000, seed: int = 0) -> Tensor:
    """Return (count, 2) points of three Gaussians at (-0.5, -0.5), (0, 0.5), (0.5, -0.5), deviation 0.1, equally often.

    Their covariance has the largest eigenvalue 2/9 + 0.01, so free hypotheses split at 0.464.

    Source: aMCL paper, appendix C, data of figure 1.
    """
    generator = torch.Generator().manual_seed(seed)
    means = torch.tensor([[-0.5, -0.5], [0.0, 0.5], [0.5, -0.5]], dtype=torch.float64)
    noise = 0.1 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return means[torch.arange(count) % 3] + noise


def anneal_points(
    points: Tensor, hypotheses: int, *, decay: float = 0.9, end_ratio: float = 1e-3, seed: int = 0
) -> dict[str, Any]:
    """Return where n hypotheses rest at each temperature for points (N, d), and where groups split, found to a
    percent.

    The annealing ends when all hypotheses are apart, or at `end_ratio` of the first critical temperature.

    Args:
        end_ratio: lowest temperature, as a share of 2 lambda_max of the points' covariance (eq. 14).

    Returns:
        critical_temperature (eq. 14); temperatures, groups (their number) and places (n, d) at each; splits: rows of
        temperature, groups_before, groups_after, and predicted_temperature, the largest 2 lambda_max of a group (eq.
        13).
    """
    points = points.detach().double()
    centered = points - points.mean(0)
    covariance = centered.mT @ centered / len(points)
    critical = 2 * float(torch.linalg.eigvalsh(covariance)[-1])
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {"critical_temperature": critical, "splits": []}
    states: list[tuple[float, int, Tensor]] = []

    def settled(start: Tensor, temperature: float) -> tuple[float, int, Tensor]:
        push = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        places = settle_points(points, start + _PUSH * math.sqrt(temperature / 2) * push, temperature)
        return temperature, count_groups(places, temperature), places

    # No eigenvalue exceeds the trace, so the first split is certainly below this.
    state = settled(points.mean(0).expand(hypotheses, -1), 4 * float(covariance.trace()))
    while True:
        states.append(state)
        if state[1] >= hypotheses or state[0] * decay < end_ratio * critical:
            break
        above, state = state, settled(state[2], state[0] * decay)
        while state[1] > above[1] and above[0] > 1.01 * state[0]:
            trial = settled(above[2], math.sqrt(above[0] * state[0]))
            above, state = (above, trial) if trial[1] > above[1] else (trial, state)
        if state[1] > above[1]:
            found["splits"].append(
                {
                    "temperature": math.sqrt(above[0] * state[0]),
                    "groups_before": above[1],
                    "groups_after": state[1],
                    "predicted_temperature": group_temperature(points, above[2], above[0]),
                }
            )
    temperatures, groups, places = zip(*states, strict=True)
    return found | {
        "temperatures": list(temperatures), "groups": list(groups), "places": [p.tolist() for p in places],
    }  # fmt: skip


def group_temperature(points: Tensor, hypotheses: Tensor, temperature: float) -> float:
    """Return the temperature below which a group of two hypotheses or more splits: the largest 2 lambda_max.

    lambda_max is of the covariance of the points weighted by the group's share at `temperature`. It is 0 without such a
    group.

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
    n = len(hypotheses)
    distances = torch.cdist(hypotheses, hypotheses, compute_mode="donot_use_mm_for_euclid_dist")
    near = distances < _GROUP_LIMIT * math.sqrt(temperature / 2)
    labels = torch.arange(n)
    for _ in range(n):
        labels = labels.expand(n, n).where(near, n).amin(1)
    return len(labels.unique())


def settle_points(points: Tensor, start: Tensor, temperature: float) -> Tensor:
    """Return the (n, d) hypotheses of least free energy below a start, for points (N, d), float64."""
    unit = math.sqrt(temperature / 2)
    y = points / unit

    def energy(place: np.ndarray) -> tuple[float, np.ndarray]:
        hypotheses = torch.from_numpy(place).view_as(start)
        # Inner products would round away what the last steps change.
        distances = torch.cdist(y, hypotheses, compute_mode="donot_use_mm_for_euclid_dist")
        exponents = distances.square() / -2
        weights = exponents.softmax(1)
        gradient = weights.sum(0).unsqueeze(1) * hypotheses - weights.mT @ y
        return -float(exponents.logsumexp(1).mean()), (gradient / len(y)).flatten().numpy()

    options = {"gtol": _LEAST_SLOPE, "ftol": 0.0, "maxiter": _MAX_STEPS, "maxfun": 2 * _MAX_STEPS}
    begin = (start / unit).flatten().numpy()
    found = scipy.optimize.minimize(energy, begin, jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x).view_as(start) * unit
