"""The recurrent masker of the first TasNet (Luo & Mesgarani, ICASSP 2018)."""

from typing import Any

from torch import Tensor, nn

from sepkit.config import RecurrentConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import FrameStream, FramewiseEnd, checked, require_causal
from sepkit.models.norms import StreamState, build_norm, normalize
from sepkit.models.onednn import Linear
from sepkit.registry import register

_RNNS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


@register(RecurrentConfig)
class RecurrentMasker(FramewiseEnd):
    """Stacked (bidirectional) LSTM or GRU over frames, then one linear layer.

    With bidirectional=False and a causal norm (channel_layer_norm, cumulative_layer_norm) the masker is causal.

    Args:
        encoding_dim: Values per frame, K.
        hypotheses: Number of estimates, n.
        values_per_dimension: Parameters of the mask's posterior for each entry, P (1 for a point).
        **fields: Fields of `RecurrentConfig`.
    """

    small_steps = True
    hypothesis_layers = ("output",)

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(RecurrentConfig(**fields))
        size, both_ways = config.hidden_size, config.bidirectional
        self.norm = build_norm(config.norm, encoding_dim)
        self.rnn = build_rnn(config.rnn, encoding_dim, size, config.num_layers, both_ways, config.dropout)
        self.output = Linear(size * (2 if both_ways else 1), self.output_channels)

    def trunk(self, features: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the output of the recurrent layers, (B, C, F).

        Args:
            features: The masker's view of the encoding, (B, K, F).
            state: State of a stream, updated in place; None: whole recordings.
        """
        return run_rnn(self.rnn, normalize(self.norm, features, state).permute(2, 0, 1), state).permute(1, 2, 0)

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values, (B, n, P, K, F').

        Args:
            summary: Result of `trunk`, (B, C, F').
        """
        return self.unflatten(self.output(summary.permute(2, 0, 1)).permute(1, 2, 0))

    def stream(self) -> FrameStream:
        """Return a stream without look-ahead. Its state: the recurrent state, and the norm's sums."""
        require_causal("recurrent masker", self.rnn.bidirectional, self.norm)
        return FrameStream(self)


def run_rnn(rnn: nn.RNNBase, x: Tensor, state: StreamState | None) -> Tensor:
    """Return the output of a recurrent network, (time, batch, units); x is (time, batch, input_size).

    Args:
        rnn: Network to run.
        x: Input, (time, batch, input_size).
        state: State of a stream, updated in place; None: the input is a whole recording.
    """
    hidden, after = rnn(x, None if state is None else state.get(rnn))
    if state is not None:
        state[rnn] = after
    return hidden


def build_rnn(
    kind: str, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool, dropout: float
) -> nn.RNNBase:
    """Return an nn.LSTM or nn.GRU over (time, batch, input_size).

    Args:
        kind: "lstm" or "gru".
        input_size: Values of an input frame.
        hidden_size: Units of each direction.
        num_layers: Number of layers.
        bidirectional: Whether it runs both ways.
        dropout: Probability, between layers.
    """
    if kind not in _RNNS:
        raise UserError(f"model.masker.rnn: found {kind!r}, expected one of {', '.join(_RNNS)}")
    if dropout and num_layers == 1:
        raise UserError(f"model.masker.dropout: found {dropout} with num_layers 1, but it acts between layers; use 0")
    return _RNNS[kind](input_size, hidden_size, num_layers, bidirectional=bidirectional, dropout=dropout)
