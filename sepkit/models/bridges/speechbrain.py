"""Read speechbrain's SepFormers: `hyperparams.yaml`, `encoder.ckpt`, `masknet.ckpt` and `decoder.ckpt` in a folder.

speechbrain itself executes its YAML, which can name any function. Here it is read as text: tags are kept as names,
references are looked up, and the sizes of the SepFormer's four objects are taken from it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sepkit.choices import from_dict
from sepkit.config import ModelConfig
from sepkit.errors import UserError
from sepkit.files import read_yaml
from sepkit.models.bridges._pickles import check_sizes, read_state_dict
from sepkit.models.bridges._weights import build_with
from sepkit.models.emd import EncoderMaskerDecoder

HYPERPARAMETERS = "hyperparams.yaml"
FILES = (HYPERPARAMETERS, "encoder.ckpt", "masknet.ckpt", "decoder.ckpt")
"""Files read from a folder, and fetched from a repository."""

_EXPECTED = f"expected a SepFormer folder of speechbrain's ({', '.join(FILES)})"


def from_speechbrain(folder: str | Path, *, sample_rate: int | None = None) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the outputs (to rounding) and weights of a speechbrain SepFormer.

    Args:
        folder: Folder as speechbrain publishes them; nothing in it is executed.
        sample_rate: Hz, for folders whose YAML does not state it.
    """
    folder = Path(folder)
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        found = f"{missing[0]} is missing" if folder.is_dir() else "no such folder"
        raise UserError(f"{folder}: {found}, {_EXPECTED}")
    where = str(folder / HYPERPARAMETERS)
    # The loader derives from SafeLoader and makes nothing but plain data and names.
    hyperparameters = read_yaml(folder / HYPERPARAMETERS, _EXPECTED, _TextLoader)
    if not isinstance(hyperparameters, dict):
        raise UserError(f"{where}: found no mapping; {_EXPECTED}")
    config = _model_config(where, hyperparameters, sample_rate)
    weights = {
        f"{file}: {name}": tensor
        for file in FILES[1:]
        for name, tensor in read_state_dict(folder / file, _EXPECTED).items()
        if not name.endswith("pos_enc.pe")
    }
    return build_with(str(folder), config, weights, _NAMES)


# --------------------------------------------------------------------------------------------------------- the YAML


@dataclass
class _Tagged:
    """A value that speechbrain would turn into an object: `!new:module.Class` of its arguments, `!ref <name>` ...

    `tag` has no exclamation mark; `value` is plain data, which may hold more tagged values.
    """

    tag: str
    value: Any


class _TextLoader(yaml.SafeLoader):
    """A safe loader that keeps every unknown tag as a name."""


def _keep(loader: _TextLoader, suffix: str, node: yaml.Node) -> _Tagged:
    if isinstance(node, yaml.MappingNode):
        return _Tagged(suffix, loader.construct_mapping(node, deep=True))
    if isinstance(node, yaml.SequenceNode):
        return _Tagged(suffix, loader.construct_sequence(node, deep=True))
    assert isinstance(node, yaml.ScalarNode)
    return _Tagged(suffix, loader.construct_scalar(node))


_TextLoader.add_multi_constructor("!", _keep)


class _Hyperparameters:
    """Objects and their arguments, with references followed.

    `where` is the file's name, for messages; `entries` are those at its top level.
    """

    def __init__(self, where: str, entries: Mapping[str, Any]) -> None:
        self.where = where
        self.entries = entries

    def follow(self, value: Any) -> Any:
        """Return the end of a chain of whole references (`!ref <name>`, `!copy <a[b]>`), and other values as given."""
        for _ in range(100):
            if not isinstance(value, _Tagged) or value.tag not in ("ref", "copy"):
                return value
            named = re.fullmatch(r"\s*<([^<>\[\]]+)((?:\[[^<>\[\]]+\])*)>\s*", str(value.value))
            if named is None:
                raise UserError(f"{self.where}: found !{value.tag} {value.value}, expected a reference to one name")
            value = self.entries
            for key in (named[1], *re.findall(r"\[([^\]]+)\]", named[2])):
                inside = value.value if isinstance(value, _Tagged) else value
                if not isinstance(inside, Mapping) or key not in inside:
                    raise UserError(f"{self.where}: a reference names {key}, which is not in it; {_EXPECTED}")
                value = inside[key]
        raise UserError(f"{self.where}: references go round in circles")

    def arguments(self, value: Any, kind: str) -> dict[str, Any]:
        """Return the arguments of an object of speechbrain's class `kind`, references followed."""
        found = self.follow(value)
        tag = found.tag if isinstance(found, _Tagged) else "no object"
        if tag.rpartition(".")[2] != kind or not tag.startswith("new:speechbrain."):
            raise UserError(f"{self.where}: {kind} is {tag}, expected speechbrain's {kind}; only SepFormers are read")
        assert isinstance(found, _Tagged)
        if not isinstance(found.value, Mapping):
            raise UserError(f"{self.where}: {kind} has no arguments by name; {_EXPECTED}")
        return {str(key): self.follow(argument) for key, argument in found.value.items()}


# ------------------------------------------------------------------------------------------------- sizes and weights

# Arguments that are taken, with speechbrain's defaults.
_TAKEN: dict[str, dict[str, Any]] = {
    "Encoder": {"kernel_size": 2, "out_channels": 64},
    "Dual_Path_Model": {"num_layers": 1, "K": 200, "num_spks": 2}
    # max_length belongs to the global positions, which are off.
    | dict.fromkeys(("in_channels", "out_channels", "intra_model", "inter_model", "max_length")),
    "SBTransformerBlock": {"d_ffn": 2048, "dropout": 0.1, "num_layers": None, "d_model": None, "nhead": None},
    "Decoder": {"in_channels": None, "kernel_size": None, "stride": 1},
}
# Options fixed in sepkit's SepFormer, and speechbrain's defaults for them.
_FIXED: dict[str, dict[str, tuple[Any, Any]]] = {
    "Encoder": {"in_channels": (1, 1)},
    "Dual_Path_Model": {
        "norm": ("ln", "ln"),
        "skip_around_intra": (True, True),
        "linear_layer_after_inter_intra": (False, True),
        "use_global_pos_enc": (False, False),
    },
    "SBTransformerBlock": {
        "use_positional_encoding": (True, False),
        "norm_before": (True, False),
        "activation": ("relu", "relu"),
        "attention_type": ("regularMHA", "regularMHA"),
        "input_shape": (None, None),
        "kdim": (None, None),
        "vdim": (None, None),
    },
    "Decoder": {"out_channels": (1, None), "bias": (False, True), "padding": (0, 0), "output_padding": (0, 0)},
}
_LARGEST: dict[str, float] = {"num_layers of Dual_Path_Model": 1000, "num_layers of SBTransformerBlock": 1000}


def _model_config(where: str, entries: Mapping[str, Any], sample_rate: int | None) -> ModelConfig:
    read = _Hyperparameters(where, entries)
    modules = read.follow(entries.get("modules"))
    if not isinstance(modules, Mapping):
        raise UserError(f"{where}: found no modules; {_EXPECTED}")
    encoder = _checked(read, modules.get("encoder"), "Encoder")
    masker = _checked(read, modules.get("masknet"), "Dual_Path_Model")
    decoder = _checked(read, modules.get("decoder"), "Decoder")
    intra, inter = (_checked(read, masker[which], "SBTransformerBlock") for which in ("intra_model", "inter_model"))
    if intra != inter:
        raise UserError(f"{where}: found {intra} inside chunks and {inter} across them, expected equal transformers")
    kernel_size, filters, channels = encoder["kernel_size"], encoder["out_channels"], masker["out_channels"]
    stride = kernel_size // 2 if isinstance(kernel_size, int) else None
    for what, found, expected in (
        ("the decoder's kernel_size", decoder["kernel_size"], kernel_size),
        ("the decoder's stride", decoder["stride"], stride),
        ("the decoder's in_channels", decoder["in_channels"], filters),
        ("the mask network's in_channels", masker["in_channels"], filters),
        ("d_model of the transformers", intra["d_model"], channels),
    ):
        if found != expected:
            raise UserError(f"{where}: {what} is {found}, expected {expected}")
    rate = read.follow(entries.get("sample_rate")) or sample_rate
    if not rate:
        raise UserError(f"{where}: found no sample_rate in it; give one: speechbrain:{Path(where).parent}@8000")
    points = {"name": "deterministic", "activation": "relu"}
    plain = {
        "sample_rate": rate,
        "hypotheses": masker["num_spks"],
        "filterbank": {"name": "free", "num_filters": filters, "kernel_size": kernel_size, "stride": stride},
        "encoding": points,
        "masks": points,
        "pad": "asteroid",
        "masker": {
            "name": "sepformer",
            "model_dim": channels,
            "num_layers": masker["num_layers"],
            "chunk_size": masker["K"],
            "transformer_layers": intra["num_layers"],
            "num_heads": intra["nhead"],
            "feedforward_dim": intra["d_ffn"],
            "dropout": intra["dropout"],
        },
    }
    # Sizes in a YAML may be anything: types are checked here.
    return from_dict(ModelConfig, plain, where)


def _checked(read: _Hyperparameters, value: Any, kind: str) -> dict[str, Any]:
    """Return the arguments of a `kind` without those fixed in sepkit's SepFormer, whose values are checked."""
    arguments = _TAKEN[kind] | read.arguments(value, kind)
    for name, (built_in, default) in _FIXED[kind].items():
        found = arguments.pop(name, default)
        if found != built_in:
            raise UserError(f"{read.where}: {name} of {kind} is {found}, expected {built_in}; sepkit has no other")
    if unknown := sorted(set(arguments) - set(_TAKEN[kind])):
        raise UserError(f"{read.where}: {kind} has an argument {unknown[0]}, which sepkit does not know")
    check_sizes(read.where, {f"{name} of {kind}": value for name, value in arguments.items()}, _LARGEST)
    return arguments


_NAMES = (
    (r"^filterbank\.encoder\.filterbank\._filters", "encoder.ckpt: conv1d.weight"),
    (r"^filterbank\.decoder\.filterbank\._filters", "decoder.ckpt: weight"),
    (r"^masker\.network\.", "masknet.ckpt: "),
    # The table of positions follows from its formula; only some versions store it.
    (r".*pos_enc\.pe$", ""),
)
