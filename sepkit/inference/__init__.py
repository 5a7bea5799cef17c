"""Separate recordings: arrays in memory, and files to files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sepkit.inference.batch.files import FilesReport, separate_files
    from sepkit.inference.loading import load_model
    from sepkit.inference.separator import Separated, Separator

__all__ = ["FilesReport", "Separated", "Separator", "load_model", "separate_files"]


def __getattr__(name: str) -> Any:
    # The options of this room are read for help, which must not take the time that importing numpy and soundfile takes.
    from importlib import import_module

    if name in ("FilesReport", "separate_files"):
        return getattr(import_module("sepkit.inference.batch.files"), name)
    if name in ("Separated", "Separator"):
        return getattr(import_module("sepkit.inference.separator"), name)
    if name == "load_model":
        return getattr(import_module("sepkit.inference.loading"), name)
    raise AttributeError(f"module 'sepkit.inference' has no attribute {name!r}")
