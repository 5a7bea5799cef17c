"""Audiograms: CSV files of them, synthetic ones, and what training hides of them.

Synthetic audiograms are convex combinations of a few archetypes with measurement noise (thesis, part A, 3.1). The
thesis gives the procedure without its numbers. The numbers here make archetypes look like sloping losses. An average of
five archetypes has a sixth of their variance. With a deviation below 30 dB the noise of 5 dB therefore hides most
differences, and all ways to choose the next threshold do equally well.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sepkit.choices import did_you_mean
from sepkit.errors import UserError, shown
from sepkit.files import read_csv, write_csv, write_text
from sepkit.studies.audiogram.config import (
    EARS,
    FREQUENCIES_HZ,
    AudiogramOptions,
    DimensionConfig,
    MissingnessConfig,
    audiogram_dimensions,
)

NOT_A_MEDICAL_DEVICE = "sepkit is research software, not a medical device: do not diagnose or fit hearing aids with it"
"""Every answer says this once."""

_KNOWN_MISSING = frozenset({"", "nan", "na", "none"})
# Streams of random numbers that one seed gives to training.
_MASKS, _DEQUANTIZATION, _ORDER, _LATENT = range(4)

SPLITS = ("train", "dev", "test")
_DEV_SHARE = _TEST_SHARE = 0.125
_SHOWN_LINES = 20

_MEAN = (55.0, *(25.0, 28.0, 35.0, 45.0, 52.0, 58.0, 62.0) * len(EARS))
_AGE_DEVIATION = 20.0
_OF_ALL, _OF_EAR, _OF_FREQUENCY, _ACROSS_EARS, _WITH_AGE = 0.25, 0.15, 0.6, 0.6, 0.5
# Streams of random numbers that one seed gives to synthetic data.
_ARCHETYPES, _WEIGHTS, _NOISE = range(3)


@dataclass
class Audiograms:
    """Data of one CSV file.

    Args:
        names: Names of the D dimensions.
        ids: Name of each of the N data.
        values: (N, D) as measured, in the dimensions' units, NaN where missing.
        truth: (N, D) without measurement noise, where it is known (synthetic data).
        splits: train, dev or test of each datum, "" where it is not known; empty if none is.
    """

    names: list[str]
    ids: list[str]
    values: np.ndarray
    truth: np.ndarray | None = None
    splits: list[str] = field(default_factory=list)

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
        ids, splits = ([words[place] for place in places] if words else [] for words in (self.ids, self.splits))
        return Audiograms(
            self.names, ids, self.values[places], None if self.truth is None else self.truth[places], splits
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
    """Return checked values by name, and notes about them; a later value of a name replaces an earlier one.

    Args:
        measured: Values by name, or words such as `right_1000=35`.
        dimensions: Dimensions of the model.

    Raises:
        UserError: a name is unknown or of a dimension that is never measured, or a value is impossible.
    """
    known = {dimension.name: dimension for dimension in dimensions}
    pairs = measured.items() if isinstance(measured, Mapping) else map(_split_word, measured)
    values: dict[str, float] = {}
    notes: list[str] = []
    for name, value in pairs:
        if name not in known:
            names = [other for other in known if not known[other].known]
            raise UserError(f"{name}: unknown{did_you_mean(name, names)}, expected one of {', '.join(names)}")
        if known[name].known:
            raise UserError(f"{name}: is given from the beginning and never measured; give it by --{name}")
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

    Empty cells are missing values. The noise-free values are read from FILE_truth.csv if that exists.

    Args:
        path: The CSV file.
        dimensions: Dimensions to read; None: those of an audiogram.
        refused: List that gets a line for each unusable row, which is left out; None: such a row is an error.

    Raises:
        UserError: the file cannot be read, has an unusable row, or has no complete one.
    """
    path = Path(path)
    expected = audiogram_dimensions() if dimensions is None else dimensions
    names = [dimension.name for dimension in expected]
    rows = _read_rows(path, names)
    table: dict[str, list[float]] = {}
    splits, lines = [], []
    for number, row in rows:
        try:
            name = (row["id"] or "").strip()
            if not name or name in table:
                raise UserError(f"id {name!r} " + ("appears twice, expected different ones" if name else "is empty"))
            table[name] = _values_of(row, expected)
            splits.append((row.get("split") or "").strip())
        except UserError as error:
            lines.append(f"{path}, line {number}: {error}")
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
    data = Audiograms(names, list(table), np.array(list(table.values())), splits=splits if any(splits) else [])
    if (file := truth_file(path)).is_file():
        truth = {row["id"]: row for _, row in _read_rows(file, names)}
        if not table.keys() <= truth.keys():
            raise UserError(f"{file}: its ids are not those of {path.name}; make both again, or remove it")
        data.truth = np.array([[_number(file, truth[i][name]) for name in names] for i in table])
        if not np.isfinite(data.truth).all():
            raise UserError(f"{file}: found an empty cell, expected all noise-free values; make it again, or remove it")
    return data


def _read_rows(path: Path, names: Sequence[str]) -> list[tuple[int, dict[str, str | None]]]:
    columns, rows = read_csv(path, "a CSV file of audiograms")
    if missing := [name for name in ("id", *names) if name not in columns]:
        found, expected = ", ".join(missing), ", ".join(names)
        raise UserError(f"{path}: found no column {found}; expected id, {expected} and, optionally, split")
    return rows


def _values_of(row: Mapping[str, str | None], dimensions: Sequence[DimensionConfig]) -> list[float]:
    values = [_number(dimension.name, row[dimension.name]) for dimension in dimensions]
    if all(math.isnan(value) for dimension, value in zip(dimensions, values, strict=True) if not dimension.known):
        raise UserError("found nothing measured, expected at least one threshold")
    for dimension, value in zip(dimensions, values, strict=True):
        if not math.isnan(value):
            check_value(dimension, value)
    return values


def _number(where: object, text: str | None) -> float:
    text = (text or "").strip()
    if text.lower() in _KNOWN_MISSING:
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{where}: found {shown(text)}, expected a number, or nothing for a missing value") from None


def prepare_audiograms(options: AudiogramOptions) -> Path:
    """Write synthetic audiograms, or the user's own, and return their folder.

    Synthetic ones have their noise-free truth beside them (train_truth.csv ...). Unusable rows of a
    user's file are left out, listed in refused.txt, and reported as a mistake after all others are written.

    Args:
        options: Options of `sepkit prepare audiograms`.

    Raises:
        UserError: an option is out of range, or the user's file has unusable rows or too few usable ones.
    """
    folder = Path(options.out)
    if options.csv is not None:
        return _prepare_own(folder, options.csv, options.seed)
    return _write_splits(folder, synthetic_audiograms(options)[0], options.seed)


def _prepare_own(folder: Path, file: Path, seed: int) -> Path:
    refused: list[str] = []
    data = read_audiograms(file, refused=refused)
    unknown = set(data.splits) - {*SPLITS, ""}
    if unknown:
        raise UserError(f"{file}: found split {min(unknown)!r}, expected {', '.join(SPLITS)} or nothing")
    _write_splits(folder, data, seed)
    if refused:
        more = len(refused) - _SHOWN_LINES
        print(*refused[:_SHOWN_LINES], *[f"({more} more lines like these)"] * (more > 0), sep="\n", file=sys.stderr)
        listed = write_text(folder / "refused.txt", "".join(f"{line}\n" for line in refused))
        raise UserError(f"{file}: {len(refused)} rows left out, see {listed}; the other {len(data)} are in {folder}")
    return folder


def _write_splits(folder: Path, data: Audiograms, seed: int) -> Path:
    data.splits = data.splits or [""] * len(data)
    free = sorted((place for place, split in enumerate(data.splits) if not split), key=lambda place: data.ids[place])
    order = np.random.default_rng(seed).permutation(len(free))
    dev, test = round(_DEV_SHARE * len(free)), round(_TEST_SHARE * len(free))
    for rank, place in enumerate(order):
        data.splits[free[place]] = "dev" if rank < dev else "test" if rank < dev + test else "train"
    counts = []
    for split in SPLITS:
        chosen = data[np.array([name == split for name in data.splits])]
        if not len(chosen):
            raise UserError(f"{folder}: no audiogram is left for {split} of {len(data)}; give more, or a column split")
        write_audiograms(folder / f"{split}.csv", chosen)
        counts.append(f"{split} {len(chosen)} ({int(chosen.complete.sum())} complete)")
    print(f"{len(data)} audiograms: {', '.join(counts)}")
    return folder


# ----------------------------------------------------------------------------------------------------------- synthetic


def archetype_correlation() -> np.ndarray:
    """Return (15, 15) correlation of age and thresholds: .25 + .15 on one ear + .6 exp(-octaves), less across ears.

    Negative eigenvalues are cut to zero and the diagonal is made 1.
    """
    octaves = np.tile(np.log2(FREQUENCIES_HZ), len(EARS))
    ears = np.repeat(np.arange(len(EARS)), len(FREQUENCIES_HZ))
    same = ears[:, None] == ears
    near = _OF_FREQUENCY * np.exp(-np.abs(octaves[:, None] - octaves)) * np.where(same, 1.0, _ACROSS_EARS)
    wanted = np.full((1 + len(ears), 1 + len(ears)), _WITH_AGE)
    wanted[0, 0] = 1.0
    wanted[1:, 1:] = _OF_ALL + _OF_EAR * same + near
    eigenvalues, vectors = np.linalg.eigh(wanted)
    positive = (vectors * eigenvalues.clip(1e-6)) @ vectors.T
    scale = np.sqrt(np.diag(positive))
    return positive / np.outer(scale, scale)


def synthetic_audiograms(options: AudiogramOptions) -> tuple[Audiograms, np.ndarray]:
    """Return synthetic audiograms with their noise-free truth, and the (archetypes, 15) archetypes.

    Weights of archetypes are uniform (Dirichlet with parameters 1). Values that noise carries beyond the limits are cut
    to them, as by an audiometer.

    Args:
        options: Number of audiograms and of archetypes, their spread, the noise, and the seed.
    """
    seed = options.seed
    deviation = np.array([_AGE_DEVIATION, *[options.spread_db] * (len(_MEAN) - 1)])
    # Eigenvectors have different signs in different libraries; this factor of the correlation is the same in all.
    factor = np.linalg.cholesky(archetype_correlation())
    drawn = np.random.default_rng([seed, _ARCHETYPES]).standard_normal((options.archetypes, len(_MEAN)))
    corners = _possible(np.array(_MEAN) + drawn @ factor.T * deviation)
    weights = np.random.default_rng([seed, _WEIGHTS]).dirichlet(np.ones(len(corners)), options.examples)
    noise = np.random.default_rng([seed, _NOISE]).standard_normal((options.examples, corners.shape[1]))
    noise *= options.noise_db
    truth = weights @ corners
    names = [dimension.name for dimension in audiogram_dimensions()]
    ids = [f"synthetic_{seed}_{place:05d}" for place in range(options.examples)]
    return Audiograms(names, ids, _possible(truth + noise), truth), corners


def _possible(values: np.ndarray) -> np.ndarray:
    dimensions = audiogram_dimensions()
    return np.clip(values, [d.lowest for d in dimensions], [d.highest for d in dimensions])


# ------------------------------------------------------------------------------------------ random parts of training
# A table is drawn for a whole epoch at once. Row i depends on (seed, epoch, i) alone, not on the number of rows.


def observed_in(config: MissingnessConfig, count: int, dimensions: int, seed: int, epoch: int) -> np.ndarray:
    """Return the observed values of each datum in an epoch, (count, dimensions) bool.

    For each datum rho ~ U(0, 1), and each dimension is hidden with probability rho. Then a share of data is hidden
    entirely and another share not at all.

    Source: thesis, part A, section 3.1.
    """
    numbers = _generator(_MASKS, seed, epoch).random((count, dimensions + 2))
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
