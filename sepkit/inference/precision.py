"""The precision of a model's computations."""

from __future__ import annotations

import torch

from sepkit.errors import UserError
from sepkit.inference.options import Precision
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.maskers import ConvTasNetMasker, DualPathRNNMasker
from sepkit.models.runtime import has_bfloat16


def with_precision(model: EncoderMaskerDecoder, precision: Precision, device: torch.device) -> EncoderMaskerDecoder:
    """Return the model, which computes in this precision from now on.

    bfloat16 affects the recurrent networks of dual_path_rnn and the layers behind them, and the 1x1 convolutions of
    conv_tasnet. All else stays in float32.

    Args:
        model: on `device`; an `EncoderMaskerDecoder` or an exported model.
        precision: bfloat16 goes with dual_path_rnn of LSTMs and with conv_tasnet of global norms.
        device: where it computes.

    Raises:
        UserError: the model or the processor cannot compute in it, or gains nothing.
    """
    masker = getattr(model, "masker", None)
    if isinstance(masker, DualPathRNNMasker | ConvTasNetMasker):
        low = precision == "bfloat16"
        if low and device.type == "cpu" and not has_bfloat16():
            raise UserError("precision: found bfloat16, which this processor does not compute in; use float32")
        if low and device.type != "cpu" and isinstance(masker, ConvTasNetMasker):
            raise UserError(
                f"precision: found bfloat16 for conv_tasnet on {device}, expected the device cpu; use float32"
            )
        masker.low_precision = low
    elif precision != "float32":
        what = type(model).__name__ if masker is None else type(masker).__name__
        raise UserError(
            f"precision: found {precision}, which {what} cannot use, only dual_path_rnn and conv_tasnet; use float32"
        )
    return model
