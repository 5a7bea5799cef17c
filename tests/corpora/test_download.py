"""Downloads against a local web server that drops connections, returns errors and serves corrupt files."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import typing
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.corpora import _fetching
from sepkit.corpora import download as module
from sepkit.corpora.archives import DOWNLOADS
from sepkit.corpora.options import DownloadName, DownloadOptions
from sepkit.errors import UserError


def download(*places, **options) -> Path:
    names = ("name", "cache", "parts")
    return module.download(DownloadOptions(**dict(zip(names, places, strict=False)), **options))


FILES = {
    "LibriSpeech/dev-clean/84/121123/84-121123-0000.flac": np.random.default_rng(0).bytes(300_000),
    "LibriSpeech/dev-clean/84/121123/84-121123-0001.flac": b"second",
    "LibriSpeech/SPEAKERS.TXT": b"84 | F | dev-clean | 8.02 | Christie Nowak\n",
}


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


ARCHIVE = tar_of(FILES)


@dataclass
class Served:
    """A file and the server's behavior for it.

    Args:
        content: of the file.
        drop_after: bytes after which every connection breaks; None: none does.
        statuses: returned to the first requests instead of the file.
        corrupt: number of answers with a wrong byte in the middle.
        ranges: whether parts are served.
        tag: ETag, or None.
        length: whether Content-Length is sent.
    """

    content: bytes
    drop_after: int | None = None
    statuses: list[int] = field(default_factory=list)
    corrupt: int = 0
    ranges: bool = True
    tag: str | None = None
    length: bool = True
    seen: list[str | None] = field(default_factory=list)
    """The Range header of each request."""
    sent: int = 0
    """Bytes that went out."""


class Server:
    """Files by name at `url`."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        files = self.files

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                served = files.get(self.path.lstrip("/"))
                if served is None:
                    self.send_error(404)
                    return
                asked = self.headers.get("Range")
                served.seen.append(asked)
                if served.statuses:
                    self.send_error(served.statuses.pop(0))
                    return
                _answer(self, served, asked)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def put(self, name: str, content: bytes, **ways: object) -> Served:
        """Serves `content` from now on."""
        served = Served(content, **ways)  # type: ignore[arg-type]
        served.tag = f'"{hashlib.sha256(content).hexdigest()[:8]}"' if "tag" not in ways else served.tag
        self.files[name] = served
        return served

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def _answer(handler: BaseHTTPRequestHandler, served: Served, asked: str | None) -> None:
    content, first = served.content, 0
    if asked is not None and served.ranges and handler.headers.get("If-Range") in (None, served.tag):
        first = int(asked.removeprefix("bytes=").rstrip("-"))
    if first >= len(content) and first:
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(content)}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if served.corrupt:
        served.corrupt -= 1
        middle = len(content) // 2
        content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    body = content[first:]
    handler.send_response(206 if first else 200)
    if first:
        handler.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
    if served.length:
        handler.send_header("Content-Length", str(len(body)))
    if served.tag:
        handler.send_header("ETag", served.tag)
    handler.end_headers()
    body = body if served.drop_after is None else body[: served.drop_after]
    handler.wfile.write(body)
    served.sent += len(body)
    handler.close_connection = True


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fetching, "PAUSE_SECONDS", 0.001)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """The mirror's own checksums, as md5sum writes them."""
    path = tmp_path / "md5sum.txt"
    path.write_text(f"{hashlib.md5(ARCHIVE).hexdigest()}  dev-clean.tar.gz\n")
    return path


def dev_clean(server: Server, cache: Path, sums: Path | None) -> Path:
    return download("librispeech", cache, ["dev-clean"], mirror=server.url, checksums=sums)


def assert_unpacked(cache: Path, files: dict[str, bytes] = FILES) -> None:
    assert all((cache / name).read_bytes() == content for name, content in files.items())
    assert not list(cache.rglob("*.part*")) and not list(cache.glob(".*"))


def test_fetches_checks_and_unpacks_once(server: Server, sums: Path, tmp_path: Path, capsys) -> None:
    served = server.put("dev-clean.tar.gz", ARCHIVE)
    cache = tmp_path / "cache"
    assert dev_clean(server, cache, sums) == cache
    assert_unpacked(cache)
    record = (cache / "archives" / "dev-clean.tar.gz.sha256").read_text()
    assert record == f"{hashlib.sha256(ARCHIVE).hexdigest()}  dev-clean.tar.gz\n"
    dev_clean(server, cache, sums)
    assert served.seen == [None]
    assert "dev-clean: is there" in capsys.readouterr().out


@pytest.mark.parametrize("length", [True, False])
def test_resumes_where_the_connection_broke(server: Server, sums: Path, tmp_path: Path, length: bool) -> None:
    # Without a length the end of the stream looks complete; only the checksum shows the truth.
    served = server.put("dev-clean.tar.gz", ARCHIVE, drop_after=100_000 if length else None, length=length)
    dev_clean(server, tmp_path / "cache", sums)
    assert_unpacked(tmp_path / "cache")
    assert served.seen == ([None, "bytes=100000-", "bytes=200000-", "bytes=300000-"] if length else [None])
    assert served.sent == len(ARCHIVE)


def test_begins_anew_where_it_must(server: Server, sums: Path, tmp_path: Path) -> None:
    archives = tmp_path / "cache" / "archives"
    archives.mkdir(parents=True)
    (archives / "dev-clean.tar.gz.part").write_bytes(b"x" * 1000)
    (archives / "dev-clean.tar.gz.part.json").write_text('{"if_range": "\\"of another version\\""}')
    served = server.put("dev-clean.tar.gz", ARCHIVE)
    dev_clean(server, tmp_path / "cache", sums)
    assert served.seen == ["bytes=1000-"] and served.sent == len(ARCHIVE)
    assert_unpacked(tmp_path / "cache")

    (archives / "dev-clean.tar.gz").rename(archives / "dev-clean.tar.gz.part")
    (archives / "dev-clean.tar.gz.part.json").write_text('{"if_range": "\\"no ranges here\\""}')
    _remove(tmp_path / "cache" / "LibriSpeech")
    served = server.put("dev-clean.tar.gz", ARCHIVE, ranges=False)
    dev_clean(server, tmp_path / "cache", sums)
    assert served.sent == len(ARCHIVE)


def test_all_there_but_not_yet_checked(server: Server, sums: Path, tmp_path: Path) -> None:
    archives = tmp_path / "cache" / "archives"
    archives.mkdir(parents=True)
    served = server.put("dev-clean.tar.gz", ARCHIVE)
    (archives / "dev-clean.tar.gz.part").write_bytes(ARCHIVE)
    dev_clean(server, tmp_path / "cache", sums)
    assert served.sent == 0
    assert_unpacked(tmp_path / "cache")


def test_longer_than_the_file_is(server: Server, sums: Path, tmp_path: Path) -> None:
    archives = tmp_path / "cache" / "archives"
    archives.mkdir(parents=True)
    server.put("dev-clean.tar.gz", ARCHIVE)
    (archives / "dev-clean.tar.gz.part").write_bytes(ARCHIVE + b"more")
    dev_clean(server, tmp_path / "cache", sums)
    assert_unpacked(tmp_path / "cache")


def test_servers_in_trouble_are_asked_again(server: Server, sums: Path, tmp_path: Path) -> None:
    served = server.put("dev-clean.tar.gz", ARCHIVE, statuses=[503, 500, 429])
    dev_clean(server, tmp_path / "cache", sums)
    assert len(served.seen) == 4


def test_gives_up_and_continues_later(server: Server, sums: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server.put("dev-clean.tar.gz", ARCHIVE, drop_after=200_000, tag=None)
    with pytest.raises(UserError, match=r"continues$") as error:
        # After the first 200,000 bytes nothing more comes.
        _then_only_trouble(server)
        dev_clean(server, cache, sums)
    assert "503" in str(error.value) and "\n" not in str(error.value)
    assert (cache / "archives" / "dev-clean.tar.gz.part").stat().st_size == 200_000
    assert not (cache / "LibriSpeech").exists()
    served = server.put("dev-clean.tar.gz", ARCHIVE)
    dev_clean(server, cache, sums)
    assert served.seen == ["bytes=200000-"]
    assert_unpacked(cache)


def test_corrupt_answer_is_fetched_once_more(server: Server, sums: Path, tmp_path: Path) -> None:
    served = server.put("dev-clean.tar.gz", ARCHIVE, corrupt=1)
    dev_clean(server, tmp_path / "cache", sums)
    assert served.sent == 2 * len(ARCHIVE)
    assert_unpacked(tmp_path / "cache")


def test_corrupt_file_is_not_kept(server: Server, sums: Path, tmp_path: Path) -> None:
    server.put("dev-clean.tar.gz", ARCHIVE, corrupt=9)
    with pytest.raises(UserError, match=f"md5 is .* twice over, expected {hashlib.md5(ARCHIVE).hexdigest()}"):
        dev_clean(server, tmp_path / "cache", sums)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]


def test_published_size_is_looked_at_first(server: Server, tmp_path: Path) -> None:
    served = server.put("dev-clean.tar.gz", ARCHIVE)
    with pytest.raises(UserError, match=f"holds {len(ARCHIVE)} bytes, expected 337926286"):
        dev_clean(server, tmp_path / "cache", None)
    assert len(served.seen) == 1


def test_without_published_checksum_damage_shows_in_unpacking(server: Server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_check_room", lambda *_: None)
    files = {"wham_noise/tr/a.wav": np.random.default_rng(1).bytes(50_000)}
    content = zip_of(files)
    server.put("wham_noise.zip", content, corrupt=1)
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match="damaged"):
        download("wham-noise", cache, mirror=server.url)
    assert not (cache / "wham_noise").exists() and not (cache / "archives" / "wham_noise.zip").exists()
    download("wham-noise", cache, mirror=server.url)
    assert_unpacked(cache, files)


def test_without_published_checksum_the_first_is_held_against_the_next(server, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_check_room", lambda *_: None)
    cache = tmp_path / "cache"
    server.put("wham_noise.zip", zip_of({"wham_noise/tr/a.wav": b"one"}))
    download("wham-noise", cache, mirror=server.url, remove_archives=True)
    assert not (cache / "archives" / "wham_noise.zip").exists()
    _remove(cache / "wham_noise")
    server.put("wham_noise.zip", zip_of({"wham_noise/tr/a.wav": b"two"}))
    with pytest.raises(UserError, match=r"sha256 is .* twice over"):
        download("wham-noise", cache, mirror=server.url)


def test_archive_that_rotted_is_fetched_anew(server: Server, sums: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    served = server.put("dev-clean.tar.gz", ARCHIVE)
    dev_clean(server, cache, sums)
    _remove(cache / "LibriSpeech")
    (cache / "archives" / "dev-clean.tar.gz").write_bytes(ARCHIVE[:-1] + b"x")
    dev_clean(server, cache, sums)
    assert len(served.seen) == 2
    assert_unpacked(cache)


def test_one_failure_does_not_keep_others(server: Server, tmp_path: Path) -> None:
    parts = {
        part: tar_of({f"LibriSpeech/{part}/1/2/1-2-0.flac": part.encode()}) for part in ("dev-clean", "test-clean")
    }
    sums = tmp_path / "sha256sum.txt"
    lines = [f"{hashlib.sha256(content).hexdigest()} *{part}.tar.gz\n" for part, content in parts.items()]
    sums.write_text("".join([*lines, "0" * 64 + "  train-clean-100.tar.gz\n"]))
    for part, content in parts.items():
        server.put(f"{part}.tar.gz", content)
    with pytest.raises(UserError, match=r"train-clean-100\.tar\.gz: the server answers 404"):
        download("librispeech", tmp_path / "cache", mirror=server.url, checksums=sums, processes=1)
    for part in parts:
        assert (tmp_path / "cache" / "LibriSpeech" / part / "1/2/1-2-0.flac").read_bytes() == part.encode()


def test_tables_are_taken_out_of_their_repository(server: Server, tmp_path: Path) -> None:
    server.put(
        "pywsj0-mix.tar.gz",
        tar_of(
            {
                "pywsj0-mix-0123abc/README.md": b"no",
                "pywsj0-mix-0123abc/metadata/mix_2_spk_tr.txt": b"list",
                "pywsj0-mix-0123abc/metadata/activlev/activlev_tr.txt": b"levels",
            }
        ),
    )
    cache = download("wsj0-mix-lists", tmp_path / "cache", mirror=server.url)
    found = {str(path.relative_to(cache)) for path in (cache / "pywsj0-mix").rglob("*") if path.is_file()}
    assert found == {"pywsj0-mix/metadata/mix_2_spk_tr.txt", "pywsj0-mix/metadata/activlev/activlev_tr.txt"}


def test_mirror_may_be_a_folder(sums: Path, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    url = (tmp_path / "mirror").as_uri()
    with pytest.raises(UserError, match=r"dev-clean\.tar\.gz: no such file"):
        download("librispeech", tmp_path / "cache", ["dev-clean"], mirror=url, checksums=sums)
    (tmp_path / "mirror" / "dev-clean.tar.gz").write_bytes(ARCHIVE)
    download("librispeech", tmp_path / "cache", ["dev-clean"], mirror=url, checksums=sums)
    assert_unpacked(tmp_path / "cache")


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "LibriSpeech/../../evil.txt"])
def test_paths_that_lead_out_are_refused(server: Server, tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.setattr(module, "_check_room", lambda *_: None)
    server.put("wham_noise.zip", zip_of({"wham_noise/tr/a.wav": b"a", name: b"evil"}))
    with pytest.raises(UserError, match="leads out"):
        download("wham-noise", tmp_path / "a" / "cache", mirror=server.url)
    assert not list(tmp_path.rglob("evil.txt")) and not (tmp_path / "a/cache/wham_noise").exists()


def test_another_archive_is_refused(server: Server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_check_room", lambda *_: None)
    server.put("wham_noise.zip", zip_of({"somewhere/a.wav": b"a"}))
    with pytest.raises(UserError, match="holds no wham_noise"):
        download("wham-noise", tmp_path / "cache", mirror=server.url)


def test_sizes_are_said_and_room_is_looked_for(server: Server, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(UserError, match=r"0\.00 GB free, but 14\.14 GB are needed"):
        download("librispeech", tmp_path, mirror=server.url)
    out = capsys.readouterr().out
    assert "train-clean-100.tar.gz: 6.39 GB, md5" in out and "7.07 GB to fetch" in out and "CC BY 4.0" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["librispeech", "--parts", "train-dirty"], "--parts train-dirty: librispeech has dev-clean"),
        (["librispeech", "--processes", "0"], "--processes 0: expected at least 1"),
        (["librispeech", "--checksums", "absent.txt"], "absent.txt: cannot be read"),
        (["wham-noise", "--mirror", "nowhere"], "nowhere/wham_noise.zip: not an address"),
        (["timit"], "timit"),
    ],
)
def test_mistakes_are_said_in_one_line(arguments, words, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module, "_check_room", lambda *_: None)
    assert main(["download", *arguments, "--cache", str(tmp_path / "cache")]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("line", ["nonsense", "0" * 32 + "  other.tar.gz"])
def test_checksums_must_fit(line: str, server: Server, tmp_path: Path) -> None:
    sums = tmp_path / "sums.txt"
    sums.write_text(line + "\n")
    with pytest.raises(UserError, match=re.escape(str(sums))):
        dev_clean(server, tmp_path / "cache", sums)


def test_command_knows_every_name() -> None:
    assert typing.get_args(DownloadName) == tuple(DOWNLOADS)
    for name, corpus in DOWNLOADS.items():
        known = [archive.part for archive in corpus.archives]
        assert set(corpus.default) <= set(known), name
        assert all(archive.url.startswith("https://") and archive.bytes_to_fetch for archive in corpus.archives)


def test_killed_download_continues(server: Server, sums: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    served = server.put("dev-clean.tar.gz", ARCHIVE, drop_after=100_000)
    arguments = ["librispeech", "--parts", "dev-clean", "--mirror", server.url, "--checksums", str(sums)]
    process = subprocess.Popen([sys.executable, "-m", "sepkit", "download", *arguments, "--cache", str(cache)])
    # It waits two seconds after the first break.
    began = time.monotonic()
    while not served.sent and time.monotonic() - began < 30:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (cache / "archives" / "dev-clean.tar.gz.part").stat().st_size == 100_000
    served.drop_after = None
    dev_clean(server, cache, sums)
    assert served.seen == [None, "bytes=100000-"]
    assert_unpacked(cache)


def test_two_at_once_do_not_disturb_each_other(server: Server, sums: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "archives").mkdir(parents=True)
    server.put("dev-clean.tar.gz", ARCHIVE)
    with (
        module._locked(cache / "archives" / "dev-clean.tar.gz.lock"),
        pytest.raises(UserError, match="another process"),
    ):
        dev_clean(server, cache, sums)
    dev_clean(server, cache, sums)


def _then_only_trouble(server: Server) -> None:
    """The first answer breaks, all later ones are 503."""
    served = server.files["dev-clean.tar.gz"]

    class Later(list):
        def __bool__(self) -> bool:
            return served.sent > 0

        def pop(self, _: int = 0) -> int:
            return 503

    served.statuses = Later()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)
