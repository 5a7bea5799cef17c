"""Optimizers, each in one fused kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Parameter

from sepkit.config import AdamConfig, AdamWConfig, SGDConfig
from sepkit.registry import register

__all__ = ["adam", "adamw", "sgd"]


@register(AdamConfig)
def adam(parameters: list[Parameter], learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam."""
    return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)


@register(AdamWConfig)
def adamw(parameters: list[Parameter], learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay."""
    return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)


@register(SGDConfig)
def sgd(parameters: list[Parameter], learning_rate: float, weight_decay: float, **more: Any) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum."""
    return torch.optim.SGD(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True, **more)
