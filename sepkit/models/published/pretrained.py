"""Load the model that a MODEL argument names: sepkit's own, a shipped one, one on the hub, or another toolkit's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from sepkit.errors import UserError
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.published import hub
from sepkit.models.published.names import model_folder
from sepkit.models.saved import SavedModel
from sepkit.models.storage.checkpoints import LoadReport, compare, load_checkpoint
from sepkit.models.storage.folders import Path_, is_onnx


def load_pretrained(model: Path_) -> EncoderMaskerDecoder:
    """Return the model that a MODEL argument names, in evaluation mode, on the CPU.

    Args:
        model: a folder or file that `sepkit train` wrote (EXP, EXP/model, EXP/model/model.safetensors), the name of a
            model that ships with the package, `asteroid:` and a file or hub id, `speechbrain:` and a folder or hub id,
            `sepreformer:` or `tf-locoformer:` and a file or hub id, or `hf:` and a repository of one of sepkit's own
            models. An existing path of that name takes precedence.
    """
    if is_onnx(model):
        raise UserError(
            f"{model}: found an exported model, which separates and evaluates only; name what it was made of"
        )
    kind, _, rest = str(model).partition(":")
    if kind in _BRIDGES and not Path(model).exists():
        return _BRIDGES[kind](rest).eval()
    folder = model_folder(model)
    assert folder is not None
    return load_checkpoint(folder)


# Bridges are slow to import, so they are imported only if they are named.


def _from_asteroid(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges import from_asteroid

    if not Path(source).exists() and hub.is_repository(source):
        return from_asteroid(_only_file(hub.fetch(source, [_ASTEROID_FILE]), _ASTEROID_FILE, source))
    return from_asteroid(source)


def _from_speechbrain(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges.speechbrain import FILES, from_speechbrain

    fetched = not Path(source).exists() and hub.is_repository(source)
    return from_speechbrain(hub.fetch(source, FILES) if fetched else source)


def _from_sepreformer(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges.sepreformer import DESCRIPTION, from_sepreformer

    return from_sepreformer(_fetched(source, DESCRIPTION))


def _from_tf_locoformer(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges.tf_locoformer import DESCRIPTION, from_tf_locoformer

    return from_tf_locoformer(_fetched(source, DESCRIPTION))


def _fetched(source: str, description: str) -> str | Path:
    """Return the path of a file, or of the only .pth file of a repository on the hub, its description beside it."""
    if Path(source).exists() or not hub.is_repository(source):
        return source
    folder = hub.fetch(source, ["*.pth", description])
    found = sorted(folder.glob("*.pth"))
    if len(found) != 1:
        raise UserError(
            f"{source}: the repository has {len(found)} files *.pth at its top, expected one;"
            " download the one that you want, and name that file"
        )
    return found[0]


def _only_file(folder: Path, name: str, source: str) -> Path:
    if not (folder / name).is_file():
        raise UserError(f"{source}: the repository has no {name}, which asteroid's models are stored in")
    return folder / name


_ASTEROID_FILE = "pytorch_model.bin"
_BRIDGES: dict[str, Callable[[str], EncoderMaskerDecoder]] = {
    "asteroid": _from_asteroid,
    "speechbrain": _from_speechbrain,
    "sepreformer": _from_sepreformer,
    "tf-locoformer": _from_tf_locoformer,
}


def load_weights_into(model: SavedModel, source: Path_) -> LoadReport:
    """Copy every tensor of `source` into the tensor of `model` with the same name and shape; return what was copied.

    The stored training mean and deviation (`signal_mean`, `signal_std`) are copied, too.

    Args:
        source: MODEL, as `load_pretrained` takes it; for a model of another kind than separators, its folder.
    """
    is_separator = isinstance(model, EncoderMaskerDecoder)
    given = load_pretrained(source) if is_separator else load_checkpoint(source, of=type(model))
    tensors = given.state_dict()
    wanted = model.state_dict()
    report = compare(tensors, wanted)
    report.source = str(source)
    # Buffers (the STFT's filters, the training deviation) fit every model of their kind, so they do not count.
    if not {name for name, _ in model.named_parameters()}.intersection(report.loaded):
        raise UserError(
            f"{source}: none of its {len(tensors)} tensors fits the model; expected weights of a like architecture"
        )
    with torch.no_grad():
        for name in report.loaded:
            wanted[name].copy_(tensors[name])
        if isinstance(model, EncoderMaskerDecoder) and isinstance(given, EncoderMaskerDecoder):
            _copy_common_values(model, given, report)
    return report


def _copy_common_values(model: EncoderMaskerDecoder, given: EncoderMaskerDecoder, report: LoadReport) -> None:
    """Copy what two latent families of masks share: the mean of a gaussian is what a point is, and comes first.

    Rows of the masker's last layer are in the order (n, P, K_mask), and only P differs between the families.
    """
    mask_dim, n = model.filterbank.mask_dim, model.hypotheses
    if (given.filterbank.mask_dim, given.hypotheses) != (mask_dim, n):
        return
    counts = [m.mask_family.values_per_dimension for m in (given, model)]
    wanted, tensors = model.state_dict(), given.state_dict()
    for name, (found, shape) in list(report.mismatched.items()):
        differing = [axis for axis in range(len(shape)) if found[axis : axis + 1] != shape[axis : axis + 1]]
        if len(found) != len(shape) or len(differing) != 1:
            continue
        (axis,) = differing
        if [found[axis], shape[axis]] != [n * count * mask_dim for count in counts]:
            continue
        old, new = (
            tensor.unflatten(axis, (n, -1, mask_dim)).narrow(axis + 1, 0, min(counts))
            for tensor in (tensors[name], wanted[name])
        )
        new.copy_(old)
        report.shared.append(name)
        del report.mismatched[name]
