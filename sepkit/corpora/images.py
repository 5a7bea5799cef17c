"""Images from files: binarized MNIST in the forms that the field has."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from sepkit.errors import UserError, shown

SPLITS = ("train", "dev", "test")
MNIST_SIZE = 28
"""Height and width, pixels."""
_LARGEST_FILE_BYTES = 4_000_000_000


def read_mnist(source: Path) -> dict[str, np.ndarray]:
    """Return split -> (N, 28, 28) binary images of binarized MNIST.

    Args:
        source: an .npz file with train, valid and test, as packed bits (N, 98) or pixels (N, 784) or (N, 28, 28); or a
            folder with binarized_mnist_train.amat, ..._valid.amat and ..._test.amat, text of zeros and ones.
    """
    found: dict[str, np.ndarray] = {}
    for name, theirs in zip(SPLITS, ("train", "valid", "test"), strict=True):
        if source.is_dir():
            where = source / f"binarized_mnist_{theirs}.amat"
            if not where.is_file():
                raise UserError(f"{where}: no such file, expected text of zeros and ones")
            try:
                values = np.loadtxt(where, dtype=np.uint8, ndmin=2)
            except ValueError as error:
                raise UserError(f"{where}: found something else than numbers ({str(error)[:80]})") from error
        else:
            fields, where = read_npz(source), f"{source}, {theirs}"
            if theirs not in fields:
                raise UserError(
                    f"{source}: found {', '.join(sorted(fields)) or 'nothing'}, expected train, valid and test"
                )
            values = fields[theirs]
            if values.ndim == 2 and values.shape[1] == MNIST_SIZE**2 // 8:
                values = np.unpackbits(values.astype(np.uint8), axis=1)
        values = values.reshape(len(values), -1)
        if values.shape[1] != MNIST_SIZE**2:
            raise UserError(f"{where}: found images of {values.shape[1]} pixels, expected {MNIST_SIZE} x {MNIST_SIZE}")
        if not is_binary(values):
            raise UserError(
                f"{where}: found values such as {shown(values.max().item())}, expected binary images of 0 and 1"
            )
        found[name] = values.reshape(-1, MNIST_SIZE, MNIST_SIZE)
    return found


def is_binary(values: np.ndarray) -> bool:
    """Return whether all values are 0 or 1."""
    return not bool(((values != 0) & (values != 1)).any())


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return name -> array of an .npz file of images."""
    if not path.is_file():
        raise UserError(f"{path}: no such file, expected an .npz file of images")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST_FILE_BYTES:
                raise UserError(f"{path}: holds more than {_LARGEST_FILE_BYTES:,} bytes; expected images")
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as .npz ({str(error)[:80]}); prepare the images again") from error
