"""What every masker is: features (B, K, F) in, raw mask values (B, n, P, K, F) out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from sepkit.errors import UserError

__all__ = ["Masker", "require_at_least"]


class Masker(nn.Module, ABC):
    """The network between encoder and decoder.

    A masker ends in linear values: the link (relu, sigmoid, softmax over hypotheses ...) belongs to the latent family
    of the masks, which also says how many values P it needs for each of its entries.

    Args:
        encoding_dim: K, values in a frame.
        hypotheses: n, how many estimates the model makes.
        values_per_dimension: P, parameters of the mask's posterior for each entry (1 for a point).
    """

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1) -> None:
        super().__init__()
        require_at_least(1, encoding_dim=encoding_dim, hypotheses=hypotheses, values_per_dimension=values_per_dimension)
        self.encoding_dim = encoding_dim
        self.hypotheses = hypotheses
        self.values_per_dimension = values_per_dimension

    @property
    def output_channels(self) -> int:
        """n * P * K: channels of a last layer that makes all values of a frame."""
        return self.hypotheses * self.values_per_dimension * self.encoding_dim

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Raw mask values (B, n, P, K, F) of features (B, K, F), for every F >= 1."""

    def unflatten(self, raw: Tensor) -> Tensor:
        """(B, n*P*K, F) -> (B, n, P, K, F)."""
        return raw.unflatten(1, (self.hypotheses, self.values_per_dimension, self.encoding_dim))


def require_at_least(minimum: int, **fields: Any) -> None:
    """Refuse sizes below `minimum`.

    Raises:
        UserError: names the first field that is too small.
    """
    for name, value in fields.items():
        if value < minimum:
            raise UserError(f"model.masker.{name}: found {value}, expected at least {minimum}")
