"""Settle free hypotheses for points at one temperature: go downhill from a start to a minimum of the free energy.

Repeated averaging (f_k = sum_y q y / sum_y q) gets there too. But it slows down just below a critical temperature,
where it has to leave a saddle point, and while groups that are about to meet approach each other. Newton steps within a
trust region follow negative curvature away from saddle points and end at a minimum.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

_MAX_STEPS = 300
_MOST_DENSE = 256


def settle_points(
    points: Tensor, start: Tensor, temperature: float, copies: Tensor | None = None, tolerance: float = 1e-6
) -> Tensor:
    """Return the (n, d) hypotheses of least free energy -T mean_y log sum_k c_k exp(-|f_k - y|^2 / T) below a start.

    Args:
        points: (N, d), float64.
        start: (n, d) hypotheses.
        temperature: T, in the unit of squared distances, > 0.
        copies: (n,) how many hypotheses c_k are at each place and stay together; None: one.
        tolerance: the largest gradient that counts as none, in units of sqrt(T / 2) times the mass of a hypothesis.
    """
    copies = torch.ones(len(start), dtype=points.dtype) if copies is None else copies.cpu().to(points.dtype)
    energy = _FreeEnergy(points.cpu(), temperature, copies)
    radius = math.sqrt(start.numel())
    # One matrix product costs as much as a few of the dozens of products with vectors that a step at a saddle needs.
    dense = start.numel() <= _MOST_DENSE
    found = scipy.optimize.minimize(
        energy.value_and_gradient,
        (start.cpu() / energy.unit).flatten().numpy(),
        jac=True,
        method="trust-exact" if dense else "trust-ncg",
        **({"hess": energy.hessian} if dense else {"hessp": energy.curvature}),
        options={
            "gtol": tolerance / float(copies.sum()), "maxiter": _MAX_STEPS,
            "initial_trust_radius": 0.1 * radius, "max_trust_radius": radius,
        },
    )  # fmt: skip
    return torch.from_numpy(found.x).view_as(start).to(start.device) * energy.unit


class _FreeEnergy:
    """-mean_y log sum_k c_k exp(-|r_k|^2 / 2) with residuals r_k = u_k - y / sqrt(T / 2), in the form that SciPy needs.

    Its gradient is mean q_k r_k with q = softmax(log c - |r|^2 / 2); its curvature along v is
    mean(q_k) v_k + mean q_k (sum_l q_l <r_l, v_l> - <r_k, v_k>) r_k.
    """

    def __init__(self, points: Tensor, temperature: float, copies: Tensor) -> None:
        self._log_copies = copies.log()
        self.unit = math.sqrt(temperature / 2)
        self.points = points / self.unit
        self._place: np.ndarray | None = None
        self._products: Tensor | None = None

    @cached_property
    def _squares(self) -> Tensor:
        """Return (N, d d) products of the coordinates of each point."""
        return (self.points.unsqueeze(2) * self.points.unsqueeze(1)).flatten(1)

    def value_and_gradient(self, place: np.ndarray) -> tuple[float, np.ndarray]:
        self._move_to(place)
        gradient = self.weights.sum(0).unsqueeze(1) * self.hypotheses - self.weights.mT @ self.points
        return self.value, (gradient / len(self.points)).flatten().numpy()

    def curvature(self, place: np.ndarray, along: np.ndarray) -> np.ndarray:
        self._move_to(place)
        v = torch.from_numpy(along).view_as(self.hypotheses)
        products = self.weights * ((self.hypotheses * v).sum(1) - self.points @ v.mT)
        change = self.weights * products.sum(1, keepdim=True) - products
        own = self.weights.sum(0).unsqueeze(1) * v + change.sum(0).unsqueeze(1) * self.hypotheses
        return ((own - change.mT @ self.points) / len(self.points)).flatten().numpy()

    def hessian(self, place: np.ndarray) -> np.ndarray:
        """Return all curvatures: products q_k r_k with each other, minus q_k r_k r_k per hypothesis, plus its mass."""
        self._move_to(place)
        n, d = self.hypotheses.shape
        # Coordinates before hypotheses: the long dimension is the last one, where operations on elements are fast. New
        # memory at every call would take longer than they do.
        if self._products is None:
            self._products = self.points.new_empty(len(self.points), d, n)
        torch.sub(self.hypotheses.mT, self.points.unsqueeze(2), out=self._products)
        flat = self._products.mul_(self.weights.unsqueeze(1)).flatten(1)
        result = (flat.mT @ flat).view(d, n, d, n).permute(1, 0, 3, 2).reshape(n * d, n * d)
        mass = self.weights.sum(0)
        first = self.hypotheses.unsqueeze(2) * (self.weights.mT @ self.points).unsqueeze(1)
        outer = self.hypotheses.unsqueeze(2) * self.hypotheses.unsqueeze(1)
        second = (self.weights.mT @ self._squares).view(n, d, d) - first - first.mT + mass[:, None, None] * outer
        own = mass[:, None, None] * torch.eye(d, dtype=flat.dtype) - second
        blocks = result.view(n, d, n, d)
        for k in range(n):
            blocks[k, :, k] += own[k]
        return (result / len(self.points)).numpy()

    def _move_to(self, place: np.ndarray) -> None:
        if self._place is not None and np.array_equal(self._place, place):
            return
        self._place = place.copy()
        self.hypotheses = torch.from_numpy(self._place).view(-1, self.points.shape[1])
        # Inner products would round away what the last steps change.
        distances = torch.cdist(self.points, self.hypotheses, compute_mode="donot_use_mm_for_euclid_dist")
        exponents = distances.square_().mul_(-0.5).add_(self._log_copies)
        largest = exponents.amax(1, keepdim=True)
        self.weights = exponents.sub_(largest).exp_()
        total = self.weights.sum(1, keepdim=True)
        self.weights /= total
        self.value = -float((largest + total.log()).mean())
