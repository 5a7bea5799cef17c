"""Read audiograms of NHANES, the United States' health survey: audiometry files joined with demographics.

Public domain, https://wwwn.cdc.gov/nchs/nhanes: AUX1, AUX_B, AUX_C (1999-2004), AUX_G (2011-12), AUX_I (2015-16), each
with the DEMO file of its years. Other years tested only the young or the old. Traps: 666 means no response at the
loudest tone and 888 that nothing could be obtained; both are missing values, not decibels. Each ear is tested twice at
1 kHz; the first test counts, the second (AUXU1K2R) is only reported. SAS files hold 0 as 5.4e-79.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sepkit.errors import UserError
from sepkit.extras import missing
from sepkit.studies.acquisition.audiogram import Audiograms, check_value
from sepkit.studies.acquisition.config import EARS, FREQUENCIES_HZ, audiogram_dimensions, threshold_name

if TYPE_CHECKING:
    import pandas

MISSING_CODES = (666.0, 888.0)
_BLOCK_BYTES = 80
_HEADER = b"HEADER RECORD*******LIBRARY HEADER RECORD"


@dataclass
class NHANESReport:
    """Findings for the user.

    Args:
        lines: one fact each.
    """

    lines: list[str]


def nhanes_column(ear: str, frequency_hz: int) -> str:
    """Return the name of a threshold in the files: AUXU500R, AUXU1K1L (the first test at 1 kHz), AUXU2KR ...

    Args:
        ear: "right" or "left".
        frequency_hz: of the tone.
    """
    tone = {500: "500", 1000: "1K1"}.get(frequency_hz, f"{frequency_hz // 1000}K")
    return f"AUXU{tone}{ear[0].upper()}"


def read_nhanes(
    audiometry: Sequence[str | Path], demographics: Sequence[str | Path], keep_incomplete: bool = False
) -> tuple[Audiograms, NHANESReport]:
    """Return the people in both kinds of file who have an age and all fourteen thresholds, and a report.

    Args:
        audiometry: AUX files (.XPT).
        demographics: DEMO files (.XPT).
        keep_incomplete: whether people with at least one threshold are kept too.

    Raises:
        UserError: a file that is missing, cut short or of another kind, a column that is absent, a person twice, or
            nobody in both.
    """
    people = _ages(demographics)
    columns = {threshold_name(ear, hz): nhanes_column(ear, hz) for ear in EARS for hz in FREQUENCIES_HZ}
    lines: list[str] = []
    ids: list[str] = []
    rows: list[np.ndarray] = []
    seen: set[int] = set()
    without_demographics = 0
    for file in audiometry:
        table = _read(file, ["SEQN", *columns.values()])
        persons = [int(number) for number in table["SEQN"]]
        values = np.stack([table[column].to_numpy(float) for column in columns.values()], axis=1).round(6)
        coded = {code: int((values == code).sum()) for code in MISSING_CODES}
        values[np.isin(values, MISSING_CODES)] = np.nan
        _check_thresholds(values, list(columns), persons, file)
        for person in persons:
            if person in seen:
                raise UserError(f"{file}: person (SEQN) {person} stands twice; give each file once")
            seen.add(person)
        known = [person in people for person in persons]
        without_demographics += len(persons) - sum(known)
        for person, row, has_age in zip(persons, values, known, strict=True):
            if has_age:
                ids.append(f"nhanes_{person}")
                rows.append(np.array([people[person][0], *row]))
        cycles = sorted({people[p][1] for p, has_age in zip(persons, known, strict=True) if has_age})
        lines.append(
            f"{file}: {len(persons)} people of {', '.join(cycles) or 'unknown years'}, both ears; "
            f"{coded[666.0]} thresholds without response (666) and {coded[888.0]} not obtained (888) are missing"
            f"{_retest(table)}"
        )
    if not rows:
        raise UserError(
            f"{', '.join(map(str, audiometry))}: none of its people is in {', '.join(map(str, demographics))}; "
            "give the DEMO file of the same years"
        )
    table = np.stack(rows)
    complete = ~np.isnan(table).any(1)
    lines.append(
        f"{len(table)} people with demographics ({without_demographics} without are left out), "
        f"{int(complete.sum())} complete"
    )
    if not complete.any():
        raise UserError(
            f"{', '.join(map(str, audiometry))}: found no complete row among {len(table)}; expected at least one"
        )
    kept = np.isfinite(table[:, 1:]).any(axis=1) if keep_incomplete else complete
    names = [dimension.name for dimension in audiogram_dimensions()]
    return Audiograms(names, ids, table)[np.asarray(kept)], NHANESReport(lines)


def _ages(files: Sequence[str | Path]) -> dict[int, tuple[float, str]]:
    """Return person -> age in years and the years of the survey."""
    people: dict[int, tuple[float, str]] = {}
    for file in files:
        table = _read(file, ["SEQN", "RIDAGEYR"])
        cycles = table["SDDSRVYR"] if "SDDSRVYR" in table else [np.nan] * len(table)
        for person, age, cycle in zip(table["SEQN"], table["RIDAGEYR"], cycles, strict=True):
            years = "unknown years" if np.isnan(cycle) else f"{1997 + 2 * int(cycle)}-{1998 + 2 * int(cycle)}"
            people[int(person)] = (round(float(age), 6), years)
    return people


def _read(file: str | Path, wanted: Sequence[str]) -> pandas.DataFrame:
    """Read the table of an XPT file, and check that it is complete.

    Raises:
        UserError: no such file, no XPT file, cut short, or a missing column.
    """
    path = Path(file)
    pandas = _pandas()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected an XPT file of NHANES") from error
    if not content.startswith(_HEADER):
        raise UserError(f"{path}: found no XPT header, expected a SAS transport file (.XPT) of NHANES")
    if len(content) % _BLOCK_BYTES:
        raise UserError(
            f"{path}: is cut short ({len(content)} bytes, no multiple of {_BLOCK_BYTES}); download it again"
        )
    try:
        with pandas.read_sas(path, format="xport", iterator=True) as reader:
            length, start = reader.record_length, reader.record_start
            table = reader.read()
    except Exception as error:
        raise UserError(
            f"{path}: is cut short or damaged ({' '.join(str(error).split())}); download it again"
        ) from error
    # The last block is filled with blanks; a partial record there means that blocks are missing.
    if content[start + length * len(table) :].strip(b" "):
        raise UserError(f"{path}: is cut short in the middle of a record; download it again")
    absent = [column for column in wanted if column not in table]
    if absent:
        raise UserError(
            f"{path}: found no column {', '.join(absent)}; audiometry files are AUX1, AUX_B, AUX_C, AUX_G, AUX_I, "
            "demographics DEMO and DEMO_B to DEMO_I"
        )
    if not len(table):
        raise UserError(f"{path}: holds no row; download it again")
    return table


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise UserError(missing("pandas", "reading NHANES")) from error
    return pandas


def _check_thresholds(values: np.ndarray, names: list[str], persons: list[int], file: str | Path) -> None:
    limits = {dimension.name: dimension for dimension in audiogram_dimensions()}
    for place, name in enumerate(names):
        for row in np.flatnonzero(~np.isnan(values[:, place])):
            try:
                check_value(limits[name], float(values[row, place]))
            except UserError as error:
                raise UserError(f"{file}: person (SEQN) {persons[row]}: {error}") from None


def _retest(table: pandas.DataFrame) -> str:
    """Report the second tests at 1 kHz, if there are any."""
    differences = []
    for ear in EARS:
        second = f"AUXU1K2{ear[0].upper()}"
        if second in table:
            pair = np.stack([table[nhanes_column(ear, 1000)].to_numpy(float), table[second].to_numpy(float)])
            pair[np.isin(pair, MISSING_CODES)] = np.nan
            differences.append(pair[1] - pair[0])
    known = np.concatenate(differences) if differences else np.empty(0)
    known = known[~np.isnan(known)]
    if not len(known):
        return "; no retests at 1 kHz"
    return (
        f"; {len(known)} retests at 1 kHz, not used, deviate by {np.sqrt(np.mean(known**2)):.1f} dB (root mean square)"
    )
