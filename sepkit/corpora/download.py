"""Download archives of corpora into a cache: resume after breaks, check, and unpack completely.

What it is: LibriSpeech, the noise of WHAM, VCTK 0.80, and the published mixing tables of LibriMix, VCTK-2mix and
WSJ0-mix. WSJ0 itself is licensed (LDC93S6A) and has to be bought.
Size: printed before anything is fetched, and compared with the free space.
Traps: VCTK-2mix is made of VCTK 0.80 (wav48), not of 0.92 (FLAC, silence trimmed). Only LibriSpeech publishes
checksums (MD5), and of the tables commits and git's identifiers of their folders are known here; of everything else
the SHA-256 is written down beside the archive, and a later download is held against it.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO

import filelock

from sepkit.corpora._fetching import Progress, digests, fetch, is_as_published, record_path
from sepkit.corpora._recordings import check_writable
from sepkit.corpora.archives import DOWNLOADS, Archive
from sepkit.corpora.options import DownloadOptions
from sepkit.errors import UserError
from sepkit.limits import ARCHIVE_BYTES, ARCHIVE_GROWTH, ARCHIVE_MEMBERS

_BLOCK_BYTES = 1 << 20


def download(options: DownloadOptions) -> Path:
    """Unpack the archives of a name in the cache folder, and return that folder; keep what is complete.

    Archives stay in `cache/archives`. If one archive fails, the others are still fetched.

    Args:
        options: which archives, and where they go.

    Raises:
        UserError: an unknown name or part, too little room, no such file on the server, an archive that is not what was
            published, or a connection that breaks again and again. The same call again continues.
    """
    name, mirror, cache, processes = options.name, options.mirror, Path(options.cache), options.processes
    archives = _chosen(name, options.parts or ())
    if processes < 1:
        raise UserError(f"--processes {processes}: expected at least 1")
    if options.checksums is not None:
        archives = _with_checksums(archives, Path(options.checksums))
    if mirror is not None:
        archives = [replace(archive, url=f"{mirror.rstrip('/')}/{archive.file}") for archive in archives]
    missing = [archive for archive in archives if not (cache / archive.folder).exists()]
    _announce(name, archives, missing, cache)
    if not missing:
        return cache
    check_writable(cache / "archives")
    _check_room(missing, cache, processes if options.remove_archives else len(missing))

    from tqdm import tqdm

    failures: list[str] = []
    total = sum(archive.bytes_to_fetch for archive in missing)
    with (
        tqdm(total=total, desc=f"downloading {name}", unit="B", unit_scale=True, disable=None) as bar,
        ThreadPoolExecutor(min(processes, len(missing))) as pool,
    ):
        progress = Progress(bar)
        jobs = [pool.submit(_obtain, archive, cache, progress, options.remove_archives) for archive in missing]
        try:
            for job in jobs:
                try:
                    job.result()
                except UserError as error:
                    failures.append(str(error))
        except BaseException:
            progress.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failures:
        more = f" ({len(failures)} of {len(missing)} archives failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{more}; what was fetched is kept, the same command again continues")
    return cache


def unpack(path: Path, archive: Archive, cache: Path, progress: Progress) -> None:
    """Unpack an archive below the cache: its folder appears when it is complete. Links are left out.

    Args:
        path: of the archive.
        archive: what is known of it.
        cache: folder of all corpora.
        progress: updated with every member.

    Raises:
        UserError: it is damaged (then it is deleted), names files outside the folder it is unpacked to, or there is no
            room.
    """
    staging = cache / f".{archive.file}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        room = ARCHIVE_GROWTH * path.stat().st_size + ARCHIVE_BYTES
        for count, (name, file) in enumerate(_files(path), start=1):
            progress.update(0)
            room -= _write_member(staging, name, file, archive, room)
            if room < 0 or count > ARCHIVE_MEMBERS:
                raise zipfile.BadZipFile("it holds far more than a corpus of its size")
        target = staging if archive.members else staging / archive.folder
        if not target.is_dir():
            raise UserError(f"{path}: holds no {archive.members or archive.folder}; it is another archive")
        if archive.tree is not None and (found := git_tree(target)) != archive.tree:
            raise zipfile.BadZipFile(f"its tables are of git tree {found}, expected {archive.tree}")
        final = cache / archive.folder
        final.parent.mkdir(parents=True, exist_ok=True)
        if archive.members is None:
            _move_files(target.parent, final.parent)
        os.replace(target, final)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError, RuntimeError) as error:
        # RuntimeError: encrypted members, and compression that Python does not know.
        if getattr(error, "errno", None):  # a full disk says nothing about the archive
            raise UserError(f"{staging}: cannot be written to ({error})") from error
        path.unlink()
        record_path(path).unlink(missing_ok=True)
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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); expected lines as md5sum or sha256sum write them") from None
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
        replace(archive, checksum=found[archive.file], size_bytes=None, about_bytes=0, unpacked_bytes=0, tree=None)
        for archive in archives
    ]


def _announce(name: str, archives: Sequence[Archive], missing: Sequence[Archive], cache: Path) -> None:
    for archive in archives:
        if archive not in missing:
            print(f"{cache / archive.folder}: is there")
            continue
        about = "" if archive.size_bytes else "about "
        size = f"{about}{_gigabytes(archive.bytes_to_fetch)}" if archive.bytes_to_fetch else "size not known"
        kind = archive.checksum.partition(":")[0] if archive.checksum else "no published checksum"
        print(f"{archive.url}: {size}, {kind}")
    if missing:
        fetched = _gigabytes(sum(archive.bytes_to_fetch for archive in missing))
        unpacked = _gigabytes(sum(archive.unpacked_bytes for archive in missing))
        print(f"{name}: {fetched} to fetch, {unpacked} more unpacked, to {cache} ({DOWNLOADS[name].license})")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _check_room(missing: Sequence[Archive], cache: Path, kept: int) -> None:
    """Raise UserError unless there is room for the archives to fetch and unpack.

    `kept` is the number of archives that exist at a time; the largest ones are assumed.
    """
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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that no other process may hold; the lock of a killed process is free."""
    try:
        with filelock.FileLock(path).acquire(timeout=0):
            yield
    except filelock.Timeout:
        raise UserError(f"{path}: another process is fetching the same archive; wait until it is done") from None


def _obtain(archive: Archive, cache: Path, progress: Progress, remove_archive: bool) -> None:
    path = cache / "archives" / archive.file
    with _locked(path.with_name(f"{path.name}.lock")):
        if path.is_file() and not is_as_published(archive, path, digests(path)):
            print(f"{path}: not what its checksum says; fetched anew")
            path.unlink()
        if path.is_file():
            progress.update(path.stat().st_size)
        else:
            fetch(archive, path, progress)
        unpack(path, archive, cache, progress)
        if remove_archive:
            path.unlink()


# ---------------------------------------------------------------------------------------------------------- unpacking


def _files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the regular files of a tar or zip archive, with their names, in its order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with archive.open(entry) as file:
                        yield entry.filename, file
        return
    # Read as a stream, in one pass, however many members there are.
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file


def _write_member(staging: Path, name: str, file: IO[bytes], archive: Archive, most: int) -> int:
    """Write a member below the staging folder, if it is among those wanted; return how many bytes it has.

    Of a member of more than `most` bytes the rest is left out.
    """
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise UserError(f"{name!r}: leads out of the folder it is unpacked to; the archive is not to be trusted")
    if (members := archive.members) is not None:
        wanted = PurePosixPath(members).parts
        deeper = len(inside.parts) - len(wanted)
        if deeper < 1 or not inside.match("/".join([members, *"*" * deeper])):
            return 0
        inside = PurePosixPath(*inside.parts[len(wanted) :])
    if archive.names is not None and str(inside) not in archive.names:
        return 0
    target = staging / inside
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with target.open("wb") as out:
        while size <= most and (block := file.read(_BLOCK_BYTES)):
            out.write(block)
            size += len(block)
    return size


def _move_files(source: Path, target: Path) -> None:
    """What an archive holds beside its folder (LICENSE.TXT, SPEAKERS.TXT ...) goes beside it, where nothing is."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not os.path.lexists(target / path.name):
            os.replace(path, target / path.name)


def git_tree(folder: Path) -> str:
    """Return git's identifier (SHA-1) of a folder of ordinary files: the same for the same names and contents.

    Args:
        folder: its subfolders count too.
    """
    entries: list[tuple[bytes, bytes, bytes]] = []
    for path in folder.iterdir():
        if path.is_dir():
            # Folders are sorted as if their names ended in a slash.
            entries.append((os.fsencode(path.name) + b"/", b"40000", bytes.fromhex(git_tree(path))))
        else:
            entries.append((os.fsencode(path.name), b"100644", bytes.fromhex(_git_object(b"blob", path.read_bytes()))))
    lines = [mode + b" " + name.rstrip(b"/") + b"\0" + digest for name, mode, digest in sorted(entries)]
    return _git_object(b"tree", b"".join(lines))


def _git_object(kind: bytes, data: bytes) -> str:
    return hashlib.sha1(kind + b" %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
