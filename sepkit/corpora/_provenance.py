"""Note how the recordings in a folder were made, so that differently made ones are not added to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sepkit.errors import UserError
from sepkit.files import read_json, write_json


def check_provenance(path: Path, made_with: Mapping[str, object]) -> None:
    """Add to the JSON file `path` how the recordings in its folder are made; refuse a file that says otherwise."""
    known = read_json(path, "choose another --out") if path.is_file() else {}
    for name, value in made_with.items():
        if known.get(name, value) != value:
            raise UserError(f"{path}: made with {name} {known[name]}, not {value}; choose another --out")
    write_json(path, known | dict(made_with))
