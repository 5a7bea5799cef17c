"""What pages of the site show and play, made when the site is built, by the commands that the pages tell.

A page says `<!-- made: NAME -->` where it belongs; elsewhere than on the site that is nothing.
"""

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import yaml

from tools.sepkit_command import run

PLACE = "made"
"""Folder of the files, below the root of the site."""

_MARK = re.compile(r"<!-- made: (\w+) -->")


def with_shows(markdown: str, page: str) -> str:
    """Markdown of a page with what it shows in place of its marks.

    Args:
        markdown: of the page.
        page: its path below docs/, by which paths of the files are told.
    """
    up = os.path.relpath(PLACE, Path(page).parent)
    return _MARK.sub(lambda found: made()[found[1]].replace("{here}", up), markdown)


def files() -> dict[str, bytes]:
    """Path below the root of the site -> content of all files that pages show."""
    made()
    return _FILES


_FILES: dict[str, bytes] = {}


@lru_cache(None)
def made() -> dict[str, str]:
    """Name -> Markdown of what is shown, with {here} for the folder of the files; makes them once."""
    shows: dict[str, Callable[[Path], str]] = {"parting": parting, "separated": separated, "citation": citation}
    with tempfile.TemporaryDirectory() as folder:
        return {name: make(Path(folder)) for name, make in shows.items()}


def parting(folder: Path) -> str:
    """The figure of free hypotheses on three Gaussians.

    Args:
        folder: to work in.
    """
    (folder / "annealing.yaml").write_text("free: {temperatures: [1.3]}\n")
    _sepkit("quantize", "free", "--config", folder / "annealing.yaml", "--out", folder)
    _FILES[f"{PLACE}/annealing.png"] = (folder / "figures" / "annealing.png").read_bytes()
    return "![The figure shows where hypotheses rest, over the temperature.]({here}/annealing.png)"


def separated(folder: Path) -> str:
    """Players of a mixture of synthetic voices and of what the shipped model makes of it.

    Args:
        folder: to work in.
    """
    sizes = {"train-voices": 2, "train-sentences": 1, "heldout-sentences": 1, "train-mixtures": 1, "dev-mixtures": 1}
    small = [f"--{name}={size}" for name, size in sizes.items()]
    _sepkit("prepare", "mini", *small, "--test-mixtures=2", "--out", folder / "mini")
    _sepkit("prepare", "wavs", "--manifest", folder / "mini" / "test.jsonl", "--first", 1, "--out", folder / "wavs")
    _sepkit("separate", folder / "wavs" / "mix", "--format", "flac", "--out", folder / "separated")
    (told,) = (folder / "separated").glob("*_*.json")
    columns = {"mixture": next((folder / "wavs" / "mix").iterdir())}
    for number, name in enumerate(json.loads(told.read_text())["estimates"], 1):
        columns[f"estimate {number}"] = told.parent / name
    for name, path in columns.items():
        _FILES[f"{PLACE}/{name.replace(' ', '_')}{path.suffix}"] = path.read_bytes()
    players = [
        f'<figure><figcaption>{name}</figcaption><audio controls preload="metadata" aria-label="{name}" '
        f'src="{{here}}/{name.replace(" ", "_")}{path.suffix}"></audio></figure>'
        for name, path in columns.items()
    ]
    return f'<div class="players">{"".join(players)}</div>'


def citation(folder: Path) -> str:
    """The entry for a bibliography, from CITATION.cff.

    Args:
        folder: not used.
    """
    told = yaml.safe_load((Path(__file__).resolve().parent.parent / "CITATION.cff").read_text(encoding="utf-8"))
    fields = {
        "title": f"{{{told['title']}: {told['abstract'].strip().rstrip('.')}}}",
        "author": f"{{{{{told['authors'][0]['name']}}}}}",
        "year": f"{{{str(told['date-released'])[:4]}}}",
        "version": f"{{{told['version']}}}",
    }
    if "repository-code" in told:
        fields["url"] = f"{{{told['repository-code']}}}"
    lines = "".join(f"  {name} = {value},\n" for name, value in fields.items())
    return f"```bibtex\n@software{{sepkit,\n{lines}}}\n```"


def _sepkit(*words: object) -> None:
    """Run a command; only its errors are shown."""
    with contextlib.redirect_stdout(io.StringIO()):
        run(*words)
