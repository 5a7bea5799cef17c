"""How recordings are separated: arrays in memory, and files to files."""

from sepkit.inference.files import FilesReport, separate_files
from sepkit.inference.separator import Separated, Separator, load_model

__all__ = ["FilesReport", "Separated", "Separator", "load_model", "separate_files"]
