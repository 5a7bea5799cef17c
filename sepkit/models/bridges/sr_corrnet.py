"""Checkpoints of SR-CorrNet, as its authors publish them.

Weights are pickles, read by torch's restricted loader, which makes only tensors and plain data and runs nothing. Sizes
are in the file config.yaml beside them, which is read as plain data.
"""

from pathlib import Path
from typing import Any

from sepkit.config import ModelConfig, SRCorrNetConfig
from sepkit.models.bridges._pickles import Description, read_state_dict
from sepkit.models.bridges._weights import build_with, mapping_model, renamed
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.needs import chunks_for

FILES = ["model.pt", "config.yaml"]
"""Names of the weights and of the description in a folder."""
_EXPECTED = f"expected a folder, or the first file, of what SR-CorrNet's authors publish ({', '.join(FILES)})"


def from_sr_corrnet(path: str | Path) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the weights of a published SR-CorrNet for one microphone.

    Estimates are those of the authors' code to rounding, with two differences. Theirs ignores up to a stride of samples
    at the end and fades both ends; sepkit pads with zeros. Theirs divides by the mixture's deviation, and sepkit
    multiplies by it again. The published models were trained with a scale-invariant cost: their estimates are about 87
    times too loud, and upside down. `levels: mixture`, the default of separation, gives them level and sign.

    Args:
        path: a folder with model.pt and config.yaml, or the file of the weights, with config.yaml beside it.
    """
    path = Path(path)
    file = path / FILES[0] if path.is_dir() else path
    found = {renamed(name, _OLDER): tensor for name, tensor in read_state_dict(file, _EXPECTED).items()}
    # Only training uses the estimates of inner layers.
    weights = {name: tensor for name, tensor in found.items() if not name.startswith("filter_estim_aux.")}
    config, needs = _config(Description.beside(file, FILES[1], _EXPECTED, "config."))
    return build_with(str(file), config, weights, NAMES, needs=needs)


def _config(described: Description) -> tuple[ModelConfig, dict[str, Any]]:
    at, size = described.at, described.size
    block = "model.multi_path_block.spectral_module"
    channels, num_heads = size("model.d_model"), size("model.RoPE.n_head")
    counts = at("model.is_var_spks")
    if type(counts) is not bool:
        raise described.error("model.is_var_spks", counts, "true or false")
    split = "model.spk_split.varying" if counts else "model.spk_split.fixed"
    one = {"d_model": channels, "num_mics": 1, "taps_freq": at("model.taps_freq"), "taps_frame": at("model.taps_frame")}
    parts = [block, "model.cross_spk", *([split] if counts else [])]
    only = {
        "model.ref_ch": 0,
        "model.apply_pos_enc": True,
        "model.RoPE.d_model": channels,
        f"{split}.d_model": channels,
        "model.input_embedding": {**one, "kernel_sizes": [3, 3]},
        **{f"model.mask_estimator.{name}": value for name, value in one.items()},
        "model.multi_path_block.channel_module": at(block),
    }
    for part in parts:
        only |= {f"{part}.d_model": channels, f"{part}.n_head": num_heads, f"{part}.dropout_rate": 0}
    described.require(only)
    window, stride = size("stft.frame_length"), size("stft.frame_shift")
    if window not in (2 * stride, 4 * stride):
        raise described.error("stft.frame_shift", stride, f"a half or a quarter of {window}")
    rate = size("dataset.synthesis_config.sampling_rate", largest=10**6)
    longest = size("dataset.synthesis_config.max_len", largest=10**9, least=rate)
    # A scale-invariant cost leaves level and sign open.
    needs = chunks_for(longest / rate) | {"levels": "mixture"}
    masker = SRCorrNetConfig(
        channels=channels,
        encoder_layers=size("model.N_Enc", largest=1000),
        decoder_layers=size("model.N_Dec", largest=1000),
        num_heads=num_heads,
        feedforward_dim=size(f"{block}.d_hidden"),
        speaker_dim=size("model.cross_spk.d_hidden"),
        kernel_size=size(f"{block}.kernel_size"),
        bin_taps=described.size_of_both("model.taps_freq", 16, 0),
        frame_taps=described.size_of_both("model.taps_frame", 16, 0),
        count_speakers=counts,
    )
    hypotheses = size(f"{split}.max_n_spks", largest=100)
    return mapping_model(rate, hypotheses, window, stride, masker, like_torch=False, input_norm="mixture"), needs


_OLDER = (
    # torch.compile adds it.
    (r"_orig_mod\.", ""),
    # Names before the authors' own renaming (migrate_checkpoint.py).
    (r"^input_layer\.", "encoder."),
    (r"^mask_estim(_aux)?\.", r"filter_estim\1."),
    (r"\.frame_wise_block\.", ".freq_block."),
    (r"\.freq_wise_block\.", ".time_block."),
    (r"\.cs\.", ".ca."),
    (r"\.block\.ega\.", ".block.sa."),
)

NAMES = (
    (r"^masker\.input\.", "encoder.embed."),
    (r"^masker\.norm\.", "encoder.layer_norm."),
    (r"^masker\.encoder\.", "enc_block."),
    (r"^masker\.decoder\.", "dec_block."),
    (r"^masker\.speakers\.(\d+)\.feedforward\.", r"dec_cs.\1.block.block.ffn."),
    (r"^masker\.speakers\.(\d+)\.attention\.", r"dec_cs.\1.block.block.sa."),
    (r"^masker\.split_norm\.", "layernorm."),
    (r"^masker\.output\.", "filter_estim.mask.net."),
    (r"^masker\.split\.layers\.", "spk_split.spk_split."),
    (r"^masker\.split\.norm\.", "spk_split.layernorm."),
    (r"^masker\.split\.queries$", "spk_split.spk_query"),
    (r"^masker\.split\.presence\.", "spk_split.pres_linear."),
    (r"^masker\.split\.fusion\.", "spk_split.split.fusion."),
    (r"^masker\.split\.blocks\.0\.", "spk_split.dec.net1."),
    (r"^masker\.split\.blocks\.1\.", "spk_split.dec.net2."),
    # Blocks.
    (r"\.over_bins\.norm\.", ".freq_block.block.sa.layernorm."),
    (r"\.over_frames\.norm\.", ".time_block.block.sa.layernorm."),
    (r"\.over_bins\.attention\.", ".freq_block.block.sa."),
    (r"\.over_frames\.attention\.", ".time_block.block.sa."),
    (r"\.over_bins\.", ".freq_block.block."),
    (r"\.over_frames\.", ".time_block.block."),
    (r"\.first\.", ".ffn_1."),
    (r"\.second\.", ".ffn_2."),
    (r"\.to_mixture\.", ".ca."),
    (r"\.to_others\.", ".sa."),
    (r"\.feedforward\.", ".ffn."),
    # Layers of blocks.
    (r"\.norm\.", ".layernorm."),
    (r"\.expand\.", ".net.0."),
    (r"\.contract\.", ".net.2."),
    (r"\.ca\.inputs\.", ".ca.block.kv."),
    (r"\.ca\.query\.", ".ca.block.q."),
    (r"\.sa\.inputs\.", ".sa.block.qkv."),
    (r"\.(ca|sa)\.output\.", r".\1.block.aggregate_heads.0."),
    (r"\.sa\.frequencies$", ".sa.block.rope.freqs"),
)
"""Our names -> the authors'."""
