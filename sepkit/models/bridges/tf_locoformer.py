"""Checkpoints of TF-Locoformer, as its authors publish them: ESPnet's.

Weights are pickles, read by torch's restricted loader, which makes only tensors and plain data and runs nothing. Sizes
are in the file config.yaml beside them, which is read as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepkit.config import DeterministicConfig, ModelConfig, TFLocoformerConfig
from sepkit.errors import UserError, shown
from sepkit.files import read_yaml
from sepkit.models.bridges._pickles import check_sizes, read_state_dict
from sepkit.models.bridges._weights import OWN_OF_FOURIER, build_with, coefficients, one_by_one, renamed
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.needs import chunks_for

_EXPECTED = "expected ESPnet's weights of a TF-Locoformer (valid.loss.ave.pth) with config.yaml beside them"
DESCRIPTION = "config.yaml"
"""Name of the file beside the weights that states sizes and sample rate."""
_TRAINED_SECONDS = 4.0
"""Length of the segments that the published models were trained on, where the description does not tell."""


def from_tf_locoformer(path: str | Path) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the weights of a published TF-Locoformer.

    On the same frames estimates are those of the authors' code to rounding. On a recording they are not: sepkit pads
    its ends with zeros and ESPnet with the mirrored recording, and attention and group norm carry that everywhere. With
    random weights the middle third differs by 32 to 43 dB less than its level. Where the hop is a quarter of the
    window, or does not divide the length, the number of frames differs too, and estimates by 1 to 4 % of the peak.

    Args:
        path: the weights (valid.loss.ave_5best.pth), with config.yaml in the same folder.
    """
    path = Path(path)
    weights = read_state_dict(path, _EXPECTED)
    for name in weights:
        if not name.startswith("separator."):
            raise UserError(f"{path}: found {shown(name)}, which no TF-Locoformer has; {_EXPECTED}")
    config, needs = _config(path.with_name(DESCRIPTION), path)
    return build_with(str(path), config, weights, one_by_one(reference_name), own=OWN_OF_FOURIER, needs=needs)


def _config(path: Path, weights: Path) -> tuple[ModelConfig, dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"{weights}: no {DESCRIPTION} beside it; {_EXPECTED}")
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
    sizes = {
        "channels": separator.get("emb_dim", 128),
        "num_layers": separator.get("n_layers", 6),
        "num_heads": separator.get("n_heads", 4),
        "attention_dim": separator.get("attention_dim", 128),
        "feedforward_dim": hidden[0],
        "kernel_size": separator.get("conv1d_kernel", 4),
        "norm_groups": separator.get("num_groups", 4),
    }
    numbers = sizes | {"n_fft": window, "hop_length": stride, "num_spk": separator.get("num_spk", 2)}
    numbers["sample_rate"] = found.get("sample_rate", 8000)
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise UserError(f"{path}: {name} is {shown(value)}, expected a whole number above 0")
    check_sizes(str(path), {name: value for name, value in numbers.items() if name != "sample_rate"})
    check_sizes(str(path), {"n_layers": sizes["num_layers"]}, 1000)
    rate, samples = numbers["sample_rate"], found.get("speech_segment")
    needs = chunks_for(samples / rate if type(samples) is int and samples >= rate else _TRAINED_SECONDS)
    config = ModelConfig(
        sample_rate=numbers["sample_rate"],
        hypotheses=numbers["num_spk"],
        filterbank=coefficients(window, stride, like_torch=True),
        encoding=DeterministicConfig(activation="linear"),
        masker=TFLocoformerConfig(**sizes, dropout=_dropout(path, separator)),
        masks=DeterministicConfig(activation="linear"),
        input_norm="mixture" if parts["model"].get("normalize_variance", False) else "training",
    )
    return config, needs


def _dropout(path: Path, separator: Mapping[str, Any]) -> float:
    value = separator.get("dropout", 0.0)
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"{path}: separator_conf.dropout is {shown(value)}, expected 0 <= dropout < 1")
    return float(value)


_ONLY: dict[str, Any] = {
    "norm_type": "rmsgroupnorm",
    "tf_order": "ft",
    "ffn_type": ["swiglu_conv1d", "swiglu_conv1d"],
    "conv1d_shift": 1,
    "eps": 1e-5,
}
"""Options of which sepkit has one value."""

_NAMES = (
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


def reference_name(name: str) -> str:
    """Return the authors' name of a tensor."""
    return renamed(name, _NAMES)
