"""Latent families: how raw network output becomes a posterior over encodings or masks.

A family owns the link from raw values to parameters and says how many raw values it needs for each latent dimension
(P). `Deterministic` is the family whose posteriors are points: the usual network. A family is a plain object without
weights of its own; its `posterior` satisfies `sepkit.types.Latent`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sepkit.config import DeterministicConfig
from sepkit.errors import UserError
from sepkit.registry import register
from sepkit.types import Latent

__all__ = ["Deterministic", "LatentFamily", "Point"]


class LatentFamily(Protocol):
    """What `EncoderMaskerDecoder` asks of a family."""

    values_per_dimension: int
    """Raw values the network makes for each latent dimension (P)."""
    link: str
    """Name of the map from raw value to (mean or median) value."""

    def posterior(self, raw: Tensor) -> Latent:
        """The posterior that raw values (..., P, K, F) stand for, samples of shape (..., K, F)."""
        ...


@dataclass(frozen=True)
class Point:
    """The posterior that puts all its mass on one value, of shape (..., K, F)."""

    value: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample."""
        return self.value.shape

    @property
    def mean(self) -> Tensor:
        """The value."""
        return self.value

    @property
    def median(self) -> Tensor:
        """The value."""
        return self.value

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """The value; nothing is drawn from `generator`."""
        return self.value

    def log_prob(self, value: Tensor) -> Tensor:
        """Elementwise log probability mass in nats: 0 where `value` is the point's own, -inf elsewhere."""
        same = value == self.value
        return torch.zeros_like(self.value).where(same, torch.full_like(self.value, -torch.inf))

    def kl(self, prior: Any) -> Tensor:
        """Elementwise zeros: a point carries no rate term, whatever the prior."""
        return torch.zeros_like(self.value)


def _softmax_over_hypotheses(raw: Tensor) -> Tensor:
    return raw.softmax(dim=-3)


_LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda raw: raw,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "softmax": _softmax_over_hypotheses,
    "softplus": torch.nn.functional.softplus,
    "exp": torch.exp,
    "tanh": torch.tanh,
}


@register(DeterministicConfig)
class Deterministic:
    """The family of points: value = link(raw), one raw value for each dimension, rate 0.

    Args:
        link: linear, relu, sigmoid, softmax (over the hypotheses, axis -3 of (B, n, K, F)), softplus, exp or tanh.

    Raises:
        UserError: the link is not one of these.
    """

    values_per_dimension = 1

    def __init__(self, link: str = "relu") -> None:
        if link not in _LINKS:
            raise UserError(f"link: found {link!r}, expected one of {', '.join(_LINKS)}")
        self.link = link

    def posterior(self, raw: Tensor) -> Point:
        """The point at link(raw).

        Args:
            raw: (..., 1, K, F) network output; (B, n, 1, K, F) for masks.

        Returns:
            A point of shape (..., K, F).

        Raises:
            ValueError: the values axis (-3) does not have length 1.
        """
        if raw.ndim < 3 or raw.shape[-3] != 1:
            raise ValueError(f"raw values have shape {tuple(raw.shape)}, expected (..., 1, K, F)")
        return Point(_LINKS[self.link](raw.squeeze(-3)))

    def __repr__(self) -> str:
        return f"Deterministic(link={self.link!r})"
