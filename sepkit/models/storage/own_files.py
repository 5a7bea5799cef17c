"""Files of a user's own that a model needs (`--import FILE.py`): noted on saving, asked for on loading."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sepkit.files import file_bytes


def files_of(config: Any) -> list[dict[str, str]]:
    """Return name and digest of every file, other than sepkit's, that defines a part of a configuration.

    Args:
        config: a dataclass, whose fields are searched too.
    """
    found = {}
    for cls in _classes(config):
        module = sys.modules.get(cls.__module__)
        path = getattr(module, "__file__", None)
        if cls.__module__.partition(".")[0] != "sepkit" and path is not None:
            found[Path(path).name] = _digest(Path(path))
    return [{"file": name, "sha256": digest} for name, digest in sorted(found.items())]


def files_wanted(description: Mapping[str, Any]) -> str:
    """Return the options that import the files that a saved model names; empty if it names none."""
    return " ".join(f"--import {name}" for name in _noted(description))


def changed_files(description: Mapping[str, Any], config: Any) -> list[str]:
    """Return the names of files that are not as they were when a model was saved."""
    saved = _noted(description)
    return [entry["file"] for entry in files_of(config) if saved.get(entry["file"], entry["sha256"]) != entry["sha256"]]


def _noted(description: Mapping[str, Any]) -> dict[str, str]:
    """Name -> digest of the files that a saved model names."""
    entries = description.get("own_files")
    entries = entries if isinstance(entries, list) else []
    found = [(entry.get("file"), entry.get("sha256")) for entry in entries if isinstance(entry, dict)]
    return {name: digest for name, digest in found if isinstance(name, str) and isinstance(digest, str)}


def _classes(value: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from _classes(getattr(value, field.name))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(file_bytes(path)).hexdigest()
    except (OSError, ValueError):
        return ""
