"""Set the precision of a model's computations."""

from __future__ import annotations

import torch
from torch import nn

from sepkit.errors import UserError
from sepkit.inference.options import Precision
from sepkit.models.maskers import DualPathRNNMasker
from sepkit.models.maskers.fast.guard import has_bfloat16


def set_precision(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Make a model compute in this precision.

    bfloat16 affects the recurrent networks of dual_path_rnn and the layers behind them; all else stays in float32.

    Args:
        model: an `EncoderMaskerDecoder` or an exported model.
        precision: bfloat16 goes with dual_path_rnn of LSTMs alone.
        device: where it computes.

    Raises:
        UserError: bfloat16, but the model or the processor cannot compute in it.
    """
    masker = getattr(model, "masker", None)
    if isinstance(masker, DualPathRNNMasker):
        if precision == "bfloat16" and device.type == "cpu" and not has_bfloat16():
            raise UserError("precision: found bfloat16, which this processor does not compute in; use float32")
        masker.low_precision = precision == "bfloat16"
    elif precision != "float32":
        what = type(model).__name__ if masker is None else type(masker).__name__
        raise UserError(f"precision: found {precision}, which {what} cannot use, only dual_path_rnn; use float32")
