"""Models on disk: a folder with `model.safetensors` (the weights) and `model.yaml` (the configuration and more).

Shipped models have `model.onnx` instead of the weights: a graph that contains them by name.

Nothing in a checkpoint is executed or imported: weights are read as numbers, the description is plain YAML, and the
registry alone turns it into a model. Training state (optimizer, loop, random generators) lives elsewhere.
"""

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sepkit.choices import from_dict, to_dict
from sepkit.errors import UserError, one_line, shown
from sepkit.files import atomic_output, file_digest, write_text
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.needs import needs_of
from sepkit.models.saved import SavedModel
from sepkit.models.storage.folders import (
    DESCRIPTION,
    FORMAT,
    GRAPH,
    WEIGHTS,
    Path_,
    find_checkpoint,
    read_description,
    weights_file,
)
from sepkit.models.storage.layout import build_on_meta, check_finite_weights, damaged, shapes_in_file, tensors_in_graph
from sepkit.version import __version__

M = TypeVar("M", bound=SavedModel)

# Weights of models of versions up to 0.2.0 that only their training used.
_STAGE_HEADS = ("masker.stage_outputs.", "masker.stage_decoders.")


# ------------------------------------------------------------------------------------------------------------ writing


def save_model(model: nn.Module, folder: Path_, info: Mapping[str, Any] | None = None) -> Path:
    """Write `model.safetensors` and `model.yaml` into a folder, each atomically; return the folder.

    Args:
        model: A `SavedModel` with its `config` set; a model wrapped by torch.compile is unwrapped.
        folder: Folder of the files, made if absent.
        info: Plain data to keep beside the model (epoch, validation score ...).

    Raises:
        ValueError: the model has no configuration, or `info` is not plain data.
    """
    model = getattr(model, "_orig_mod", model)
    if getattr(model, "config", None) is None:
        raise ValueError("the model has no configuration to save; make it with build_model, or set model.config")
    assert isinstance(model, SavedModel)
    description = description_of(model, info or {})
    # Clones: safetensors refuses tensors that share memory, as tied weights do.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    folder = Path(folder)
    try:
        with atomic_output(folder / WEIGHTS, durable=True) as temporary:
            save_file(tensors, temporary)
            digests = {"weights_sha256": file_digest(temporary)}
            complete = (folder / WEIGHTS).is_file() and (folder / DESCRIPTION).is_file()
            # Where a kill or a power cut falls between the two files, the older weights still belong to the model.
            before = {"earlier_weights_sha256": file_digest(folder / WEIGHTS)} if complete else {}
            if before:
                write_text(folder / DESCRIPTION, description + yaml.safe_dump(digests | before))
        write_text(folder / DESCRIPTION, description + yaml.safe_dump(digests))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written to ({one_line(str(error))}); give a folder that can") from error
    return folder


def description_of(model: SavedModel, info: Mapping[str, Any], **more: Any) -> str:
    """Return the text of a model's `model.yaml`; the digest of its weights is left to add.

    Args:
        info: plain data to keep.
        **more: further fields.

    Raises:
        ValueError: `info` is not plain data.
    """
    description = {
        "format": FORMAT,
        "sepkit": __version__,
        "kind": model.kind,
        **model.facts(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "model": to_dict(model.config),
        "info": dict(info),
        **({"own_files": own} if (own := files_of(model.config)) else {}),
        **more,
    }
    try:
        return yaml.safe_dump(description, sort_keys=False, allow_unicode=True)
    except yaml.representer.RepresenterError as error:
        raise ValueError(f"info must be plain data (numbers, text, lists, mappings): {error}") from error


def constants_left_out(model: SavedModel) -> list[str]:
    """Return the names of saved buffers of several values that follow from the configuration alone.

    They are those of a new model of the same configuration (the filters of a short-time Fourier transform).
    """
    if model.config is None:
        return []
    with torch.random.fork_rng(devices=[]):
        fresh = model.from_config(model.config)
    saved = model.state_dict()
    return [
        name
        for name, buffer in fresh.named_buffers()
        if name in saved and buffer.numel() > 1 and torch.equal(saved[name].cpu().to(buffer.dtype), buffer)
    ]


# ------------------------------------------------------------------------------------------------------------ reading


@overload
def load_checkpoint(path: Path_) -> EncoderMaskerDecoder: ...
@overload
def load_checkpoint(path: Path_, *, of: type[M]) -> M: ...
def load_checkpoint(path: Path_, *, of: type[SavedModel] = EncoderMaskerDecoder) -> SavedModel:
    """Return a saved model: in evaluation mode, on the CPU, in float32.

    Args:
        path: The folder, one of its files, or the experiment folder above it.
        of: Class of the model; one of another kind is refused.

    Raises:
        UserError: There is no such model, it is damaged, or its two files do not belong together.
    """
    folder = find_checkpoint(path)
    description = read_description(folder)
    config = _config_of(description, folder / DESCRIPTION, of)
    info, left_out = _checked_info(description, folder / DESCRIPTION)
    weights = weights_file(folder)
    shapes = shapes_in_file(weights)
    own = bool(files_of(config))
    laid_out = build_on_meta(
        lambda: of.from_config(config), str(folder / DESCRIPTION), len(shapes) + len(left_out), own
    )
    if laid_out is not None:
        _check_fit(_completed(shapes, laid_out, left_out), laid_out.state_dict(), weights)
    tensors = _read_tensors(weights, description)
    # The initial weights are replaced at once; drawing them must not advance the caller's random stream.
    with torch.random.fork_rng(devices=[]):
        model = of.from_config(config)
    tensors = _completed(tensors, model, left_out)
    _check_fit(tensors, model.state_dict(), weights)
    # Buffers may hold bounds that nothing has met yet, which are infinite.
    check_finite_weights(weights, {name: tensors[name] for name, _ in model.named_parameters()})
    model.load_state_dict({name: tensors[name] for name in model.state_dict()})
    model.info = info
    return model.eval()


def _completed(tensors: dict[str, Tensor], model: nn.Module, left_out: list[str]) -> dict[str, Tensor]:
    """Add the constants of a model that were left out of its file, and leave out inner stages of earlier versions."""
    buffers, wanted = dict(model.named_buffers()), model.state_dict()
    kept = {name: tensor for name, tensor in tensors.items() if name in wanted or not name.startswith(_STAGE_HEADS)}
    return kept | {name: buffers[name] for name in left_out if name in buffers and name not in tensors}


def _without_removed_fields(model: Any) -> Any:
    """Return a model's settings without what versions up to 0.2.0 wrote: `stage_heads` and `projected: 0`."""
    if not isinstance(model, dict):
        return model
    model = {name: value for name, value in model.items() if (name, value) != ("projected", 0)}
    masker = model.get("masker")
    if not isinstance(masker, dict) or masker.get("name") not in ("sepreformer", "sr_corrnet"):
        return model
    return model | {"masker": {name: value for name, value in masker.items() if name != "stage_heads"}}


def _checked_info(description: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return `info` and `left_out`, the parts of a description that nothing else checks."""
    info, left_out = description.get("info") or {}, description.get("left_out") or []
    if not isinstance(info, dict):
        raise UserError(f"{path}: info is {shown(info)}, expected a mapping; get the checkpoint again")
    if not isinstance(left_out, list) or not all(isinstance(name, str) for name in left_out):
        raise UserError(f"{path}: left_out is {shown(left_out)}, expected a list of names; get the checkpoint again")
    threshold = info.get("score_threshold", 0.0)
    if not isinstance(threshold, int | float) or not math.isfinite(threshold):
        raise UserError(f"{path}: info.score_threshold is {shown(threshold)}, expected a number")
    needs_of(info, str(path))
    return dict(info), left_out


def _config_of(description: Mapping[str, Any], path: Path, of: type[SavedModel]) -> Any:
    kind = description.get("kind")
    if kind != of.kind:
        raise UserError(f"{path.parent}: found a model of kind {shown(kind)}, expected {of.kind}; name another model")
    # Digests of the user's own files, by name.
    entries = description.get("own_files")
    found = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    saved = {entry["file"]: entry.get("sha256") for entry in found if isinstance(entry.get("file"), str)}
    try:
        config = from_dict(of.config_type, _without_removed_fields(description["model"]), "model")
    except UserError as error:
        wanted = " ".join(f"--import {name}" for name in saved)
        hint = f"; it was trained with {wanted}: give that too" if wanted else ""
        raise UserError(f"{path}: {error}{hint}") from error
    for own in files_of(config):
        if saved.get(own["file"], own["sha256"]) != own["sha256"]:
            name = own["file"]
            print(f"{path}: {name} has changed since the model was saved; its weights may not fit", file=sys.stderr)
    return config


def _read_tensors(path: Path, description: Mapping[str, Any]) -> dict[str, Tensor]:
    known = [description.get(name) for name in ("weights_sha256", "earlier_weights_sha256")]
    try:
        if file_digest(path) not in known:
            raise UserError(
                f"{path}: damaged, or not the weights that {DESCRIPTION} was written with (their SHA-256 differ); get "
                "the checkpoint again"
            )
        tensors = tensors_in_graph(path) if path.name == GRAPH else load_file(path)
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from error
    deviation = tensors.get("signal_std")
    if deviation is not None and not (deviation.numel() == 1 and float(deviation) > 0):
        raise UserError(f"{path}: signal_std is {shown(deviation.tolist())}, expected a positive number")
    return tensors


def _check_fit(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path) -> None:
    report = compare(tensors, wanted)
    mismatched = [f"{name} {found}, expected {shape}" for name, (found, shape) in report.mismatched.items()]
    # A graph holds constants of its own.
    unexpected = [] if path.name == GRAPH else report.unexpected
    kinds = {"missing": report.missing, "unexpected": unexpected, "of another shape": mismatched}
    problems = [f"{len(names)} {what} (such as {names[0]})" for what, names in kinds.items() if names]
    if problems:
        raise UserError(
            f"{path}: weights of another architecture than {DESCRIPTION} describes: {', '.join(problems)};"
            " put back the two files that belong together"
        )


# --------------------------------------------------------------------- files of a user's own (--import FILE.py)


def files_of(config: Any) -> list[dict[str, str]]:
    """Return name and digest of every file, other than sepkit's, that defines a part of a configuration.

    Args:
        config: a dataclass, whose fields are searched too.
    """
    found = {}
    for cls in _classes(config):
        module = sys.modules.get(cls.__module__)
        path = getattr(module, "__file__", None)
        if cls.__module__.partition(".")[0] != "sepkit" and path is not None:
            found[Path(path).name] = file_digest(path) if Path(path).is_file() else ""
    return [{"file": name, "sha256": digest} for name, digest in sorted(found.items())]


def _classes(value: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from _classes(getattr(value, field.name))


# --------------------------------------------------------------------------------------------------------- comparing


@dataclass
class LoadReport:
    """Which weights of a model were taken from another model. Printing it gives a few lines.

    Args:
        shared: names of tensors of which the part that both latent families have was taken over.
        mismatched: name -> (shape found, shape wanted); these tensors are left as they were.
        missing: names that only the model has; these tensors are left as they were.
        unexpected: names that only the source has.
    """

    source: str = ""
    loaded: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        wanted = len(self.loaded) + len(self.shared) + len(self.mismatched) + len(self.missing)
        sizes = {name: f"found {found}, wanted {shape}" for name, (found, shape) in self.mismatched.items()}
        lines = [
            f"loaded {len(self.loaded)} of {wanted} tensors from {self.source}",
            *(f"  of another latent family, the values that both have: {name}" for name in self.shared),
            *(f"  another shape, left as it was: {name}: {size}" for name, size in sizes.items()),
            *(f"  not in the source, left as it was: {name}" for name in self.missing),
            *(f"  only in the source, ignored: {name}" for name in self.unexpected),
        ]
        return "\n".join(lines)


def compare(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> LoadReport:
    """Return a report of which wanted tensors are there with the same shape."""
    report = LoadReport(unexpected=[name for name in tensors if name not in wanted])
    for name, tensor in wanted.items():
        if name not in tensors:
            report.missing.append(name)
        elif tensors[name].shape != tensor.shape:
            report.mismatched[name] = (tuple(tensors[name].shape), tuple(tensor.shape))
        else:
            report.loaded.append(name)
    return report
