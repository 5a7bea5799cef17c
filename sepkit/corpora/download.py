"""Download archives of corpora into a cache (`sepkit.fetching`) and unpack them completely.

What it is: LibriSpeech, speechocean762, the noise of WHAM, ESC-10 and Speech Commands, VCTK 0.80, and the published
mixing tables of LibriMix, VCTK-2mix and WSJ0-mix. WSJ0 itself is licensed (LDC93S6A) and has to be bought.
Size: printed before anything is fetched, and compared with the free space.
Traps: VCTK-2mix is made of VCTK 0.80 (wav48), not of 0.92 (FLAC, silence trimmed). Checksums: of LibriSpeech
and Speech Commands. The tables and ESC-10 are those of a commit, and zip and gzip hold checksums of their own.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO

from sepkit.corpora.archives import DOWNLOADS, Archive
from sepkit.corpora.options import DownloadOptions
from sepkit.errors import UserError
from sepkit.fetching import fetch
from sepkit.files import check_writable, locked, read_text
from sepkit.limits import ARCHIVE_BYTES, ARCHIVE_GROWTH, ARCHIVE_MEMBERS

_BLOCK_BYTES = 1 << 20


def download(options: DownloadOptions, names: frozenset[str] = frozenset()) -> Path:
    """Unpack the archives of a name in the cache folder, and return that folder; keep what is complete.

    Archives stay in `cache/archives`. If one archive fails, the others are still fetched.

    Args:
        names: unpack files of these names alone; then the cache has to be one that nothing else uses.
    """
    cache = Path(options.cache)
    archives = _chosen(options.name, options.parts or ())
    if options.checksums is not None:
        archives = _with_checksums(archives, Path(options.checksums))
    if options.mirror is not None:
        archives = [replace(archive, url=f"{options.mirror.rstrip('/')}/{archive.file}") for archive in archives]
    if names:
        archives = [replace(archive, unpacked_bytes=0, names=names) for archive in archives]
    missing = [archive for archive in archives if not (cache / archive.folder).exists()]
    _announce(options.name, archives, missing, cache)
    if not missing:
        return cache
    check_writable(cache / "archives")
    _check_room(missing, cache, 1 if options.remove_archives else len(missing))
    failures: list[str] = []
    for archive in missing:
        try:
            path = fetch(archive.url, cache / "archives" / archive.file, archive.digest, archive.size_bytes)
            unpack(path, archive, cache)
        except UserError as error:
            failures.append(str(error))
            continue
        if options.remove_archives:
            path.unlink()
    if failures:
        more = f" ({len(failures)} of {len(missing)} archives failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{more}; the same command again continues, --mirror gives another address")
    return cache


def unpack(path: Path, archive: Archive, cache: Path) -> None:
    """Unpack an archive below the cache: its folder appears when it is complete. Links, devices and paths outside are
    refused; a damaged archive is deleted."""
    staging, final = cache / f".{archive.file}.unpacking", cache / archive.folder
    with locked(path.with_name(f"{path.name}.unpacking.lock")):
        if final.exists():
            return
        shutil.rmtree(staging, ignore_errors=True)
        try:
            _extract(path, staging, archive.names)
            source = next(staging.glob(archive.members or archive.folder), staging)
            if not source.is_dir() or source == staging:
                raise UserError(f"{path}: holds no {archive.members or archive.folder}; it is another archive")
            final.parent.mkdir(parents=True, exist_ok=True)
            if not archive.members:
                _move_files(source.parent, final.parent)
            os.replace(source, final)
        except (
            tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError, RuntimeError,
            UnicodeError,
        ) as error:  # fmt: skip
            # RuntimeError: encrypted members, and compression that Python does not know. UnicodeError: members' names.
            if getattr(error, "errno", None):  # a full disk says nothing about the archive
                raise UserError(f"{staging}: cannot be written to ({error})") from error
            path.unlink()
            raise UserError(f"{path}: damaged ({error}); it was deleted, to be fetched anew") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _chosen(name: str, parts: Sequence[str]) -> list[Archive]:
    if name not in DOWNLOADS:
        raise UserError(f"{name}: nothing to download by that name, expected one of {', '.join(DOWNLOADS)}")
    known = {archive.part: archive for archive in DOWNLOADS[name].archives}
    for part in parts:
        if part not in known:
            raise UserError(f"--parts {part}: {name} has {', '.join(known)}")
    return [known[part] for part in parts or DOWNLOADS[name].default or known]


def _with_checksums(archives: Sequence[Archive], path: Path) -> list[Archive]:
    """Return the archives with a file's checksums instead of the published ones; sizes are then unknown."""
    lines = read_text(path, "lines as md5sum or sha256sum write them").splitlines()
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = re.fullmatch(r"([0-9a-fA-F]{32}|[0-9a-fA-F]{64})\s+\*?(\S.*)", line.strip())
        if match is None:
            raise UserError(f"{path}:{number}: found {line!r}, expected a line as md5sum or sha256sum write it")
        kind = "md5" if len(match[1]) == 32 else "sha256"
        found[PurePosixPath(match[2]).name] = f"{kind}:{match[1].lower()}"
    for archive in archives:
        if archive.file not in found:
            raise UserError(f"{path}: has no line for {archive.file}")
    return [
        replace(archive, digest=found[archive.file], size_bytes=None, about_bytes=0, unpacked_bytes=0)
        for archive in archives
    ]


def _announce(name: str, archives: Sequence[Archive], missing: Sequence[Archive], cache: Path) -> None:
    for archive in archives:
        if archive not in missing:
            print(f"{cache / archive.folder}: is there")
            continue
        about = "" if archive.size_bytes else "about "
        size = f"{about}{_gigabytes(archive.bytes_to_fetch)}" if archive.bytes_to_fetch else "size not known"
        print(f"{archive.url}: {size}, {archive.digest.partition(':')[0] if archive.digest else 'no checksum'}")
    if missing:
        fetched = _gigabytes(sum(archive.bytes_to_fetch for archive in missing))
        unpacked = _gigabytes(sum(archive.unpacked_bytes for archive in missing))
        print(f"{name}: {fetched} to fetch, {unpacked} more unpacked, to {cache} ({DOWNLOADS[name].license})")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _check_room(missing: Sequence[Archive], cache: Path, kept: int) -> None:
    """Raise UserError unless there is room for what is unpacked, and for the `kept` largest archives beside it."""
    largest = sorted((archive.bytes_to_fetch for archive in missing), reverse=True)[:kept]
    needed = sum(largest) + sum(archive.unpacked_bytes for archive in missing)
    paths = [cache / "archives" / f"{archive.file}{ending}" for archive in missing for ending in ("", ".part")]
    needed -= sum(path.stat().st_size for path in paths if path.is_file())
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise UserError(
            f"{cache}: {_gigabytes(free)} free, but {_gigabytes(needed)} are needed; "
            "choose another --cache, or fetch fewer --parts"
        )


def _extract(path: Path, folder: Path, names: frozenset[str]) -> None:
    room = ARCHIVE_GROWTH * path.stat().st_size + ARCHIVE_BYTES
    for count, (name, size, file) in enumerate(_members(path), start=1):
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts:
            raise UserError(f"{name!r}: leads out of the folder it is unpacked to; the archive is not to be trusted")
        # Both formats read no more of a member than its header says.
        room -= size
        if room < 0 or count > ARCHIVE_MEMBERS:
            raise zipfile.BadZipFile("it holds far more than a corpus of its size")
        if not names or inside.name in names:
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(file, out, _BLOCK_BYTES)


def _members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and contents of the regular files of a tar or zip archive, in its order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.filename:
                    raise zipfile.BadZipFile("a member without a name")
                if not entry.is_dir():
                    with archive.open(entry) as file:
                        yield entry.filename, entry.file_size, file
        return
    # Read as a stream, in one pass, however many members there are.
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if member.isreg() and (content := archive.extractfile(member)) is not None:
                yield member.name, member.size, content


def _move_files(source: Path, target: Path) -> None:
    """What an archive holds beside its folder (LICENSE.TXT, SPEAKERS.TXT ...) goes beside it, where nothing is."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not os.path.lexists(target / path.name):
            os.replace(path, target / path.name)
