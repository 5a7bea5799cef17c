"""Audiograms as typed and stored by people, CSV files of them, and what training hides of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sepkit.errors import UserError, shown
from sepkit.files import read_csv, write_csv
from sepkit.studies.audiogram.config import (
    EARS,
    FREQUENCIES_HZ,
    THRESHOLDS,
    DimensionConfig,
    MissingnessConfig,
    audiogram_dimensions,
)

NOT_A_MEDICAL_DEVICE = "sepkit is research software, not a medical device: do not diagnose or fit hearing aids with it"
"""Every answer says this once."""

_KNOWN_MISSING = frozenset({"", "nan", "na", "none"})
# Streams of random numbers that one seed gives to training.
_MASKS, _DEQUANTIZATION, _ORDER, _LATENT = range(4)


@dataclass
class Audiograms:
    """Data of one CSV file; a split that is not known is "".

    Args:
        values: (N, D) as measured, NaN where missing.
        truth: (N, D) without measurement noise, where it is known (synthetic data).
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

    @property
    def reference(self) -> np.ndarray:
        """(N, D) of errors: the truth where it is known, else the values."""
        return self.values if self.truth is None else self.truth

    def complete_ones(self, first: int | None = None) -> Audiograms:
        """Return those without missing values: the first of them, or all."""
        return self[np.flatnonzero(self.complete)[:first]]

    def __getitem__(self, chosen: np.ndarray) -> Audiograms:
        places = np.arange(len(self))[chosen]
        return Audiograms(
            self.names,
            [self.ids[place] for place in places],
            self.values[places],
            None if self.truth is None else self.truth[places],
            [self.splits[place] for place in places] if self.splits else [],
            self.notes,
        )


def check_value(dimension: DimensionConfig, value: float) -> list[str]:
    """Return a note if a value is off the dimension's grid; raise UserError beyond its limits or if not finite."""
    name, unit, step = dimension.name, dimension.unit, dimension.step
    if not math.isfinite(value) or not dimension.lowest <= value <= dimension.highest:
        expected = f"{dimension.lowest:g} to {dimension.highest:g} {unit}"
        raise UserError(f"{name}: found {value:g} {unit}, expected {expected}")
    if step > 0 and not math.isclose(math.remainder(value, step), 0.0, abs_tol=1e-6):
        return [f"{name}: {value:g} {unit} is off the {step:g} {unit} grid; taken"]
    return []


def named_values(
    measured: Mapping[str, float] | Iterable[str], dimensions: Sequence[DimensionConfig]
) -> tuple[dict[str, float], list[str]]:
    """Check values (or words, `right_1000=35`) and return them by name, with notes; a later one replaces an earlier."""
    known = {dimension.name: dimension for dimension in dimensions}
    pairs = measured.items() if isinstance(measured, Mapping) else [_split_word(word) for word in measured]
    values: dict[str, float] = {}
    notes: list[str] = []
    for name, value in pairs:
        if name not in known or known[name].known:
            raise UserError(_unknown(name, known))
        notes += check_value(known[name], value)
        if name in values:
            notes.append(f"{name}: measured twice, {value:g} {known[name].unit} replaces {values[name]:g}")
        values[name] = value
    return values, notes


def _split_word(word: str) -> tuple[str, float]:
    name, _, text = word.partition("=")
    try:
        return name.strip(), float(text)
    except ValueError:
        raise UserError(f"--measured {word}: expected NAME=NUMBER, such as right_1000=35") from None


def _unknown(name: str, known: Mapping[str, DimensionConfig]) -> str:
    if name in known:
        return f"{name}: is given from the beginning and never measured; give it by its own option (--{name})"
    if not set(THRESHOLDS) <= known.keys():
        measurable = [other for other in known if not known[other].known]
        return f"{name}: unknown, expected one of {', '.join(measurable)}"
    ear, _, frequency = name.partition("_")
    if ear not in EARS:
        return f"{name}: found ear {ear!r}, expected {' or '.join(EARS)}, as in right_1000"
    return f"{name}: found frequency {frequency!r}, expected one of {', '.join(map(str, FREQUENCIES_HZ))} (Hz)"


# ------------------------------------------------------------------------------------------------------------- the file


def truth_file(path: str | Path) -> Path:
    """Return the path of the noise-free values of data: dev_truth.csv for dev.csv."""
    path = Path(path)
    return path.with_name(f"{path.stem}_truth{path.suffix}")


def write_audiograms(path: str | Path, data: Audiograms) -> Path:
    """Write a CSV file (id, dimensions, split), with its truth beside it if that is known; return its path."""
    tables = [(Path(path), data.values)]
    if data.truth is not None:
        tables.append((truth_file(path), data.truth))
    splits = data.splits or [""] * len(data)
    for file, values in tables:
        cells = [["" if math.isnan(value) else f"{value:.6g}" for value in row] for row in values]
        rows = [[name, *row, split] for name, row, split in zip(data.ids, cells, splits, strict=True)]
        write_csv(file, ["id", *data.names, "split"], rows)
    return Path(path)


def read_audiograms(
    path: str | Path, dimensions: Sequence[DimensionConfig] | None = None, refused: list[str] | None = None
) -> Audiograms:
    """Return the audiograms in a CSV file with the columns id, those of the dimensions, and optionally split.

    Empty cells are missing values; the noise-free values are read from FILE_truth.csv if that exists. `refused` gets a
    line for each unusable row, which is left out; without it such a row is an error.
    """
    path = Path(path)
    expected = audiogram_dimensions() if dimensions is None else dimensions
    names = [dimension.name for dimension in expected]
    rows = _read_rows(path, names)
    lines: list[str] = []
    table: dict[str, list[float]] = {}
    splits: list[str] = []
    notes: list[str] = []
    for number, row in rows:
        try:
            name = (row["id"] or "").strip()
            if not name or name in table:
                raise UserError(f"id {name!r} " + ("stands twice, expected different ones" if name else "is empty"))
            values, row_notes = _values_of(row, expected)
        except UserError as error:
            lines.append(f"{path}, line {number}: {error}")
            continue
        table[name] = values
        splits.append((row.get("split") or "").strip())
        notes += [f"{path}, line {number}: {note}" for note in row_notes]
    if lines and refused is None:
        more = f" (and {len(lines) - 1} more such lines)" if len(lines) > 1 else ""
        raise UserError(f"{lines[0]}{more}; `sepkit prepare audiograms --csv {path} --out DIR` leaves such rows out")
    if refused is not None:
        refused += lines
    if all(math.isnan(sum(values)) for values in table.values()):
        raise UserError(
            f"{path}: found no complete row among {len(rows)}{f' ({lines[0]})' if lines else ''}; expected one with "
            f"a number in each of {', '.join(names)}"
        )
    splits = splits if any(splits) else []
    data = Audiograms(names, list(table), np.array(list(table.values())), splits=splits, notes=notes)
    if truth_file(path).is_file():
        truth = {row["id"]: row for _, row in _read_rows(truth_file(path), names)}
        if not table.keys() <= truth.keys():
            raise UserError(f"{truth_file(path)}: its ids are not those of {path.name}; make both again, or remove it")
        data.truth = np.array([[_number(truth_file(path), truth[i][name]) for name in names] for i in table])
    return data


def _read_rows(path: Path, names: Sequence[str]) -> list[tuple[int, dict[str, str | None]]]:
    columns, rows = read_csv(path, "a CSV file of audiograms")
    if missing := [name for name in ("id", *names) if name not in columns]:
        found, expected = ", ".join(missing), ", ".join(names)
        raise UserError(f"{path}: found no column {found}; expected id, {expected} and, optionally, split")
    return rows


def _values_of(row: Mapping[str, str | None], dimensions: Sequence[DimensionConfig]) -> tuple[list[float], list[str]]:
    values = [_number(dimension.name, row[dimension.name]) for dimension in dimensions]
    pairs = list(zip(dimensions, values, strict=True))
    if all(math.isnan(value) for dimension, value in pairs if not dimension.known):
        raise UserError("found nothing measured, expected at least one threshold")
    return values, [note for pair in pairs if not math.isnan(pair[1]) for note in check_value(*pair)]


def _number(where: object, text: str | None) -> float:
    text = (text or "").strip()
    if text.lower() in _KNOWN_MISSING:
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{where}: found {shown(text)}, expected a number, or nothing for a missing value") from None


# ------------------------------------------------------------------------------------------ random parts of training
# A table is drawn for a whole epoch at once. Row i depends on (seed, epoch, i) alone, not on the number of rows.


def observed_in(config: MissingnessConfig, count: int, dimensions: int, seed: int, epoch: int) -> np.ndarray:
    """Return what each datum shows in an epoch, (count, dimensions) bool; static missingness is the same in all.

    For each datum rho ~ U(0, 1), and each dimension is hidden with probability rho. Then a share of data is hidden
    entirely and another share not at all.

    Source: thesis, part A, section 3.1.
    """
    numbers = _generator(_MASKS, seed, 0 if config.kind == "static" else epoch).random((count, dimensions + 2))
    rho, special, each = numbers[:, :1], numbers[:, 1], numbers[:, 2:]
    observed = each >= rho
    observed[special < config.nothing_observed] = False
    observed[special >= 1 - config.everything_observed] = True
    return observed


def dequantization(steps: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Return uniform numbers in +- half a step of each dimension, (count, D), for steps (D,); 0: no grid."""
    return (_generator(_DEQUANTIZATION, seed, epoch).random((count, len(steps))) - 0.5) * steps


def order_of(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of the data in an epoch, (count,)."""
    return _generator(_ORDER, seed, epoch).permutation(count)


def latent_noise(rows: int, latent: int, seed: int, step: int) -> np.ndarray:
    """Return standard normal numbers of a training step, (rows, latent)."""
    return _generator(_LATENT, seed, step).standard_normal((rows, latent))


def _generator(stream: int, seed: int, when: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream, when])
