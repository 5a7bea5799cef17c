"""The tree of listed LibriSpeech utterances, from archives of the official layout on a local server."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import soxr

from sepkit.corpora import download
from sepkit.files import write_csv
from tests.file_server import Server
from tools import librispeech_mini
from tools.librispeech_mini import LIST, main, read_list

FIRST, SECOND = "84-121123-0000", "1688-142285-0001"
PARTS = {FIRST: ("train", "train-clean-100"), SECOND: ("test", "test-other")}


def place(utterance: str) -> str:
    reader, chapter, _ = utterance.split("-")
    return f"{reader}/{chapter}/{utterance}.flac"


def flac(samples: np.ndarray, rate: int = 16000) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


class Mirror:
    """An archive of one utterance for each part, and the words of the command that asks for them."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.sums: dict[str, str] = {}
        draws = np.random.default_rng(0)
        # The second one overshoots, so it is scaled.
        self.samples = {
            FIRST: draws.integers(-9000, 9000, 32001).astype(np.int16),
            SECOND: (32767 * np.sign(np.sin(np.arange(24000) / 9))).astype(np.int16),
        }
        self.rows = []
        for utterance, samples in self.samples.items():
            expected = soxr.resample(samples / 32768, 16000, 8000, "VHQ")
            expected *= min(1, 0.99 / np.abs(expected).max())
            expected = np.rint(32767 * expected).astype("<i2")
            self.rows.append((*PARTS[utterance], utterance, hashlib.md5(expected.tobytes()).hexdigest()))
            self.serve(utterance, flac(samples))
        self.list = write_csv(folder / "list.csv", ["split", "part", "utterance", "md5_8khz"], self.rows)

    def serve(self, utterance: str, content: bytes | None) -> None:
        part = PARTS[utterance][1]
        files = {"LibriSpeech/SPEAKERS.TXT": b"84 | F | train-clean-100 | 8.02 | Christie Nowak\n"}
        files[f"LibriSpeech/{part}/{place('84-121123-0009')}"] = b"not listed"
        if content is not None:
            files[f"LibriSpeech/{part}/{place(utterance)}"] = content
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        self.server.put(f"{part}.tar.gz", buffer.getvalue())
        self.sums[f"{part}.tar.gz"] = hashlib.md5(buffer.getvalue()).hexdigest()
        (self.folder / "md5sum.txt").write_text("".join(f"{sum}  {file}\n" for file, sum in self.sums.items()))

    def words(self) -> list[str]:
        places = {"out": self.folder / "out", "cache": self.folder / "cache", "list": self.list}
        places |= {"mirror": self.server.url, "checksums": self.folder / "md5sum.txt"}
        return [word for name, value in places.items() for word in (f"--{name}", str(value))]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**12))
    server = Server()
    yield Mirror(tmp_path, server)
    server.close()


def test_the_tree_holds_what_is_listed_and_the_same_command_continues(mirror: Mirror, capsys) -> None:
    assert main(mirror.words()) == 0
    out = mirror.folder / "out"
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {"SPEAKERS.TXT", f"train/{place(FIRST)}", f"test/{place(SECOND)}"}
    assert not list((mirror.folder / "cache").rglob("84-121123-0009.flac"))
    for split, _, utterance, md5 in mirror.rows:
        samples, rate = soundfile.read(out / split / place(utterance), dtype="int16")
        assert rate == 8000 and hashlib.md5(samples.tobytes()).hexdigest() == md5
    kept, damaged = out / "train" / place(FIRST), out / "test" / place(SECOND)
    before = kept.stat().st_mtime_ns
    damaged.write_bytes(damaged.read_bytes()[:100])
    sent = mirror.server.files["test-other.tar.gz"].sent
    assert main(mirror.words()) == 0
    assert kept.stat().st_mtime_ns == before and soundfile.info(damaged).frames == 12000
    assert mirror.server.files["test-other.tar.gz"].sent == sent
    assert "2 recordings, 8000 Hz, all samples as listed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "holds no LibriSpeech/train-clean-100"),
        (flac(np.zeros(32001, np.int16)), "it was changed"),
        (flac(np.zeros(32001, np.int16), 44100), "expected 16000 Hz, mono"),
        (b"no recording", "cannot be read"),
    ],
)
def test_an_archive_of_other_files_is_one_line(mirror: Mirror, capsys, content: bytes | None, words: str) -> None:
    mirror.serve(FIRST, content)
    assert main(mirror.words()) == 2
    line = capsys.readouterr().err
    assert words in line and line.count("\n") == 1


def test_a_listed_file_that_an_archive_lacks_is_one_line(mirror: Mirror, capsys) -> None:
    with mirror.list.open("a") as file:
        file.write(f"train,train-clean-100,84-121123-0002,{'0' * 32}\n")
    assert main(mirror.words()) == 2
    line = capsys.readouterr().err
    assert "84-121123-0002.flac: listed, but not unpacked from train-clean-100.tar.gz" in line
    assert line.count("\n") == 1


def test_a_list_with_an_empty_cell_names_its_line(mirror: Mirror, capsys) -> None:
    mirror.list.write_text("split,part,utterance\ntrain,train-clean-100,84-121123-0000\n")
    assert main(mirror.words()) == 2
    assert f"{mirror.list}:2:" in capsys.readouterr().err


def test_no_room_is_one_line_and_then_it_continues(mirror: Mirror) -> None:
    resource = pytest.importorskip("resource", reason="Windows limits no sizes of files")
    command = [sys.executable, "-m", "tools.librispeech_mini", *mirror.words()]
    folder = Path(librispeech_mini.__file__).parent.parent
    assert main(mirror.words()) == 0
    target = mirror.folder / "out" / "train" / place(FIRST)
    size = target.stat().st_size
    target.unlink()
    limit = (size // 2, resource.RLIM_INFINITY)
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )  # fmt: skip
    assert done.returncode == 2 and "make room" in done.stderr and not list(target.parent.iterdir())
    assert main(mirror.words()) == 0 and target.stat().st_size == size


def test_the_list_is_that_of_the_recordings(data_folder: Path) -> None:
    """All samples at 8 kHz; and, where the copy has 16 kHz, that the list comes from them by the command's way.

    The copies at 16 kHz were written as round(s 32767 / 32768), so beyond half of full scale they are one step nearer
    to zero than LibriSpeech.
    """
    listed = read_list(LIST)
    speakers = {split: {line.utterance.split("-")[0] for line in listed if line.split == split} for split in
                ("train", "dev", "test")}  # fmt: skip
    assert [len(found) for found in speakers.values()] == [195, 23, 33] and len(set.union(*speakers.values())) == 251
    folder = data_folder / "speech_mini"
    resampled = 0
    for line in listed:
        samples, _ = soundfile.read(folder / "wav8k" / line.split / line.place, dtype="int16")
        assert hashlib.md5(samples.tobytes()).hexdigest() == line.md5, line
        wide = folder / "wav16k" / line.split / line.place
        if wide.is_file():
            original = soundfile.read(wide, dtype="int16")[0].astype(int)
            original += np.where(abs(original) > 16384, np.sign(original), 0)
            again = librispeech_mini.at_8_khz(io.BytesIO(flac(original.astype(np.int16))))  # type: ignore[arg-type]
            assert np.array_equal(again, samples), line
            resampled += 1
    assert resampled == 76
