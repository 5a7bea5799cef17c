"""Checkpoints of improved SuDoRM-RF, as its authors publish them: pickled modules, of which only tensors are read.

torch's restricted loader makes an empty object in place of each module, and imports and runs nothing of theirs.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sepkit.config import DeterministicConfig, FreeFilterbankConfig, ImprovedSuDoRMRFConfig, ModelConfig
from sepkit.errors import UserError
from sepkit.models.bridges._pickles import check_plain, check_sizes, read_checkpoint
from sepkit.models.bridges._weights import build_with
from sepkit.models.emd import EncoderMaskerDecoder

_EXPECTED = "expected an improved SuDoRM-RF of its authors (Zenodo record 6299852), a pickled module"
_MOST_MODULES = 10_000


class _Module:
    """Stands for a pickled module: its attributes, and no code."""


_THEIRS = [
    f"sudo_rm_rf.dnn.models.improved_sudormrf.{name}"
    for name in ("SuDORMRF", "GlobLN", "ConvNormAct", "DilatedConvNorm", "NormAct", "UConvBlock")
]
_TORCHS = [
    f"torch.nn.modules.{name}"
    for name in (
        "activation.PReLU", "activation.ReLU", "container.ModuleList", "container.Sequential", "conv.Conv1d",
        "conv.ConvTranspose1d", "upsampling.Upsample",
    )
]  # fmt: skip


def from_sudormrf(path: str | Path) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the outputs (to rounding) of a published improved SuDoRM-RF.

    Sizes follow from the weights. All published ones work at 8000 Hz. With random weights, estimates of U16 with 512
    bases and of U36 with 2048 bases differ from those of the authors' class by at most 3e-6 of the peak.

    Args:
        path: Improved_Sudormrf_....pt.

    Raises:
        UserError: a file of something else, such as the group communication variant.
    """
    path = Path(path)
    weights = _tensors(path, read_checkpoint(path, _EXPECTED, [(_Module, name) for name in _THEIRS + _TORCHS]))
    check_plain(str(path), weights)
    config = _config(path, weights)
    assert isinstance(config.masker, ImprovedSuDoRMRFConfig)
    # Theirs have one slope for all channels.
    slopes = {name: tensor for name, tensor in weights.items() if name.endswith(".final_norm.act.weight")}
    for name, tensor in slopes.items():
        if tensor.numel() == 1:
            weights[name] = tensor.reshape(1).expand(config.masker.hidden_channels)
    return build_with(str(path), config, weights, NAMES)


def _tensors(path: Path, root: object) -> dict[str, Tensor]:
    """Return the parameters of a module and of all within it, by name."""
    found: dict[str, Tensor] = {}
    waiting, seen = [("", root)], set[int]()
    while waiting:
        prefix, module = waiting.pop()
        state = vars(module) if isinstance(module, _Module) else {}
        own, children = state.get("_parameters"), state.get("_modules")
        again = id(module) in seen or len(seen) > _MOST_MODULES
        if again or not isinstance(own, Mapping) or not isinstance(children, Mapping):
            raise UserError(f"{path}: no complete module in it; {_EXPECTED}")
        seen.add(id(module))
        found |= {f"{prefix}{name}": tensor for name, tensor in own.items() if tensor is not None}
        waiting += [(f"{prefix}{name}.", child) for name, child in children.items()]
    return found


def _config(path: Path, weights: Mapping[str, Tensor]) -> ModelConfig:
    def size(name: str, dimension: int) -> int:
        shape = weights[name].shape if name in weights else ()
        if len(shape) <= dimension or shape[dimension] == 0:
            raise UserError(f"{path}: no {name} of an improved SuDoRM-RF in it; {_EXPECTED}")
        return shape[dimension]

    def count(pattern: str) -> int:
        return len({match[1] for name in weights if (match := re.match(pattern, name))})

    filters, kernel = size("encoder.weight", 0), size("encoder.weight", 2)
    depth, hypotheses, half = count(r"sm\.0\.spp_dw\.(\d+)\."), size("decoder.weight", 1), kernel // 2
    check_sizes(
        str(path), {"upsampling_depth": depth, "hypotheses": hypotheses}, {"upsampling_depth": 16, "hypotheses": 64}
    )
    if half < 1:
        raise UserError(f"{path}: encoder.weight has filters of {kernel} samples, expected at least 2; {_EXPECTED}")
    return ModelConfig(
        8000,
        hypotheses,
        FreeFilterbankConfig(filters, kernel, half, half, half - 1, half * 2**depth, together=hypotheses),
        DeterministicConfig(activation="linear"),
        ImprovedSuDoRMRFConfig(
            bottleneck_channels=size("bottleneck.weight", 0),
            hidden_channels=size("sm.0.proj_1x1.conv.weight", 0),
            blocks=count(r"sm\.(\d+)\."),
            upsampling_depth=depth,
        ),
        DeterministicConfig(activation="relu"),
        pad="asteroid",
        input_norm="mixture",
    )


NAMES = (
    (r"^filterbank\.(encoder|decoder)\.filterbank\._filters", r"\1.weight"),
    (r"^masker\.norm\.", "ln."),
    (r"^masker\.output\.", "mask_net."),
    (r"^masker\.bottleneck\.", "bottleneck."),
    (r"^masker\.blocks\.", "sm."),
    (r"\.project\.", ".res_conv."),
    (r"\.resolutions\.expand\.", ".proj_1x1."),
    (r"\.resolutions\.levels\.", ".spp_dw."),
    (r"\.resolutions\.merge\.0\.", ".final_norm.norm."),
    (r"\.resolutions\.merge\.1\.", ".final_norm.act."),
    (r"(proj_1x1|spp_dw\.\d+)\.0\.", r"\1.conv."),
    (r"(proj_1x1|spp_dw\.\d+)\.1\.", r"\1.norm."),
    (r"proj_1x1\.2\.", "proj_1x1.act."),
)
"""Our names -> the authors'."""
