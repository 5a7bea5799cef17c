"""Distributions whose law is known: three Gaussians, at rest or moving, three sines, modes in the plane."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sepkit.errors import UserError

MEANS = ((-0.5, -0.5), (0.0, 0.5), (0.5, -0.5))
"""Of the three Gaussians, at input 1 in the moving case."""

MODE_DEVIATION = 0.3
"""Of each mode in the plane."""


@dataclass(frozen=True)
class ThreeGaussians:
    """y given x is one of three Gaussians with equal chances, around their means or around x times their means.

    Source: aMCL paper, appendix D.
    """

    moving: bool = False
    deviation: float = 0.1

    def sample(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return targets (..., 2) for inputs (...) between 0 and 1."""
        means = torch.tensor(MEANS)[torch.randint(3, inputs.shape, generator=generator)]
        noise = torch.randn(*inputs.shape, 2, generator=generator)
        return (inputs.unsqueeze(-1) * means if self.moving else means) + self.deviation * noise

    def covariance(self, x: float = 1.0) -> Tensor:
        """Return the covariance of y given x, (2, 2): that of the means plus that of one Gaussian."""
        means = torch.tensor(MEANS, dtype=torch.float64) * (x if self.moving else 1.0)
        centered = means - means.mean(0)
        return centered.mT @ centered / 3 + self.deviation**2 * torch.eye(2, dtype=torch.float64)

    def critical_temperature(self, x: float = 1.0) -> float:
        """Return 2 lambda_max of the covariance: where free hypotheses for y given x split first (eq. 14)."""
        return 2 * float(torch.linalg.eigvalsh(self.covariance(x))[-1])

    def entropy_nats(self, seed: int = 0, count: int = 200_000) -> float:
        """Return the differential entropy of y at input 1, by `count` samples; its standard error is about 0.002."""
        points = self.sample(torch.ones(count), torch.Generator().manual_seed(seed)).double()
        squares = torch.cdist(points, torch.tensor(MEANS, dtype=torch.float64)).square()
        log_density = (-squares / (2 * self.deviation**2)).logsumexp(1) - math.log(6 * math.pi * self.deviation**2)
        return -float(log_density.mean())


@dataclass(frozen=True)
class Sines:
    """x is normal, I given x is 1, 2 or 3 with probabilities softmax(a_i x), y = sin(2 I x) + 10 I + noise.

    Source: CCLVQ paper, section 5.1.
    """

    deviation: float = 0.3
    slopes: tuple[float, ...] = (-1.0, 0.0, 1.0)

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the distribution of the mode I given x (...), (..., 3)."""
        return (x.unsqueeze(-1) * torch.tensor(self.slopes, dtype=x.dtype)).softmax(-1)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs (N,), targets (N,) and the index of the mode of each, 0, 1 or 2."""
        x = torch.randn(count, generator=generator)
        mode = torch.multinomial(self.probabilities(x), 1, generator=generator)[:, 0]
        number = mode + 1
        noise = self.deviation * torch.randn(count, generator=generator)
        return x, (2 * number * x).sin() + 10 * number + noise, mode


def mode_centers(name: str) -> Tensor:
    """Return the centers of the modes, (K, 2): "ring" has 8 on a circle of radius 4, "grid" 5 x 5, 2 apart."""
    if name == "ring":
        angles = torch.arange(8) * (math.pi / 4)
        return 4 * torch.stack([angles.cos(), angles.sin()], 1)
    if name == "grid":
        axis = torch.arange(-4.0, 5.0, 2.0)
        return torch.cartesian_prod(axis, axis)
    raise UserError(f"targets: found {name!r}, expected ring or grid")


def sample_modes(centers: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return N points of Gaussians around the centers (K, 2), equally likely, (N, 2)."""
    chosen = centers[torch.randint(len(centers), (count,), generator=generator)]
    return chosen + MODE_DEVIATION * torch.randn(count, 2, generator=generator)
