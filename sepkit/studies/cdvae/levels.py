"""The levels of a hierarchy of image latents: drifts, discrete blocks with latents, and blocks without."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.models.distributions import Distribution
from sepkit.models.latents import Gaussian

# Below this resolution a kernel of 3 pixels would see mostly padding.
_SMALLEST_FOR_KERNEL = 3

FAMILY = Gaussian(activation="linear")
"""Of the latents."""


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
        """Return the state (B, channels, H, W), the rate (of its shape) and the log ratio (B,); without context those
        of the prior."""
        rate, log_ratio = torch.zeros_like(state), state.new_zeros(len(state))
        for prior, posterior, project, after in zip(self.prior, self.posterior, self.project, self.after, strict=True):
            mean, raw, update = prior(state).chunk(3, dim=1)
            before = gaussian(torch.cat([mean, raw], 1))
            drawn = before if context is None else gaussian(posterior(torch.cat([state, context], 1)))
            z = drawn.sample(generator)
            if context is not None:
                rate = rate + drawn.kl(before).view_as(state)
                log_ratio = log_ratio + (drawn.log_prob(z) - before.log_prob(z)).flatten(1).sum(1)
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
        """Return the state, the rate (of its shape) and the log ratio (B,), which are zeros."""
        return self.blocks(state), torch.zeros_like(state), state.new_zeros(len(state))
