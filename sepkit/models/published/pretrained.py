"""Load the model that a MODEL argument names: sepkit's own, a shipped one, one on the hub, or another toolkit's."""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import torch

from sepkit.errors import UserError
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.published import hub
from sepkit.models.published.names import TOOLKITS, check_read, model_folder
from sepkit.models.published.public import PUBLIC, fetch_address, fetch_public, zenodo_address
from sepkit.models.saved import SavedModel
from sepkit.models.storage.checkpoints import LoadReport, compare, constants_left_out, load_checkpoint
from sepkit.models.storage.folders import Path_, is_onnx


def load_pretrained(model: Path_) -> EncoderMaskerDecoder:
    """Return the model that a MODEL argument names, in evaluation mode, on the CPU.

    Args:
        model: a folder or file that `sepkit train` wrote (EXP, EXP/model, EXP/model/model.safetensors), the name of a
            model that ships with the package or of a public one (`sepkit models --public`), a word of `names.TOOLKITS`,
            a colon and what it takes, or `hf:` and a repository of one of sepkit's own models. An existing path of that
            name takes precedence.
    """
    if is_onnx(model):
        raise UserError(
            f"{model}: found an exported model, which separates and evaluates only; name what it was made of"
        )
    if not Path(model).exists():
        name = fetch_public(str(model)) if str(model) in PUBLIC else str(model)
        kind, _, rest = name.partition(":")
        check_read(name)
        if kind in TOOLKITS:
            return _bridged(kind, rest)
    folder = model_folder(model)
    assert folder is not None
    return load_checkpoint(folder)


_WITH_RATE = ("asteroid", "speechbrain", "torchaudio")
"""Toolkits whose files may lack a sample rate, which is then written behind their name: FILE@8000."""


def _bridged(kind: str, source: str) -> EncoderMaskerDecoder:
    """Return another toolkit's model, from files here or fetched; `kind` is one of `names.TOOLKITS`."""
    read, files = _bridge(kind)
    if kind not in _WITH_RATE:
        return read(_place(kind, source, files))
    named = None if Path(source).exists() else re.fullmatch(r"(.+)@([1-9]\d{3,5})", source)
    source, rate = (source, None) if named is None else (named[1], int(named[2]))
    model = read(_place(kind, source, files), sample_rate=rate)
    if rate not in (None, model.sample_rate):
        raise UserError(f"{source}: states a rate of {model.sample_rate} Hz, found @{rate}; leave out @{rate}")
    return model


def _bridge(kind: str) -> tuple[Callable[..., EncoderMaskerDecoder], Sequence[str]]:
    """Return what reads a toolkit's files, and their names in a repository of the hub; none if there are none."""
    name = kind.replace("-", "_")
    module = import_module(f"sepkit.models.bridges.{name}")
    return getattr(module, f"from_{name}"), getattr(module, "FILES", ())


def _place(kind: str, source: str, files: Sequence[str]) -> Path:
    """Return the path after the colon of a MODEL; repositories and addresses are fetched."""
    if Path(source).exists():
        return Path(source)
    if kind == "asteroid":
        address = zenodo_address(source) or (source if source.startswith(("http://", "https://")) else None)
        if address is not None:
            return fetch_address(address)
    if not files or not hub.is_repository(source):
        return Path(source)
    folder = hub.fetch(source, files)
    for name in files:
        if not (folder / name).is_file():
            raise UserError(f"{source}: the repository has no {name}, which {kind}'s models have")
    return folder / files[0] if len(files) == 1 else folder


def load_weights_into(model: SavedModel, source: Path_) -> LoadReport:
    """Copy every tensor of `source` into the tensor of `model` with the same name and shape; return what was copied.

    The stored training mean and deviation (`signal_mean`, `signal_std`) are copied, too. Residual blocks that only
    `model` has change nothing at first, so that a deeper model begins as the one that it grows from.

    Args:
        model: Model whose tensors are set.
        source: MODEL, as `load_pretrained` takes it; for a model that is not a separator, its folder.
    """
    is_separator = isinstance(model, EncoderMaskerDecoder)
    given = load_pretrained(source) if is_separator else load_checkpoint(source, of=type(model))
    tensors = given.state_dict()
    wanted = model.state_dict()
    report = compare(tensors, wanted)
    report.source = str(source)
    # Buffers (norms' statistics, the training deviation) fit every model of their kind, so they do not count.
    if not {name for name, _ in model.named_parameters()}.intersection(report.loaded):
        raise UserError(f"{source}: none of its {len(tensors)} tensors fits the model; expected a similar architecture")
    with torch.no_grad():
        # The STFT's filters follow from the model's own configuration.
        for name in set(report.loaded).difference(constants_left_out(given)):
            wanted[name].copy_(tensors[name])
        if isinstance(model, EncoderMaskerDecoder) and isinstance(given, EncoderMaskerDecoder):
            _copy_common_values(model, given, report)
        missing = set(report.missing)
        for name, module in model.named_modules():
            change_nothing = getattr(module, "change_nothing", None)
            if change_nothing and missing.issuperset(f"{name}.{own}" for own, _ in module.named_parameters()):
                change_nothing()
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
