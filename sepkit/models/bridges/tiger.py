"""Checkpoints of TIGER, as its authors publish them: safetensors, with sizes in config.json beside them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from sepkit.config import ModelConfig, TIGERConfig
from sepkit.errors import UserError, shown
from sepkit.files import read_json
from sepkit.models.bridges._pickles import Description, refuse_pointer
from sepkit.models.bridges._weights import build_with, frames_beyond, mapping_model
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.storage.layout import damaged

FILES = ["model.safetensors", "config.json"]
"""Names of the weights and of the description in a folder."""
_EXPECTED = f"expected a folder, or the first file, of what TIGER's authors publish ({', '.join(FILES)})"


def from_tiger(path: str | Path) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the weights of a published TIGER.

    Estimates are those of the authors' code to rounding, if a recording begins and ends with silence and the stride
    divides its length. Else sepkit pads with zeros and theirs with the mirrored recording, which affects all
    estimates slightly, through norms.

    Args:
        path: a folder with model.safetensors and config.json, or the file of the weights, with config.json beside it.
    """
    path = Path(path)
    file = path / FILES[0] if path.is_dir() else path
    for needed in (file, file.with_name(FILES[1])):
        if not needed.is_file():
            raise UserError(f"{needed}: no such file; {_EXPECTED}")
    config = _config(file.with_name(FILES[1]))
    refuse_pointer(file)
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise damaged(file, error) from error
    assert isinstance(config.masker, TIGERConfig)
    # A global part of the coarsest scale that nothing uses.
    unused = re.compile(rf"separator\.(freq|frame)_path\.0\.loc_glo_fus\.{config.masker.scales - 1}\..*")
    weights = {name: tensor for name, tensor in found.items() if not unused.fullmatch(name)}
    # Its cost depends on levels, and its masks sum to one.
    return build_with(str(file), config, weights, NAMES, needs={"levels": "model"})


def _config(path: Path) -> ModelConfig:
    found: Any = read_json(path, "get it again")
    if not isinstance(found, Mapping):
        raise UserError(f"{path}: found no mapping; {_EXPECTED}")
    for name in found:
        if name not in _DEFAULTS:
            raise UserError(f"{path}: {shown(name)} is no argument of TIGER; {_EXPECTED}")
    described = Description(path, found)
    sizes = {name: described.size(name, default, _LARGEST.get(name, 65536)) for name, default in _DEFAULTS.items()}
    window, stride, rate = sizes["win"], sizes["stride"], sizes["sample_rate"]
    if window % (2 * stride):
        raise described.error("win", window, f"a multiple of twice the stride, {2 * stride}")
    masker = TIGERConfig(
        sample_rate=rate,
        channels=sizes["out_channels"],
        hidden_channels=sizes["in_channels"],
        iterations=sizes["num_blocks"],
        scales=sizes["upsampling_depth"],
        num_heads=sizes["att_n_head"],
        head_channels=sizes["att_hid_chan"],
        edge_frames=frames_beyond(window, stride),
    )
    return mapping_model(rate, sizes["num_sources"], window, stride, masker, like_torch=True)


_DEFAULTS = {
    "out_channels": 128, "in_channels": 512, "num_blocks": 16, "upsampling_depth": 4, "att_n_head": 4,
    "att_hid_chan": 4, "att_kernel_size": 8, "att_stride": 1, "win": 2048, "stride": 512, "num_sources": 2,
    "sample_rate": 44100,
}  # fmt: skip
"""Arguments of the authors' class with their defaults; it does not use kernel size and stride of the attention."""
_LARGEST = {"num_blocks": 1000, "upsampling_depth": 16, "sample_rate": 10**6}

NAMES = (
    (r"^masker\.inputs\.", "BN."),
    (r"^masker\.outputs\.", "mask."),
    (r"^masker\.again\.", "separator.concat_block."),
    (r"^masker\.over_bands\.", "separator.freq_path."),
    (r"^masker\.over_frames\.", "separator.frame_path."),
    # Gains and offsets of norms, but of those over channels alone.
    (r"(^BN\..*|\.scales\..*)\.gamma$", r"\1.weight"),
    (r"(^BN\..*|\.scales\..*)\.beta$", r"\1.bias"),
    (r"_path\.scales\.", "_path.0."),
    (r"_path\.attention\.", "_path.1."),
    (r"_path\.norm\.", "_path.2."),
    (r"\.0\.expand\.", ".0.proj_1x1."),
    (r"\.0\.down\.", ".0.spp_dw."),
    (r"\.0\.mlp\.0\.", ".0.globalatt.fc1."),
    (r"\.0\.mlp\.1\.", ".0.globalatt.dwconv."),
    (r"\.0\.mlp\.4\.", ".0.globalatt.fc2."),
    (r"\.0\.inject\.", ".0.loc_glo_fus."),
    (r"\.0\.merge\.", ".0.last_layer."),
    (r"\.0\.output\.", ".0.res_conv."),
    (r"\.local\.", ".local_embedding."),
    (r"\.common\.", ".global_embedding."),
    (r"\.gate\.", ".global_act."),
    (r"\.1\.queries\.", ".1.Queries."),
    (r"\.1\.keys\.", ".1.Keys."),
    (r"\.1\.values\.", ".1.Values."),
    (r"\.1\.output\.", ".1.attn_concat_proj."),
)
"""Our names -> the authors'."""
