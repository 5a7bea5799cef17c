"""What a MODEL argument names: a folder, a model that ships, one on the hub, or another toolkit's. Without torch."""

from __future__ import annotations

from pathlib import Path

from sepkit.errors import UserError
from sepkit.models.published import hub
from sepkit.models.published.shipped import shipped_models
from sepkit.models.storage.folders import EXPECTED, Path_, find_checkpoint, is_onnx

TOOLKITS = ("asteroid", "speechbrain", "sepreformer", "tf-locoformer")
"""Words before the colon of a MODEL argument that name another toolkit's model."""


def model_folder(model: Path_) -> Path | None:
    """Return the checkpoint folder that a MODEL argument names; None for other toolkits' and exported models.

    Args:
        model: as `sepkit.models.load_pretrained` takes it. A model on the hub is downloaded.
    """
    if is_onnx(model):
        return None
    if Path(model).exists():
        return find_checkpoint(model)
    kind, _, rest = str(model).partition(":")
    if kind in TOOLKITS:
        return None
    if kind == "hf" and rest:
        return find_checkpoint(hub.fetch(rest, hub.OWN_FILES))
    shipped = shipped_models()
    if str(model) in shipped:
        return shipped[str(model)]
    known = f", or one of {', '.join(shipped)}" if shipped else ""
    raise UserError(f"{model}: no such file or folder, {EXPECTED}{known}")
