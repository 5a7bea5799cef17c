"""An exponential moving average of a model's weights; the average is validated and saved."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def average_of(model: nn.Module, decay: float) -> AveragedModel:
    """Return a copy of the model whose weights follow those of `model` at each call of `update_parameters(model)`.

        average = d average + (1 - d) weights,   d = min(decay, (1 + t) / (10 + t)) at update t

    The copy is its attribute `module`. Buffers are those of the model at the last update. No gradient reaches it.

    Args:
        decay: d of a long training, 0 <= decay < 1.
    """
    average = AveragedModel(model, multi_avg_fn=_Average(decay))
    average.requires_grad_(False)
    return average


def decay_at(update: int, decay: float) -> float:
    """Return d at this update, from 1 on; it grows, so that the first weights are soon forgotten.

    Args:
        update: t, from 1 on.
        decay: the largest d.
    """
    return min(decay, (1 + update) / (10 + update))


class _Average:
    """The update of `AveragedModel`; for `decay` see `average_of`."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    def __call__(self, averages: Any, weights: Any, update: Any) -> None:
        get_ema_multi_avg_fn(decay_at(int(update), self.decay))(averages, weights, update)
