"""The levels of a hierarchy of image latents: latent stochastic differential equations, discrete blocks, and none."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.errors import Bounds
from sepkit.models.distributions import Distribution
from sepkit.models.latents import Gaussian
from sepkit.models.maskers.continuous_depth import depth_grid

# Below this resolution a kernel of 3 pixels would see mostly padding.
_SMALLEST_FOR_KERNEL = 3

FAMILY = Gaussian(activation="linear")
"""Family of the latents."""

LEAST_DIFFUSION, LARGEST_DIFFUSION = 1e-3, 10.0
"""Bounds of a learned diffusion: the path rate grows without bound where it vanishes."""


def gaussian(raw: Tensor) -> Distribution:
    """Return normal distributions over latents, (B, C, H W), for raw means and deviations (B, 2 C, H, W); 0 gives N(0,
    1)."""
    mean, deviation = raw.flatten(2).chunk(2, dim=1)
    # softplus(0.5413) = 1.
    return FAMILY.posterior(torch.stack([mean, deviation + math.log(math.e - 1)], dim=1))


class ConvBlock(nn.Module):
    """Four convolutions with kernels 1, 3, 3 and 1 (all 1 for images below 3 pixels), and gelu before all but the
    first. With `residual` there is gelu before all, and the input is added. With `zero` the last starts at zero."""

    def __init__(
        self, channels: int, hidden: int, out: int, resolution: int, residual: bool = False, zero: bool = False
    ) -> None:
        super().__init__()
        kernel = 3 if resolution >= _SMALLEST_FOR_KERNEL else 1
        self.residual = residual
        self.layers = nn.ModuleList(
            [
                nn.Conv2d(channels, hidden, 1),
                nn.Conv2d(hidden, hidden, kernel, padding=kernel // 2),
                nn.Conv2d(hidden, hidden, kernel, padding=kernel // 2),
                nn.Conv2d(hidden, out, 1),
            ]
        )
        if zero:
            for parameter in self.layers[-1].parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, out, H, W)."""
        y = x
        for place, layer in enumerate(self.layers):
            y = layer(functional.gelu(y) if place or self.residual else y)
        return x + y if self.residual else y


class ConvDrift(nn.Module):
    """A drift as a `ConvBlock` of the state, the context and the depth as a constant channel."""

    def __init__(self, channels: int, context: int, hidden: int, resolution: int) -> None:
        super().__init__()
        self.block = ConvBlock(channels + context + 1, hidden, channels, resolution, zero=True)

    def forward(self, state: Tensor, depth: float, context: Tensor | None = None) -> Tensor:
        """Return the drift, of the state's shape (B, channels, H, W), at a depth from 0 to 1."""
        depths = state.new_full((len(state), 1, *state.shape[2:]), depth)
        parts = [state, depths] if context is None else [state, depths, context]
        return self.block(torch.cat(parts, 1))


class BrownianPath:
    """A Brownian motion over [0, 1], drawn where it is looked at, so that any two grids see one and the same path.

    A depth between known ones is drawn from the Brownian bridge between them. Increments of a finer grid therefore add
    up to those of a coarser one, which makes comparisons of step sizes paired.

    Args:
        like: Tensor of the shape, the device and the type of the state.
        generator: Source of the noise; None: torch's own.
    """

    def __init__(self, like: Tensor, generator: torch.Generator | None = None) -> None:
        self._generator = generator
        self._depths: list[float] = [0.0]
        self._values: list[Tensor] = [torch.zeros_like(like)]

    def at(self, depth: float) -> Tensor:
        """Return W(depth), of the state's shape.

        Args:
            depth: Depth, 0 to 1.
        """
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
        return [after - before for before, after in pairwise(map(self.at, grid))]


class LearnedDiffusion(nn.Module):
    """One learned deviation for all states and depths: exp(raw), limited to [1e-3, 10].

    Args:
        initial: Deviation when training starts.

    Source: thesis, part C, appendix A.1.
    """

    def __init__(self, initial: float = 0.5) -> None:
        super().__init__()
        Bounds(gt=LEAST_DIFFUSION, lt=LARGEST_DIFFUSION).check("initial_diffusion", initial)
        self.raw = nn.Parameter(torch.tensor(math.log(initial)))

    @property
    def clamped(self) -> bool:
        """Whether the deviation is at one of its bounds, where it learns nothing."""
        return not LEAST_DIFFUSION < math.exp(float(self.raw.detach())) < LARGEST_DIFFUSION

    def forward(self, state: Tensor, depth: float) -> Tensor:
        """Return the deviation, a scalar."""
        return self.raw.exp().clamp(LEAST_DIFFUSION, LARGEST_DIFFUSION)


class DiffusionPath(NamedTuple):
    """The end of a sample path, and its rate.

    Args:
        value: State at the last depth.
        rate: Integral of |u|^2 / 2 ds, elementwise, of the state's shape, nats; zeros of a path of the prior.
        log_ratio: Log density of the sampled increments under the posterior process over that under the prior one,
            elementwise, nats. Its mean over posterior paths is the rate.
    """

    value: Tensor
    rate: Tensor
    log_ratio: Tensor


class DiffusionBlock(nn.Module):
    """A latent stochastic differential equation: a prior and a posterior process that share one diffusion.

    They begin at one point and run over the depth s in [0, 1]:

        prior      dZ = h_prior(Z, s) ds + sigma dW
        posterior  dZ = h_posterior(Z, s) ds + sigma dW

    The divergence of the posterior process from the prior one is the path rate (Girsanov), in nats:

        R = E of the integral of |u|^2 / 2 ds,   u = (h_posterior - h_prior) / sigma,   along samples of the posterior

    The number of steps is chosen at every call: one set of weights serves all budgets.

    Args:
        prior_drift: (state, depth) -> drift, the change of the state per unit of depth, of the state's shape.
        posterior_drift: Drift as a function of state, depth and context (features of the datum).
        diffusion: (state, depth) -> deviation of the noise per square root of depth, the same for every state.

    Sources: X. Li et al., "Scalable Gradients for Stochastic Differential Equations", 2020; thesis, part C, eq. 3 to 5.
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
        follow_prior: bool = False,
    ) -> DiffusionPath:
        """Return the end of a sample path by Euler-Maruyama, z' = z + h ds + sigma dW.

        Args:
            start: State at depth 0, of any shape.
            context: Features of the datum.
            steps: Number of equal steps.
            noise: The Brownian motion; None: the path without noise, whose rate is not that of the process.
            follow_prior: Whether the path is one of the prior, not of the posterior.
        """
        grid = depth_grid(steps)
        increments = [torch.zeros_like(start)] * steps if noise is None else noise.increments(grid)
        state, rate, log_ratio = start, torch.zeros_like(start), torch.zeros_like(start)
        for (depth, after), increment in zip(pairwise(grid), increments, strict=True):
            drift, deviation = self.prior_drift(state, depth), self.diffusion(state, depth)
            if not follow_prior:
                posterior = self.posterior_drift(state, depth, context)
                control, drift = (posterior - drift) / deviation, posterior
                cost = 0.5 * (after - depth) * control.square()
                rate, log_ratio = rate + cost, log_ratio + cost + control * increment
            state = state + drift * (after - depth) + deviation * increment
        return DiffusionPath(state, rate, log_ratio)


class DiscreteLevel(nn.Module):
    """Stochastic blocks with weights of their own (VD-VAE).

        prior and a part of the update from the state x;  posterior from x and the context;
        z ~ posterior or prior;  x = x + update + projection(z);  x = residual block(x)

    Source: R. Child, "Very Deep VAEs Generalize Autoregressive Models and Can Outperform Them on Images", 2021.
    """

    def __init__(self, blocks: int, channels: int, context: int, hidden: int, resolution: int) -> None:
        super().__init__()
        self.prior = nn.ModuleList(
            ConvBlock(channels, hidden, 3 * channels, resolution, zero=True) for _ in range(blocks)
        )
        self.posterior = nn.ModuleList(
            ConvBlock(channels + context, hidden, 2 * channels, resolution, zero=True) for _ in range(blocks)
        )
        self.project = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(blocks))
        self.after = nn.ModuleList(
            ConvBlock(channels, hidden, channels, resolution, residual=True, zero=True) for _ in range(blocks)
        )
        for projection in self.project:
            with torch.no_grad():
                projection.get_parameter("weight").mul_(blocks**-0.5)

    def forward(
        self, state: Tensor, context: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the state (B, channels, H, W), the rate and the log ratio of its elements; without context those of
        the prior."""
        rate, log_ratio = torch.zeros_like(state), torch.zeros_like(state)
        for prior, posterior, project, after in zip(self.prior, self.posterior, self.project, self.after, strict=True):
            mean, raw, update = prior(state).chunk(3, dim=1)
            before = gaussian(torch.cat([mean, raw], 1))
            drawn = before if context is None else gaussian(posterior(torch.cat([state, context], 1)))
            z = drawn.sample(generator)
            if context is not None:
                rate = rate + drawn.kl(before).view_as(state)
                log_ratio = log_ratio + (drawn.log_prob(z) - before.log_prob(z)).view_as(state)
            state = after(state + update + project(z.view_as(state)))
        return state, rate, log_ratio


class DeterministicLevel(nn.Module):
    """Residual blocks without latent variables, whose rate is 0."""

    def __init__(self, blocks: int, channels: int, hidden: int, resolution: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(ConvBlock(channels, hidden, channels, resolution, residual=True, zero=True) for _ in range(blocks))
        )

    def forward(
        self, state: Tensor, context: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the state, and zeros in place of the rate and the log ratio of its elements."""
        return self.blocks(state), torch.zeros_like(state), torch.zeros_like(state)
