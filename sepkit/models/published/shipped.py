"""The models that ship with the package, each a folder in `weights`; the folder's name is the model's."""

from pathlib import Path

from sepkit.errors import UserError

SHIPPED = Path(__file__).resolve().parent / "weights"
"""Folder of the folders of models."""

ENCODERS = Path(__file__).resolve().parent / "encoders"
"""Folder of the folders of speaker encoders."""

DEFAULT_ENCODER = "campplus_8k"
"""The default speaker encoder."""

PREDICTION_ENCODER = "meetings_8k"
"""The speaker encoder by which the shipped models distinguish one speaker from several, and undo swaps of speakers."""

DEFAULT_MODEL = "boxed_8k"
"""The model that is used if none is named."""

DEFAULT_CAUSAL_MODEL = "boxed_8k_causal"
"""The model that is used for live sound if none is named."""


def shipped_models() -> dict[str, Path]:
    """Return name -> folder of every model that ships with this version."""
    return {folder.name: folder for folder in sorted(SHIPPED.iterdir()) if (folder / "model.yaml").is_file()}


def shipped_encoders() -> list[str]:
    """Return the names of the speaker encoders that ship with this version."""
    return [folder.name for folder in sorted(ENCODERS.iterdir()) if (folder / "model.yaml").is_file()]


def encoder_folder(model: str | Path | None) -> Path:
    """Return the folder of a speaker encoder.

    Args:
        model: a path, or the name of one that ships; None: the default one. An existing path takes precedence.
    """
    if model is None:
        return ENCODERS / DEFAULT_ENCODER
    path = Path(model)
    if path.is_dir() or (path.is_file() and (path.parent / "model.yaml").is_file()):
        return path
    if str(model) in shipped_encoders():
        return ENCODERS / str(model)
    found = "a model that separates" if str(model) in shipped_models() else "no such file or folder"
    found = "another file" if path.exists() else found
    raise UserError(
        f"{model}: found {found}, expected a speaker encoder: {', '.join(shipped_encoders())}, FILE.onnx, or a "
        "folder that `sepkit train --config speaker_encoder` wrote"
    )
