"""The dual-path recurrent masker (Luo, Chen & Yoshioka, ICASSP 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.config import DualPathRNNConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import FramewiseEnd, checked, require_causal
from sepkit.models.maskers.recurrent import build_rnn, run_rnn
from sepkit.models.maskers.replaceable import replaceable
from sepkit.models.norms import StreamState, build_norm
from sepkit.models.onednn import Linear
from sepkit.registry import register


def segment(x: Tensor, chunk_size: int, hop_size: int, padding: int = 0) -> Tensor:
    """Return x, cut into S overlapping chunks of Q = chunk_size frames, (Q, B, S, C).

    Padded by a chunk, every frame lies in equally many chunks if the hop divides the chunk.

    Args:
        x: Signal to cut, (B, C, F).
        chunk_size: Q, frames in a chunk.
        hop_size: Frames from the start of a chunk to that of the next.
        padding: Frames of zeros that are added at both ends.
    """
    return functional.pad(x, (padding, padding)).unfold(-1, chunk_size, hop_size).permute(3, 0, 2, 1).contiguous()


def overlap_add(chunks: Tensor, frames: int, hop_size: int, padding: int = 0) -> Tensor:
    """Return the plain sum (B, C, F) of overlapping chunks.

    Args:
        chunks: Chunks, as `segment` cut them, with other axes: (B, C, S, Q).
        frames: F, of the signal before it was cut.
        hop_size: Frames from the start of a chunk to that of the next.
        padding: Frames at both ends that are left out of the sum.
    """
    batch, channels, _, chunk_size = chunks.shape
    columns = chunks.transpose(-1, -2).reshape(batch, channels * chunk_size, -1)
    folded = functional.fold(
        columns, (frames, 1), kernel_size=(chunk_size, 1), padding=(padding, 0), stride=(hop_size, 1)
    )
    return folded.squeeze(-1)


class Path(nn.Module):
    """A recurrent network along one axis of the chunks, a linear layer and a norm, with a residual connection.

    Attributes:
        low_precision: see `DualPathRNNMasker`.

    Args:
        config: Kind and sizes of the network, and kind of the norm.
        bidirectional: Whether the network runs both ways.
    """

    def __init__(self, config: DualPathRNNConfig, bidirectional: bool) -> None:
        super().__init__()
        channels, hidden = config.bottleneck_channels, config.hidden_channels
        self.rnn = build_rnn(config.rnn, channels, hidden, config.num_layers, bidirectional, config.dropout)
        self.linear = Linear(hidden * (2 if bidirectional else 1), channels)
        self.norm = build_norm(config.norm, channels)
        self.low_precision = False

    def forward(self, x: Tensor, state: StreamState | None = None) -> Tensor:
        """Return x after this path, (*, B, time, C): axes are exchanged for the path along the other axis.

        `x` is (time, B, *, C); the network runs along time.
        """
        normalized = self.norm(self.update(x, state).permute(1, 3, 0, 2)).permute(2, 0, 3, 1)
        return (x + normalized).transpose(0, 2).contiguous()

    def update(self, x: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the input of the norm, of the shape of `x`; x is (time, B, *, C)."""
        sequences = x.flatten(1, 2)
        if not self.low_precision:
            return self.linear(run_rnn(self.rnn, sequences, state)).view_as(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            update = self.linear(run_rnn(self.rnn, sequences, state)).view_as(x)
        if state is not None:
            state[self.rnn] = tuple(tensor.to(x.dtype) for tensor in state[self.rnn])
        return update.to(x.dtype)


class DualPathBlock(nn.Module):
    """One recurrent network inside the chunks, then one across them.

    Args:
        config: Sizes of both networks; `bidirectional` is that of the one across chunks, the other always is.
    """

    def __init__(self, config: DualPathRNNConfig) -> None:
        super().__init__()
        self.intra = Path(config, bidirectional=True)
        self.inter = Path(config, config.bidirectional)

    def forward(self, chunks: Tensor, state: StreamState | None = None) -> Tensor:
        """Return chunks of the same shape, after the path inside chunks and the one across them.

        `chunks` are (Q, B, S, C).
        """
        return self.inter(self.intra(chunks), state)


@register(DualPathRNNConfig)
class DualPathRNNMasker(FramewiseEnd):
    """Chunks of frames, recurrent networks inside and across them, overlap-add, a gate and a bias-free 1x1.

    With bidirectional=False and channel_layer_norm or batch_norm no frame depends on frames after its last chunk.

    Attributes:
        low_precision: Whether the recurrent networks and the linear layers behind them compute in bfloat16. Norms,
            residual sums and everything else stay in float32, and so do the weights. Can be set, with LSTMs only.

    Args:
        encoding_dim: Values per frame, K.
        hypotheses: Number of estimates, n.
        values_per_dimension: Parameters of the mask's posterior for each entry, P (1 for a point).
        **fields: Fields of `DualPathRNNConfig`.

    Source: Y. Luo, Z. Chen, T. Yoshioka, "Dual-path RNN", ICASSP 2020.
    """

    fast = ("time_major",)
    hypothesis_layers = ("spread.1",)

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = checked(DualPathRNNConfig(**fields))
        self.chunk_size, self.hop_size, self.bidirectional = config.chunk_size, config.hop_size, config.bidirectional
        if self.hop_size > self.chunk_size:
            raise UserError(
                f"model.masker.hop_size: found {self.hop_size}, expected at most chunk_size {self.chunk_size}"
            )
        if config.norm == "cumulative_layer_norm":
            raise UserError(
                "model.masker.norm: cumulative_layer_norm needs an order in time, which chunks do not have; "
                "choose global_layer_norm, channel_layer_norm or batch_norm"
            )
        channels = config.bottleneck_channels
        self.norm = build_norm(config.norm, encoding_dim)
        self.bottleneck = nn.Conv1d(encoding_dim, channels, 1)
        self.blocks = nn.Sequential(*(DualPathBlock(config) for _ in range(config.repeats)))
        self.spread = nn.Sequential(nn.PReLU(), nn.Conv2d(channels, hypotheses * channels, 1))
        self.value = nn.Sequential(nn.Conv1d(channels, channels, 1), nn.Tanh())
        self.gate = nn.Sequential(nn.Conv1d(channels, channels, 1), nn.Sigmoid())
        self.output = nn.Conv1d(channels, values_per_dimension * encoding_dim, 1, bias=False)

    @property
    def low_precision(self) -> bool:
        """Whether the recurrent networks compute in bfloat16."""
        return any(module.low_precision for module in self.modules() if isinstance(module, Path))

    @low_precision.setter
    def low_precision(self, value: bool) -> None:
        paths = [module for module in self.modules() if isinstance(module, Path)]
        if value and not all(isinstance(path.rnn, nn.LSTM) for path in paths):
            raise UserError("precision: found bfloat16, but this dual_path_rnn has rnn: gru; only lstm goes with it")
        for path in paths:
            path.low_precision = value

    @replaceable
    def trunk(self, features: Tensor) -> Tensor:
        """Return sums of processed chunks, and the number of chunks that contain each frame, (B, C + 1, F).

        Args:
            features: The masker's view of the encoding, (B, K, F).
        """
        size, hop = self.chunk_size, self.hop_size
        chunks = segment(self.bottleneck(self.norm(features)), size, hop, padding=size)
        return overlap_add(self.ready_to_add(self.process(chunks)), features.shape[-1], hop, padding=size)

    @replaceable
    def process(self, chunks: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the chunks after all blocks, (Q, B, S, C).

        Args:
            chunks: Chunks of frames, (Q, B, S, C).
            state: State of a stream, updated in place; None: whole recordings.
        """
        for block in self.blocks:
            chunks = block(chunks, state)
        return chunks

    def ready_to_add(self, chunks: Tensor) -> Tensor:
        """Return activated chunks, (B, C + 1, S, Q). Their last row is 1, to count chunks.

        Args:
            chunks: Processed chunks, (Q, B, S, C).
        """
        active = self.spread[0](chunks).permute(1, 3, 2, 0)
        return torch.cat([active, torch.ones_like(active[:, :1])], dim=1)

    @replaceable
    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values, (B, n, P, K, F').

        Args:
            summary: Result of `trunk`, (B, C + 1, F').
        """
        # The hypotheses' convolution is linear, and cheaper after the sum. Its bias counts once per chunk.
        convolution, summed, held = self.spread[1], summary[:, :-1], summary[:, -1:]
        assert isinstance(convolution, nn.Conv2d) and convolution.bias is not None
        spread = convolution(summed.unsqueeze(-1)).squeeze(-1) + (held - 1) * convolution.bias[:, None]
        x = spread.unflatten(1, (self.hypotheses, -1)).flatten(0, 1)
        raw = self.output(self.value(x) * self.gate(x))
        return raw.view(-1, self.hypotheses, self.values_per_dimension, self.encoding_dim, x.shape[-1])

    def stream(self) -> DualPathRNNStream:
        """Return a stream, which looks ahead by a chunk less one frame."""
        require_causal("dual_path_rnn", self.bidirectional, self.norm)
        return DualPathRNNStream(self)


class DualPathRNNStream:
    """The state of a causal dual-path masker within one recording.

    It holds frames that do not fill a chunk yet, the recurrent state across chunks of every block at every position in
    a chunk, and the sum and number of the chunks that reach into later frames.

    Attributes:
        lookahead_frames: a frame's value is final once its last chunk is complete.
    """

    def __init__(self, masker: DualPathRNNMasker) -> None:
        self._masker = masker
        self.lookahead_frames = masker.chunk_size - 1
        self._state: StreamState = {}
        # `segment` starts with a chunk of zeros: frames -Q to -1.
        self._next_output = -masker.chunk_size
        self._waiting: Tensor | None = None
        self._overlap: Tensor | None = None
        self._heard = 0

    def push(self, features: Tensor, end: bool = False) -> Tensor:
        """Take the next frames; return raw mask values (B, n, P, K, F') of the frames that no later chunk reaches."""
        masker = self._masker
        chunk_size, hop_size = masker.chunk_size, masker.hop_size
        batch, channels = len(features), masker.bottleneck.out_channels
        zeros = features.new_zeros(batch, channels, chunk_size)
        self._heard += features.shape[-1]
        waiting = [zeros if self._waiting is None else self._waiting]
        if features.shape[-1]:
            waiting.append(masker.bottleneck(masker.norm(features)))
        if end:
            waiting.append(zeros)
        frames = torch.cat(waiting, dim=-1)
        count = max(0, (frames.shape[-1] - chunk_size) // hop_size + 1)
        self._waiting = frames[..., count * hop_size :]
        final = self._add(frames, count)
        # Frames before the first and after the last are those zeros.
        skipped = min(final.shape[-1], max(0, -self._next_output))
        self._next_output += final.shape[-1]
        final = final[..., skipped : final.shape[-1] - max(0, self._next_output - self._heard)]
        if final.shape[-1] == 0:
            return features.new_zeros(batch, masker.hypotheses, masker.values_per_dimension, masker.encoding_dim, 0)
        return masker.values(final)

    def _add(self, frames: Tensor, count: int) -> Tensor:
        """Return the first count * hop_size frames (B, C + 1, F') of the sum, which are final, and keep the others."""
        masker = self._masker
        chunk_size, hop_size = masker.chunk_size, masker.hop_size
        if self._overlap is None:
            batch, channels = frames.shape[:2]
            self._overlap = frames.new_zeros(batch, channels + 1, chunk_size - hop_size)
        if count == 0:
            return self._overlap[..., :0]
        used = (count - 1) * hop_size + chunk_size
        chunks = masker.process(segment(frames[..., :used], chunk_size, hop_size), self._state)
        total = overlap_add(masker.ready_to_add(chunks), used, hop_size)
        total[..., : chunk_size - hop_size] += self._overlap
        final, self._overlap = total.split([count * hop_size, chunk_size - hop_size], dim=-1)
        return final
