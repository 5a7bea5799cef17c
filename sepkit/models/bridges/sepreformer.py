"""Checkpoints of SepReformer, as its authors publish them.

They are pickles with the optimizer's state, read by torch's restricted loader, which makes only tensors and plain data
and runs nothing.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sepkit.config import DeterministicConfig, FreeFilterbankConfig, ModelConfig, SepReformerConfig
from sepkit.errors import UserError
from sepkit.files import read_yaml
from sepkit.models.bridges._pickles import Description, check_sizes, read_state_dict
from sepkit.models.bridges._weights import build_with
from sepkit.models.emd import EncoderMaskerDecoder

_EXPECTED = "expected what SepReformer's training saves (model_state_dict, optimizer_state_dict ...)"
DESCRIPTION = "configs.yaml"
"""Name of the file beside a checkpoint, or in the folder of its model, that states stride and sample rate."""
# The author's advice is chunks of 10 to 20 s (github.com/dmlguq456/SepReformer/issues/8). Its cost is scale-invariant.
_STRIDE, _RATE = "model.module_audio_enc.stride", "dataset.sampling_rate"
_NEEDS = {"whole_seconds": 20.0, "chunk_seconds": 10.0, "levels": "mixture"}


def from_sepreformer(path: str | Path) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the outputs (to rounding) of a published SepReformer.

    Sizes follow from the weights. Stride and sample rate are those of `configs.yaml`, in the file's folder or where the
    authors' repository has it; without that file a quarter of the filters' length and 8000 Hz, as in all their models.

    Args:
        path: epoch.NNNN.pth.
    """
    path = Path(path)
    found = read_state_dict(path, _EXPECTED)
    # Offsets of keys have no effect on attention, and only training uses the estimates of inner stages.
    weights = {
        name: tensor
        for name, tensor in found.items()
        if not name.endswith("linear_k.bias") and not name.startswith(("out_layer_bn.", "decoder_bn."))
    }
    return build_with(str(path), _config(path, weights), weights, NAMES, needs=_NEEDS)


def _config(path: Path, weights: Mapping[str, Tensor]) -> ModelConfig:
    def size(name: str, dimension: int) -> int:
        shape = weights[name].shape if name in weights else ()
        if len(shape) <= dimension or shape[dimension] == 0:
            raise UserError(f"{path}: no {name} of a SepReformer in it; {_EXPECTED}")
        return shape[dimension]

    filters, length = size("audio_encoder.conv1d.weight", 0), size("audio_encoder.conv1d.weight", 2)
    channels = size("feature_projector.conv1d.weight", 0)
    stages = {match[1] for name in weights if (match := re.match(r"separator\.enc_stages\.(\d+)\.", name))}
    described = _described(path)
    stride = described.size(_STRIDE, length // 4)
    rate = described.size(_RATE, 8000, 10**6)
    check_sizes(str(path), {"stages": len(stages)}, {"stages": 65})
    return ModelConfig(
        sample_rate=rate,
        hypotheses=size("separator.spk_split_block.linear.2.weight", 0) // channels,
        filterbank=FreeFilterbankConfig(filters, length, stride, multiple=stride, mapping=True),
        encoding=DeterministicConfig(activation="gelu"),
        masker=SepReformerConfig(
            channels=channels,
            num_stages=len(stages),
            num_heads=channels // size("separator.pos_emb.pe_k.weight", 1),
            kernel_size=size("separator.bottleneck_G.l_block_1.block.cla.dw_conv_1d.weight", 2),
            max_distance=size("separator.pos_emb.pe_k.weight", 0) // 2,
        ),
        masks=DeterministicConfig(activation="linear"),
        pad="asteroid",
    )


def _described(path: Path) -> Description:
    """Return the description that belongs to a checkpoint; empty without one."""
    above = path.resolve().parents
    # The authors' repository keeps weights in MODEL/log/scratch_weights.
    places = [path.parent, *(above[2:3] if len(above) > 1 and above[1].name == "log" else [])]
    file = next((place / DESCRIPTION for place in places if (place / DESCRIPTION).is_file()), None)
    if file is None:
        return Description(path, {})
    described = Description(file, read_yaml(file, "get it again"), "config.")
    if None in (described.at(_STRIDE), described.at(_RATE)):
        raise UserError(f"{file}: no configuration of SepReformer (config.model.module_audio_enc.stride ...)")
    return described


def _from_1(match: re.Match[str]) -> str:
    """Their blocks of a kind are numbered from 1."""
    return f".{match[1]}_{int(match[2]) + 1}."


NAMES = (
    (r"^filterbank\.encoder\.filterbank\._filters", "audio_encoder.conv1d.weight"),
    (r"^filterbank\.decoder\.filterbank\._filters", "audio_decoder.weight"),
    (r"^masker\.norm\.", "feature_projector.norm."),
    (r"^masker\.input\.", "feature_projector.conv1d."),
    (r"^masker\.output\.", "out_layer.end_conv1x1."),
    (r"^masker\.positions\.vectors\.", "separator.pos_emb.pe_k."),
    (r"^masker\.encoder\.", "separator.enc_stages."),
    (r"^masker\.downsampling\.(\d+)\.depthwise\.", r"separator.enc_stages.\1.downconv.down_conv."),
    (r"^masker\.downsampling\.(\d+)\.norm\.", r"separator.enc_stages.\1.downconv.BN."),
    (r"^masker\.bottleneck\.", "separator.bottleneck_G."),
    (r"^masker\.split\.layers\.", "separator.spk_split_block.linear."),
    (r"^masker\.split\.norm\.", "separator.spk_split_block.norm."),
    (r"^masker\.fusion\.", "separator.simple_fusion."),
    (r"^masker\.decoder\.", "separator.dec_stages."),
    # Blocks.
    (r"\.over_all\.(\d+)\.attention\.", r".g_block_\1.block.ega.block.self_attn."),
    (r"\.over_all\.(\d+)\.gate\.", r".g_block_\1.block.ega.block.linear."),
    (r"\.over_all\.(\d+)\.feedforward\.", r".g_block_\1.block.gcfn."),
    (r"\.local\.(\d+)\.feedforward\.", r".l_block_\1.block.gcfn."),
    (r"\.local\.(\d+)\.expand\.0\.", r".l_block_\1.block.cla.layer_norm."),
    (r"\.local\.(\d+)\.expand\.1\.", r".l_block_\1.block.cla.linear1."),
    (r"\.local\.(\d+)\.depthwise\.", r".l_block_\1.block.cla.dw_conv_1d."),
    (r"\.local\.(\d+)\.linear\.", r".l_block_\1.block.cla.linear2."),
    (r"\.local\.(\d+)\.norm\.", r".l_block_\1.block.cla.BN."),
    (r"\.local\.(\d+)\.output\.", r".l_block_\1.block.cla.linear3."),
    (r"\.local\.(\d+)\.scale$", r".l_block_\1.block.cla.scale"),
    (r"\.speakers\.(\d+)\.attention\.", r".spk_attn_\1.self_attn."),
    (r"\.speakers\.(\d+)\.feedforward\.", r".spk_attn_\1.feed_forward."),
    # Layers of blocks.
    (r"(gcfn|feed_forward)\.expand\.", r"\1.net1."),
    (r"(gcfn|feed_forward)\.output\.", r"\1.net2."),
    (r"self_attn\.norm\.", "self_attn.layer_norm."),
    (r"self_attn\.(q|k|v)(uery|ey|alue)\.", r"self_attn.linear_\1."),
    (r"self_attn\.output\.", "self_attn.linear_out."),
    (r"\.scale$", ".Layer_scale.layer_scale"),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"\.(g_block|l_block|spk_attn)_(\d+)\.", _from_1),
)
"""Our names -> the authors'."""
