"""The base of all maskers: features (B, K, F) in, raw mask values (B, n, P, K, F) out."""

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor, nn

from sepkit.choices import check_bounds
from sepkit.config import MaskerConfig
from sepkit.errors import Bounds, UserError
from sepkit.limits import LAYER_SIZE
from sepkit.models.norms import GlobalLayerNorm, StreamState

C = TypeVar("C", bound=MaskerConfig)


class MaskerStream(Protocol):
    """The state of a causal masker within one recording.

    Attributes:
        lookahead_frames: most frames that it must see after a frame before that frame's values are final.
    """

    lookahead_frames: int

    def push(self, features: Tensor, end: bool = False) -> Tensor:
        """Take the next frames; return the raw mask values (B, n, P, K, F') that are now final, F' >= 0.

        Args:
            features: (B, K, F), the next frames; F >= 0.
            end: the recording ends here: return the values of all remaining frames.
        """
        ...


@dataclass(frozen=True)
class MaskerOutput:
    """The output of a masker.

    Args:
        values: raw mask values (B, n, P, K, F).
        scores: (B, n) log-odds that a hypothesis is a speaker, of a masker that counts speakers.
    """

    values: Tensor
    scores: Tensor | None = None


class Masker(nn.Module, ABC):
    """The network between encoder and decoder.

    A masker ends in linear values: the activation (relu, sigmoid, softmax over hypotheses ...) belongs to the latent
    family of the masks, which also says how many values P it needs for each of its entries. A masker that is registered
    for a configuration takes the fields of it as further arguments by name, with the defaults of the configuration.

    Args:
        encoding_dim: K, values in a frame.
        hypotheses: n, how many estimates the model makes.
        values_per_dimension: P, parameters of the mask's posterior for each entry (1 for a point).
    """

    small_steps: ClassVar[bool] = False
    """Whether the work is cut into steps so small that threads wait for each other longer than they work."""

    fast: ClassVar[tuple[str, ...]] = ()
    """Modules of `sepkit.models.maskers.fast` with functions that replace methods of this masker."""

    hypothesis_layers: ClassVar[tuple[str, ...]] = ()
    """Names of the layers that hold all parameters of single hypotheses. Along an axis of each parameter come those of
    hypothesis 1, then as many of hypothesis 2, and so on. Empty: the number of hypotheses cannot grow."""

    hypothesis_axis: ClassVar[int] = 0
    """Axis of the hypotheses in all these parameters: 0 for the first, -1 for the last."""

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1) -> None:
        super().__init__()
        sizes = {"encoding_dim": encoding_dim, "hypotheses": hypotheses, "values_per_dimension": values_per_dimension}
        for name, value in sizes.items():
            Bounds(ge=1, le=LAYER_SIZE).check(f"model.masker.{name}", value)
        self._import_fast()
        self.encoding_dim = encoding_dim
        self.hypotheses = hypotheses
        self.values_per_dimension = values_per_dimension

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._import_fast()

    def _import_fast(self) -> None:
        for module in self.fast:
            importlib.import_module(f"sepkit.models.maskers.fast.{module}")

    @property
    def output_channels(self) -> int:
        """n * P * K: channels of a last layer that makes all values of a frame."""
        return self.hypotheses * self.values_per_dimension * self.encoding_dim

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Return raw mask values, (B, n, P, K, F), for every F >= 1.

        Args:
            features: The masker's view of the encoding, (B, K, F).
        """

    @property
    def counts_speakers(self) -> bool:
        """Whether `with_scores` outputs scores, and no more estimates than it counts or is given."""
        return False

    def with_scores(self, features: Tensor, speakers: Tensor | None = None) -> MaskerOutput:
        """Return raw mask values, with scores if the masker counts speakers.

        Args:
            features: (B, K, F).
            speakers: (B,) how many speak, for a masker that counts them; None: it is not known.
        """
        return MaskerOutput(self(features))

    def set_steps(self, steps: int | None) -> None:
        """Set how many steps a masker of continuous depth takes from now on.

        Args:
            steps: 1 or more; None: those of the configuration.
        """
        if steps is not None:
            raise UserError(
                f"--depth-steps: found {steps}, but the depth of this model's masker ({type(self).__name__}) is"
                " fixed; leave it out, or use a model with the masker continuous_depth"
            )

    def stream(self) -> MaskerStream:
        """Return a stream whose values, block by block, are those of `forward` for the whole recording."""
        raise looks_ahead(f"the masker {type(self).__name__}")

    def unflatten(self, raw: Tensor) -> Tensor:
        """Return raw values as (B, n, P, K, F).

        Args:
            raw: Output of a last layer with `output_channels`, (B, n * P * K, F).
        """
        return raw.unflatten(1, (self.hypotheses, self.values_per_dimension, self.encoding_dim))


class FramewiseEnd(Masker):
    """A masker whose last layers see one frame at a time: forward(features) = values(trunk(features)).

    The values need much more memory than the output of the trunk, and can be computed for some frames at a time.
    """

    def forward(self, features: Tensor, state: StreamState | None = None) -> Tensor:
        """Return raw mask values (B, n, P, K, F).

        Args:
            features: The masker's view of the encoding, (B, K, F).
            state: State of a stream, of a causal masker; None: the features are a whole recording.
        """
        # Trunks of causal maskers alone take a state.
        return self.values(self.trunk(features) if state is None else self.trunk(features, state))  # type: ignore[call-arg]

    @abstractmethod
    def trunk(self, features: Tensor) -> Tensor:
        """Return the input of `values`, (B, C, F); features are (B, K, F)."""

    @abstractmethod
    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values (B, n, P, K, F'); summary is (B, C, F'), any frames of the trunk's output."""


class FrameStream:
    """The stream of a masker without look-ahead: a frame's values are final as soon as the frame is known.

    Args:
        masker: takes features (B, K, F >= 1) and a `StreamState`.
    """

    lookahead_frames = 0

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._state: StreamState = {}

    def push(self, features: Tensor, end: bool = False) -> Tensor:
        """Take the next frames; return their raw mask values (B, n, P, K, F).

        Args:
            features: Next frames, (B, K, F); F >= 0.
            end: Whether the recording ends here, which changes nothing.
        """
        if features.shape[-1] == 0:
            masker = self._masker
            return features.new_zeros(
                len(features), masker.hypotheses, masker.values_per_dimension, masker.encoding_dim, 0
            )
        return self._masker(features, self._state)


def require_causal(name: str, bidirectional: bool, norm: nn.Module) -> None:
    """Raise UserError if a recurrent masker cannot stream, because it runs backwards or norms the whole recording.

    Args:
        name: Name of the masker for the message, such as "recurrent masker".
        bidirectional: Whether its recurrence over time runs both ways.
        norm: Normalization of its features.
    """
    if bidirectional:
        raise looks_ahead(f"this {name} (bidirectional: true)")
    if isinstance(norm, GlobalLayerNorm):
        raise looks_ahead(f"this {name} (norm: global_layer_norm)")


def looks_ahead(what: str) -> UserError:
    """Return the error to raise if something that needs the whole recording is to stream.

    Args:
        what: names the masker and the setting, such as "this conv_tasnet (causal: false)".
    """
    return UserError(
        f"streaming: {what} needs the whole recording before its first output; causal maskers are conv_tasnet"
        " with causal: true, and recurrent, gated_recurrence, continuous_depth or dual_path_rnn with"
        " bidirectional: false, none with global_layer_norm; boxed_8k_causal ships with sepkit"
    )


def checked(config: C) -> C:
    """Return a masker's configuration; raise UserError unless its numbers are within the bounds of their types."""
    check_bounds(config, "model.masker")
    return config


def require_multiple(field: str, value: int, divisor: int, expected: str) -> None:
    """Raise UserError unless a size of a masker is a multiple of another number.

    Args:
        field: Name of the size.
        value: The size.
        divisor: The number that has to divide it.
        expected: Words for the message, such as "a multiple of num_heads 4".
    """
    if value % divisor:
        raise UserError(f"model.masker.{field}: found {value}, expected {expected}")


def require_coefficients(masker: str, encoding_dim: int) -> None:
    """Raise UserError unless features are real and imaginary parts; `masker` is its name in a configuration."""
    # The number of bins below the last one is even, so only magnitudes have an odd K.
    if encoding_dim % 2:
        raise UserError(
            f"masker {masker}: found features of {encoding_dim} values a frame, expected real and imaginary parts"
            " (model.filterbank.features: real_imaginary)"
        )
