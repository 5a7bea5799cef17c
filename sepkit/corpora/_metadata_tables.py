"""The tables of LibriMix and VCTK-2mix: which utterances and noise make a mixture, and what was written of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sepkit.errors import UserError
from sepkit.files import read_csv


@dataclass(frozen=True)
class Recipe:
    """A line of the metadata: the recipe of one mixture. Recordings are absolute or relative to the folder of the
    speech or noise; a gain is a factor."""

    id: str
    sources: tuple[str, ...]
    gains: tuple[float, ...]
    noise: str
    noise_gain: float


def recipe_columns(speakers: int) -> list[str]:
    """Return the names of the metadata's columns, in order."""
    of_source = [f"source_{number}_{what}" for number in range(1, speakers + 1) for what in ("path", "gain")]
    return ["mixture_ID", *of_source, "noise_path", "noise_gain"]


def find_tables(folder: Path, prefix: str, nested: Sequence[str]) -> dict[str, Path]:
    """Return table names, without `prefix` and `.csv`, -> tables of a folder, or of one `nested` in it; "info" is left
    out."""
    for candidate in (folder, *(folder / name for name in nested)):
        tables = {
            path.stem.removeprefix(prefix): path
            for path in sorted(candidate.glob(f"{prefix}*.csv"))
            if "info" not in path.name
        }
        if tables:
            return tables
    found = "no such folder" if not folder.is_dir() else f"holds no {prefix}*.csv"
    raise UserError(f"{folder}: {found}; expected the folder of the published metadata")


def read_table(path: Path, speakers: int) -> tuple[list[Recipe], dict[str, str]]:
    """Return the mixtures of a table, in its order, and its unusable lines: place -> reason."""
    recipes: list[Recipe] = []
    bad: dict[str, str] = {}
    first_line: dict[str, int] = {}
    for number, row in _rows(path, recipe_columns(speakers)):
        where = f"{path}:{number}"
        try:
            recipe = _recipe(row, speakers)
            if recipe.id in first_line:
                raise ValueError(f"mixture_ID {recipe.id!r} is that of line {first_line[recipe.id]}; names must differ")
        except ValueError as error:
            bad[where] = f"{where}: {error}"
            continue
        first_line[recipe.id] = number
        recipes.append(recipe)
    if not recipes:
        raise UserError(next(iter(bad.values()), f"{path}: holds no mixtures; get the table again"))
    return recipes, bad


def read_info(path: Path, speakers: int) -> dict[str, list[tuple[str, str | None]]]:
    """Return mixture -> (speaker, "F", "M" or None) of each source, from `..._info.csv`; empty if there is none."""
    if not path.is_file():
        return {}
    columns = [f"speaker_{number}_{what}" for number in range(1, speakers + 1) for what in ("ID", "sex")]
    speakers_of: dict[str, list[tuple[str, str | None]]] = {}
    for _, row in _rows(path, ["mixture_ID", *columns]):
        cells = [row[column] or "" for column in columns]
        sexes = [sex if sex in ("F", "M") else None for sex in cells[1::2]]
        speakers_of[row["mixture_ID"] or ""] = list(zip(cells[::2], sexes, strict=True))
    return speakers_of


def _rows(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str | None]]]:
    found, rows = read_csv(path)
    if found != list(columns):
        raise UserError(
            f"{path}: columns {', '.join(found[:9]) or 'none'}; expected {', '.join(columns)}: the metadata of another "
            "version, or for another number of speakers"
        )
    return rows


def _recipe(row: dict[str, str | None], speakers: int) -> Recipe:
    cells = [row[column] for column in recipe_columns(speakers)]
    if None in cells or "" in cells or None in row:
        raise ValueError(f"expected {len(cells)} cells, none of them empty; the table is damaged")
    name, *parts = [cell or "" for cell in cells]
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"mixture_ID {name!r} leads out of its folder; expected a plain name")
    return Recipe(
        id=name,
        sources=tuple(parts[:-2:2]),
        gains=tuple(_gain(text) for text in parts[1:-2:2]),
        noise=parts[-2],
        noise_gain=_gain(parts[-1]),
    )


def _gain(text: str) -> float:
    try:
        gain = float(text)
    except ValueError:
        gain = math.nan
    if not math.isfinite(gain):
        raise ValueError(f"gain {text!r}, expected a finite number")
    return gain
