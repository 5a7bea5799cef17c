"""Audiograms as typed and stored by people: thresholds by ear and frequency, and CSV files of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sepkit.errors import UserError
from sepkit.files import atomic_output
from sepkit.studies.acquisition.config import (
    EARS,
    FREQUENCIES_HZ,
    DimensionConfig,
    audiogram_dimensions,
    threshold_name,
)

NOT_A_MEDICAL_DEVICE = "sepkit is research software, not a medical device: do not diagnose or fit hearing aids with it"
"""Every answer says this once."""

_KNOWN_MISSING = frozenset({"", "nan", "na", "none"})


@dataclass
class Audiograms:
    """Data of one CSV file.

    Args:
        names: of the D dimensions.
        ids: one per datum.
        values: (N, D) as measured, NaN where missing.
        truth: (N, D) without measurement noise, where it is known (synthetic data).
        splits: train, dev or test, one per datum; "" where the file has none.
        notes: remarks about accepted values, one line each.
    """

    names: list[str]
    ids: list[str]
    values: np.ndarray
    truth: np.ndarray | None = None
    splits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def complete(self) -> np.ndarray:
        """(N,) bool, whether all values are there."""
        return np.asarray(np.isfinite(self.values).all(axis=1))

    def __getitem__(self, chosen: np.ndarray) -> Audiograms:
        """Return those that an index array or a boolean mask picks."""
        places = np.arange(len(self))[chosen]
        return Audiograms(
            self.names,
            [self.ids[place] for place in places],
            self.values[places],
            None if self.truth is None else self.truth[places],
            [self.splits[place] for place in places] if self.splits else [],
            self.notes,
        )


def check_value(dimension: DimensionConfig, value: float) -> str | None:
    """Return a note about a value off the dimension's grid, None for one on it.

    Args:
        dimension: what is measured.
        value: in its unit.

    Raises:
        UserError: a value beyond the dimension's limits, or not finite.
    """
    if not math.isfinite(value) or not dimension.lowest <= value <= dimension.highest:
        raise UserError(
            f"{dimension.name}: found {value:g} {dimension.unit}, expected {dimension.lowest:g} to "
            f"{dimension.highest:g} {dimension.unit}"
        )
    if dimension.step > 0 and not math.isclose(math.remainder(value, dimension.step), 0.0, abs_tol=1e-6):
        return (
            f"{dimension.name}: {value:g} {dimension.unit} is off the {dimension.step:g} {dimension.unit} grid; taken"
        )
    return None


def named_values(
    measured: Mapping[str, float] | Iterable[str], dimensions: Sequence[DimensionConfig]
) -> tuple[dict[str, float], list[str]]:
    """Check values and return them by name, with notes about them; a later value replaces an earlier one of that name.

    Args:
        measured: name -> value, or words such as `right_1000=35`.
        dimensions: all known ones.

    Raises:
        UserError: a word of another form, an ear or a frequency that does not exist, or a value that is not possible.
    """
    known = {dimension.name: dimension for dimension in dimensions}
    pairs = measured.items() if isinstance(measured, Mapping) else [_split_word(word) for word in measured]
    values: dict[str, float] = {}
    notes: list[str] = []
    for name, value in pairs:
        if name not in known or known[name].known:
            raise UserError(_unknown(name, known))
        note = check_value(known[name], value)
        if note is not None:
            notes.append(note)
        if name in values:
            notes.append(f"{name}: measured twice, {value:g} {known[name].unit} replaces {values[name]:g}")
        values[name] = value
    return values, notes


def _split_word(word: str) -> tuple[str, float]:
    name, equals, text = word.partition("=")
    try:
        if not equals:
            raise ValueError
        return name.strip(), float(text)
    except ValueError:
        raise UserError(f"--measured {word}: expected NAME=NUMBER, such as right_1000=35") from None


def _unknown(name: str, known: Mapping[str, DimensionConfig]) -> str:
    """Describe what is wrong with a name, in the words of audiometry for dimensions of an audiogram."""
    if name in known:
        return f"{name}: is given from the beginning and never measured; give it by its own option (--{name})"
    measurable = [other for other in known if not known[other].known]
    ear, _, frequency = name.partition("_")
    if all(threshold_name(e, hz) in known for e in EARS for hz in FREQUENCIES_HZ):
        if ear not in EARS:
            return f"{name}: found ear {ear!r}, expected {' or '.join(EARS)}, as in right_1000"
        return f"{name}: found frequency {frequency!r}, expected one of {', '.join(map(str, FREQUENCIES_HZ))} (Hz)"
    return f"{name}: unknown, expected one of {', '.join(measurable)}"


# ------------------------------------------------------------------------------------------------------------- the file


def truth_file(path: str | Path) -> Path:
    """Return the path of the noise-free values of data: dev_truth.csv for dev.csv.

    Args:
        path: of the data.
    """
    path = Path(path)
    return path.with_name(f"{path.stem}_truth{path.suffix}")


def write_audiograms(path: str | Path, data: Audiograms) -> Path:
    """Write a CSV file (id, dimensions, split), with its truth beside it if that is known; return its path.

    Args:
        path: of the file.
        data: its rows.
    """
    tables = [(Path(path), data.values)]
    if data.truth is not None:
        tables.append((truth_file(path), data.truth))
    splits = data.splits or [""] * len(data)
    for file, values in tables:
        with atomic_output(file) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["id", *data.names, "split"])
            for name, row, split in zip(data.ids, values, splits, strict=True):
                writer.writerow([name, *("" if math.isnan(v) else f"{v:.6g}" for v in row), split])
    return Path(path)


def read_audiograms(
    path: str | Path,
    dimensions: Sequence[DimensionConfig] | None = None,
    refused: list[str] | None = None,
) -> Audiograms:
    """Return the audiograms in a CSV file with the columns id, those of the dimensions, and optionally split.

    The noise-free values are read from FILE_truth.csv if that exists.

    Args:
        path: of the file; empty cells are missing values.
        dimensions: expected; None: those of an audiogram.
        refused: gets a line for each unusable row, which is left out; None: such a row is an error.

    Raises:
        UserError: no such file, a missing column, no row, no complete row, or, without `refused`, a bad row.
    """
    path = Path(path)
    expected = audiogram_dimensions() if dimensions is None else dimensions
    names = [dimension.name for dimension in expected]
    rows = _read_rows(path, names)
    lines: list[str] = []
    ids: list[str] = []
    table: list[list[float]] = []
    splits: list[str] = []
    notes: list[str] = []
    seen: set[str] = set()
    for number, row in rows:
        try:
            name = (row["id"] or "").strip()
            if not name or name in seen:
                raise UserError(f"id {name!r} " + ("stands twice, expected different ones" if name else "is empty"))
            values, row_notes = _values_of(row, expected)
        except UserError as error:
            lines.append(f"{path}, line {number}: {error}")
            continue
        seen.add(name)
        ids.append(name)
        table.append(values)
        splits.append((row.get("split") or "").strip())
        notes += [f"{path}, line {number}: {note}" for note in row_notes]
    if lines and refused is None:
        more = f" (and {len(lines) - 1} more such lines)" if len(lines) > 1 else ""
        raise UserError(f"{lines[0]}{more}; `sepkit prepare audiograms --csv {path} --out DIR` leaves such rows out")
    if refused is not None:
        refused += lines
    if not any(not math.isnan(sum(values)) for values in table):
        raise UserError(
            f"{path}: found no complete row among {len(rows)}{f' ({lines[0]})' if lines else ''}; expected one with "
            f"a number in each of {', '.join(names)}"
        )
    data = Audiograms(names, ids, np.array(table), splits=splits if any(splits) else [], notes=notes)
    if truth_file(path).is_file():
        truth = {row["id"]: row for _, row in _read_rows(truth_file(path), names)}
        if not set(ids) <= truth.keys():
            raise UserError(f"{truth_file(path)}: its ids are not those of {path.name}; make both again, or remove it")
        data.truth = np.array([[float(truth[i][name] or "nan") for name in names] for i in ids])
    return data


def _read_rows(path: Path, names: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Return line numbers and cells of the rows."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            columns = reader.fieldnames or []
            missing = [name for name in ("id", *names) if name not in columns]
            if missing:
                raise UserError(
                    f"{path}: found no column {', '.join(missing)}; expected id, {', '.join(names)} and, optionally, "
                    "split"
                )
            return [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({reason}); expected a CSV file of audiograms") from error


def _values_of(row: Mapping[str, str], dimensions: Sequence[DimensionConfig]) -> tuple[list[float], list[str]]:
    values: list[float] = []
    notes: list[str] = []
    for dimension in dimensions:
        text = (row[dimension.name] or "").strip()
        if text.lower() in _KNOWN_MISSING:
            values.append(math.nan)
            continue
        try:
            value = float(text)
        except ValueError:
            raise UserError(
                f"{dimension.name}: found {text!r}, expected a number, or nothing for a missing value"
            ) from None
        note = check_value(dimension, value)
        if note is not None:
            notes.append(note)
        values.append(value)
    if all(math.isnan(value) for value, dimension in zip(values, dimensions, strict=True) if not dimension.known):
        raise UserError("found nothing measured, expected at least one threshold")
    return values, notes
