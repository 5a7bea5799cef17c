"""Checkpoints of TF-Locoformer, as its authors publish them: ESPnet's.

Weights are pickles, read by torch's restricted loader, which makes only tensors and plain data and runs nothing. Sizes
are in the file config.yaml beside them, which is read as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepkit.config import ModelConfig, TFLocoformerConfig
from sepkit.errors import UserError, shown
from sepkit.files import read_yaml
from sepkit.models.bridges._pickles import beside, read_state_dict, whole_number
from sepkit.models.bridges._weights import OWN_OF_FOURIER, build_with, frames_beyond, mapping_model, one_by_one
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.needs import chunks_for

_EXPECTED = "expected ESPnet's weights of a TF-Locoformer (valid.loss.ave.pth) with config.yaml beside them"
DESCRIPTION = "config.yaml"
"""Name of the file beside the weights that states sizes and sample rate."""
_TRAINED_SECONDS = 4.0
"""Length of the segments that the published models were trained on, where the description does not tell."""


def from_tf_locoformer(path: str | Path) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the weights of a published TF-Locoformer.

    Estimates are those of the authors' code to rounding, if a recording begins and ends with silence and the hop
    divides its length. Else sepkit pads with zeros and ESPnet with the mirrored recording, which attention and group
    norm carry everywhere: with random weights the middle third differs by 32 to 43 dB less than its level.

    Args:
        path: the weights (valid.loss.ave_5best.pth), with config.yaml in the same folder.
    """
    path = Path(path)
    weights = read_state_dict(path, _EXPECTED)
    for name in weights:
        if not name.startswith("separator."):
            raise UserError(f"{path}: found {shown(name)}, which no TF-Locoformer has; {_EXPECTED}")
    config, needs = _config(beside(path, DESCRIPTION, _EXPECTED))
    return build_with(str(path), config, weights, one_by_one(NAMES), own=OWN_OF_FOURIER, needs=needs)


def _config(path: Path) -> tuple[ModelConfig, dict[str, Any]]:
    found: Any = read_yaml(path, "get it again")
    if not isinstance(found, Mapping) or found.get("separator") != "tflocoformer":
        raise UserError(f"{path}: separator is not tflocoformer; {_EXPECTED}")
    parts = {name: found.get(f"{name}_conf") or {} for name in ("encoder", "decoder", "separator", "model")}
    if not all(isinstance(part, Mapping) for part in parts.values()):
        raise UserError(f"{path}: encoder_conf, decoder_conf, separator_conf or model_conf is no mapping; {_EXPECTED}")
    separator, transform = parts["separator"], dict(parts["encoder"])
    for name, wanted in _ONLY.items():
        if (value := separator.get(name, wanted)) != wanted:
            raise UserError(f"{path}: separator_conf.{name} is {shown(value)}, expected {wanted}")
    if found.get("encoder") != "stft" or found.get("decoder") != "stft" or parts["decoder"] != parts["encoder"]:
        raise UserError(f"{path}: expected encoder and decoder stft of one size")
    window, stride = transform.pop("n_fft", 512), transform.pop("hop_length", 128)
    if transform:
        raise UserError(f"{path}: encoder_conf.{next(iter(transform))} is given, expected only n_fft and hop_length")
    hidden = separator.get("ffn_hidden_dim")
    if not isinstance(hidden, list) or len(hidden) != 2 or hidden[0] != hidden[1]:
        raise UserError(f"{path}: separator_conf.ffn_hidden_dim is {shown(hidden)}, expected two equal numbers")

    def size(name: str, default: int, largest: int = 65536) -> int:
        return whole_number(path, f"separator_conf.{name}", separator.get(name, default), largest)

    dropout = separator.get("dropout", 0.0)
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise UserError(f"{path}: separator_conf.dropout is {shown(dropout)}, expected 0 <= dropout < 1")
    rate = whole_number(path, "sample_rate", found.get("sample_rate", 8000), 10**6)
    window, stride = whole_number(path, "n_fft", window), whole_number(path, "hop_length", stride)
    masker = TFLocoformerConfig(
        channels=size("emb_dim", 128),
        num_layers=size("n_layers", 6, 1000),
        num_heads=size("n_heads", 4),
        attention_dim=size("attention_dim", 128),
        feedforward_dim=whole_number(path, "separator_conf.ffn_hidden_dim", hidden[0]),
        kernel_size=size("conv1d_kernel", 4),
        norm_groups=size("num_groups", 4),
        dropout=float(dropout),
        edge_frames=frames_beyond(window, stride),
    )
    norm = "mixture" if parts["model"].get("normalize_variance", False) else "training"
    samples = found.get("speech_segment")
    needs = chunks_for(samples / rate if type(samples) is int and samples >= rate else _TRAINED_SECONDS)
    hypotheses = size("num_spk", 2)
    return mapping_model(rate, hypotheses, window, stride, masker, like_torch=True, input_norm=norm), needs


_ONLY: dict[str, Any] = {
    "norm_type": "rmsgroupnorm",
    "tf_order": "ft",
    "ffn_type": ["swiglu_conv1d", "swiglu_conv1d"],
    "conv1d_shift": 1,
    "eps": 1e-5,
}
"""Options of which sepkit has one value."""

NAMES = (
    (r"^masker\.input\.", "separator.conv.0."),
    (r"^masker\.norm\.", "separator.conv.1."),
    (r"^masker\.over_bins\.(\d+)\.", r"separator.blocks.\1.freq_path."),
    (r"^masker\.over_frames\.(\d+)\.", r"separator.blocks.\1.frame_path."),
    (r"^masker\.output\.", "separator.deconv."),
    # The list of feed-forward networks begins with the last one.
    (r"\.first_norm\.", ".ffn_norm.1."),
    (r"\.second_norm\.", ".ffn_norm.0."),
    (r"\.first\.", ".ffn.1."),
    (r"\.second\.", ".ffn.0."),
    (r"\.expand\.", ".conv1d."),
    (r"\.contract\.", ".deconv1d."),
    (r"\.attention_norm\.", ".attn_norm."),
    (r"\.attention\.inputs\.", ".attn.qkv."),
    (r"\.attention\.output\.", ".attn.aggregate_heads.0."),
    (r"\.attention\.frequencies$", ".attn.rope.freqs"),
)
"""Our names -> the authors'."""
