"""Files of a user's own that a model needs (`--import FILE.py`): noted on saving, asked for on loading."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def files_of(config: Any) -> list[dict[str, str]]:
    """Return name and digest of every file, other than sepkit's, that defines a part of a configuration."""
    found = {}
    for cls in _classes(config):
        module = sys.modules.get(cls.__module__)
        path = getattr(module, "__file__", None)
        if cls.__module__.partition(".")[0] != "sepkit" and path is not None:
            found[Path(path).name] = _digest(Path(path))
    return [{"file": name, "sha256": digest} for name, digest in sorted(found.items())]


def files_wanted(description: Mapping[str, Any]) -> str:
    """Return the command-line options that import the files a saved model names; "" if it names none."""
    return " ".join(f"--import {entry['file']}" for entry in description.get("own_files") or [])


def changed_files(description: Mapping[str, Any], config: Any) -> list[str]:
    """Return the names of files that changed since a model was saved; `config` was made with the present files."""
    saved = {entry["file"]: entry["sha256"] for entry in description.get("own_files") or []}
    return [entry["file"] for entry in files_of(config) if saved.get(entry["file"], entry["sha256"]) != entry["sha256"]]


def _classes(value: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from _classes(getattr(value, field.name))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
