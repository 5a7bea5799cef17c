"""Fetch a file once: resumed after breaks, held against its digest, and there only when it is complete.

Of the usual downloaders, pooch starts over after a break, so that a file of 30 GB would hardly ever arrive, and the one
of huggingface_hub that resumes is private.
"""

import os
import re
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from sepkit.errors import UserError, shown
from sepkit.files import file_digest, locked

# Give up after this many attempts in a row without a new byte, with doubled pauses between them.
_ATTEMPTS = 5
_PAUSE_SECONDS = 2.0
_TIMEOUT_SECONDS = 60
_BLOCK_BYTES = 1 << 20
# HTTP statuses that may change on another request: timeout, too many requests, server errors.
_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


def fetch(url: str, path: Path, digest: str | None = None, size: int | None = None) -> Path:
    """Return `path`, fetched unless it is there already; another process that wants the same file waits for it.

    Received bytes stay in `path` plus ".part", and this call or the next one requests only the rest (RFC 9110, Range).

    Args:
        digest: "md5:..." or "sha256:..." in hexadecimal; None: unknown, so the file's format has to show damage.
    """
    part = path.with_name(f"{path.name}.part")
    kind, _, expected = (digest or "").partition(":")
    with locked(path.with_name(f"{path.name}.lock")):
        if path.is_file() and (not kind or file_digest(path, kind) == expected):
            return path
        found = ""
        for _ in range(2):
            _fetch_part(url, part, size)
            if not kind or (found := file_digest(part, kind)) == expected:
                os.replace(part, path)
                return path
            part.unlink()
    raise UserError(f"{url}: its {kind} is {found}, expected {expected}; it is another file, try another address")


class _Broken(Exception):
    """A connection that ended early or could not be made; worth another attempt."""


def _fetch_part(url: str, part: Path, size: int | None) -> None:
    from tqdm import tqdm

    failed = 0
    with tqdm(total=size, desc=part.stem, unit="B", unit_scale=True, disable=None) as bar:
        while True:
            have = part.stat().st_size if part.is_file() else 0
            bar.update(have - bar.n)
            try:
                return _fetch_rest(url, part, have, size, bar)
            except _Broken as error:
                failed = 1 if part.is_file() and part.stat().st_size > have else failed + 1
                if failed == _ATTEMPTS:
                    raise UserError(
                        f"{url}: {error}, {_ATTEMPTS} times without a new byte; what arrived is kept, so run it again"
                    ) from None
            time.sleep(_PAUSE_SECONDS * 2 ** (failed - 1))


def _fetch_rest(url: str, part: Path, have: int, size: int | None, bar: Any) -> None:
    """Request the rest after `have` bytes; afterwards `part` is the whole file."""
    headers = {"User-Agent": "sepkit", "Accept-Encoding": "identity"}
    try:
        request = urllib.request.Request(url, headers=headers | ({"Range": f"bytes={have}-"} if have else {}))
        response: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # beyond the end: all is there, or it is another file
            if have and error.headers.get("Content-Range") == f"bytes */{have}":
                return
            part.unlink(missing_ok=True)
            raise _Broken(f"it contains less than the {have} bytes that are there") from None
        if error.code in _PASSING_STATUSES:
            raise _Broken(f"the server answers {error.code} {error.reason}") from None
        raise UserError(f"{url}: the server answers {error.code} {error.reason}; try another address") from None
    except (urllib.error.URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, FileNotFoundError):
            raise UserError(f"{url}: no such file; try another address") from None
        raise _Broken(f"no connection ({reason})") from None
    except ValueError as error:
        raise UserError(f"{url}: not an address ({error}); expected http:// or https://") from None
    with response:
        first = have if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        if length is not None and not re.fullmatch(r"\d{1,18}", length):
            raise UserError(f"{url}: the server states {shown(length)} bytes, expected a number; try another address")
        total = size if length is None else first + int(length)
        if first and not response.headers.get("Content-Range", "").startswith(f"bytes {first}-"):
            raise UserError(f"{url}: the server did not continue at byte {first}; try another address")
        if size not in (None, total):
            raise UserError(f"{url}: contains {total} bytes, expected {size}; it is another file, try another address")
        bar.update(first - bar.n)
        arrived = first
        with part.open("ab" if first else "wb") as file:
            try:
                while block := response.read(_BLOCK_BYTES):
                    arrived += len(block)
                    if total is not None and arrived > total:
                        break
                    _write(file, block, part)
                    bar.update(len(block))
            except (HTTPException, OSError) as error:
                raise _Broken(f"the connection broke ({error})") from None
        if total is not None and arrived > total:
            part.unlink()
            raise UserError(f"{url}: contains more than {total} bytes; it is another file, try another address")
        if total not in (None, arrived):
            raise _Broken(f"the connection broke after {arrived} of {total} bytes")


def _write(file: Any, block: bytes, part: Path) -> None:
    try:
        file.write(block)
    except OSError as error:
        raise UserError(f"{part}: cannot be written ({error.strerror}); free disk space") from error
