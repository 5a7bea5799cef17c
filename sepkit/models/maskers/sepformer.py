"""The dual-path transformer masker SepFormer (Subakan et al., ICASSP 2021), built on speechbrain."""

from __future__ import annotations

from torch import Tensor, nn

from sepkit.config import SepFormerConfig
from sepkit.errors import UserError
from sepkit.models.maskers.base import Masker, require_at_least
from sepkit.registry import register


@register(SepFormerConfig)
class SepFormerMasker(Masker):
    """speechbrain's Dual_Path_Model with transformers inside and across chunks, without its final relu.

    Attributes:
        max_frames: the longest input, in frames.
    """

    hypothesis_layers = ("network.conv2d",)

    def __init__(
        self,
        encoding_dim: int,
        hypotheses: int = 2,
        values_per_dimension: int = 1,
        *,
        model_dim: int,
        num_layers: int,
        chunk_size: int,
        transformer_layers: int,
        num_heads: int,
        feedforward_dim: int,
        dropout: float,
    ) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        require_at_least(
            1,
            num_layers=num_layers,
            transformer_layers=transformer_layers,
            num_heads=num_heads,
            feedforward_dim=feedforward_dim,
        )
        require_at_least(2, model_dim=model_dim, chunk_size=chunk_size)
        if model_dim % 2 or model_dim % num_heads:
            raise UserError(
                f"model.masker.model_dim: found {model_dim}, expected an even multiple of num_heads {num_heads}"
            )
        try:
            from speechbrain.lobes.models.dual_path import Dual_Path_Model, SBTransformerBlock
        except ImportError as error:
            raise UserError("the masker sepformer needs speechbrain: pip install 'sepkit[sepformer]'") from error

        def transformer() -> nn.Module:
            return SBTransformerBlock(
                num_layers=transformer_layers,
                d_model=model_dim,
                nhead=num_heads,
                d_ffn=feedforward_dim,
                dropout=dropout,
                use_positional_encoding=True,
                norm_before=True,
            )

        self.network = Dual_Path_Model(
            encoding_dim,
            model_dim,
            transformer(),
            transformer(),
            num_layers=num_layers,
            norm="ln",
            K=chunk_size,
            num_spks=hypotheses,
            skip_around_intra=True,
            linear_layer_after_inter_intra=False,
        )
        # Both transformers use speechbrain's table of positions; every chunk_size frames make two chunks.
        positions: int = self.network.dual_mdl[0].intra_mdl.pos_enc.max_len  # type: ignore
        if chunk_size > positions:
            raise UserError(f"model.masker.chunk_size: found {chunk_size}, expected at most {positions}")
        self.max_frames = chunk_size * (positions // 2) - chunk_size // 2 - 1
        self.network.activation = nn.Identity()  # type: ignore[assignment]
        self.network.end_conv1x1 = nn.Conv1d(model_dim, values_per_dimension * encoding_dim, 1, bias=False)

    @property
    def blocks(self) -> nn.Module:
        """The dual-path blocks."""
        return self.network.dual_mdl

    def forward(self, features: Tensor) -> Tensor:
        """Return raw mask values (B, n, P, K, F)."""
        if features.shape[-1] > self.max_frames:
            raise UserError(
                f"the masker sepformer takes at most {self.max_frames} frames, found {features.shape[-1]}; "
                "separate the recording in shorter pieces"
            )
        raw = self.network(features).transpose(0, 1)
        return raw.unflatten(2, (self.values_per_dimension, self.encoding_dim))
