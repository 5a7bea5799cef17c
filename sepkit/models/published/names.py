"""Resolve a MODEL argument: a folder, a shipped model, one on the hub, or another toolkit's. Without torch."""

from contextlib import suppress
from pathlib import Path

from sepkit.choices import did_you_mean
from sepkit.errors import UserError
from sepkit.models.published import hub
from sepkit.models.published.card import read_card
from sepkit.models.published.public import PUBLIC
from sepkit.models.published.shipped import shipped_models
from sepkit.models.storage.folders import Path_, find_checkpoint, is_onnx

TOOLKITS = ("asteroid", "speechbrain", "sepreformer", "sudormrf", "tf-locoformer", "sr-corrnet", "tiger", "torchaudio")
"""Words before the colon of a MODEL argument that name another toolkit's model."""

_NOT_READ = {
    "mossformer": "MossFormer2 is a model of ClearVoice, which sepkit does not read",
    "pyannote": "pyannote's separation is a gated pipeline around WavLM, which sepkit does not read",
    "spmamba": "SPMamba needs CUDA kernels of its own, and sepkit does not read it",
    "dolphin": "Dolphin separates by video too, and sepkit does not read it",
    "espnet": "of ESPnet's models sepkit reads TF-Locoformer alone",
    "wesep": "WeSep extracts one enrolled speaker, and sepkit does not read it",
}
"""Part of the name of an unsupported public model -> description of the model."""


def model_folder(model: Path_) -> Path | None:
    """Return the checkpoint folder that a MODEL argument names; None for other toolkits' and exported models.

    Args:
        model: Model as `sepkit.models.load_pretrained` takes it. A model on the hub is downloaded.
    """
    if is_onnx(model):
        return None
    if Path(model).exists():
        return find_checkpoint(model)
    kind, _, rest = str(model).partition(":")
    if kind in TOOLKITS or str(model) in PUBLIC:
        return None
    check_read(str(model))
    if kind == "hf" and rest:
        return find_checkpoint(hub.fetch(rest, hub.OWN_FILES))
    shipped = shipped_models()
    if str(model) in shipped:
        return shipped[str(model)]
    hint = did_you_mean(str(model), [*shipped, *PUBLIC])
    raise UserError(f"{model}: no such file or folder{hint}; `sepkit models` and `sepkit models --public` list names")


def check_read(model: str) -> None:
    """Raise UserError for a name of a public model that sepkit does not read; paths are left to what reads them."""
    name = model.partition(":")[2] or model
    is_name = hub.is_repository(name if "/" in name else f"somebody/{name}") and not Path(name).exists()
    for word, reason in _NOT_READ.items():
        if is_name and word in name.lower():
            raise UserError(f"{model}: {reason}; `sepkit models --public` lists what is read")


def license_of(model: str) -> str | None:
    """Return the license of the weights that a MODEL argument names; None where none is known."""
    if model in PUBLIC and not Path(model).exists():
        return PUBLIC[model].license
    # Who names no model that can be found has none of a known license.
    with suppress(UserError):
        folder = model_folder(model)
        return None if folder is None else read_card(folder).get("license")
    return None
