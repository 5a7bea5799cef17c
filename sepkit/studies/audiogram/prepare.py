"""Make train.csv, dev.csv and test.csv: synthetic audiograms, the user's own, and those of NHANES.

Synthetic audiograms are convex combinations of a few archetypes with measurement noise (thesis, part A, 3.1). The
thesis gives the procedure without its numbers. The numbers here make archetypes look like sloping losses. An average of
five archetypes has a sixth of their variance. With a deviation below 30 dB the noise of 5 dB therefore hides most
differences, and all ways to choose the next threshold do equally well.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sepkit.errors import UserError
from sepkit.extras import missing
from sepkit.files import file_bytes, write_text
from sepkit.studies.audiogram.config import (
    EARS,
    FREQUENCIES_HZ,
    THRESHOLDS,
    AudiogramOptions,
    NHANESOptions,
    audiogram_dimensions,
)
from sepkit.studies.audiogram.data import Audiograms, check_value, read_audiograms, write_audiograms

if TYPE_CHECKING:
    import pandas

SPLITS = ("train", "dev", "test")
_DEV_SHARE = _TEST_SHARE = 0.125
_SHOWN_LINES = 20

_MEAN = (55.0, *(25.0, 28.0, 35.0, 45.0, 52.0, 58.0, 62.0) * len(EARS))
_AGE_DEVIATION = 20.0
_OF_ALL, _OF_EAR, _OF_FREQUENCY, _ACROSS_EARS, _WITH_AGE = 0.25, 0.15, 0.6, 0.6, 0.5
# Streams of random numbers that one seed gives.
_ARCHETYPES, _WEIGHTS, _NOISE, _CORRUPTION = range(4)


def prepare_audiograms(options: AudiogramOptions) -> Path:
    """Write synthetic audiograms, or the user's own, and return their folder.

    Synthetic ones have their noise-free truth beside them (train_truth.csv ...), and archetypes.csv. Unusable rows of a
    user's file are left out, listed in refused.txt, and reported as a mistake after all others are written.
    """
    folder = Path(options.out)
    if options.csv is not None:
        return _prepare_own(folder, options.csv, options.seed)
    data, corners = synthetic_audiograms(
        options.examples, options.archetypes, options.spread_db, options.noise_db, options.corruption, options.seed
    )
    names = [f"archetype_{place}" for place in range(len(corners))]
    write_audiograms(folder / "archetypes.csv", Audiograms(data.names, names, corners))
    return _write_splits(folder, data, options.seed)


def _prepare_own(folder: Path, file: Path, seed: int) -> Path:
    refused: list[str] = []
    data = read_audiograms(file, refused=refused)
    unknown = set(data.splits) - {*SPLITS, ""}
    if unknown:
        raise UserError(f"{file}: found split {min(unknown)!r}, expected {', '.join(SPLITS)} or nothing")
    _say(data.notes)
    _write_splits(folder, data, seed)
    if refused:
        _say(refused)
        listed = write_text(folder / "refused.txt", "".join(f"{line}\n" for line in refused))
        raise UserError(
            f"{file}: {len(refused)} rows are left out, see {listed}; the other {len(data)} are in {folder}"
        )
    return folder


def _say(lines: Sequence[str]) -> None:
    for line in lines[:_SHOWN_LINES]:
        print(line, file=sys.stderr)
    if len(lines) > _SHOWN_LINES:
        print(f"({len(lines) - _SHOWN_LINES} more lines like these)", file=sys.stderr)


def _write_splits(folder: Path, data: Audiograms, seed: int) -> Path:
    if not data.splits or not all(data.splits):
        data.splits = _divide(data.ids, seed, data.splits or [""] * len(data))
    counts = []
    for split in SPLITS:
        chosen = data[np.array([name == split for name in data.splits])]
        if not len(chosen):
            raise UserError(
                f"{folder}: no audiogram is left for {split} among {len(data)}; give more, or a column split"
            )
        write_audiograms(folder / f"{split}.csv", chosen)
        counts.append(f"{split} {len(chosen)} ({int(chosen.complete.sum())} complete)")
    print(f"{len(data)} audiograms: {', '.join(counts)}")
    return folder


def _divide(ids: Sequence[str], seed: int, given: Sequence[str]) -> list[str]:
    free = sorted((place for place, split in enumerate(given) if not split), key=lambda place: ids[place])
    order = np.random.default_rng(seed).permutation(len(free))
    dev, test = round(_DEV_SHARE * len(free)), round(_TEST_SHARE * len(free))
    splits = list(given)
    for rank, position in enumerate(order):
        splits[free[position]] = "dev" if rank < dev else "test" if rank < dev + test else "train"
    return splits


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


def _draw_archetypes(count: int, spread_db: float, seed: int) -> np.ndarray:
    deviation = np.array([_AGE_DEVIATION, *[spread_db] * (len(_MEAN) - 1)])
    # Eigenvectors have different signs in different libraries; this factor of the correlation is the same in all.
    factor = np.linalg.cholesky(archetype_correlation())
    noise = np.random.default_rng([seed, _ARCHETYPES]).standard_normal((count, len(_MEAN)))
    return _possible(np.array(_MEAN) + noise @ factor.T * deviation)


def synthetic_audiograms(
    examples: int = 4096,
    archetypes: int = 5,
    spread_db: float = 45.0,
    noise_db: float = 5.0,
    corruption: float = 0.0,
    seed: int = 0,
) -> tuple[Audiograms, np.ndarray]:
    """Return synthetic audiograms with their noise-free truth, and the (archetypes, 15) archetypes.

    Weights of archetypes are uniform (Dirichlet with parameters 1). Values that noise carries beyond the limits are cut
    to them, as by an audiometer. Arguments are those of `AudiogramOptions`.
    """
    for name, value, least in (
        ("--examples", examples, 10),
        ("--archetypes", archetypes, 2),
        ("--spread-db", spread_db, 0),
        ("--noise-db", noise_db, 0),
        ("--corruption", corruption, 0),
        ("--seed", seed, 0),
    ):
        if not least <= value < np.inf:
            raise UserError(f"{name}: found {value:g}, expected {least} or more")
    corners = _draw_archetypes(archetypes, spread_db, seed)
    weights = np.random.default_rng([seed, _WEIGHTS]).dirichlet(np.ones(archetypes), examples)
    noise = noise_db * np.random.default_rng([seed, _NOISE]).standard_normal((examples, corners.shape[1]))
    if corruption > 0:
        deviation = _possible(weights @ corners + noise).std()
        shift = np.random.default_rng([seed, _CORRUPTION]).standard_normal(corners.shape)
        corners = _possible(corners + corruption * deviation * shift)
    truth = weights @ corners
    names = [dimension.name for dimension in audiogram_dimensions()]
    ids = [f"synthetic_{seed}_{place:05d}" for place in range(examples)]
    return Audiograms(names, ids, _possible(truth + noise), truth), corners


def _possible(values: np.ndarray) -> np.ndarray:
    dimensions = audiogram_dimensions()
    return np.clip(values, [d.lowest for d in dimensions], [d.highest for d in dimensions])


# -------------------------------------------------------------------------------------------------------------- NHANES
# Public domain, https://wwwn.cdc.gov/nchs/nhanes: AUX1, AUX_B, AUX_C (1999-2004), AUX_G (2011-12), AUX_I (2015-16),
# each with the DEMO file of its years. Other years tested only the young or the old.

MISSING_CODES = (666.0, 888.0)
"""No response at the loudest tone, and could not be obtained: missing values, not decibels."""
_BLOCK_BYTES = 80
_HEADER = b"HEADER RECORD*******LIBRARY HEADER RECORD"


def prepare_nhanes(options: NHANESOptions) -> Path:
    """Write the audiograms of NHANES that have an age and all thresholds, print what was found, return the folder."""
    data, found = read_nhanes(options.audiometry, options.demographics)
    print("\n".join(found))
    return _write_splits(Path(options.out), data, options.seed)


def nhanes_column(name: str) -> str:
    """Return the column of a threshold such as `right_500`: AUXU500R, AUXU1K1L (the first of two tests), AUXU2KR ..."""
    ear, _, hz = name.partition("_")
    tone = {"500": "500", "1000": "1K1"}.get(hz, f"{int(hz) // 1000}K")
    return f"AUXU{tone}{ear[0].upper()}"


def read_nhanes(audiometry: Sequence[str | Path], demographics: Sequence[str | Path]) -> tuple[Audiograms, list[str]]:
    """Return the audiograms in both kinds of file that have an age and all fourteen thresholds, and a line per
    finding."""
    # SAS files hold 0 as 5.4e-79, hence the rounding.
    demographic = [_read_xpt(file, ["SEQN", "RIDAGEYR"]) for file in demographics]
    ages = {int(p): round(float(age), 6) for t in demographic for p, age in zip(t["SEQN"], t["RIDAGEYR"], strict=True)}
    columns = [nhanes_column(name) for name in THRESHOLDS]
    found: list[str] = []
    rows: dict[int, np.ndarray] = {}
    for file in audiometry:
        table = _read_xpt(file, ["SEQN", *columns])
        values = np.stack([table[column].to_numpy(float) for column in columns], axis=1).round(6)
        silent, absent = (int((values == code).sum()) for code in MISSING_CODES)
        values[np.isin(values, MISSING_CODES)] = np.nan
        for person, row in zip(map(int, table["SEQN"]), values, strict=True):
            if person in rows:
                raise UserError(f"{file}: person (SEQN) {person} stands twice; give each file once")
            _check_row(row, f"{file}: person (SEQN) {person}")
            rows[person] = np.array([ages.get(person, np.nan), *row])
        found.append(
            f"{file}: {len(table)} audiograms; {silent} thresholds without response (666) and {absent} not obtained "
            "(888) are missing"
        )
    joined = {person: row for person, row in rows.items() if person in ages}
    files = ", ".join(map(str, audiometry))
    if not joined:
        others = ", ".join(map(str, demographics))
        raise UserError(f"{files}: none of its people is in {others}; give the DEMO file of the same years")
    values = np.stack(list(joined.values()))
    complete = np.asarray(np.isfinite(values).all(1))
    found.append(
        f"{len(joined)} people with demographics ({len(rows) - len(joined)} without are left out), "
        f"{int(complete.sum())} complete"
    )
    if not complete.any():
        raise UserError(f"{files}: found no complete row among {len(joined)}; expected at least one")
    names = [dimension.name for dimension in audiogram_dimensions()]
    return Audiograms(names, [f"nhanes_{person}" for person in joined], values)[complete], found


def _check_row(row: np.ndarray, where: str) -> None:
    for dimension, value in zip(audiogram_dimensions()[1:], row, strict=True):
        if not np.isnan(value):
            try:
                check_value(dimension, float(value))
            except UserError as error:
                raise UserError(f"{where}: {error}") from None


def _read_xpt(file: str | Path, wanted: Sequence[str]) -> pandas.DataFrame:
    path = Path(file)
    try:
        import pandas
    except ImportError as error:
        raise UserError(missing("pandas", "reading NHANES")) from error
    try:
        content = file_bytes(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); expected an XPT file of NHANES") from error
    if not content.startswith(_HEADER):
        raise UserError(f"{path}: found no XPT header, expected a SAS transport file (.XPT) of NHANES")
    try:
        with pandas.read_sas(path, format="xport", iterator=True) as reader:
            length, start = reader.record_length, reader.record_start
            table = reader.read()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: is cut short or damaged ({reason}); download it again") from error
    # The last block is filled with blanks; a partial record there means that blocks are missing.
    if len(content) % _BLOCK_BYTES or content[start + length * len(table) :].strip(b" ") or not len(table):
        raise UserError(f"{path}: is cut short, or holds no row; download it again")
    absent = [column for column in wanted if column not in table]
    if absent:
        raise UserError(
            f"{path}: found no column {', '.join(absent)}; audiometry files are AUX1, AUX_B, AUX_C, AUX_G, AUX_I, "
            "demographics DEMO and DEMO_B to DEMO_I"
        )
    return table
