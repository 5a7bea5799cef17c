"""A saved model as a separator, with its prediction of SI-SDR."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, cast

import torch

from sepkit.errors import UserError
from sepkit.inference.options import SeparatorOptions
from sepkit.inference.quality.predictor import QUALITY, read_quality
from sepkit.inference.separator import Separator
from sepkit.models import EncoderMaskerDecoder, load_pretrained, model_folder
from sepkit.models.export.onnx_model import OnnxModel, is_onnx
from sepkit.models.published.shipped import default_model
from sepkit.models.storage.fingerprint import weights_fingerprint


def load_model(
    model: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    options: SeparatorOptions | None = None,
    *,
    predict: bool = True,
    **changed: Any,
) -> Separator:
    """Return the separator of a saved model, with its predictor of SI-SDR if `sepkit calibrate` made one.

    Args:
        model: a folder or file that `sepkit train` wrote (EXP, EXP/model), a file that `sepkit export` wrote, or
            whatever `sepkit.models.load_pretrained` takes; None: the model that ships with the package.
        device: of torch, or "auto": an accelerator if there is one.
        predict: False: without the predictor, which saves its time. Speakers are still counted, unless its file is
            damaged or of another model.
        **changed: fields of `SeparatorOptions` with other values than in `options` (levels="model").

    Raises:
        UserError: no such model or device, an option out of range, or a predictor that is damaged or another model's.
    """
    model = default_model() if model is None else model
    # A predictor needs a folder. Another toolkit's checkpoint has none, and neither has an exported model, which
    # otherwise has every attribute that a separator uses.
    folder = model_folder(model)
    loaded = cast(EncoderMaskerDecoder, OnnxModel(model)) if is_onnx(model) else load_pretrained(folder or model)
    quality = None
    if folder is not None and (folder / QUALITY).is_file():
        try:
            quality = read_quality(folder, weights_fingerprint(loaded), loaded.hypotheses)
        except UserError:
            if predict:
                raise
    options = replace(options or SeparatorOptions(), **changed)
    separator = Separator(loaded, device, options, quality=quality)
    if not predict:
        separator.quality = None
    return separator
