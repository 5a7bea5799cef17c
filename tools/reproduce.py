"""`make reproduce ROW=egs/mini:cpu_seed0`: run again what made a row of a RESULTS.md, and say whether it comes out.

    python -m tools.reproduce ROW [--out build/reproduce]

`egs/NAME/rows.yaml` declares the rows: the command, how long it takes, and for each figure where it stands in the
files that the command writes, the figure of RESULTS.md and the spread that is stated there. The exit code is 0 if all
figures lie within their spread, 1 if one does not, 2 for a mistake. The same command again continues.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from yaml import safe_load

from sepkit.choices import from_dict
from sepkit.errors import UserError
from sepkit.files import read_json, read_text, read_yaml, write_yaml

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(kw_only=True)
class Figure:
    """A figure of a row.

    Args:
        name: what it is, with its unit.
        file: JSON file that holds it, below the folder of the results; a pattern: the mean over the files, as of seeds.
        query: JMESPath of the number in it.
        spread: where the spread comes from.
        line: part of the line of RESULTS.md that prints it.
        printed: the figure as RESULTS.md prints it.
        lowest: lower end of the stated spread.
        highest: upper end of it.
        card: in place of these three: card of a model that ships, from the root of the repository ...
        card_query: ... and JMESPath of the figure in the YAML at its head, two decimals of which RESULTS.md prints ...
        margin: ... and how far the spread goes to both sides of it.
    """

    name: str
    file: str
    query: str
    spread: str
    line: str
    printed: str = ""
    lowest: float = 0.0
    highest: float = 0.0
    card: str = ""
    card_query: str = ""
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.card:
            path = REPOSITORY / self.card
            found = _number(safe_load(read_text(path, "a card").split("---")[1]), self.card_query, path, self.name)
            self.printed = f"{found:.2f}"
            self.lowest, self.highest = found - self.margin, found + self.margin


@dataclass(kw_only=True)
class Row:
    """A row of RESULTS.md that can be made again.

    Args:
        minutes: of two cores.
        command: shell words, run in the folder of the recipe; {out} is the folder of the results, {config} the file
            that `config` and `change` make, {data} the folder of corpora that SEPKIT_DATA names.
        figures: what must come out.
        config: YAML file of the recipe to begin with.
        change: values that replace those of `config`, section by section.
        data: what must lie below {data}, as a path, with where it comes from.
    """

    minutes: float
    command: str
    figures: list[Figure]
    config: str = ""
    change: dict = field(default_factory=dict)
    data: dict = field(default_factory=dict)
    # Filled in by `declared_rows`.
    name: str = ""

    @property
    def recipe(self) -> Path:
        """The folder of the recipe."""
        return REPOSITORY / self.name.partition(":")[0]


def main(argv: list[str] | None = None) -> int:
    """Reproduce a row; return the exit code."""
    parser = argparse.ArgumentParser(prog="make reproduce", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("row", nargs="?", default="", help="egs/NAME:ROW")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "reproduce", help="folder of the results")
    arguments = parser.parse_args(argv)
    rows = declared_rows()
    if not arguments.row:
        print("\n".join(f"{name:<{max(map(len, rows))}}  {row.minutes:g} min" for name, row in rows.items()))
        print("\nmake reproduce ROW=NAME runs one; docs/reproduce.md tells the rest")
        return 0
    try:
        if arguments.row not in rows:
            raise UserError(f"ROW: found {arguments.row!r}, expected one of {', '.join(rows)}")
        return 0 if reproduce(rows[arguments.row], arguments.out) else 1
    except UserError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2


def declared_rows() -> dict[str, Row]:
    """All rows by name, such as egs/mini:cpu_seed0.

    Raises:
        UserError: a rows.yaml with an unknown or missing field.
    """
    rows: dict[str, Row] = {}
    for path in sorted(REPOSITORY.glob("egs/*/rows.yaml")):
        recipe = path.parent.relative_to(REPOSITORY).as_posix()
        for name, fields in read_yaml(path).items():
            rows[f"{recipe}:{name}"] = from_dict(Row, fields | {"name": f"{recipe}:{name}"}, f"{path}: {name}")
    return rows


def reproduce(row: Row, out: Path) -> bool:
    """Run the command of a row and print its figures beside those of RESULTS.md; return whether all are within.

    Args:
        row: which one.
        out: a folder is made in it for each row.

    Raises:
        UserError: data that are not there, a command that fails, or a figure that its files lack.
    """
    folder = (out / row.name.replace(":", "/")).resolve()
    words = command_words(row, folder)
    print(f"{row.name}: about {row.minutes:g} minutes on two cores; results in {folder}")
    print(f"$ {shlex.join(words)}", flush=True)
    began = time.perf_counter()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(words, cwd=row.recipe, env=os.environ | {"PATH": path}, check=False)
    if done.returncode != 0:
        raise UserError(
            f"{row.name}: the command ended with exit code {done.returncode}; its own lines above say why, and the "
            f"same command again continues"
        )
    outcomes = [(figure, found_figure(figure, folder)) for figure in row.figures]
    for figure, found in outcomes:
        print(line_of(figure, found))
    within = all(lies_within(figure, found) for figure, found in outcomes)
    minutes = (time.perf_counter() - began) / 60
    print(f"{row.name}: {'reproduced' if within else 'NOT reproduced'}, in {minutes:.1f} minutes")
    return within


def command_words(row: Row, folder: Path) -> list[str]:
    """The words of the row's command; writes the configuration that it names.

    Args:
        row: which one.
        folder: of the results, made if absent.

    Raises:
        UserError: data that are not there.
    """
    data = Path(os.environ.get("SEPKIT_DATA", "")).resolve()
    for name, source in row.data.items():
        if not os.environ.get("SEPKIT_DATA") or not (data / name).exists():
            raise UserError(
                f"{row.name}: needs {name} ({source}), which was not found; set SEPKIT_DATA to the folder that holds it"
            )
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yaml"
    if row.config:
        write_yaml(config, _merged(read_yaml(row.recipe / row.config), row.change))
    return [word.format(out=folder, config=config, data=data) for word in shlex.split(row.command)]


def _merged(below: Any, above: Any) -> Any:
    """`below` with the values of `above`, section by section."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {name: _merged(below.get(name), value) for name, value in above.items()}


def found_figure(figure: Figure, folder: Path) -> float:
    """The number that a run wrote, or the mean of several runs.

    Args:
        figure: which one.
        folder: of the results.

    Raises:
        UserError: no such file, or no number there.
    """
    paths = sorted(folder.glob(figure.file))
    if not paths:
        raise UserError(f"{folder / figure.file}: missing, expected from the command; remove {folder} and run it again")
    return fmean(_number(read_json(path), figure.query, path, figure.name) for path in paths)


def _number(content: Any, query: str, path: Path, name: str) -> float:
    import jmespath

    found = jmespath.search(query, content)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise UserError(f"{path}: found {found!r} at {query}, expected a number ({name})")
    return float(found)


def lies_within(figure: Figure, found: float) -> bool:
    """Whether a number, rounded as RESULTS.md rounds, lies within the stated spread."""
    return figure.lowest <= round(found, _decimals(figure.printed)) <= figure.highest


def line_of(figure: Figure, found: float) -> str:
    """A line: the figure found, that of RESULTS.md, and the verdict."""
    decimals = _decimals(figure.printed)
    low, high = (f"{value:.{decimals}f}" for value in (figure.lowest, figure.highest))
    verdict = "within" if lies_within(figure, found) else "OUTSIDE"
    return (
        f"{figure.name}: found {found:.{decimals}f}, RESULTS.md has {float(figure.printed):.{decimals}f}, "
        f"{verdict} {low} to {high} ({figure.spread})"
    )


def _decimals(printed: str) -> int:
    return len(printed.partition(".")[2])


if __name__ == "__main__":
    sys.exit(main())
