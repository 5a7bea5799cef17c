"""Fetching from a local web server that drops connections, returns errors and serves corrupt files."""

import hashlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sepkit import fetching
from sepkit.errors import UserError
from sepkit.fetching import fetch
from tests.complaint import complaint
from tests.file_server import Server, answering

CONTENT = np.random.default_rng(0).bytes(300_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_SECONDS", 0.001)


@pytest.mark.parametrize(
    ("ways", "part", "seen", "sent"),
    [
        ({}, None, [None], 300_000),
        ({"drop_after": 120_000}, None, [None, "bytes=120000-", "bytes=240000-"], 300_000),
        ({}, CONTENT[:1000], ["bytes=1000-"], 299_000),
        ({}, CONTENT, ["bytes=300000-"], 0),
        # Longer than the file, bytes of another file, a server without parts, and a length that is not told.
        ({}, CONTENT + b"more", ["bytes=300004-", None], 300_000),
        ({}, b"x" * 1000, ["bytes=1000-", None], 599_000),
        ({"ranges": False}, CONTENT[:1000], ["bytes=1000-"], 300_000),
        ({"length": False}, None, [None], 300_000),
        ({"statuses": [503, 500, 429]}, None, [None] * 4, 300_000),
        ({"corrupt": 1}, None, [None, None], 600_000),
    ],
)
def test_resumes_and_arrives_whole(ways, part, seen, sent, server, tmp_path) -> None:
    served = server.put("file", CONTENT, **ways)
    path = tmp_path / "cache" / "file"
    if part is not None:
        path.parent.mkdir()
        path.with_name("file.part").write_bytes(part)
    for _ in range(2):
        assert fetch(f"{server.url}/file", path, DIGEST) == path
        assert path.read_bytes() == CONTENT and not path.with_name("file.part").exists()
        assert (served.seen, served.sent) == (seen, sent)


def test_a_file_that_rotted_is_fetched_anew_and_one_without_digest_is_kept(server: Server, tmp_path: Path) -> None:
    server.put("file", CONTENT)
    (tmp_path / "file").write_bytes(b"rotten")
    assert fetch(f"{server.url}/file", tmp_path / "file").read_bytes() == b"rotten"
    assert fetch(f"{server.url}/file", tmp_path / "file", DIGEST).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("absent", {}, "the server answers 404"), ("file", {"size": 299_999}, "contains 300000 bytes, expected 299999"),
        ("file", {"digest": "md5:0"}, f"its md5 is {hashlib.md5(CONTENT).hexdigest()}, expected 0"),
        ("trouble", {}, "the server answers 503 Service Unavailable, 5 times without a new byte"),
        ("nowhere", {}, "not an address"), ("closed", {}, "no connection"), ("folder", {}, "no such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_fetched_is_one_line(name, options, words, server, tmp_path) -> None:
    server.put("file", CONTENT)
    server.put("trouble", CONTENT, statuses=[503] * 9)
    urls = {"nowhere": "nowhere/file", "closed": "http://127.0.0.1:9/file", "folder": f"{tmp_path.as_uri()}/file"}
    complaint(lambda: fetch(urls.get(name, f"{server.url}/{name}"), tmp_path / name, **options), words)
    assert not [path for path in tmp_path.iterdir() if path.is_file() and path.stat().st_size]


@pytest.mark.parametrize("length", ["abc", "", "-1", "1.5", "9" * 400])
def test_a_length_that_is_no_number_is_one_line(length: str, server: Server, tmp_path: Path) -> None:
    server.put("file", CONTENT, length=length)
    with pytest.raises(UserError, match=r"the server states .* bytes, expected a number; try another address"):
        fetch(f"{server.url}/file", tmp_path / "file", DIGEST, len(CONTENT))


@pytest.mark.parametrize("part", [None, CONTENT[:1000]])
def test_a_server_without_a_length_is_read_to_the_known_size(part, server, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "_BLOCK_BYTES", 1000)
    read: list[int] = []
    write = fetching._write
    counted = lambda file, block, path: (read.append(len(block)), write(file, block, path))  # noqa: E731
    monkeypatch.setattr(fetching, "_write", counted)
    if part is not None:
        (tmp_path / "file.part").write_bytes(part)
    server.put("file", CONTENT, length=False)
    with pytest.raises(UserError, match="contains more than 150000 bytes; it is another file"):
        fetch(f"{server.url}/file", tmp_path / "file", None, 150_000)
    assert sum(read) <= 150_000 and not (tmp_path / "file.part").exists()
    assert fetch(f"{server.url}/file", tmp_path / "file", DIGEST, len(CONTENT)).read_bytes() == CONTENT


def test_a_killed_process_continues(server: Server, tmp_path: Path) -> None:
    served = server.put("file", CONTENT, drop_after=100_000)
    script = f"from sepkit.fetching import *\nfetch({f'{server.url}/file'!r}, Path({str(tmp_path / 'file')!r}))"
    # It waits two seconds after the first break.
    process = subprocess.Popen([sys.executable, "-c", script])
    began = time.monotonic()
    while not served.sent and time.monotonic() - began < 30:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert (tmp_path / "file.part").stat().st_size == 100_000 and not (tmp_path / "file").exists()
    served.drop_after = None
    assert fetch(f"{server.url}/file", tmp_path / "file", DIGEST).read_bytes() == CONTENT
    assert served.seen == [None, "bytes=100000-"]


def test_two_at_once_fetch_once(server: Server, tmp_path: Path) -> None:
    served = server.put("file", CONTENT)
    arguments = (f"{server.url}/file", tmp_path / "file", DIGEST)
    threads = [threading.Thread(target=fetch, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() == CONTENT and served.sent == len(CONTENT)


@pytest.mark.parametrize(
    ("answer", "size", "line"),
    [
        (b"200 OK\r\nContent-Length: abc\r\n\r\nxxx", None, "the server states 'abc' bytes"),
        (b"200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nxxx", None, "the server states"),
        (b"200 OK\r\n\r\n" + bytes(20_000_000), 1000, "contains more than 1000 bytes"),
        (b"416 Range Not Satisfiable\r\nContent-Range: bytes */0\r\n\r\n", None, "contains less than the 0 bytes"),
    ],
)
def test_answers_of_broken_servers(answer: bytes, size: int | None, line: str, tmp_path: Path) -> None:
    with answering(b"HTTP/1.1 " + answer) as url, pytest.raises(UserError, match=line):
        fetch(f"{url}/file", tmp_path / "file", size=size)
    assert not (tmp_path / "file").exists()
    assert not (tmp_path / "file.part").exists() or (tmp_path / "file.part").stat().st_size == 0
