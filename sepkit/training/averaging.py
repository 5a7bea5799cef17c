"""An exponential moving average of a model's weights, which is what is validated and kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

__all__ = ["average_of", "decay_at"]


def average_of(model: nn.Module, decay: float) -> AveragedModel:
    """A copy of the model whose weights follow those of `model` at each call of its `update_parameters(model)`.

        average = d average + (1 - d) weights,   d = min(decay, (1 + t) / (10 + t)) at update t

    The copy is its attribute `module`. Buffers are those of the model at the last update. No gradient reaches it.

    Args:
        model: what is trained.
        decay: d of a long training, at least 0 and less than 1.
    """
    average = AveragedModel(model, multi_avg_fn=_Average(decay))
    average.requires_grad_(False)
    return average


def decay_at(update: int, decay: float) -> float:
    """d at this update, from 1 on: it grows with their number, so that the weights at the start are soon forgotten."""
    return min(decay, (1 + update) / (10 + update))


class _Average:
    """What `AveragedModel` does at an update.

    Args:
        decay: see `average_of`.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay

    @torch.no_grad()
    def __call__(self, averages: Sequence[Tensor], weights: Sequence[Tensor], update: Any) -> None:
        torch._foreach_lerp_(list(averages), list(weights), 1 - decay_at(int(update), self.decay))
