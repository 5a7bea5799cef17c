"""What may be downloaded of the corpora: archives into a cache, resumed after a break, checked, unpacked as a whole.

What it is: LibriSpeech, the noise of WHAM, VCTK 0.80, and the published mixing tables of LibriMix, VCTK-2mix and
WSJ0-mix. WSJ0 itself is licensed (LDC93S6A) and has to be bought.
Size: said before anything is fetched, and compared with the room there is.
Traps: VCTK-2mix is made of VCTK 0.80 (wav48), not of 0.92 (FLAC, silence trimmed). Only LibriSpeech publishes
checksums; of everything else the SHA-256 is written down beside the archive, and a later download is held against it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tarfile
import threading
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sepkit.corpora._recordings import check_writable
from sepkit.errors import UserError
from sepkit.files import write_text

__all__ = ["DOWNLOADS", "Archive", "Download", "download", "fetch"]

# Attempts in a row that bring no new byte before an archive is given up.
ATTEMPTS = 5
# Before the second attempt; doubled each time.
PAUSE_SECONDS = 2.0
_TIMEOUT_SECONDS = 60
_BLOCK_BYTES = 1 << 20
# Answers that may change when asked again: timeout, too many requests, servers in trouble.
_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Archive:
    """One file to fetch, and what it becomes.

    Args:
        part: what users call it.
        file: its name in the cache and on a mirror.
        url: where its publisher keeps it.
        folder: what unpacking it makes, relative to the cache; where that is, nothing is left to do.
        size_bytes: exactly, where it is published; see `about_bytes` otherwise.
        about_bytes: roughly, where the size is not published.
        unpacked_bytes: roughly.
        checksum: "md5:..." or "sha256:..." as published, or None.
        members: folder within the archive that is unpacked to `folder`; the first component is left out where it is
            "*". None: the archive's own paths, below the cache.
    """

    part: str
    file: str
    url: str
    folder: str
    size_bytes: int | None = None
    about_bytes: int = 0
    unpacked_bytes: int = 0
    checksum: str | None = None
    members: str | None = None

    @property
    def bytes_to_fetch(self) -> int:
        """Its size, exactly or roughly."""
        return self.size_bytes or self.about_bytes


@dataclass(frozen=True)
class Download:
    """What goes by one name.

    Args:
        archives: its parts.
        default: parts that are fetched unless others are asked for; empty: all.
        licence: in a few words.
    """

    archives: tuple[Archive, ...]
    default: tuple[str, ...] = ()
    licence: str = ""


def _librispeech(part: str, size_bytes: int, md5: str) -> Archive:
    return Archive(
        part,
        f"{part}.tar.gz",
        f"https://www.openslr.org/resources/12/{part}.tar.gz",
        f"LibriSpeech/{part}",
        size_bytes,
        # FLAC does not get smaller by gzip.
        unpacked_bytes=size_bytes,
        checksum=f"md5:{md5}",
    )


def _tables(repository: str, members: str, about_bytes: int) -> Archive:
    name = repository.rpartition("/")[2]
    return Archive(
        "metadata",
        f"{name}.tar.gz",
        f"https://github.com/{repository}/archive/HEAD.tar.gz",
        f"{name}/{members}",
        about_bytes=about_bytes,
        unpacked_bytes=4 * about_bytes,
        members=f"*/{members}",
    )


DOWNLOADS: dict[str, Download] = {
    "librispeech": Download(
        (
            _librispeech("dev-clean", 337_926_286, "42e2234ba48799c1f50f24a7926300a1"),
            _librispeech("dev-other", 314_305_928, "c8d0bcc9cca99d4f8b62fcc847357931"),
            _librispeech("test-clean", 346_663_984, "32fa31d27d2e1cad72775fee3f4849a9"),
            _librispeech("test-other", 328_757_843, "fb5a50374b501bb3bac4815ee91d3135"),
            _librispeech("train-clean-100", 6_387_309_499, "2a93770f6d5c6c964bc36631d331a522"),
            _librispeech("train-clean-360", 23_049_477_885, "c0e676e450a7ff2f54aeade5171606fa"),
            _librispeech("train-other-500", 30_593_501_606, "d1a0fd59409feb2c614ce4d30c387708"),
        ),
        ("train-clean-100", "dev-clean", "test-clean"),
        "CC BY 4.0",
    ),
    "wham-noise": Download(
        (
            Archive(
                "wham-noise",
                "wham_noise.zip",
                "https://my-bucket-a8b4b49c25c811ee9a7e8bba05fa24c7.s3.amazonaws.com/wham_noise.zip",
                "wham_noise",
                about_bytes=17_700_000_000,
                unpacked_bytes=19_000_000_000,
            ),
        ),
        licence="CC BY-NC 4.0: not for commercial use",
    ),
    "vctk": Download(
        (
            Archive(
                "vctk",
                "VCTK-Corpus.zip",
                "https://datashare.ed.ac.uk/bitstream/handle/10283/2651/VCTK-Corpus.zip",
                "VCTK-Corpus",
                about_bytes=11_000_000_000,
                unpacked_bytes=15_500_000_000,
            ),
        ),
        licence="ODC-By 1.0",
    ),
    "librimix-metadata": Download((_tables("JorisCos/LibriMix", "metadata", 20_000_000),), licence="MIT"),
    "vctk-2mix-metadata": Download(
        (_tables("JorisCos/VCTK-2Mix", "metadata", 3_000_000),), licence="see the repository"
    ),
    "wsj0-mix-lists": Download((_tables("mpariente/pywsj0-mix", "metadata", 5_000_000),), licence="MIT"),
}
"""Name -> archives."""


def download(
    name: str,
    cache: str | Path,
    parts: Sequence[str] = (),
    *,
    mirror: str | None = None,
    checksums: str | Path | None = None,
    processes: int = 2,
    remove_archives: bool = False,
) -> Path:
    """The cache folder, in which the archives of a name are unpacked; what is there already is kept.

    Archives stay in `cache/archives`. An archive that fails does not keep the others from being fetched.

    Args:
        name: one of `DOWNLOADS`.
        cache: folder that all corpora may share.
        parts: which archives; empty: the default ones.
        mirror: address of a folder that holds the archives under their own names; None: their publishers.
        checksums: file as md5sum or sha256sum write it, for a mirror whose archives are others than the published ones;
            None: the published checksums.
        processes: how many archives at a time.
        remove_archives: delete each archive when it is unpacked.

    Raises:
        UserError: an unknown name or part, too little room, no such file on the server, an archive that is not what was
            published, or a connection that breaks again and again. The same call again continues.
    """
    archives = _chosen(name, parts)
    if processes < 1:
        raise UserError(f"--processes {processes}: expected at least 1")
    if checksums is not None:
        archives = _with_checksums(archives, Path(checksums))
    if mirror is not None:
        archives = [replace(archive, url=f"{mirror.rstrip('/')}/{archive.file}") for archive in archives]
    cache = Path(cache)
    missing = [archive for archive in archives if not (cache / archive.folder).exists()]
    _announce(name, archives, missing, cache)
    if not missing:
        return cache
    check_writable(cache / "archives")
    _check_room(missing, cache, processes if remove_archives else len(missing))

    from tqdm import tqdm

    failures: list[str] = []
    total = sum(archive.bytes_to_fetch for archive in missing)
    with (
        tqdm(total=total, desc=f"downloading {name}", unit="B", unit_scale=True, disable=None) as bar,
        ThreadPoolExecutor(min(processes, len(missing))) as pool,
    ):
        progress = Progress(bar)
        jobs = [pool.submit(_obtain, archive, cache, progress, remove_archives) for archive in missing]
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


class Progress:
    """How many bytes arrived, told to a progress bar by several threads; once `stop` is set, they end.

    Args:
        bar: of tqdm.
    """

    def __init__(self, bar: Any) -> None:
        self.stop = threading.Event()
        self._bar = bar
        self._lock = threading.Lock()

    def update(self, count: int) -> None:
        """So many bytes more; fewer where a download begins anew."""
        if self.stop.is_set():
            raise _Stopped
        with self._lock:
            self._bar.update(count)


def fetch(archive: Archive, path: Path, progress: Progress) -> None:
    """Fetches an archive to `path`, which is complete and what its checksum says, or not there at all.

    What arrives is kept in `path` with ".part" at its end; a break is followed by a request for the rest (RFC 9110,
    Range with If-Range). A server that sends the file from the beginning makes it begin anew.

    Raises:
        UserError: no such file, other contents than published, or connections that break again and again.
    """
    part = path.with_name(f"{path.name}.part")
    for wrong_before in (False, True):
        _fetch_part(archive, part, progress)
        found = _digests(part)
        if _is_as_published(archive, path, found):
            break
        progress.update(-part.stat().st_size)
        _forget(part)
        if wrong_before:
            kind, expected = _expected(archive, path) or ("", "")
            remedy = "try --mirror" if archive.checksum else f"delete {_record(path)} if the publisher has changed it"
            raise UserError(f"{archive.url}: {kind} is {found[kind]} twice over, expected {expected}; {remedy}")
    os.replace(part, path)
    _record(path).write_text(f"{found['sha256']}  {path.name}\n", encoding="utf-8")
    _forget(part)


def unpack(path: Path, archive: Archive, cache: Path, progress: Progress) -> None:
    """Unpacks an archive below the cache: its folder is complete when it appears. Links are left out.

    Raises:
        UserError: it is damaged (then it is deleted), names files outside the folder it is unpacked to, or there is no
            room.
    """
    staging = cache / f".{archive.file}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        for name, file in _files(path):
            progress.update(0)
            _write_member(staging, name, file, archive.members)
        target = staging if archive.members else staging / archive.folder
        if not target.is_dir():
            raise UserError(f"{path}: holds no {archive.members or archive.folder}; it is another archive")
        final = cache / archive.folder
        final.parent.mkdir(parents=True, exist_ok=True)
        if archive.members is None:
            _move_files(target.parent, final.parent)
        os.replace(target, final)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError) as error:
        if getattr(error, "errno", None):  # a full disk says nothing about the archive
            raise UserError(f"{staging}: cannot be written to ({error})") from error
        path.unlink()
        _record(path).unlink(missing_ok=True)
        raise UserError(f"{path}: damaged ({error}); it was deleted, to be fetched anew") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


class _Stopped(Exception):
    """The main thread wants to end."""


def _chosen(name: str, parts: Sequence[str]) -> list[Archive]:
    if name not in DOWNLOADS:
        raise UserError(f"{name}: nothing to download by that name, expected one of {', '.join(DOWNLOADS)}")
    known = {archive.part: archive for archive in DOWNLOADS[name].archives}
    for part in parts:
        if part not in known:
            raise UserError(f"--parts {part}: {name} has {', '.join(known)}")
    return [known[part] for part in parts or DOWNLOADS[name].default or known]


def _with_checksums(archives: Sequence[Archive], path: Path) -> list[Archive]:
    """The archives with the checksums of a file instead of those published; sizes are then not known."""
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
        replace(archive, checksum=found[archive.file], size_bytes=None, about_bytes=0, unpacked_bytes=0)
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
        print(f"{name}: {fetched} to fetch, {unpacked} more unpacked, to {cache} ({DOWNLOADS[name].licence})")


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def _check_room(missing: Sequence[Archive], cache: Path, kept: int) -> None:
    """Looks whether there is room for what is missing.

    Args:
        missing: archives to fetch and unpack.
        cache: where.
        kept: how many archives there will be at a time, the largest ones at worst.

    Raises:
        UserError: there is not.
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


def _obtain(archive: Archive, cache: Path, progress: Progress, remove_archive: bool) -> None:
    path = cache / "archives" / archive.file
    with _locked(path.with_name(f"{path.name}.lock")):
        if path.is_file() and not _is_as_published(archive, path, _digests(path)):
            print(f"{path}: not what its checksum says; fetched anew")
            path.unlink()
        if path.is_file():
            progress.update(path.stat().st_size)
        else:
            fetch(archive, path, progress)
        unpack(path, archive, cache, progress)
        if remove_archive:
            path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Nobody else may hold the lock; that of a killed process is free."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{path}: another process is fetching the same archive; wait until it is done") from None
        yield


# --------------------------------------------------------------------------------------------------------- checksums


def _digests(path: Path) -> dict[str, str]:
    """md5 and sha256 of a file, in one pass."""
    digests = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            for digest in digests.values():
                digest.update(block)
    return {kind: digest.hexdigest() for kind, digest in digests.items()}


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _expected(archive: Archive, path: Path) -> tuple[str, str] | None:
    """Kind and value of the checksum published, or else of the one seen when it was fetched before."""
    if archive.checksum is not None:
        kind, _, value = archive.checksum.partition(":")
        return kind, value
    record = _record(path)
    return ("sha256", record.read_text(encoding="utf-8").split()[0]) if record.is_file() else None


def _is_as_published(archive: Archive, path: Path, found: Mapping[str, str]) -> bool:
    expected = _expected(archive, path)
    return expected is None or found[expected[0]] == expected[1]


# --------------------------------------------------------------------------------------------------------------- HTTP


class _Broken(Exception):
    """A connection that ended early or could not be made; worth another attempt."""


def _fetch_part(archive: Archive, part: Path, progress: Progress) -> None:
    """Fills `part` to its end, however often the connection breaks."""
    have = part.stat().st_size if part.is_file() else 0
    progress.update(have)
    failed = 0
    while True:
        try:
            return _request_rest(archive, part, have, progress)
        except _Broken as error:
            before, have = have, part.stat().st_size if part.is_file() else 0
            failed = 1 if have > before else failed + 1
            if failed == ATTEMPTS:
                raise UserError(f"{archive.url}: {error}, {ATTEMPTS} times without a new byte") from None
        progress.stop.wait(PAUSE_SECONDS * 2 ** (failed - 1))


def _request_rest(archive: Archive, part: Path, have: int, progress: Progress) -> None:
    """Asks for what is missing; all of the file is in `part` afterwards.

    Raises:
        _Broken: the connection broke.
        UserError: the server has no such file, or one of another size.
    """
    try:
        request = urllib.request.Request(archive.url, headers={"User-Agent": "sepkit", "Accept-Encoding": "identity"})
    except ValueError as error:
        raise UserError(f"{archive.url}: not an address ({error}); expected http:// or https://") from None
    validator = _read_validator(part)
    # Without either, the rest of another version of the file would go unnoticed.
    if have and (validator or archive.checksum):
        request.add_header("Range", f"bytes={have}-")
        if validator:
            request.add_header("If-Range", validator)
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # beyond the end: the file is all there, or another one
            error.close()
            if error.headers.get("Content-Range", "") == f"bytes */{have}":
                return
            progress.update(-have)
            _forget(part)
            raise _Broken(f"holds less than the {have} bytes that are there") from None
        if error.code in _PASSING_STATUSES:
            raise _Broken(f"the server answers {error.code} {error.reason}") from None
        raise UserError(
            f"{archive.url}: the server answers {error.code} {error.reason}; give another address with --mirror"
        ) from None
    except (urllib.error.URLError, HTTPException, OSError) as error:
        if isinstance(getattr(error, "reason", None), FileNotFoundError):  # of file://
            raise UserError(f"{archive.url}: no such file; give another address with --mirror") from None
        raise _Broken(f"no connection ({getattr(error, 'reason', error)})") from None
    with response:
        first = _first_byte(response)
        if first not in (0, have):
            raise UserError(f"{archive.url}: the server sends byte {first} where {have} was asked for; try --mirror")
        size = _whole_size(response, first)
        if archive.size_bytes is not None and size not in (None, archive.size_bytes):
            raise UserError(
                f"{archive.url}: holds {size} bytes, expected {archive.size_bytes}: not the published archive; "
                "give another --mirror, or the mirror's own --checksums"
            )
        if first < have:
            progress.update(-have)
        _write_validator(part, response)
        _copy(response, part, first, progress)
        arrived = part.stat().st_size
        if size is not None and arrived != size:
            raise _Broken(f"the connection broke after {arrived} of {size} bytes")


def _copy(response: HTTPResponse, part: Path, first: int, progress: Progress) -> None:
    with part.open("r+b" if first else "wb") as file:
        file.seek(first)
        file.truncate()
        while True:
            try:
                block = response.read(_BLOCK_BYTES)
            except (HTTPException, OSError) as error:
                raise _Broken(f"the connection broke ({error})") from None
            if not block:
                return
            try:
                file.write(block)
            except OSError as error:
                raise UserError(f"{part}: cannot be written ({error.strerror}); make room") from error
            progress.update(len(block))


def _first_byte(response: HTTPResponse) -> int:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if response.status == 206 and match else 0


def _whole_size(response: HTTPResponse, first: int) -> int | None:
    length = response.headers.get("Content-Length")
    return first + int(length) if length is not None else None


def _validator_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_validator(part: Path) -> str | None:
    """What tells the server which version of the file the first bytes are of."""
    path = _validator_path(part)
    return json.loads(path.read_text(encoding="utf-8"))["if_range"] if path.is_file() else None


def _write_validator(part: Path, response: HTTPResponse) -> None:
    tag = response.headers.get("ETag", "")
    # Weak tags may not be used in If-Range.
    validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")
    if validator is None:
        _validator_path(part).unlink(missing_ok=True)
        return
    write_text(_validator_path(part), json.dumps({"if_range": validator}))


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_path(part).unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------------------- unpacking


def _files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The regular files of a tar or zip archive, with their names, in its order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with archive.open(entry) as file:
                        yield entry.filename, file
        return
    # As a stream: one pass, however many members.
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file


def _write_member(staging: Path, name: str, file: IO[bytes], members: str | None) -> None:
    """Writes a member below the staging folder, if it is among those wanted."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise UserError(f"{name!r}: leads out of the folder it is unpacked to; the archive is not to be trusted")
    if members is not None:
        wanted = PurePosixPath(members).parts
        deeper = len(inside.parts) - len(wanted)
        if deeper < 1 or not inside.match("/".join([members, *"*" * deeper])):
            return
        inside = PurePosixPath(*inside.parts[len(wanted) :])
    target = staging / inside
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        shutil.copyfileobj(file, out, _BLOCK_BYTES)


def _move_files(source: Path, target: Path) -> None:
    """What an archive holds beside its folder (LICENSE.TXT, SPEAKERS.TXT ...) goes beside the folder."""
    for path in sorted(source.iterdir()):
        if path.is_file():
            os.replace(path, target / path.name)
