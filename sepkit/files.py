"""Files that are either complete or absent, and JSON and YAML read with a clear line where they are broken."""

import csv
import errno
import functools
import hashlib
import io
import json
import os
import platform
import re
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sepkit.cleaning import cell, uncell
from sepkit.errors import UserError, exhausted, one_line, shown
from sepkit.limits import TEXT_BYTES, YAML_BYTES, YAML_NODES, YAML_NUMBER_CHARACTERS
from sepkit.owned import check, claim

# Of names, which hold 255 bytes: the rest is for what temporary names have beside them.
_LONG_NAME_BYTES = 200
_LONGEST_SUFFIX = 16
# Of temporary names: machine, process and thread.
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-\d+\.tmp(\..*)?", re.DOTALL)
_swept: set[Path] = set()
_DIGEST = ', "digest": "'

JSON_FORMAT = 1
"""`format` of every JSON object that sepkit writes into a file: it grows if a field changes its meaning or goes away.
Files of sepkit 0.2.0 and older have none, and are read as 1."""


@contextmanager
def atomic_output(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds, remove it otherwise.

    Files that the running command may not overwrite are refused, see `sepkit.owned`.

    `durable` waits until file and name are on the disk, so that no power cut loses them; it takes milliseconds.
    """
    path = Path(path)
    # Names differ between processes and threads that write the same file at once: the last one to finish wins.
    stem = path.stem
    if len(os.fsencode(path.name)) > _LONG_NAME_BYTES:
        stem = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
    writer = f"{_machine()}-{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f".{stem}.{writer}.tmp{path.suffix[:_LONGEST_SUFFIX]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError
        with suppress(FileNotFoundError):
            os.lstat(path)
    except (OSError, ValueError) as error:
        if exhausted(error):
            raise
        reason = getattr(error, "strerror", None) or ("permission denied" if isinstance(error, OSError) else error)
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            raise UserError(f"{path}: cannot be written to ({reason}); give the file a shorter name") from error
        raise UserError(f"{path.parent}: cannot be written to ({reason}); give an output folder that can") from error
    check(path)
    _sweep(path.parent)
    try:
        yield temporary
        if durable:
            _sync(temporary)
        claim(path, durable=durable)
        os.replace(temporary, path)
        if durable:
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove an output if it is there; refuse one that the running command may not write over."""
    if os.path.lexists(path):
        claim(path)
        path.unlink(missing_ok=True)


@functools.cache
def _machine() -> str:
    """Return a digest of the scope of process numbers: a machine since it was started, or a container on it."""
    space = boot = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    with suppress(OSError):
        # Machines on a shared disk may have one name.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return hashlib.sha256(f"{platform.node()} {space} {boot}".encode()).hexdigest()[:8]


def _sweep(folder: Path) -> None:
    """Remove temporary files of processes of this machine that were killed; once for each folder."""
    # Windows has no way to ask for a process that does not end it.
    if folder in _swept or os.name == "nt":
        return
    _swept.add(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            made = _TEMPORARY.fullmatch(entry.name)
            if made and made[1] == _machine() and not _is_running(int(made[2])):
                with suppress(OSError):
                    os.unlink(entry.path)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another owner's
    return True


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        # Windows opens no folders; it writes names by itself.
        return
    # Windows needs the right to write.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no fsync for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def file_digest(path: str | os.PathLike[str], kind: str = "sha256") -> str:
    """Return the digest of a file's bytes in hexadecimal; `kind` is a name in hashlib, such as "md5"."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class _Withdrawn(Exception):
    """An output that was begun only to see that it can be written."""


@contextmanager
def locked(file: Path, timeout: float = -1) -> Iterator[None]:
    """While the block runs, no other process holds this lock; say so where the file system has no locks.

    Args:
        file: the lock, made if absent.
        timeout: seconds to wait for another process; negative: without end.

    Raises:
        filelock.Timeout: another process holds it.
    """
    import filelock

    file.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(file, timeout) if _has_locks(file) else nullcontext():
        yield


def _has_locks(file: Path) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl

    with open(file, "ab") as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS):
                raise
            print(
                f"warning: {file.parent}: its file system has no locks ({error.strerror}); let no other command write "
                "there at the same time",
                file=sys.stderr,
            )
            return False
    return True


def check_writable(folder: Path) -> None:
    """Make a folder if it is absent; raise UserError if that, or writing to it, fails: before the work, not after."""
    with suppress(_Withdrawn), atomic_output(folder / ".writable") as temporary:
        temporary.touch()
        raise _Withdrawn


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write UTF-8 text atomically and durably, line ends as they are, and return the path."""
    with atomic_output(path, durable=True) as temporary:
        # Names of files that are no UTF-8 are written as the escapes of JSON.
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
    return Path(path)


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write plain data as JSON atomically, and return the path; raise ValueError for NaN or infinity.

    An object begins with its `format`, see `JSON_FORMAT`; lists have none.
    """
    if isinstance(data, Mapping):
        number = {"format": JSON_FORMAT}
        data = number | dict(data) | number
    return write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_yaml(path: str | os.PathLike[str], data: Any) -> Path:
    """Write plain data as YAML atomically, keys in their order, and return the path."""
    import yaml

    return write_text(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def parse_json(text: str | bytes) -> Any:
    """Return the plain data that JSON text stands for. ValueError: not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def journal_line(row: Mapping[str, Any]) -> str:
    """Return plain data as a line of JSON that ends with a digest of itself, as `journal_rows` reads it."""
    text = json.dumps(row, ensure_ascii=False)
    return f'{text[:-1]}{_DIGEST}{_line_digest(text)}"}}\n'


def journal_rows(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of such lines; those that are damaged, or were cut short by a kill, are left out."""
    with _reading(path, "remove it"):
        text = file_text(path, errors="replace")
    for line in text.split("\n"):
        head, found, digest = line.rpartition(_DIGEST)
        if found and digest == _line_digest(head + "}") + '"}':
            try:
                row = parse_json(head + "}")
            except ValueError:
                continue
            yield row


def _line_digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def read_json(path: str | os.PathLike[str], remedy: str = "write it again") -> Any:
    """Return the plain data of a JSON file."""
    with _reading(path, remedy):
        return parse_json(file_text(path))


def read_yaml(path: str | os.PathLike[str], remedy: str = "write it again", loader: type[Any] | None = None) -> Any:
    """Return the plain data of a YAML file, as `parse_yaml` does."""
    with _reading(path, remedy):
        text = file_text(path, most=YAML_BYTES)
    return parse_yaml(text, str(path), remedy, loader)


def parse_yaml(text: str, where: str, remedy: str = "write it again", loader: type[Any] | None = None) -> Any:
    """Return the plain data of YAML text, None for empty text; `where` and `remedy` are for messages.

    A key twice in a mapping is an error: of two blocks of one name YAML would silently drop the first.

    Values are counted before any is made, each alias as all that it stands for.
    """
    import yaml

    if len(text) > YAML_BYTES:
        raise UserError(f"{where}: found {len(text)} characters of YAML, expected at most {YAML_BYTES}; {remedy}")
    try:
        reader = (loader or yaml.SafeLoader)(text)
        node = reader.get_single_node()
        if node is None:
            return None
        if (count := _count_nodes(node, where, remedy, {})) > YAML_NODES:
            raise UserError(f"{where}: expands to {count:.3g} values, expected at most {YAML_NODES}; {remedy}")
        return reader.construct_document(node)
    except RecursionError as error:
        raise UserError(f"{where}: is nested too deeply, or contains itself; {remedy}") from error
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        # The others are what constructors of standard tags raise: `!!int "x"`, `!!timestamp`, keys that are lists.
        raise UserError(f"{where}: not YAML of plain values ({one_line(str(error))[:400]}); {remedy}") from error


def _count_nodes(node: Any, where: str, remedy: str, known: dict[int, int | None]) -> int:
    """Return how many values a YAML node stands for, aliases followed; `known` holds those counted before."""
    if id(node) in known:
        count = known[id(node)]
        if count is None:
            raise RecursionError
        return count
    known[id(node)] = None
    count = 1
    if isinstance(node.value, list):
        children = [child for item in node.value for child in (item if isinstance(item, tuple) else (item,))]
        lines: dict[Any, int] = {}
        for key in (item[0] for item in node.value if isinstance(item, tuple) and isinstance(item[0].value, str)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                found = f"{shown(key.value)} stands in line {lines[name]} and again in line {line}"
                raise UserError(f"{where}: {found} of one mapping, expected once; {remedy}")
            lines[name] = line
        count += sum(_count_nodes(child, where, remedy, known) for child in children)
    elif len(node.value) > YAML_NUMBER_CHARACTERS and node.tag.endswith((":int", ":float")):
        line = node.start_mark.line + 1
        raise UserError(
            f"{where}: line {line} contains a number of {len(node.value)} characters, expected at most "
            f"{YAML_NUMBER_CHARACTERS}; {remedy}"
        )
    known[id(node)] = count
    return count


@contextmanager
def _reading(path: str | os.PathLike[str], remedy: str) -> Iterator[None]:
    """Raise UserError, with what to do, if a file cannot be read or has no such content."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; {remedy}") from error
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or one_line(str(error))
        raise UserError(f"{path}: cannot be read ({reason}); {remedy}") from error


def file_bytes(path: str | os.PathLike[str], most: int = TEXT_BYTES) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: more than `most` bytes, or no regular file: devices and pipes may have no end.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise ValueError("no regular file; save its content in one")
    if status.st_size > most:
        raise ValueError(f"{status.st_size:,} bytes, expected at most {most:,}")
    with open(path, "rb") as file:
        return file.read()


def file_text(
    path: str | os.PathLike[str], encoding: str = "utf-8", errors: str = "strict", *, most: int = TEXT_BYTES
) -> str:
    """Return the text of a file, lines ending with a newline, as `Path.read_text` does; see `file_bytes`."""
    with io.TextIOWrapper(io.BytesIO(file_bytes(path, most)), encoding, errors) as text:
        return text.read()


def read_text(path: str | os.PathLike[str], expected: str) -> str:
    """Return the text of a UTF-8 file, without a byte order mark; UserError says what was `expected`."""
    with _reading(path, f"expected {expected}"):
        return file_text(path, "utf-8-sig")


def read_csv(
    path: str | os.PathLike[str], expected: str = "a CSV file"
) -> tuple[list[str], list[tuple[int, dict[str, str | None]]]]:
    """Return the columns of a CSV file, and number and cells of each line after the first.

    Cells are parted by commas, or by semicolons or tabs where the first line has no comma, with or without spaces after
    them.
    """
    text = read_text(path, expected)
    delimiter = next((mark for mark in ",;\t" if mark in text.partition("\n")[0]), ",")
    with _reading(path, f"expected {expected}"):
        reader = csv.DictReader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
        reader.fieldnames = columns = [name.strip() for name in reader.fieldnames or ()]
        # Cells beyond the columns are one list, under None.
        return columns, [(reader.line_num, {k: uncell(row[k]) if k else row[k] for k in row}) for row in reader]


def write_csv(path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a table atomically, numbers with all their digits, and return its path; see `sepkit.cleaning.cell`."""
    with (
        atomic_output(path) as temporary,
        open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows([*map(cell, row)] for row in (columns, *rows))
    return Path(path)


def cache_folder(name: str) -> Path:
    """Return the user's folder for what can be made or fetched again: ~/.cache/sepkit/NAME, or in XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sepkit" / name
