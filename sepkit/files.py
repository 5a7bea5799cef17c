"""Files that are either complete or absent, and JSON and YAML read with a clear line where they are broken."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sepkit.errors import UserError


@contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds, remove it otherwise.

    The folder is made if it is absent.

    Raises:
        UserError: the folder cannot be made or written to.
    """
    path = Path(path)
    # Names differ between processes and threads that write the same file at once: the last one to finish wins.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}-{threading.get_ident()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError
    except OSError as error:
        reason = error.strerror or "permission denied"
        raise UserError(f"{path.parent}: cannot be written to ({reason}); give an output folder that can") from error
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Make the folder if it is absent; raise UserError if that, or writing to it, fails: before the work, not after."""
    with atomic_output(folder / ".writable") as temporary:
        temporary.touch()
    (folder / ".writable").unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write UTF-8 text atomically, line ends as they are, and return the path.

    Raises:
        UserError: the folder cannot be written to.
    """
    with atomic_output(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return Path(path)


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write plain data as JSON atomically, and return the path.

    Raises:
        UserError: the folder cannot be written to.
        ValueError: NaN or infinity, which JSON does not have.
    """
    return write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_yaml(path: str | os.PathLike[str], data: Any) -> Path:
    """Write plain data as YAML atomically, keys in their order, and return the path.

    Raises:
        UserError: the folder cannot be written to.
    """
    import yaml

    return write_text(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def read_json(path: str | os.PathLike[str], remedy: str = "write it again") -> Any:
    """Return the plain data of a JSON file.

    Args:
        path: of the file.
        remedy: what to do if it cannot be read, for the message.

    Raises:
        UserError: unreadable, or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error, remedy) from error


def read_yaml(path: str | os.PathLike[str], remedy: str = "write it again") -> Any:
    """Return the plain data of a YAML file; None for an empty one.

    Args:
        path: of the file.
        remedy: what to do if it cannot be read, for the message.

    Raises:
        UserError: unreadable, or not YAML.
    """
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _unreadable(path, error, remedy) from error


def _unreadable(path: str | os.PathLike[str], error: Exception, remedy: str) -> UserError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    return UserError(f"{path}: cannot be read ({reason}); {remedy}")
