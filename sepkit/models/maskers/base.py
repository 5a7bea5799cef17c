"""What every masker is: features (B, K, F) in, raw mask values (B, n, P, K, F) out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from sepkit.errors import UserError
from sepkit.models.norms import StreamState

__all__ = ["FrameStream", "FramewiseEnd", "Masker", "MaskerStream", "looks_ahead", "require_at_least"]


class MaskerStream(Protocol):
    """A causal masker on its way through one recording.

    Attributes:
        lookahead_frames: how many frames after one it has to see, at the most, before the one's values are there.
    """

    lookahead_frames: int

    def push(self, features: Tensor, end: bool = False) -> Tensor:
        """Raw mask values (B, n, P, K, F') of the next frames that can be told, F' >= 0.

        Args:
            features: (B, K, F), the next frames; F >= 0.
            end: these are the last: values come out for all that are still without.
        """
        ...


@runtime_checkable
class FramewiseEnd(Protocol):
    """A masker whose last layers see one frame at a time: forward(features) = values(trunk(features)).

    Values, which are many more than what they come from, can so be made for some frames at a time.
    """

    def trunk(self, features: Tensor) -> Tensor:
        """What the values are made from, (B, C, F), of features (B, K, F)."""
        ...

    def values(self, summary: Tensor) -> Tensor:
        """Raw mask values (B, n, P, K, F') of any frames of it, (B, C, F')."""
        ...


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

    def stream(self) -> MaskerStream:
        """A new stream: its values, block by block, are those that `forward` has for all frames at once.

        Raises:
            UserError: the masker looks ahead as far as the recording goes.
        """
        raise looks_ahead(f"the masker {type(self).__name__}")

    def unflatten(self, raw: Tensor) -> Tensor:
        """(B, n*P*K, F) -> (B, n, P, K, F)."""
        return raw.unflatten(1, (self.hypotheses, self.values_per_dimension, self.encoding_dim))


class FrameStream:
    """The stream of a masker whose values for a frame are there with the frame.

    Args:
        masker: takes features (B, K, F >= 1) and a `StreamState`.
    """

    lookahead_frames = 0

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._state: StreamState = {}

    def push(self, features: Tensor, end: bool = False) -> Tensor:
        """Raw mask values (B, n, P, K, F) of features (B, K, F)."""
        if features.shape[-1] == 0:
            masker = self._masker
            return features.new_zeros(
                len(features), masker.hypotheses, masker.values_per_dimension, masker.encoding_dim, 0
            )
        return self._masker(features, self._state)


def looks_ahead(what: str) -> UserError:
    """The mistake of streaming with something that hears the whole recording."""
    return UserError(
        f"streaming: {what} hears the whole recording before its first sample is there; causal maskers are conv_tasnet"
        " with causal: true, and recurrent, gated_recurrence or dual_path_rnn with bidirectional: false, none with"
        " global_layer_norm"
    )


def require_at_least(minimum: int, **fields: Any) -> None:
    """Refuse sizes below `minimum`.

    Raises:
        UserError: names the first field that is too small.
    """
    for name, value in fields.items():
        if value < minimum:
            raise UserError(f"model.masker.{name}: found {value}, expected at least {minimum}")
