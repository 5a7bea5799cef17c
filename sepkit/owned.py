"""Protect files: a command overwrites neither its inputs nor files that sepkit did not write.

The names that a command writes below its output folder are kept in the folder's `.written-by-sepkit`, each before its
file appears. A file that exists and is not listed belongs to the user. Only commands check; functions called from
Python write what they are asked to write.
"""

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sepkit.errors import UserError

RECORD = ".written-by-sepkit"
"""File of the names that sepkit wrote below a folder, one per line."""

FOREIGN = "{}: is there, not written by sepkit, and would be written over; move it, or choose another --out"
"""Line about a file that sepkit did not write."""

# By these files sepkit's folders are known that have no names: of an earlier version, or of a web page.
_FOLDERS = {
    "journal.jsonl": b'"digest": "',
    "model.json": b'\n "most_seconds": ',
    "resume/last.ckpt": b"PK",
    "summary.json": b'\n "version": "',
}
# What stands in every file of these kinds that sepkit writes: alone they need no record beside them.
_MARKS = {".html": b"<footer>Made by sepkit ", ".htm": b"<footer>Made by sepkit ", ".onnx": b'"sepkit": "'}
# Of a folder that is a model.
_MODEL_FILES = ("model.onnx", "model.safetensors", "model.yaml")


@dataclass
class Command:
    """The outputs and inputs of a command.

    Args:
        root: folder of the outputs; None: they are not known, and only inputs are safe.
        inputs: device and inode of each file that the command line names.
        keeps_record: whether names are kept in `root`; else only files of `_MARKS` may be replaced.
        finished: whether work is kept below `root` that the same command does not do again.
        known: names in the record, as far as it was read.
    """

    root: Path | None = None
    inputs: frozenset[tuple[int, int]] = frozenset()
    keeps_record: bool = True
    finished: bool = False
    known: set[str] = field(default_factory=set)


_command = Command()


def command() -> Command:
    """Return the record of the running command; processes that it starts take it over by `adopt`."""
    return _command


def adopt(other: Command) -> None:
    """Let this process write for a command."""
    global _command
    _command = other


@contextmanager
def writing(
    out: str | os.PathLike[str] | None,
    inputs: Iterable[object],
    names: Sequence[str] | None = (),
    *,
    keeps_record: bool = True,
) -> Iterator[None]:
    """While the block runs, refuse to write over an input, or over a file that sepkit did not write.

    Args:
        out: folder of the outputs, or the file itself; None: left to the function that runs.
        inputs: values of the command line; those that are no paths of files or models do not count.
        names: what will be written below the folder, as far as it is known: refused before the work; None: `out` is
            a file.
        keeps_record: whether the names are kept in the folder.

    Raises:
        UserError: one of them would be written over.
    """
    before = _command
    root = None if out is None else Path(os.path.realpath(out))
    if root is not None and names is None:
        keeps_record = root.suffix.lower() not in _MARKS
        root, names = Path(os.path.realpath(root.parent)), [root.name]
    adopt(Command(root, frozenset(itertools.chain.from_iterable(map(_identities, inputs))), keeps_record))
    try:
        if root is not None and not (root / RECORD).is_file() and _is_known(root):
            _command.known = {_name(path) or "" for path in root.rglob("*") if path.is_file()}
            _note(root, _command.known)
        for name in names or ():
            check(Path(root or "", name))
        yield
    finally:
        before.finished |= _command.finished
        adopt(before)


def _identities(value: object) -> Iterator[tuple[int, int]]:
    if not isinstance(value, str | os.PathLike):
        return
    folders = [os.path.join(value, part) for part in ("", "model")] if os.path.isdir(value) else []
    for path in [os.path.join(folder, name) for folder in folders for name in _MODEL_FILES] or [value]:
        with suppress(OSError, ValueError):
            status = os.stat(path)
            yield status.st_dev, status.st_ino


def is_input(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is one that the command line names, by this name or another one."""
    return not os.path.isdir(path) and not _command.inputs.isdisjoint(_identities(path))


def check(path: str | os.PathLike[str]) -> None:
    """Raise UserError if a file is an input, or is below the outputs and was not written by sepkit."""
    if is_input(path):
        raise UserError(f"{path}: is an input of this command, and would be written over; choose another --out")
    root, name = _command.root, _name(path)
    if root is None or name is None or name in _command.known or not os.path.lexists(path):
        return
    with suppress(OSError):
        lines = (root / RECORD).read_bytes().split(b"\n")
        _command.known |= {os.fsdecode(line).replace("\0", "\n") for line in lines}
    if name not in _command.known and not _is_marked(Path(path)):
        raise UserError(FOREIGN.format(path))


def claim(path: str | os.PathLike[str], *, durable: bool = False) -> None:
    """Note that a file will be written or removed; raise UserError as `check` does.

    `durable` waits until the note is on the disk.
    """
    check(path)
    name, root = _name(path), _command.root
    if root is None or name is None or name in _command.known:
        return
    _note(root, {name}, durable)
    _command.known.add(name)


def _note(root: Path, names: Collection[str], durable: bool = False) -> None:
    if _command.keeps_record:
        # One write: lines of processes that append at once do not mix.
        with open(root / RECORD, "ab", buffering=0) as file:
            file.write(b"".join(os.fsencode(name.replace("\n", "\0")) + b"\n" for name in names))
            if durable:
                os.fsync(file.fileno())


def _name(path: str | os.PathLike[str]) -> str | None:
    """Return the path below the outputs; None for one that is not."""
    place = Path(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
    root = _command.root
    return None if root is None or not place.is_relative_to(root) else place.relative_to(root).as_posix()


def _is_marked(path: Path) -> bool:
    mark = _MARKS.get(path.suffix.lower())
    return mark is not None and path.is_file() and mark in path.read_bytes()


def _is_known(root: Path) -> bool:
    return any((root / name).is_file() and mark in (root / name).read_bytes() for name, mark in _FOLDERS.items())
