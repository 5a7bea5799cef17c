"""In which precision a model separates."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from sepkit.errors import UserError
from sepkit.models.maskers import DualPathRNNMasker

__all__ = ["Precision", "set_precision"]

Precision = Literal["float32", "bfloat16"]
"""bfloat16: the recurrent networks of dual_path_rnn and the layers behind them; all else stays in float32."""


def set_precision(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Has a model compute so.

    Args:
        model: an `EncoderMaskerDecoder` or an exported model.
        precision: bfloat16 goes with dual_path_rnn of LSTMs alone.
        device: where it computes.

    Raises:
        UserError: no such precision, or bfloat16 where the model or the processor has no way to compute so.
    """
    if precision not in get_args(Precision):
        raise UserError(f"precision: found {precision!r}, expected {' or '.join(get_args(Precision))}")
    masker = getattr(model, "masker", None)
    if isinstance(masker, DualPathRNNMasker):
        # In emulation it would be slower than float32.
        if precision == "bfloat16" and device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported():
            raise UserError("precision: found bfloat16, which this processor does not compute in; use float32")
        masker.low_precision = precision == "bfloat16"
    elif precision != "float32":
        what = type(model).__name__ if masker is None else type(masker).__name__
        raise UserError(f"precision: found {precision}, which {what} has no way for, only dual_path_rnn; use float32")
