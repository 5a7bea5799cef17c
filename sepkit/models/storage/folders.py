"""Find the folder of a saved model and read its description, `model.yaml`: without torch, for every command does it.

The folder holds `model.yaml` beside weights (`model.safetensors`), a graph that holds the weights (`model.onnx`), or
both.
"""

import os
from pathlib import Path
from typing import Any

from sepkit.errors import UserError, shown
from sepkit.files import read_yaml

FORMAT = 1
WEIGHTS = "model.safetensors"
SUFFIX = ".onnx"
"""Ending of exported models."""

GRAPH = f"model{SUFFIX}"
DESCRIPTION = "model.yaml"
EXPECTED = f"expected a folder with {WEIGHTS} and {DESCRIPTION}, as `sepkit train` writes (EXP/model)"
_PICKLES = frozenset({".ckpt", ".pt", ".pth", ".pkl", ".pickle", ".bin", ".tar"})

_OTHERS = {
    "hyperparams.yaml": "found a model of speechbrain's, which is named speechbrain:{folder}",
    "last_best_checkpoint": "found a model of ClearVoice's (MossFormer2), which sepkit does not read",
    "pytorch_model.bin": "found a model of asteroid's, which is named asteroid:{folder}/pytorch_model.bin",
    "model.pt": "found model.pt, which for SR-CorrNet is named sr-corrnet:{folder}",
    "config.json": "found config.json, which for TIGER is named tiger:{folder}",
}
"""File of another toolkit's folder -> what that folder is."""

Path_ = str | os.PathLike[str]


def is_onnx(model: Path_) -> bool:
    """Whether a MODEL argument names an exported model."""
    path = Path(model)
    # The colon after the drive of a Windows path names no toolkit.
    return path.suffix.lower() == SUFFIX and ":" not in str(model)[len(path.drive) :]


def read_description(path: Path_) -> dict[str, Any]:
    """Return a checkpoint's `model.yaml`: format, sepkit, sample_rate, signal_std, parameters, model, info."""
    path = find_checkpoint(path) / DESCRIPTION
    description = read_yaml(path, "get the checkpoint again")
    if not isinstance(description, dict) or "model" not in description:
        raise UserError(f"{path}: found no field `model`, expected the description that `sepkit train` writes")
    if description.get("format") != FORMAT:
        raise UserError(
            f"{path}: found format {shown(description.get('format'))}, expected {FORMAT}; use the sepkit that wrote it"
        )
    return description


def find_checkpoint(path: Path_) -> Path:
    """Return the folder of a checkpoint.

    Args:
        path: the folder itself, the one above its subfolder `model`, or one of its files.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder, {EXPECTED}")
    if path.is_file():
        if path.name not in (WEIGHTS, GRAPH, DESCRIPTION):
            raise UserError(f"{path}: {_what_is(path)}, {EXPECTED}")
        path = path.parent
    folder = path / "model" if (path / "model").is_dir() and not _has_weights(path) else path
    missing = [WEIGHTS] * (not _has_weights(folder)) + [DESCRIPTION] * (not (folder / DESCRIPTION).is_file())
    if len(missing) == 2:
        raise UserError(f"{folder}: {_what_is(folder)}, {EXPECTED}")
    if missing:
        raise UserError(f"{folder}: {missing[0]} is missing, {EXPECTED}")
    return folder


def weights_file(folder: Path) -> Path:
    """Return the file of a checkpoint's folder from which torch takes the weights."""
    return folder / (WEIGHTS if (folder / WEIGHTS).is_file() or not (folder / GRAPH).is_file() else GRAPH)


def _has_weights(folder: Path) -> bool:
    return weights_file(folder).is_file()


def _what_is(path: Path) -> str:
    """Describe a path that is not a checkpoint, for the message."""
    for name, what in _OTHERS.items():
        if (path / name).is_file():
            return what.format(folder=path)
    holds_state = path.is_dir() and any(child.suffix == ".ckpt" for child in path.iterdir())
    if holds_state or "resume" in (path.name, path.parent.name):
        return "found training state, which only `sepkit train` reads"
    if path.suffix in _PICKLES:
        return "found a pickle, which is never opened here (for another toolkit's name it first: asteroid:FILE)"
    return "found no model" if path.is_dir() else "found another file"
