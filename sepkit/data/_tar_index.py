"""Index of a tar shard: where each member lies, so that it can be read without the ones before it.

`train-000000.tar::000000012.s1.flac` names a member of `train-000000.tar`. Beside the shard lies its index,
`train-000000.tar.index`: one JSON object in the first line ({"bytes": size of the tar, ...}), then a line
`member<TAB>offset<TAB>size` each, where the offset is that of the member's first byte of data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sepkit.errors import UserError, shown
from sepkit.files import parse_json, write_text

SEPARATOR = "::"
_MARK = ".tar" + SEPARATOR


@dataclass(frozen=True)
class Section:
    """A part of a file: `size` bytes from `offset` on."""

    path: Path
    offset: int
    size: int


def index_path(shard: Path) -> Path:
    """Return the path of a shard's index."""
    return shard.with_name(f"{shard.name}.index")


def locate(path: str | os.PathLike[str]) -> Section | None:
    """Return the section of bytes that `SHARD.tar::MEMBER` names; None for an ordinary path.

    Raises:
        UserError: no such shard, index or member, or a shard that is not the one that was indexed.
    """
    text = os.fspath(path)
    if _MARK not in text:
        return None
    head, _, member = text.rpartition(SEPARATOR)
    shard = Path(head)
    _, members = read_index(shard)
    if member not in members:
        raise UserError(f"{text}: {index_path(shard).name} has no member {member!r}; the manifest is of other shards")
    return Section(shard, *members[member])


def read_index(shard: Path) -> tuple[dict[str, Any], Mapping[str, tuple[int, int]]]:
    """Return the first line of a shard's index, and member -> (offset, size).

    Raises:
        UserError: no shard or no index, an index that cannot be read, or that of a shard of another size.
    """
    index = index_path(shard)
    try:
        size = shard.stat().st_size
        state = index.stat()
    except OSError as error:
        raise UserError(
            f"{error.filename}: no such file; a shard and its index lie side by side, get it or write the shards again"
        ) from error
    header, members = _read(index, state.st_mtime_ns, state.st_size)
    if header.get("bytes") != size:
        raise UserError(
            f"{shard}: holds {size} bytes, but its index says {shown(header.get('bytes'))}; truncated, or of other "
            "shards: get it again"
        )
    return header, members


def write_index(shard: Path, members: Mapping[str, tuple[int, int]], **more: Any) -> Path:
    """Write the index of a complete shard; return its path.

    `members` maps each to (offset, size), in the order of the shard; `more` are further fields of the first line.
    """
    lines = [json.dumps({"bytes": shard.stat().st_size} | more)]
    lines += [f"{name}\t{offset}\t{size}" for name, (offset, size) in members.items()]
    write_text(index_path(shard), "".join(f"{line}\n" for line in lines))
    return index_path(shard)


# The index of a shard of 500 MB has about a thousand lines. The key includes the time of change, so edits are noticed.
@lru_cache(maxsize=256)
def _read(index: Path, mtime_ns: int, size: int) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    try:
        first, *lines = index.read_text(encoding="utf-8").splitlines()
        header: dict[str, Any] = parse_json(first)
        if not isinstance(header, dict):
            raise ValueError(f"its first line is {shown(header)}")
        rows = (line.split("\t") for line in lines)
        members = {name: (int(offset), int(length)) for name, offset, length in rows}
        if any(min(place) < 0 or sum(place) > header.get("bytes", 0) for place in members.values()):
            raise ValueError("a member lies beyond the end of the shard")
        return header, members
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{index}: not the index of a shard ({error}); write the shards again") from error
