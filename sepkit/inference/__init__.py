"""Separate recordings: arrays in memory, and files to files."""

from typing import TYPE_CHECKING

from sepkit.lazy import lazy_names

if TYPE_CHECKING:
    from sepkit.inference.batch.files import separate_files
    from sepkit.inference.batch.reports import FilesReport
    from sepkit.inference.loading import load_model
    from sepkit.inference.separator import Separated, Separator

__all__ = ["FilesReport", "Separated", "Separator", "load_model", "separate_files"]

__getattr__ = lazy_names(
    __name__,
    {
        "FilesReport": "batch.reports",
        "Separated": "separator",
        "Separator": "separator",
        "load_model": "loading",
        "separate_files": "batch.files",
    },
)
