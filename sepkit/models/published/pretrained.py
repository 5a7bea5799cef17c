"""Load the model that a MODEL argument names: sepkit's own, a shipped one, one on the hub, or another toolkit's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch

from sepkit.errors import UserError
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.published import hub
from sepkit.models.published.names import check_read, model_folder
from sepkit.models.published.public import PUBLIC, fetch_address, fetch_public, zenodo_address
from sepkit.models.saved import SavedModel
from sepkit.models.storage.checkpoints import LoadReport, compare, load_checkpoint
from sepkit.models.storage.folders import Path_, is_onnx


def load_pretrained(model: Path_) -> EncoderMaskerDecoder:
    """Return the model that a MODEL argument names, in evaluation mode, on the CPU.

    Args:
        model: a folder or file that `sepkit train` wrote (EXP, EXP/model, EXP/model/model.safetensors), the name of a
            model that ships with the package or of a public one (`sepkit models --public`), a word of `names.TOOLKITS`,
            a colon and
            what it takes, or `hf:` and a repository of one of sepkit's own models. An existing path of that name takes
            precedence.
    """
    if is_onnx(model):
        raise UserError(
            f"{model}: found an exported model, which separates and evaluates only; name what it was made of"
        )
    if not Path(model).exists():
        name = fetch_public(str(model)) if str(model) in PUBLIC else str(model)
        kind, _, rest = name.partition(":")
        check_read(name)
        if kind in _BRIDGES:
            return _BRIDGES[kind](rest).eval()
    folder = model_folder(model)
    assert folder is not None
    return load_checkpoint(folder)


# Bridges are slow to import, so they are imported only if they are named.


def _from_asteroid(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges import from_asteroid

    source, rate = _at_rate(source)
    path = Path(source)
    if not path.exists():
        address = zenodo_address(source) or (source if source.startswith(("http://", "https://")) else None)
        if address is not None:
            path = fetch_address(address)
        elif hub.is_repository(source):
            path = hub.fetch(source, [_ASTEROID_FILE]) / _ASTEROID_FILE
            if not path.is_file():
                raise UserError(f"{source}: the repository has no {_ASTEROID_FILE}, where asteroid's models are stored")
    return _checked_rate(source, from_asteroid(path, sample_rate=rate), rate)


def _from_speechbrain(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges.speechbrain import FILES, from_speechbrain

    source, rate = _at_rate(source)
    fetched = not Path(source).exists() and hub.is_repository(source)
    folder = hub.fetch(source, FILES) if fetched else source
    return _checked_rate(source, from_speechbrain(folder, sample_rate=rate), rate)


def _from_sepreformer(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges import from_sepreformer

    return from_sepreformer(source)


def _from_tf_locoformer(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges import from_tf_locoformer

    return from_tf_locoformer(source)


def _from_sr_corrnet(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges.sr_corrnet import FILES, from_sr_corrnet

    fetched = not Path(source).exists() and hub.is_repository(source)
    return from_sr_corrnet(hub.fetch(source, FILES) if fetched else source)


def _from_tiger(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges.tiger import FILES, from_tiger

    fetched = not Path(source).exists() and hub.is_repository(source)
    return from_tiger(hub.fetch(source, FILES) if fetched else source)


def _from_torchaudio(source: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges import from_torchaudio

    source, rate = _at_rate(source)
    if rate is None:
        raise UserError(f"{source}: torchaudio's files do not tell their sample rate; write torchaudio:{source}@8000")
    return from_torchaudio(source, sample_rate=rate)


def _at_rate(source: str) -> tuple[str, int | None]:
    """Return a source and the sample rate that is written behind it, SOURCE@8000; None without one."""
    found = None if Path(source).exists() else re.fullmatch(r"(.+)@([1-9]\d{3,5})", source)
    return (source, None) if found is None else (found[1], int(found[2]))


def _checked_rate(source: str, model: EncoderMaskerDecoder, rate: int | None) -> EncoderMaskerDecoder:
    if rate not in (None, model.sample_rate):
        raise UserError(f"{source}: says that its rate is {model.sample_rate} Hz, found @{rate}; leave out @{rate}")
    return model


_ASTEROID_FILE = "pytorch_model.bin"
_BRIDGES: dict[str, Callable[[str], EncoderMaskerDecoder]] = {
    "asteroid": _from_asteroid,
    "speechbrain": _from_speechbrain,
    "sepreformer": _from_sepreformer,
    "tf-locoformer": _from_tf_locoformer,
    "torchaudio": _from_torchaudio,
    "sr-corrnet": _from_sr_corrnet,
    "tiger": _from_tiger,
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
