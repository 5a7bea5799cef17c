"""Read the weights of torchaudio's ConvTasNet; files are pickles, read by torch's restricted loader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sepkit.config import ConvTasNetConfig, DeterministicConfig, FreeFilterbankConfig, ModelConfig
from sepkit.errors import UserError
from sepkit.models.bridges._pickles import read_state_dict
from sepkit.models.bridges._weights import check_plain
from sepkit.models.emd import EncoderMaskerDecoder, build_model

_EXPECTED = "expected torchaudio.models.ConvTasNet or its state_dict()"


def from_torchaudio(
    model_or_weights: nn.Module | Mapping[str, Tensor] | str | Path,
    *,
    sample_rate: int,
    blocks: int = 8,
    mask_activation: Literal["relu", "sigmoid"] = "relu",
) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the outputs (to rounding) and weights of a torchaudio ConvTasNet.

    Args:
        model_or_weights: the model, its weights by name, or a file of these, as its CONVTASNET_BASE_LIBRI2MIX fetches.
        sample_rate: Hz, which torchaudio's models do not state; 8000 for its CONVTASNET_BASE_LIBRI2MIX.
        blocks: blocks per repeat, which weights alone do not tell; conv_tasnet_base has 8.
        mask_activation: the map from values to masks, which weights alone do not tell; conv_tasnet_base has relu.
    """
    if isinstance(model_or_weights, nn.Module):
        blocks, mask_activation = _structure(model_or_weights)
        model_or_weights = model_or_weights.state_dict()
    elif not isinstance(model_or_weights, Mapping):
        path, model_or_weights = model_or_weights, read_state_dict(Path(model_or_weights), _EXPECTED)
        check_plain(str(path), model_or_weights)
    weights = dict(model_or_weights)
    model = build_model(_model_config(weights, sample_rate, blocks, mask_activation))
    _load(model, weights)
    return model.eval()


def _structure(model: nn.Module) -> tuple[int, Literal["relu", "sigmoid"]]:
    """Return blocks per repeat and the activation of the masks, which weights do not tell."""
    generator = getattr(model, "mask_generator", None)
    layers = getattr(generator, "conv_layers", None)
    if not isinstance(generator, nn.Module) or not isinstance(layers, nn.ModuleList):
        raise UserError(f"found a {type(model).__name__}, {_EXPECTED}")
    dilations = [layer.conv_layers[3].dilation[0] for layer in layers]  # type: ignore[union-attr, index]
    return 1 + dilations.index(max(dilations)), "relu" if isinstance(generator.mask_activate, nn.ReLU) else "sigmoid"


def _model_config(
    weights: Mapping[str, Tensor], sample_rate: int, blocks: int, mask_activation: Literal["relu", "sigmoid"]
) -> ModelConfig:
    def shape(name: str) -> torch.Size:
        if not isinstance(weights.get(name), Tensor) or weights[name].dim() != 3:
            raise UserError(f"torchaudio: {name} is missing, {_EXPECTED}")
        return weights[name].shape

    filters, _, kernel_size = shape("encoder.weight")
    features = shape("mask_generator.input_conv.weight")[0]
    hidden, _, taps = shape("mask_generator.conv_layers.0.conv_layers.3.weight")
    layers = len(
        [name for name in weights if re.fullmatch(r"mask_generator\.conv_layers\.\d+\.skip_out\.weight", name)]
    )
    if taps != 3:
        raise UserError(f"torchaudio: msk_kernel_size is {taps}, expected 3: its padding loses frames with any other")
    if kernel_size % 2:
        raise UserError(f"torchaudio: enc_kernel_size is {kernel_size}, expected an even one")
    if blocks < 1 or layers % blocks:
        raise UserError(f"torchaudio: found {layers} layers, expected a multiple of blocks={blocks}")
    stride = kernel_size // 2
    return ModelConfig(
        sample_rate=sample_rate,
        hypotheses=shape("mask_generator.output_conv.weight")[0] // filters,
        # The input is padded with zeros to whole strides, and by a stride at both ends.
        filterbank=FreeFilterbankConfig(filters, kernel_size, stride, padding=stride, multiple=stride),
        encoding=DeterministicConfig(activation="linear"),
        masker=ConvTasNetConfig(
            bottleneck_channels=features,
            hidden_channels=hidden,
            skip_channels=features,
            kernel_size=taps,
            blocks=blocks,
            repeats=layers // blocks,
        ),
        masks=DeterministicConfig(activation=mask_activation),
        pad="asteroid",
    )


def _load(model: EncoderMaskerDecoder, weights: dict[str, Tensor]) -> None:
    """Copy torchaudio's weights into `model`; names must match both ways, and shapes."""
    ours = {name: tensor for name, tensor in model.state_dict().items() if name not in ("signal_mean", "signal_std")}
    unused = set(weights)
    for name, tensor in ours.items():
        for theirs, piece in _pieces(model, name, tensor):
            if theirs not in weights:
                # torchaudio lacks the last block's residual, which has no effect.
                if theirs.endswith(("res_out.weight", "res_out.bias")) and f".{_last(model)}." in theirs:
                    piece.zero_()
                    continue
                raise UserError(f"torchaudio: {theirs} is missing, {_EXPECTED}")
            if weights[theirs].shape != piece.shape:
                raise UserError(
                    f"torchaudio: {theirs} has shape {tuple(weights[theirs].shape)}, expected {tuple(piece.shape)}"
                )
            piece.copy_(weights[theirs])
            unused.discard(theirs)
    if unused:
        raise UserError(f"torchaudio: {min(unused)} is unexpected, {_EXPECTED}")


def _last(model: EncoderMaskerDecoder) -> int:
    return len(model.masker.blocks) - 1  # type: ignore[arg-type]


# Start of our name -> start of torchaudio's.
_RULES = [
    (r"filterbank\.(encoder|decoder)\.filterbank\._filters", r"\1.weight"),
    (r"masker\.norm\.", r"mask_generator.input_norm."),
    (r"masker\.bottleneck\.", r"mask_generator.input_conv."),
    (r"masker\.blocks\.(\d+)\.expand\.", r"mask_generator.conv_layers.\1.conv_layers."),
    (r"masker\.blocks\.(\d+)\.depthwise\.", r"mask_generator.conv_layers.\1.conv_layers.3."),
    (r"masker\.blocks\.(\d+)\.activation\.", r"mask_generator.conv_layers.\1.conv_layers.4."),
    (r"masker\.blocks\.(\d+)\.norm\.", r"mask_generator.conv_layers.\1.conv_layers.5."),
    (r"masker\.activation\.", r"mask_generator.output_prelu."),
    (r"masker\.output\.", r"mask_generator.output_conv."),
]


def _pieces(model: EncoderMaskerDecoder, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """Return the names and views of the tensors that torchaudio keeps for one of ours."""
    block = re.fullmatch(r"masker\.blocks\.(\d+)\.output\.(weight|bias)", name)
    if block is not None:
        masker: Any = model.masker
        start = f"mask_generator.conv_layers.{block[1]}."
        residual, skip = tensor.split([masker.bottleneck_channels, masker.skip_channels])
        return [(f"{start}res_out.{block[2]}", residual), (f"{start}skip_out.{block[2]}", skip)]
    for pattern, template in _RULES:
        match = re.match(pattern, name)
        if match:
            renamed = match.expand(template) + name[match.end() :]
            return [(re.sub("gamma$", "weight", re.sub("beta$", "bias", renamed)), tensor)]
    return [(name, tensor)]
