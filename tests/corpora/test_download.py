"""Archives against a local web server: published ones, damaged ones, and ones that are not to be trusted."""

import hashlib
import io
import re
import tarfile
import typing
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from sepkit.corpora import download as module
from sepkit.corpora.archives import DOWNLOADS
from sepkit.corpora.options import DownloadName, DownloadOptions
from tests.complaint import complaint
from tests.corpora.calling import by_place
from tests.file_server import Server, tar_of

download = by_place(module.download, DownloadOptions, "name", "cache", "parts")
FILES = {
    "LibriSpeech/dev-clean/84/121123/84-121123-0000.flac": b"first",
    "LibriSpeech/dev-clean/84/121123/84-121123-0001.flac": b"second",
    "LibriSpeech/SPEAKERS.TXT": b"84 | F | dev-clean | 8.02 | Christie Nowak\n",
}


def zip_of(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


ARCHIVE = tar_of(FILES)
ZEROS = {"wham_noise/tr/a.wav": bytes(30 << 20)}


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**12))


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """The mirror's own checksums, as md5sum writes them."""
    path = tmp_path / "md5sum.txt"
    path.write_text(f"{hashlib.md5(ARCHIVE).hexdigest()}  dev-clean.tar.gz\n")
    return path


def dev_clean(server: Server, cache: Path, sums: Path | None) -> Path:
    return download("librispeech", cache, ["dev-clean"], mirror=server.url, checksums=sums)


def unpacked(cache: Path) -> dict[str, bytes]:
    found = {path.relative_to(cache): path for path in sorted(cache.rglob("*")) if path.is_file()}
    return {str(name): path.read_bytes() for name, path in found.items() if name.parts[0] != "archives"}


def test_fetches_checks_and_unpacks_once(server: Server, sums: Path, tmp_path: Path, capsys) -> None:
    served = server.put("dev-clean.tar.gz", ARCHIVE, drop_after=100)
    cache = tmp_path / "cache"
    assert dev_clean(server, cache, sums) == cache
    assert unpacked(cache) == FILES and not list(cache.glob(".*"))
    requests = len(served.seen)
    dev_clean(server, cache, sums)
    assert len(served.seen) == requests and served.sent == len(ARCHIVE)
    assert "dev-clean: is there" in capsys.readouterr().out


def test_published_size_is_looked_at_first(server: Server, tmp_path: Path) -> None:
    served = server.put("dev-clean.tar.gz", ARCHIVE)
    complaint(lambda: dev_clean(server, tmp_path / "cache", None), f"contains {len(ARCHIVE)} bytes, expected 337926286")
    assert len(served.seen) == 1


def test_one_failure_does_not_keep_others(server: Server, tmp_path: Path) -> None:
    names = ("dev-clean", "test-clean")
    parts = {part: tar_of({f"LibriSpeech/{part}/1/2/1-2-0.flac": part.encode()}) for part in names}
    sums = tmp_path / "sha256sum.txt"
    lines = [f"{hashlib.sha256(content).hexdigest()} *{part}.tar.gz\n" for part, content in parts.items()]
    sums.write_text("".join([*lines, "0" * 64 + "  train-clean-100.tar.gz\n"]))
    for part, content in parts.items():
        server.put(f"{part}.tar.gz", content)
    places = {"mirror": server.url, "checksums": sums}
    message = r"train-clean-100\.tar\.gz: the server answers 404"
    complaint(lambda: download("librispeech", tmp_path / "cache", **places), message)
    for part in parts:
        assert (tmp_path / "cache" / "LibriSpeech" / part / "1/2/1-2-0.flac").read_bytes() == part.encode()


def test_tables_are_taken_out_of_their_repository(server: Server, tmp_path: Path) -> None:
    lists = {"metadata/mix_2_spk_tr.txt": b"list", "metadata/activlev/activlev_tr.txt": b"levels", "README.md": b"no"}
    server.put("pywsj0-mix.tar.gz", tar_of({f"pywsj0-mix-0123abc/{name}": data for name, data in lists.items()}))
    cache = download("wsj0-mix-lists", tmp_path / "cache", mirror=server.url, remove_archives=True)
    lists.pop("README.md")
    assert unpacked(cache) == {f"pywsj0-mix/{name}": data for name, data in lists.items()}
    assert not (cache / "archives" / "pywsj0-mix.tar.gz").exists()


def test_of_the_web_runtime_only_what_a_page_needs_is_unpacked(server: Server, tmp_path: Path) -> None:
    (wanted,) = DOWNLOADS["onnxruntime-web"]
    content = tar_of({f"package/dist/{name}": name.encode() for name in [*wanted.names, "ort.webgpu.mjs"]})
    server.put(wanted.file, content)
    sums = tmp_path / "sums.txt"
    sums.write_text(f"{hashlib.sha256(content).hexdigest()}  {wanted.file}\n")
    cache = download("onnxruntime-web", tmp_path / "cache", mirror=server.url, checksums=sums)
    assert unpacked(cache) == {f"{wanted.folder}/{name}": name.encode() for name in sorted(wanted.names)}


def test_every_archive_is_pinned_or_says_that_it_cannot_be() -> None:
    archives = [archive for of_name in DOWNLOADS.values() for archive in of_name]
    by_commit = [archive for archive in archives if re.search(r"/archive/[0-9a-f]{40}\.tar\.gz$", archive.url)]
    unpinned = {archive.part for archive in archives if not archive.digest and archive not in by_commit}
    assert unpinned == {"wham-noise", "vctk", "speechocean762"}


def encrypted(data: bytes) -> bytes:
    """The same zip with the bit set that says that its members are encrypted."""
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + offset
        data = data[:at] + bytes([data[at] | 1]) + data[at + 1 :]
    return data


def of_unknown_compression(data: bytes) -> bytes:
    for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = data.index(mark) + offset
        data = data[:at] + b"\x63\x00" + data[at + 2 :]
    return data


def with_a_wrong_byte(data: bytes) -> bytes:
    at = data.index(b"content of a") + 3
    return data[:at] + b"x" + data[at + 1 :]


@pytest.mark.parametrize(
    ("change", "words", "is_kept"),
    [
        (encrypted, "damaged .* deleted", False), (of_unknown_compression, "damaged .* deleted", False),
        (with_a_wrong_byte, "damaged .* deleted", False), (lambda data: data[:-30], "damaged .* deleted", False),
        (lambda _: b"", "damaged .* deleted", False),
        (lambda _: zip_of(ZEROS, zipfile.ZIP_DEFLATED), "far more than a corpus of its size", False),
        (lambda _: zip_of({"somewhere/a.wav": b"a"}), "contains no wham_noise", True),
        (lambda _: zip_of({"wham_noise/tr/a.wav": b"a", "../evil.txt": b"evil"}), "leads out", True),
        (lambda _: zip_of({"wham_noise/tr/a.wav": b"a", "/evil.txt": b"evil"}), "leads out", True),
        (lambda _: zip_of({"wham_noise/../../evil.txt": b"evil"}), "leads out", True),
    ],
)  # fmt: skip
def test_archives_that_are_not_to_be_trusted(change, words, is_kept, server, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "ARCHIVE_BYTES", 1 << 20)
    good = zip_of({"wham_noise/tr/a.wav": b"content of a"})
    server.put("wham_noise.zip", change(good))
    cache = tmp_path / "a" / "cache"
    complaint(lambda: download("wham-noise", cache, mirror=server.url), words)
    assert not list(tmp_path.rglob("evil.txt")) and not unpacked(cache)
    assert (cache / "archives" / "wham_noise.zip").exists() == is_kept
    if not is_kept:
        server.put("wham_noise.zip", good)
        assert list(unpacked(download("wham-noise", cache, mirror=server.url))) == ["wham_noise/tr/a.wav"]


def test_links_and_devices_of_a_tar_are_left_out(server: Server, tmp_path: Path) -> None:
    names = {"activation": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "null": tarfile.CHRTYPE, "pipe": tarfile.FIFOTYPE}
    others = [tarfile.TarInfo(f"x/metadata/{name}") for name in names]
    for member, kind in zip(others, names.values(), strict=True):
        member.type, member.linkname = kind, "/etc/passwd"
    server.put("pywsj0-mix.tar.gz", tar_of({"x/metadata/list.txt": b"list"}, *others))
    cache = download("wsj0-mix-lists", tmp_path / "cache", mirror=server.url)
    assert [path.name for path in (cache / "pywsj0-mix" / "metadata").iterdir()] == ["list.txt"]


def test_nothing_beside_the_folder_is_overwritten(server: Server, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "notes.txt").write_text("mine")
    server.put("wham_noise.zip", zip_of({"wham_noise/tr/a.wav": b"a", "notes.txt": b"theirs", "LICENSE": b"theirs"}))
    download("wham-noise", cache, mirror=server.url)
    assert (cache / "notes.txt").read_text() == "mine" and (cache / "LICENSE").read_text() == "theirs"


def test_sizes_are_said_and_room_is_looked_for(server: Server, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    complaint(lambda: download("librispeech", tmp_path, mirror=server.url), r"0\.00 GB free, but 14\.14 GB are needed")
    out = capsys.readouterr().out
    assert "train-clean-100.tar.gz: 6.39 GB, md5" in out and "7.07 GB to fetch" in out and "CC BY 4.0" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["librispeech", "--parts", "train-dirty"], "--parts train-dirty: librispeech has dev-clean"),
        (["librispeech", "--checksums", "absent.txt"], "absent.txt: no such file"),
        (["wham-noise", "--mirror", "nowhere"], "nowhere/wham_noise.zip: not an address"),
        (["timit"], "timit"),
    ],
)
def test_mistakes_are_said_in_one_line(arguments, words, tmp_path: Path, refused) -> None:
    assert words in refused(["download", *arguments, "--cache", tmp_path / "cache"])


@pytest.mark.parametrize("line", ["nonsense", "0" * 32 + "  other.tar.gz"])
def test_checksums_must_fit(line: str, server: Server, tmp_path: Path) -> None:
    sums = tmp_path / "sums.txt"
    sums.write_text(line + "\n")
    complaint(lambda: dev_clean(server, tmp_path / "cache", sums), re.escape(str(sums)))


def test_command_knows_every_name() -> None:
    assert typing.get_args(DownloadName) == tuple(DOWNLOADS)
    assert all(a.url.startswith("https://") and a.size_bytes for of_name in DOWNLOADS.values() for a in of_name)
