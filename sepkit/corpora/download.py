"""Download archives of corpora into a cache (`sepkit.fetching`) and unpack them completely.

What it is: LibriSpeech, speechocean762, the noise of WHAM, ESC-10 and Speech Commands, VCTK 0.80, and the published
mixing tables of LibriMix, VCTK-2mix and WSJ0-mix. WSJ0 itself is licensed (LDC93S6A) and has to be bought.
Size: printed before anything is fetched, and compared with the free space.
Traps: VCTK-2mix is made of VCTK 0.80 (wav48), not of 0.92 (FLAC, silence trimmed). Checksums: of LibriSpeech
and Speech Commands. The tables and ESC-10 are those of a commit, and zip and gzip hold checksums of their own.
"""

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
# RuntimeError: encrypted members, and unsupported compression. UnicodeError: members' names.
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError, RuntimeError, UnicodeError,
)  # fmt: skip


def download(options: DownloadOptions, names: frozenset[str] = frozenset()) -> Path:
    """Unpack the archives of a name in the cache folder, and return that folder; keep complete ones.

    Archives stay in `cache/archives`. If one archive fails, the others are still fetched.

    Args:
        options: Name, parts and cache, see `DownloadOptions`.
        names: File names to unpack, no others; then the cache has to be one that nothing else uses. Empty: all.

    Raises:
        UserError: An unknown name or part, too little free space, or archives that cannot be fetched or unpacked.
    """
    cache = Path(options.cache)
    archives = _chosen(options.name, options.parts or ())
    if options.checksums is not None:
        found = _read_checksums(Path(options.checksums), archives)
        archives = [replace(a, digest=found[a.file], size_bytes=0, unpacked_bytes=0, exact=False) for a in archives]
    if options.mirror is not None:
        archives = [replace(archive, url=f"{options.mirror.rstrip('/')}/{archive.file}") for archive in archives]
    if names:
        archives = [replace(archive, unpacked_bytes=0, names=names) for archive in archives]
    missing = [archive for archive in archives if not (cache / archive.folder).exists()]
    for archive in archives:
        print(_line(archive) if archive in missing else f"{cache / archive.folder}: is there")
    if not missing:
        return cache
    fetched, unpacked = sum(a.size_bytes for a in missing), sum(a.unpacked_bytes for a in missing)
    more = f"{_gb(fetched)} to fetch, {_gb(unpacked)} more unpacked"
    print(f"{options.name}: {more}, to {cache} ({missing[0].license})")
    check_writable(cache / "archives")
    _check_room(missing, cache, 1 if options.remove_archives else len(missing))
    failures: list[str] = []
    for archive in missing:
        size_bytes = archive.size_bytes if archive.exact else None
        try:
            path = fetch(archive.url, cache / "archives" / archive.file, archive.digest, size_bytes)
            unpack(path, archive, cache)
            if options.remove_archives:
                path.unlink()
        except UserError as error:
            failures.append(str(error))
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
                raise UserError(f"{path}: contains no {archive.members or archive.folder}; it is another archive")
            final.parent.mkdir(parents=True, exist_ok=True)
            # What is beside the folder (LICENSE.TXT, SPEAKERS.TXT ...) goes beside it, where nothing is.
            for beside in () if archive.members else sorted(source.parent.iterdir()):
                if beside.is_file() and not os.path.lexists(final.parent / beside.name):
                    os.replace(beside, final.parent / beside.name)
            os.replace(source, final)
        except _DAMAGE as error:
            if getattr(error, "errno", None):  # a full disk says nothing about the archive
                raise UserError(f"{staging}: cannot be written to ({error})") from error
            path.unlink()
            raise UserError(f"{path}: damaged ({error}); it was deleted, to be fetched anew") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _chosen(name: str, parts: Sequence[str]) -> list[Archive]:
    if name not in DOWNLOADS:
        raise UserError(f"{name}: nothing to download by that name, expected one of {', '.join(DOWNLOADS)}")
    known = {archive.part: archive for archive in DOWNLOADS[name]}
    for part in parts:
        if part not in known:
            raise UserError(f"--parts {part}: {name} has {', '.join(known)}")
    return [known[part] for part in parts] if parts else [archive for archive in known.values() if archive.default]


def _read_checksums(path: Path, archives: Sequence[Archive]) -> dict[str, str]:
    """Return file name -> digest of a file as md5sum or sha256sum write it, which must have all archives."""
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path, "lines as md5sum or sha256sum write them").splitlines(), start=1):
        match = re.fullmatch(r"([0-9a-fA-F]{32}|[0-9a-fA-F]{64})\s+\*?(\S.*)", line.strip())
        if match is None:
            raise UserError(f"{path}:{number}: found {line!r}, expected a line as md5sum or sha256sum write it")
        kind = "md5" if len(match[1]) == 32 else "sha256"
        found[PurePosixPath(match[2]).name] = f"{kind}:{match[1].lower()}"
    for archive in archives:
        if archive.file not in found:
            raise UserError(f"{path}: has no line for {archive.file}")
    return found


def _line(archive: Archive) -> str:
    about = "" if archive.exact else "about "
    size = f"{about}{_gb(archive.size_bytes)}" if archive.size_bytes else "size not known"
    return f"{archive.url}: {size}, {archive.digest.partition(':')[0] or 'no checksum'}"


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _check_room(missing: Sequence[Archive], cache: Path, kept: int) -> None:
    """Raise UserError if disk space is short for the unpacked files and the `kept` largest archives."""
    largest = sorted((archive.size_bytes for archive in missing), reverse=True)[:kept]
    paths = [cache / "archives" / f"{archive.file}{ending}" for archive in missing for ending in ("", ".part")]
    there = sum(path.stat().st_size for path in paths if path.is_file())
    needed = sum(largest) + sum(archive.unpacked_bytes for archive in missing) - there
    if needed > (free := shutil.disk_usage(cache).free):
        raise UserError(
            f"{cache}: {_gb(free)} free, but {_gb(needed)} are needed; choose another --cache, or fetch fewer --parts"
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
            raise zipfile.BadZipFile("it contains far more than a corpus of its size")
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
