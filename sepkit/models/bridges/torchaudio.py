"""Read the weights of torchaudio's conv_tasnet_base; files are pickles, read by torch's restricted loader."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sepkit.config import ConvTasNetConfig, DeterministicConfig, FreeFilterbankConfig, ModelConfig
from sepkit.errors import UserError
from sepkit.models.bridges._pickles import read_state_dict
from sepkit.models.bridges._weights import build_with
from sepkit.models.emd import EncoderMaskerDecoder

_EXPECTED = "expected the weights of torchaudio's conv_tasnet_base, a file of its state_dict()"
# Weights do not determine what all models of conv_tasnet_base share: blocks in a repeat, and relu of the masks.
_BLOCKS = 8


def from_torchaudio(path: str | Path, *, sample_rate: int | None) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the outputs (to rounding) of torchaudio's conv_tasnet_base.

    Args:
        path: its weights, as its CONVTASNET_BASE_LIBRI2MIX fetches them.
        sample_rate: Hz, which torchaudio's models do not state; 8000 for its CONVTASNET_BASE_LIBRI2MIX.
    """
    where = str(path)
    if sample_rate is None:
        raise UserError(f"{where}: torchaudio's files do not tell their sample rate; write torchaudio:{where}@8000")
    weights = read_state_dict(Path(path), _EXPECTED)
    config = _model_config(where, weights, sample_rate)
    # torchaudio lacks the last block's residual, which has no effect.
    assert isinstance(config.masker, ConvTasNetConfig)
    last = f"mask_generator.conv_layers.{config.masker.blocks * config.masker.repeats - 1}.res_out."
    features = config.masker.bottleneck_channels
    absent = {
        f"{last}weight": torch.zeros(features, config.masker.hidden_channels, 1),
        f"{last}bias": torch.zeros(features),
    }
    return build_with(where, config, absent | weights, _NAMES)


def _model_config(where: str, weights: Mapping[str, Tensor], sample_rate: int) -> ModelConfig:
    def shape(name: str) -> torch.Size:
        if name not in weights or weights[name].dim() != 3:
            raise UserError(f"{where}: {name} is missing, {_EXPECTED}")
        return weights[name].shape

    filters, _, kernel_size = shape("encoder.weight")
    features = shape("mask_generator.input_conv.weight")[0]
    hidden, _, taps = shape("mask_generator.conv_layers.0.conv_layers.3.weight")
    skips = re.compile(r"mask_generator\.conv_layers\.\d+\.skip_out\.weight")
    layers = len([name for name in weights if skips.fullmatch(name)])
    if taps != 3 or kernel_size % 2 or layers % _BLOCKS or not layers:
        raise UserError(
            f"{where}: found kernels of {taps} and {kernel_size} and {layers} layers, expected 3, an even number and a "
            f"multiple of {_BLOCKS}; {_EXPECTED}"
        )
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
            blocks=_BLOCKS,
            repeats=layers // _BLOCKS,
        ),
        masks=DeterministicConfig(activation="relu"),
        pad="asteroid",
    )


_NAMES = (
    (r"^filterbank\.(encoder|decoder)\.filterbank\._filters", r"\1.weight"),
    (r"^masker\.norm\.", "mask_generator.input_norm."),
    (r"^masker\.bottleneck\.", "mask_generator.input_conv."),
    (r"^masker\.blocks\.(\d+)\.expand\.", r"mask_generator.conv_layers.\1.conv_layers."),
    (r"^masker\.blocks\.(\d+)\.depthwise\.", r"mask_generator.conv_layers.\1.conv_layers.3."),
    (r"^masker\.blocks\.(\d+)\.activation\.", r"mask_generator.conv_layers.\1.conv_layers.4."),
    (r"^masker\.blocks\.(\d+)\.norm\.", r"mask_generator.conv_layers.\1.conv_layers.5."),
    (r"^masker\.blocks\.(\d+)\.output\.", r"mask_generator.conv_layers.\1.{part}_out."),
    (r"^masker\.activation\.", "mask_generator.output_prelu."),
    (r"^masker\.output\.", "mask_generator.output_conv."),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
)
