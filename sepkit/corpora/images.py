"""Images from files: binarized MNIST in the forms that the field has."""

import io
import math
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from sepkit.errors import UserError, one_line, shown
from sepkit.files import file_text

SPLITS = ("train", "dev", "test")
MNIST_SIZE = 28
"""Height and width, pixels."""
_LARGEST_FILE_BYTES = 1_000_000_000
# What zipfile, its decompression and numpy raise on damaged files.
_DAMAGED = (
    OSError, ValueError, TypeError, AttributeError, KeyError, EOFError, RuntimeError, OverflowError, SyntaxError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


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
                values = np.loadtxt(io.StringIO(file_text(where)), dtype=np.uint8, ndmin=2)
            except (OSError, ValueError) as error:
                raise UserError(f"{where}: found something else than numbers ({str(error)[:80]})") from error
        else:
            fields, where = read_npz(source), f"{source}, {theirs}"
            if theirs not in fields:
                raise UserError(
                    f"{source}: found {', '.join(sorted(fields)) or 'nothing'}, expected train, valid and test"
                )
            values = fields[theirs]
            if not values.size:
                raise UserError(f"{where}: contains no images; prepare the images again")
            values = np.atleast_2d(values)
            if values.ndim == 2 and values.shape[1] == MNIST_SIZE**2 // 8:
                values = np.unpackbits(values.astype(np.uint8), axis=1)
        values = values.reshape(len(values), -1)
        if values.shape[1] != MNIST_SIZE**2:
            raise UserError(f"{where}: found images of {values.shape[1]} pixels, expected {MNIST_SIZE} x {MNIST_SIZE}")
        if not is_binary(values):
            raise UserError(f"{where}: found values like {shown(values.max().item())}, expected binary images (0, 1)")
        found[name] = values.reshape(-1, MNIST_SIZE, MNIST_SIZE)
    return found


def is_binary(values: np.ndarray) -> bool:
    """Return whether all values are 0 or 1."""
    return not bool(((values != 0) & (values != 1)).any())


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return name -> array of an .npz file of images: numbers, or text."""
    if not path.is_file():
        raise UserError(f"{path}: no such file, expected an .npz file of images")
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            if sum(member.file_size for member in members) > _LARGEST_FILE_BYTES:
                raise UserError(f"{path}: contains more than {_LARGEST_FILE_BYTES:,} bytes; expected images")
            return {member.filename.removesuffix(".npy"): _read_npy(archive, member) for member in members}
    except _DAMAGED as error:
        raise UserError(f"{path}: cannot be read as .npz ({one_line(str(error))[:80]}); prepare it again") from error


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Return an array. ValueError: of something else than numbers or text, or larger than the member."""
    with archive.open(member) as file:
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = read_header[np.lib.format.read_magic(file)](file)
    if dtype.kind not in "biufU" or math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{member.filename} contains no numbers, or fewer than it states")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
