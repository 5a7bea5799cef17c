"""Latent stochastic differential equations: sample paths, and how many nats they carry.

A block holds two processes over the depth s in [0, 1] that begin at one point and share one diffusion:

    prior      dZ = h_prior(Z, s) ds + sigma dW
    posterior  dZ = h_posterior(Z, s) ds + sigma dW

The divergence of the posterior process from the prior one is the path rate (Girsanov), in nats:

    R = E of the integral of |u|^2 / 2 ds,   u = (h_posterior - h_prior) / sigma,   along samples of the posterior

The number of steps is chosen at every call: one set of weights serves all budgets.

Sources: X. Li et al., "Scalable Gradients for Stochastic Differential Equations", 2020; thesis, part C, eq. 3 to 5.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sepkit.errors import UserError, shown
from sepkit.models.maskers.continuous_depth import depth_grid

Drift = Callable[[Tensor, float], Tensor]
"""(state, depth) -> change of the state per unit of depth, of the state's shape."""

Diffusion = Callable[[Tensor, float], Tensor]
"""(state, depth) -> deviation of the noise per square root of depth, the same for every state."""

LEAST_DIFFUSION, LARGEST_DIFFUSION = 1e-3, 10.0
"""Bounds of a learned diffusion: the path rate grows without bound where it vanishes."""


@dataclass
class DiffusionPath:
    """The end of a sample path, and its rate.

    Args:
        value: state at the last depth.
        rate: integral of |u|^2 / 2 ds, elementwise, of the state's shape, nats; None if no prior was asked about.
        log_ratio: log density of the sampled increments under the posterior process over that under the prior one,
            elementwise, nats. Its mean over posterior paths is the rate. None as for the rate.
    """

    value: Tensor
    rate: Tensor | None
    log_ratio: Tensor | None


class NonFiniteStateError(ValueError):
    """A state that is not finite; the message names the step."""


class BrownianPath:
    """A Brownian motion over [0, 1], drawn where it is looked at, so that any two grids see one and the same path.

    A depth between known ones is drawn from the Brownian bridge between them. Increments of a finer grid therefore add
    up to those of a coarser one, which makes comparisons of step sizes paired.

    Args:
        generator: of the noise; None: torch's own.
        like: a tensor of the device and type of the state; None: float32 on the CPU.
    """

    def __init__(
        self, shape: Sequence[int], generator: torch.Generator | None = None, like: Tensor | None = None
    ) -> None:
        self._generator = generator
        zero = torch.zeros(tuple(shape)) if like is None else like.new_zeros(tuple(shape))
        self._depths: list[float] = [0.0]
        self._values: list[Tensor] = [zero]

    def at(self, depth: float) -> Tensor:
        """Return W(depth), of the state's shape.

        Args:
            depth: 0 to 1 (else ValueError).
        """
        if not 0 <= depth <= 1:
            raise ValueError(f"found depth {depth}, expected 0 to 1")
        place = bisect_left(self._depths, depth)
        for known in (place - 1, place):
            # Depths of two grids that are equal but for rounding are one.
            if 0 <= known < len(self._depths) and abs(self._depths[known] - depth) < 1e-9:
                return self._values[known]
        before, start = self._depths[place - 1], self._values[place - 1]
        noise = torch.empty_like(start).normal_(generator=self._generator)
        if place == len(self._depths):
            value = start + math.sqrt(depth - before) * noise
        else:
            after, end = self._depths[place], self._values[place]
            share = (depth - before) / (after - before)
            value = start + share * (end - start) + math.sqrt((depth - before) * (1 - share)) * noise
        self._depths.insert(place, depth)
        self._values.insert(place, value)
        return value

    def increments(self, grid: Sequence[float]) -> list[Tensor]:
        """Return W(s_(k+1)) - W(s_k) for each step of a grid."""
        values = [self.at(depth) for depth in grid]
        return [after - before for before, after in pairwise(values)]


def solve(
    start: Tensor,
    grid: Sequence[float],
    drift: Drift,
    diffusion: Diffusion | None = None,
    noise: BrownianPath | None = None,
    prior_drift: Drift | None = None,
    *,
    check: bool = False,
) -> DiffusionPath:
    """Return the end of the path that follows `drift`, and its rate against a process that follows `prior_drift`.

    Euler-Maruyama: z' = z + h ds + sigma dW.

    Args:
        start: state at the first depth, of any shape.
        grid: depths, see `depth_grid`.
        diffusion: its deviation; None: an ordinary differential equation.
        noise: the Brownian motion; None: the path without noise, whose rate is not that of the process.
        prior_drift: of the process that the rate is measured from; None: no rate.
        check: whether to look for states that are not finite after every step.

    Raises:
        NonFiniteStateError: with `check`; names the step.
        ValueError: a rate without a diffusion.
    """
    if prior_drift is not None and diffusion is None:
        raise ValueError("a path has a rate only with a diffusion")
    increments = None if noise is None or diffusion is None else noise.increments(grid)

    def step(state: Tensor, increment: Tensor | None, depth: float, width: float) -> tuple[Tensor, ...]:
        toward = drift(state, depth)
        after = state + toward * width
        deviation = None if diffusion is None else diffusion(state, depth)
        if deviation is not None and increment is not None:
            after = after + deviation * increment
        if prior_drift is None or deviation is None:
            return (after,)
        control = (toward - prior_drift(state, depth)) / deviation
        rate = 0.5 * width * control.square()
        return after, rate, rate if increment is None else rate + control * increment

    state, rate, log_ratio = start, None, None
    for index, (depth, after) in enumerate(pairwise(grid)):
        increment = None if increments is None else increments[index]
        found = step(state, increment, depth, after - depth)
        state = found[0]
        if len(found) > 1:
            rate = found[1] if rate is None else rate + found[1]
            log_ratio = found[2] if log_ratio is None else log_ratio + found[2]
        if check and not bool(state.isfinite().all()):
            raise NonFiniteStateError(f"step {index + 1} of {len(grid) - 1}: the state is not finite")
    return DiffusionPath(state, rate, log_ratio)


class LearnedDiffusion(nn.Module):
    """One learned deviation for all states and depths: exp(raw), limited to [1e-3, 10].

    Args:
        initial: deviation when training starts.

    Source: thesis, part C, appendix A.1.
    """

    def __init__(self, initial: float = 0.5) -> None:
        super().__init__()
        if not LEAST_DIFFUSION < initial < LARGEST_DIFFUSION:
            raise UserError(
                f"initial_diffusion: found {shown(initial)}, expected between {LEAST_DIFFUSION:g} and"
                f" {LARGEST_DIFFUSION:g}"
            )
        self.raw = nn.Parameter(torch.tensor(math.log(initial)))

    @property
    def clamped(self) -> bool:
        """Whether the deviation is at one of its bounds, where it learns nothing."""
        return not LEAST_DIFFUSION < math.exp(float(self.raw.detach())) < LARGEST_DIFFUSION

    def forward(self, state: Tensor, depth: float) -> Tensor:
        """Return the deviation, a scalar."""
        return self.raw.exp().clamp(LEAST_DIFFUSION, LARGEST_DIFFUSION)


class DiffusionBlock(nn.Module):
    """A prior and a posterior process over the depth s in [0, 1] with one diffusion.

    Args:
        prior_drift: (state, depth) -> drift.
        posterior_drift: (state, depth, context) -> drift; the context is what is known about the datum.
    """

    def __init__(self, prior_drift: nn.Module, posterior_drift: nn.Module, diffusion: nn.Module) -> None:
        super().__init__()
        self.prior_drift = prior_drift
        self.posterior_drift = posterior_drift
        self.diffusion: Any = diffusion

    def forward(
        self,
        start: Tensor,
        context: Tensor | None = None,
        *,
        steps: int,
        noise: BrownianPath | None = None,
        follow: Literal["posterior", "prior"] = "posterior",
        check: bool = False,
    ) -> DiffusionPath:
        """Return the end of a sample path of the posterior with its rate, or of the prior without.

        Args:
            start: state at depth 0, of any shape.
            steps: number of equal steps.
            noise: the Brownian motion; None: no noise.
        """
        grid = depth_grid(steps)
        if follow == "prior":
            return solve(start, grid, self.prior_drift, self.diffusion, noise, check=check)

        def posterior(state: Tensor, depth: float) -> Tensor:
            return self.posterior_drift(state, depth, context)

        return solve(start, grid, posterior, self.diffusion, noise, self.prior_drift, check=check)
