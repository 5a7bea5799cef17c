"""Checkpoints of TF-Locoformer, as its authors publish them: ESPnet's.

Weights are pickles, read by torch's restricted loader, which makes only tensors and plain data and runs nothing. Sizes
are in the file config.yaml beside them, which is read as plain data.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepkit.config import ModelConfig, TFLocoformerConfig
from sepkit.errors import UserError, shown
from sepkit.models.bridges._pickles import Description, read_state_dict
from sepkit.models.bridges._weights import build_with, frames_beyond, mapping_model
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.needs import chunks_for

_EXPECTED = "expected ESPnet's weights of a TF-Locoformer (valid.loss.ave.pth) with config.yaml beside them"
DESCRIPTION = "config.yaml"
"""Name of the file beside the weights that states sizes and sample rate."""
_TRAINED_SECONDS = 4.0
"""Length of the segments that the published models were trained on, if the description does not state it."""


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
    config, needs = _config(Description.beside(path, DESCRIPTION, _EXPECTED))
    return build_with(str(path), config, weights, NAMES, needs=needs)


def _config(described: Description) -> tuple[ModelConfig, dict[str, Any]]:
    if described.at("separator") != "tflocoformer":
        raise UserError(f"{described.path}: separator is not tflocoformer; {_EXPECTED}")
    separator = Description(described.path, described.data, "separator_conf.")
    separator.require(_ONLY, optional=True)
    transform, other = described.at("encoder_conf", {}), described.at("decoder_conf", {})
    stft = described.at("encoder") == described.at("decoder") == "stft"
    if not stft or transform != other or not isinstance(transform, Mapping):
        raise UserError(f"{described.path}: expected encoder and decoder stft of one size")
    if more := set(transform) - {"n_fft", "hop_length"}:
        given = f"encoder_conf.{min(more, key=str)} is given"
        raise UserError(f"{described.path}: {given}, expected only n_fft and hop_length")
    dropout = separator.at("dropout", 0.0)
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise separator.error("dropout", dropout, "0 <= dropout < 1")
    rate = described.size("sample_rate", 8000, 10**6)
    window, stride = described.size("encoder_conf.n_fft", 512), described.size("encoder_conf.hop_length", 128)
    masker = TFLocoformerConfig(
        channels=separator.size("emb_dim", 128),
        num_layers=separator.size("n_layers", 6, 1000),
        num_heads=separator.size("n_heads", 4),
        attention_dim=separator.size("attention_dim", 128),
        feedforward_dim=separator.size_of_both("ffn_hidden_dim"),
        kernel_size=separator.size("conv1d_kernel", 4),
        norm_groups=separator.size("num_groups", 4),
        dropout=float(dropout),
        edge_frames=frames_beyond(window, stride),
    )
    norm = "mixture" if described.at("model_conf.normalize_variance", False) else "training"
    samples = described.at("speech_segment")
    needs = chunks_for(samples / rate if type(samples) is int and samples >= rate else _TRAINED_SECONDS)
    hypotheses = separator.size("num_spk", 2)
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
