"""Distributions whose law is known: three Gaussians, at rest or moving, three sines, modes in the plane."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sepkit.errors import UserError

# A sample is off every mode if it is farther from all centers than this many deviations.
_OFF = 3.0
# A mode is hit if it has this share of its own share of the samples.
_HIT = 0.1

FLOOR_OFF_MODES = math.exp(-(_OFF**2) / 2)
"""Share of true samples that count as off every mode: a Gaussian in the plane is farther than r deviations with
probability exp(-r^2 / 2)."""

MEANS = ((-0.5, -0.5), (0.0, 0.5), (0.5, -0.5))
"""Of the three Gaussians, at input 1 in the moving case."""


@dataclass(frozen=True)
class ThreeGaussians:
    """y given x is one of three Gaussians with equal chances, around their means or around x times their means.

    Args:
        deviation: of each in each dimension.
        moving: whether the means move with x, from one place at x = 0.

    Source: aMCL paper, appendix D.
    """

    deviation: float = 0.1
    moving: bool = False

    def sample(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return targets, (..., 2).

        Args:
            inputs: (...), between 0 and 1.
            generator: of the samples.
        """
        means = torch.tensor(MEANS)[torch.randint(3, inputs.shape, generator=generator)]
        noise = torch.randn(*inputs.shape, 2, generator=generator)
        return (inputs.unsqueeze(-1) * means if self.moving else means) + self.deviation * noise

    def covariance(self, x: float = 1.0) -> Tensor:
        """The covariance of y given x, (2, 2): that of the means plus that of one Gaussian.

        Args:
            x: the input; of no effect where the Gaussians do not move.
        """
        means = torch.tensor(MEANS, dtype=torch.float64) * (x if self.moving else 1.0)
        centered = means - means.mean(0)
        return centered.mT @ centered / 3 + self.deviation**2 * torch.eye(2, dtype=torch.float64)

    def critical_temperature(self, x: float = 1.0) -> float:
        """2 lambda_max of the covariance: where free hypotheses for y given x split first (eq. 14).

        Args:
            x: the input; of no effect where the Gaussians do not move.
        """
        return 2 * float(torch.linalg.eigvalsh(self.covariance(x))[-1])

    def entropy_nats(self, seed: int = 0, count: int = 200_000) -> float:
        """Return the differential entropy of y at input 1, by sampling; its standard error is about 0.002.

        Args:
            seed: of the samples.
            count: how many.
        """
        points = self.sample(torch.ones(count), torch.Generator().manual_seed(seed)).double()
        squares = torch.cdist(points, torch.tensor(MEANS, dtype=torch.float64)).square()
        log_density = (-squares / (2 * self.deviation**2)).logsumexp(1) - math.log(6 * math.pi * self.deviation**2)
        return -float(log_density.mean())


@dataclass(frozen=True)
class Sines:
    """x is normal, I given x is 1, 2 or 3 with probabilities softmax(a_i x), y = sin(2 I x) + 10 I + noise.

    Args:
        deviation: of the noise.
        slopes: a.

    Source: CCLVQ paper, section 5.1.
    """

    deviation: float = 0.3
    slopes: tuple[float, ...] = (-1.0, 0.0, 1.0)

    def probabilities(self, x: Tensor) -> Tensor:
        """The distribution of the mode I given x, (..., 3).

        Args:
            x: (...).
        """
        return (x.unsqueeze(-1) * torch.tensor(self.slopes, dtype=x.dtype)).softmax(-1)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs (N,), targets (N,) and the index of the mode of each, 0, 1 or 2.

        Args:
            count: N.
            generator: of the samples.
        """
        x = torch.randn(count, generator=generator)
        mode = torch.multinomial(self.probabilities(x), 1, generator=generator)[:, 0]
        number = mode + 1
        noise = self.deviation * torch.randn(count, generator=generator)
        return x, (2 * number * x).sin() + 10 * number + noise, mode


def mode_centers(name: str) -> Tensor:
    """The centers of the modes, (K, 2).

    Args:
        name: "ring": 8 on a circle of radius 4. "grid": 5 x 5, 2 apart.

    Raises:
        UserError: another name.
    """
    if name == "ring":
        angles = torch.arange(8) * (math.pi / 4)
        return 4 * torch.stack([angles.cos(), angles.sin()], 1)
    if name == "grid":
        axis = torch.arange(-4.0, 5.0, 2.0)
        return torch.cartesian_prod(axis, axis)
    raise UserError(f"targets: found {name!r}, expected ring or grid")


def sample_modes(centers: Tensor, deviation: float, count: int, generator: torch.Generator) -> Tensor:
    """Return N points of Gaussians around the centers, equally likely, (N, 2).

    Args:
        centers: (K, 2).
        deviation: of each Gaussian, in both dimensions.
        count: N.
        generator: of the samples.
    """
    chosen = centers[torch.randint(len(centers), (count,), generator=generator)]
    return chosen + deviation * torch.randn(count, 2, generator=generator)


def mode_coverage(samples: Tensor, centers: Tensor, deviation: float) -> tuple[float, int]:
    """Return the share of samples that are off every mode, and the number of modes that are hit.

    Args:
        samples: (N, 2).
        centers: (K, 2).
        deviation: of each mode.

    Returns:
        The share of samples farther than three deviations from all centers, and the number of modes that have at least
        a tenth of their share of the samples.
    """
    nearest = torch.cdist(samples, centers).min(1)
    near = nearest.values <= _OFF * deviation
    hits = torch.bincount(nearest.indices[near], minlength=len(centers)) / len(samples)
    return 1 - float(near.float().mean()), int((hits > _HIT / len(centers)).sum())
