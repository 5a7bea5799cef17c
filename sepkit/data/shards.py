"""Tar shards in the WebDataset layout: a training set in a few large files whose items can be read one by one.

    OUT/train-000000.tar          000000000.json, 000000000.s1.flac, 000000000.s2.flac, 000000001.json ...
    OUT/train-000000.tar.index    where each member lies, see `sepkit.data._tar_index`
    OUT/train.jsonl               the manifest, with paths like train-000000.tar::000000000.s1.flac

A sample is a line of a manifest (`.json`) with the recordings it needs: `.mix` (recorded mixtures only), `.s1`, `.s2`
..., `.noise`. Recordings are whole, at their own rate, and lossless: 16- and 24-bit PCM becomes FLAC, and other formats
are copied. The mixtures of the sharded manifest therefore equal those of the original in every sample.
`MixtureDataset` reads it like any other manifest, with the same guarantees (an item is a function of seed, epoch and
index; each rank has its share; exact resume; dynamic mixing). Readers of WebDataset can use the shards as well.

A recording that occurs in k mixtures is stored k times. This costs space (WSJ0-2mix: 3 times) but makes every sample
complete. Dynamic mixing counts it once: the field `recording` of a source identifies it.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sepkit.data import audio
from sepkit.data._tar_index import SEPARATOR, index_path, locate, read_index, write_index
from sepkit.data.manifest import Manifest, MixtureEntry, entry_from_line, entry_to_line
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.files import atomic_output

__all__ = ["Shard", "index_path", "plan_shards", "read_shard", "write_shard"]

_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Shard:
    """A shard that is to be written.

    Args:
        path: the tar file.
        first: number of its first mixture in the manifest, from 0; samples are named by these numbers.
        entries: its mixtures.
        fingerprint: of the mixtures, and of the sizes and times of their files.
    """

    path: Path
    first: int
    entries: tuple[MixtureEntry, ...]
    fingerprint: str


def plan_shards(manifest: Manifest, out: Path, shard_megabytes: float) -> list[Shard]:
    """Return the shards of consecutive mixtures that a manifest is divided into.

    A shard has at least one mixture. Sizes are those of the original files; FLAC makes most shards smaller.

    Args:
        manifest: of the training set.
        out: folder of the shards.
        shard_megabytes: largest size of a shard, 10^6 bytes.
    """
    limit = shard_megabytes * 1e6
    shards: list[Shard] = []
    members: list[MixtureEntry] = []
    states: list[str] = []
    filled = 0
    for number, entry in enumerate(manifest):
        state = [_state(entry.resolve(path)) for path in _paths(entry).values()]
        size = sum(max(0, size) for size, _ in state)
        if members and filled + size > limit:
            shards.append(_shard(manifest, out, len(shards), number - len(members), members, states))
            members, states, filled = [], [], 0
        members.append(entry)
        states.append(f"{entry_to_line(entry)} {state}")
        filled += size
    return [*shards, _shard(manifest, out, len(shards), len(manifest) - len(members), members, states)]


def write_shard(shard: Shard) -> dict[str, str]:
    """Write a shard and its index atomically; return the mixtures that are not in it, with the reason.

    A complete shard of the same mixtures and files is kept.

    Args:
        shard: of `plan_shards`.

    Raises:
        UserError: the folder cannot be written to.
    """
    if _is_done(shard):
        return {}
    index_path(shard.path).unlink(missing_ok=True)
    left_out: dict[str, str] = {}
    members: dict[str, tuple[int, int]] = {}
    position = 0
    with atomic_output(shard.path) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, entry in enumerate(shard.entries, start=shard.first):
            try:
                sample = _sample(entry, f"{number:09d}", shard.path.name)
            except UserError as error:
                left_out[entry.id] = str(error)
                continue
            for name, data in sample:
                # A header of one block precedes the data, which fill whole blocks.
                members[name] = (position + _BLOCK, len(data))
                position += _BLOCK + -(-len(data) // _BLOCK) * _BLOCK
                # The header holds no times, users or modes, so that the same mixtures give the same bytes.
                header = tarfile.TarInfo(name)
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
    write_index(shard.path, members, fingerprint=shard.fingerprint, complete=not left_out)
    return left_out


def read_shard(shard: Path) -> Iterator[MixtureEntry]:
    """Yield the mixtures of a shard, in its order; their paths start from its folder.

    Args:
        shard: path of the tar file.

    Raises:
        UserError: no such shard or index, or lines that are not those of a manifest.
    """
    _, members = read_index(shard)
    with open(shard, "rb") as file:
        for name, (offset, size) in members.items():
            if name.endswith(".json"):
                file.seek(offset)
                entry = entry_from_line(file.read(size).decode("utf-8", "replace"), f"{shard}{SEPARATOR}{name}")
                entry.folder = shard.parent
                yield entry


def _shard(
    manifest: Manifest, out: Path, number: int, first: int, members: Sequence[MixtureEntry], states: Iterable[str]
) -> Shard:
    digest = hashlib.sha256("\n".join([f"{first} 1", *states]).encode()).hexdigest()
    return Shard(out / f"{manifest.path.stem}-{number:06d}.tar", first, tuple(members), digest)


def _is_done(shard: Shard) -> bool:
    try:
        header, _ = read_index(shard.path)
    except UserError:
        return False
    return header.get("fingerprint") == shard.fingerprint and header.get("complete") is True


def _paths(entry: MixtureEntry) -> dict[str, str]:
    """Return the name of each recording in a sample -> its path in the manifest."""
    paths = {} if entry.mixture is None else {"mix": entry.mixture}
    paths |= {f"s{number}": source.path for number, source in enumerate(entry.sources, start=1)}
    return paths if entry.noise is None else paths | {"noise": entry.noise.path}


def _state(path: Path) -> tuple[int, int]:
    """Return size and time of change; (-1, 0) for a missing file."""
    try:
        section = locate(path)
        status = os.stat(path if section is None else section.path)
    except (OSError, UserError):
        return -1, 0
    return status.st_size if section is None else section.size, status.st_mtime_ns


def _sample(entry: MixtureEntry, key: str, shard: str) -> list[tuple[str, bytes]]:
    """Return names and bytes of the members of a sample, the line of the manifest first."""
    # Reading once to the end finds damaged and short files now and not in training.
    mix_entry(entry)
    packed = {part: audio.pack(entry.resolve(path)) for part, path in _paths(entry).items()}
    names = {part: f"{key}.{part}{suffix}" for part, (_, suffix) in packed.items()}
    moved = _moved(entry, {part: f"{shard}{SEPARATOR}{name}" for part, name in names.items()})
    line = entry_to_line(moved, f"mixture {entry.id!r}")
    return [(f"{key}.json", line.encode("utf-8")), *((names[part], data) for part, (data, _) in packed.items())]


def _moved(entry: MixtureEntry, paths: Mapping[str, str]) -> MixtureEntry:
    """Return the entry with other paths, and with the old ones as the names of its recordings."""
    sources = [
        replace(source, path=paths[f"s{number}"], extra={"recording": source.path} | source.extra)
        for number, source in enumerate(entry.sources, start=1)
    ]
    noise = None if entry.noise is None else replace(entry.noise, path=paths["noise"])
    return replace(entry, mixture=paths.get("mix"), sources=sources, noise=noise)
