"""The dual-path recurrent masker (Luo, Chen & Yoshioka, ICASSP 2020)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from sepkit.config import DualPathRNNConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import Masker, require_at_least
from sepkit.models.maskers.recurrent import build_rnn
from sepkit.models.norms import build_norm
from sepkit.registry import register

__all__ = ["DualPathBlock", "DualPathRNNMasker", "overlap_add", "segment"]


def segment(x: Tensor, chunk_size: int, hop_size: int) -> Tensor:
    """Overlapping chunks (B, S, Q, C), S chunks of Q = chunk_size frames, of x (B, C, F).

    A chunk of zeros is put at both ends: every frame lies in equally many chunks, where the hop divides the chunk.
    """
    padded = functional.pad(x, (chunk_size, chunk_size))
    return padded.unfold(-1, chunk_size, hop_size).permute(0, 2, 3, 1).contiguous()


def overlap_add(chunks: Tensor, frames: int, hop_size: int) -> Tensor:
    """The plain sum (B, C, F), F = frames, of overlapping chunks (B, C, S, Q) as `segment` cut them."""
    batch, channels, _, chunk_size = chunks.shape
    columns = chunks.transpose(-1, -2).reshape(batch, channels * chunk_size, -1)
    folded = functional.fold(
        columns, (frames, 1), kernel_size=(chunk_size, 1), padding=(chunk_size, 0), stride=(hop_size, 1)
    )
    return folded.squeeze(-1)


class Path(nn.Module):
    """A recurrent network along one axis of the chunks, a linear layer and a norm; the input is added back.

    Args:
        channels: C, channels in and out.
        hidden_channels: units of each direction.
        rnn: "lstm" or "gru".
        num_layers: layers of the recurrent network.
        bidirectional: run both ways.
        dropout: probability, between layers.
        norm: one of `config.Norm`.
    """

    def __init__(
        self,
        channels: int,
        hidden_channels: int,
        rnn: str,
        num_layers: int,
        bidirectional: bool,
        dropout: float,
        norm: str,
    ) -> None:
        super().__init__()
        self.rnn = build_rnn(rnn, channels, hidden_channels, num_layers, bidirectional, dropout)
        self.rnn.batch_first = True
        self.linear = nn.Linear(hidden_channels * (2 if bidirectional else 1), channels)
        self.norm = build_norm(norm, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *, time, C) -> (B, *, time, C), sequences along the last axis but one."""
        hidden, _ = self.rnn(x.flatten(0, 1))
        update = self.linear(hidden).view_as(x)
        return x + self.norm(update.movedim(-1, 1)).movedim(1, -1)


class DualPathBlock(nn.Module):
    """One recurrent network inside the chunks, then one across them.

    Args:
        bidirectional: of the network across chunks; the one inside always is.
        path: what the two `Path`s share.
    """

    def __init__(self, bidirectional: bool, **path: int | float | str) -> None:
        super().__init__()
        self.intra = Path(bidirectional=True, **path)  # type: ignore[arg-type]
        self.inter = Path(bidirectional=bidirectional, **path)  # type: ignore[arg-type]

    def forward(self, chunks: Tensor) -> Tensor:
        """(B, S, Q, C) -> (B, S, Q, C)."""
        across = self.intra(chunks).transpose(1, 2).contiguous()
        return self.inter(across).transpose(1, 2).contiguous()


@register(DualPathRNNConfig)
class DualPathRNNMasker(Masker):
    """Chunks of frames, recurrent networks inside and across them, overlap-add, a gate and a bias-free 1x1.

    Args:
        encoding_dim: K.
        hypotheses: n.
        values_per_dimension: P.
        bottleneck_channels: channels of the chunks.
        hidden_channels: units of each direction of a recurrent network.
        chunk_size: frames in a chunk.
        hop_size: frames between chunks, at most chunk_size.
        repeats: dual-path blocks.
        rnn: "lstm" or "gru".
        num_layers: layers of each recurrent network.
        dropout: probability, between layers.
        bidirectional: of the networks across chunks.
        norm: one of `config.Norm` but cumulative_layer_norm.

    Raises:
        UserError: a size below 1, a hop that skips frames, or a norm that has no meaning on chunks.
    """

    def __init__(
        self,
        encoding_dim: int,
        hypotheses: int = 2,
        values_per_dimension: int = 1,
        *,
        bottleneck_channels: int = 128,
        hidden_channels: int = 128,
        chunk_size: int = 100,
        hop_size: int = 50,
        repeats: int = 6,
        rnn: str = "lstm",
        num_layers: int = 1,
        dropout: float = 0.0,
        bidirectional: bool = True,
        norm: str = "global_layer_norm",
    ) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        require_at_least(
            1,
            bottleneck_channels=bottleneck_channels,
            hidden_channels=hidden_channels,
            chunk_size=chunk_size,
            hop_size=hop_size,
            repeats=repeats,
            num_layers=num_layers,
        )
        if hop_size > chunk_size:
            raise UserError(f"model.masker.hop_size: found {hop_size}, expected at most chunk_size {chunk_size}")
        if norm == "cumulative_layer_norm":
            raise UserError(
                "model.masker.norm: cumulative_layer_norm has no order in time to follow on chunks; "
                "choose global_layer_norm, channel_layer_norm or batch_norm"
            )
        self.chunk_size = chunk_size
        self.hop_size = hop_size
        self.norm = build_norm(norm, encoding_dim)
        self.bottleneck = nn.Conv1d(encoding_dim, bottleneck_channels, 1)
        self.blocks = nn.Sequential(
            *(
                DualPathBlock(
                    bidirectional,
                    channels=bottleneck_channels,
                    hidden_channels=hidden_channels,
                    rnn=rnn,
                    num_layers=num_layers,
                    dropout=dropout,
                    norm=norm,
                )
                for _ in range(repeats)
            )
        )
        self.spread = nn.Sequential(nn.PReLU(), nn.Conv2d(bottleneck_channels, hypotheses * bottleneck_channels, 1))
        self.value = nn.Sequential(nn.Conv1d(bottleneck_channels, bottleneck_channels, 1), nn.Tanh())
        self.gate = nn.Sequential(nn.Conv1d(bottleneck_channels, bottleneck_channels, 1), nn.Sigmoid())
        self.output = nn.Conv1d(bottleneck_channels, values_per_dimension * encoding_dim, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Raw mask values (B, n, P, K, F) of features (B, K, F)."""
        frames = features.shape[-1]
        chunks = self.blocks(segment(self.bottleneck(self.norm(features)), self.chunk_size, self.hop_size))
        hypotheses = self.spread(chunks.permute(0, 3, 1, 2)).unflatten(1, (self.hypotheses, -1)).flatten(0, 1)
        x = overlap_add(hypotheses, frames, self.hop_size)
        raw = self.output(self.value(x) * self.gate(x))
        return raw.view(-1, self.hypotheses, self.values_per_dimension, self.encoding_dim, frames)
