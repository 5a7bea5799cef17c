"""Read other toolkits' checkpoints, which are pickles, with torch's restricted loader.

The loader makes only tensors and plain data. It runs and imports nothing: a file that names anything outside a short
list of harmless types is refused.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.errors import UserError, one_line, shown
from sepkit.files import read_yaml

_SCALAR = np.float64(0).__reduce__()[0]
# asteroid writes torch's version string into its files, and published ones hold final scores as NumPy numbers.
_HARMLESS: list[Any] = [
    type(torch.__version__),
    np.dtype,
    type(np.dtype(np.float64)),
    type(np.dtype(np.float32)),
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
]

_POINTER = b"version https://git-lfs.github.com/spec/"

# No published separator comes near this size. Larger ones would only exhaust memory and time.
_LARGEST = 65536


def read_checkpoint(path: Path, expected: str, stand_ins: Sequence[tuple[type, str]] = ()) -> Any:
    """Read the tensors and plain data in a file of `torch.save`, on the CPU.

    Args:
        path: The file.
        expected: End of the message of an error, "expected ...".
        stand_ins: Classes of ours without code of their own, and the names of the classes whose place they take.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; {expected}")
    refuse_pointer(path)
    _check_records(path, expected)
    try:
        with torch.serialization.safe_globals([*_HARMLESS, *stand_ins]), warnings.catch_warnings():
            # How a file was written is nothing that its reader can change.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it names {named[1]}, which could run code" if named else "it is no file of tensors and plain data"
        raise UserError(f"{path}: refused, {reason}; {expected}") from None
    except Exception as error:
        # A damaged pickle can raise any exception in the loader; none is a fault of this program.
        raise UserError(f"{path}: no complete torch checkpoint ({type(error).__name__}); {expected}") from None


def refuse_pointer(path: Path) -> None:
    """Raise UserError if a file is what Git leaves in place of a large one."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise UserError(f"{path}: this is a Git LFS pointer ({path.stat().st_size} bytes); run git lfs pull")


def _check_records(path: Path, expected: str) -> None:
    """Refuse archives that hold more than their file: torch inflates records, and reads what is stored twice twice."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"{path}: no complete torch checkpoint ({one_line(str(error))}); {expected}") from None
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise UserError(f"{path}: refused, its records are compressed, which torch.save does not do; {expected}")
    if sum(record.file_size for record in records) > path.stat().st_size:
        raise UserError(f"{path}: refused, its records hold more bytes than the file; {expected}")


# Tools that count operations leave their totals in a model.
_TOTALS = ("total_ops", "total_params")


def read_state_dict(path: Path, expected: str) -> dict[str, Tensor]:
    """Read the tensors by name in a file of `torch.save(module.state_dict())`, or of a training with such a part."""
    weights = read_checkpoint(path, expected)
    weights = weights.get("model_state_dict", weights) if isinstance(weights, Mapping) else None
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()
    ):
        raise UserError(f"{path}: found no mapping of names to tensors; {expected}")
    check_plain(str(path), weights)
    return {name: tensor for name, tensor in weights.items() if name.rpartition(".")[2] not in _TOTALS}


def check_plain(where: str, weights: Mapping[str, Any]) -> None:
    """Raise UserError unless all are tensors of real numbers in memory: of others code cannot ask shapes or values.

    Args:
        where: Name of the file, for the message.
        weights: Tensors by name.
    """
    for name, tensor in weights.items():
        special = not isinstance(tensor, Tensor) or tensor.is_nested or tensor.is_quantized or tensor.is_complex()
        if special or tensor.is_meta or tensor.layout != torch.strided:
            raise UserError(f"{where}: {one_line(name)[:100]} is no plain tensor of real numbers; get the file again")


def check_sizes(where: str, sizes: Mapping[str, Any], largest: Mapping[str, float] | None = None) -> None:
    """Raise UserError if any number among the values of `sizes` is too large; other values are ignored.

    Args:
        where: Name of the file, for the message.
        sizes: Values by name.
        largest: Bounds by name, of those that differ from the usual one.
    """
    for name, value in sizes.items():
        bound = (largest or {}).get(name, _LARGEST)
        if isinstance(value, int | float) and not abs(value) <= bound:
            raise UserError(f"{where}: {one_line(name)[:100]} is {shown(value)}, expected at most {bound}")


class Description:
    """Sizes and options that another toolkit keeps beside its weights, checked as they are read.

    Args:
        path: The file, for messages.
        data: Content of the file.
        prefix: Beginning of the names of all values, such as "config.".
    """

    def __init__(self, path: Path, data: Any, prefix: str = "") -> None:
        self.path, self.data, self.prefix = path, data, prefix

    @classmethod
    def beside(cls, weights: Path, name: str, expected: str, prefix: str = "") -> Description:
        """Return the description in a YAML file beside the weights; raise UserError if there is none.

        Args:
            weights: File of the weights.
            name: Name of the YAML file.
            expected: Expected content, for the message.
            prefix: Beginning of the names of all values.
        """
        if not (path := weights.with_name(name)).is_file():
            raise UserError(f"{weights}: no {name} beside it; {expected}")
        return cls(path, read_yaml(path, "get it again"), prefix)

    def at(self, name: str, default: Any = None) -> Any:
        """Return the value of a dotted name, or the default if there is none.

        Args:
            name: Dotted name, without the prefix.
            default: Value to return if there is none.
        """
        value = self.data
        for part in f"{self.prefix}{name}".split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value

    def size(self, name: str, default: Any = None, largest: int = _LARGEST, least: int = 1) -> int:
        """Return a whole number; raise UserError if it is none, or out of bounds.

        Args:
            name: Dotted name, without the prefix.
            default: Value that counts if there is none.
            largest: Largest number that is allowed.
            least: Smallest number that is allowed.
        """
        return self._whole(name, self.at(name, default), largest, least)

    def size_of_both(self, name: str, largest: int = _LARGEST, least: int = 1) -> int:
        """Return the whole number that a list of two contains twice; raise UserError for any other value.

        Args:
            name: Dotted name, without the prefix.
            largest: Largest number that is allowed.
            least: Smallest number that is allowed.
        """
        value = self.at(name)
        if not isinstance(value, list) or len(value) != 2 or value[0] != value[1]:
            raise self.error(name, value, "two equal numbers")
        return self._whole(name, value[0], largest, least)

    def require(self, values: Mapping[str, Any], optional: bool = False) -> None:
        """Raise UserError unless options have the only values that sepkit has.

        Args:
            values: Expected values, by name.
            optional: Whether an option that is not given has that value.
        """
        for name, wanted in values.items():
            if (value := self.at(name, wanted if optional else None)) != wanted:
                raise self.error(name, value, shown(wanted))

    def error(self, name: str, value: Any, expected: str) -> UserError:
        """Return the error to raise about a value that cannot be read."""
        return UserError(f"{self.path}: {self.prefix}{name} is {shown(value)}, expected {expected}")

    def _whole(self, name: str, value: Any, largest: int, least: int) -> int:
        if type(value) is not int or not least <= value <= largest:
            raise self.error(name, value, f"a whole number from {least} to {largest}")
        return value
