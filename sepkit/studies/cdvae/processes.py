"""What the processes of a model do over the depth of each level: states, drifts, diffusion and path rate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from sepkit.errors import UserError
from sepkit.models.maskers.continuous_depth import depth_grid
from sepkit.studies.cdvae.latent_sde import DiffusionBlock, solve
from sepkit.studies.cdvae.model import ImageVAE, Noise


@dataclass
class LevelProcess:
    """The posterior process of one image on one level, at S steps, with E values of the state.

    Args:
        depths: (S + 1,) from 0 to 1.
        states: (S + 1, E).
        posterior_drift: (S, E) at the states before each step.
        prior_drift: (S, E) at the same states.
        diffusion: (S,), the deviation of the noise per square root of depth.
        rate: (S, E) nats per unit of depth, |posterior drift - prior drift|^2 / (2 diffusion^2).
    """

    depths: Tensor
    states: Tensor
    posterior_drift: Tensor
    prior_drift: Tensor
    diffusion: Tensor
    rate: Tensor

    @property
    def path_rate_nats(self) -> float:
        """Integral of the rate over depth, sum over the values of the state."""
        return float((self.rate.sum(1) * self.depths.diff()).sum())


@torch.inference_mode()
def level_processes(
    model: ImageVAE, image: Tensor, noise: Noise | None = None, steps: int | None = None
) -> list[LevelProcess]:
    """Return the processes of an image (1, 1, H, W) on all levels, coarse to fine; discrete blocks have none."""
    blocks = [level for level in model.levels if isinstance(level, DiffusionBlock)]
    if len(blocks) < len(model.levels):
        raise UserError("this model has discrete blocks: it has no processes over depth")
    noise = noise or Noise()
    contexts = model.contexts(image)
    _, start = model.first_state(contexts[0], noise)
    state = start.view(1, -1, *contexts[0].shape[2:])
    steps = steps or model.depth_steps
    assert steps is not None
    grid = depth_grid(steps)
    found = []
    for place, block in enumerate(blocks):
        if place:
            state = functional.interpolate(state, scale_factor=2, mode="nearest")
        context = torch.zeros_like(contexts[place]) if model.config.ode_like else contexts[place]
        posterior = partial(block.posterior_drift, context=context)
        path = noise.path(place, state)
        states, after, before, deviations = [state], [], [], []
        for depth, following in pairwise(grid):
            after.append(posterior(state, depth))
            before.append(block.prior_drift(state, depth))
            deviations.append(block.diffusion(state, depth))
            states.append(solve(state, (depth, following), posterior, block.diffusion, path).value)
            state = states[-1]
        toward, prior, deviation = torch.cat(after), torch.cat(before), torch.stack(deviations)
        rate = 0.5 * ((toward - prior) / deviation.view(-1, 1, 1, 1)).square()
        found.append(
            LevelProcess(
                torch.tensor(grid), torch.cat(states).flatten(1), toward.flatten(1), prior.flatten(1), deviation,
                rate.flatten(1),
            )
        )  # fmt: skip
    return found
