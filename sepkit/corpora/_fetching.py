"""Fetch one file over HTTP, resume after breaks, and compare it with its checksum.

pooch and other packages' downloaders start anew after a break, so a file of 30 GB would hardly ever arrive.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from sepkit.corpora.archives import Archive
from sepkit.errors import UserError
from sepkit.files import parse_json, write_text

# Give up an archive after this many attempts in a row without a new byte.
ATTEMPTS = 5
# Pause before the second attempt; doubled each time.
PAUSE_SECONDS = 2.0
_TIMEOUT_SECONDS = 60
_BLOCK_BYTES = 1 << 20
# HTTP statuses that may change on another request: timeout, too many requests, server errors.
_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class Progress:
    """Counts arriving bytes of several threads on a tqdm bar; the threads end once `stop` is set."""

    def __init__(self, bar: Any) -> None:
        self.stop = threading.Event()
        self._bar = bar
        self._lock = threading.Lock()

    def update(self, count: int) -> None:
        """Count N bytes more; a negative N when a download begins anew."""
        if self.stop.is_set():
            raise Stopped
        with self._lock:
            self._bar.update(count)


def fetch(archive: Archive, path: Path, progress: Progress) -> None:
    """Fetch an archive to `path`, which appears only when it is complete and matches its checksum.

    The part that arrived is kept at `path` plus ".part"; after a break only the rest is requested (RFC 9110, Range with
    If-Range). If the server sends the file from the beginning, the part is replaced.

    Raises:
        UserError: no such file, other contents than published, or connections that break again and again.
    """
    part = path.with_name(f"{path.name}.part")
    for wrong_before in (False, True):
        _fetch_part(archive, part, progress)
        found = digests(part)
        if is_as_published(archive, path, found):
            break
        progress.update(-part.stat().st_size)
        forget(part)
        if wrong_before:
            kind, expected = _expected(archive, path) or ("", "")
            remedy = (
                "try --mirror" if archive.checksum else f"delete {record_path(path)} if the publisher has changed it"
            )
            raise UserError(f"{archive.url}: {kind} is {found[kind]} twice over, expected {expected}; {remedy}")
    os.replace(part, path)
    record_path(path).write_text(f"{found['sha256']}  {path.name}\n", encoding="utf-8")
    forget(part)


class Stopped(Exception):
    """Raised in a thread when the main thread wants to end."""


def digests(path: Path) -> dict[str, str]:
    """Return md5 and sha256 of a file, in one pass."""
    digests = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            for digest in digests.values():
                digest.update(block)
    return {kind: digest.hexdigest() for kind, digest in digests.items()}


def record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _expected(archive: Archive, path: Path) -> tuple[str, str] | None:
    """Return kind and value of the published checksum, or else of the one noted at an earlier fetch."""
    if archive.checksum is not None:
        kind, _, value = archive.checksum.partition(":")
        return kind, value
    record = record_path(path)
    return ("sha256", record.read_text(encoding="utf-8").split()[0]) if record.is_file() else None


def is_as_published(archive: Archive, path: Path, found: Mapping[str, str]) -> bool:
    expected = _expected(archive, path)
    return expected is None or found[expected[0]] == expected[1]


# --------------------------------------------------------------------------------------------------------------- HTTP


class _Broken(Exception):
    """A connection that ended early or could not be made; worth another attempt."""


def _fetch_part(archive: Archive, part: Path, progress: Progress) -> None:
    """Fill `part` to its end, however often the connection breaks."""
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
    """Request what is missing; afterwards `part` holds the whole file.

    Raises:
        _Broken: the connection broke.
        UserError: the server has no such file, or one of another size.
    """
    try:
        request = urllib.request.Request(archive.url, headers={"User-Agent": "sepkit", "Accept-Encoding": "identity"})
    except ValueError as error:
        raise UserError(f"{archive.url}: not an address ({error}); expected http:// or https://") from None
    validator = _read_validator(part)
    # Without a validator or a checksum, the rest of another version of the file would go unnoticed.
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
            forget(part)
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
    """Return the tag or date that tells the server which version of the file the first bytes belong to."""
    try:
        return parse_json(_validator_path(part).read_text(encoding="utf-8"))["if_range"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_validator(part: Path, response: HTTPResponse) -> None:
    tag = response.headers.get("ETag", "")
    # Weak tags may not be used in If-Range.
    validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")
    if validator is None:
        _validator_path(part).unlink(missing_ok=True)
        return
    write_text(_validator_path(part), json.dumps({"if_range": validator}))


def forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_path(part).unlink(missing_ok=True)
