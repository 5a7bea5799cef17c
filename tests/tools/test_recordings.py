"""The trees of listed recordings, from archives of the official layout on a local server."""

import hashlib
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import soxr

from sepkit.corpora import download
from sepkit.files import write_csv
from tests.file_server import Server, tar_of
from tools import recordings
from tools.recordings import LIST, main, read_list

COLUMNS = ["path", "archive", "member", "first", "last", "gain", "md5", "file_md5"]
READER, READER_2, CHILD, RAIN, TAP = (
    "speech_mini/wav8k/train/84/121123/84-121123-0000.flac",
    "speech_mini/wav16k/test/1688/142285/1688-142285-0001.flac",
    "speech_mini/wav8k/dev/90006/762/90006-762-0000.flac",
    "noise_mini/wav8k/test/rain/5-203739-A.flac",
    "noise_mini/wav8k/test/running_tap/running_tap-01.flac",
)
# Archive, folder of the members in it, member, rate of the member, cut, gain.
PLACES = {
    READER: ("train-clean-100", "LibriSpeech/train-clean-100", "84/121123/84-121123-0000.flac", 16000, (), 1),
    READER_2: ("test-other", "LibriSpeech/test-other", "1688/142285/1688-142285-0001.flac", 16000, (), 1),
    CHILD: ("speechocean762", "speechocean762", "WAVE/SPEAKER0006/000060015.WAV", 16000, (160, 20160), 1),
    RAIN: ("esc-10", "ESC-10-553c8f1", "002 - Rain/5-203739-A.ogg", 44100, (), 1),
    TAP: ("speech-commands-noise", "./_background_noise_", "running_tap.wav", 16000, (16000, 32000), 23.15),
}
FILES = {name: f"{name}.tar.gz" for name in ("train-clean-100", "test-other", "speechocean762")}
FILES |= {"esc-10": "ESC-10.tar.gz", "speech-commands-noise": "speech_commands_v0.02.tar.gz"}
BESIDE = {
    "train-clean-100": {"LibriSpeech/SPEAKERS.TXT": b"84 | F | train-clean-100 | 8.02 | Christie Nowak\n"},
    "speechocean762": {"speechocean762/train/spk2gender": b"0006\tf\n"},
}


def encoded(samples: np.ndarray, rate: int = 16000, ending: str = "flac") -> bytes:
    buffer = io.BytesIO()
    form, subtype = {"ogg": ("OGG", "VORBIS"), "flac": ("FLAC", "PCM_16")}.get(ending.lower(), ("WAV", "PCM_16"))
    soundfile.write(buffer, samples, rate, format=form, subtype=subtype)
    return buffer.getvalue()


class Mirror:
    """An archive of each publisher with one listed recording, and the words of the command that asks for them."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.sums: dict[str, str] = {}
        draws = np.random.default_rng(0)
        self.members: dict[str, bytes] = {}
        self.rows: dict[str, list[object]] = {}
        for path, (archive, _, member, rate, cut, gain) in PLACES.items():
            samples = draws.integers(-900, 900, 48001).astype(np.int16)
            if path == READER_2:  # at full scale, so it is scaled
                samples = (32767 * np.sign(np.sin(np.arange(48001) / 9))).astype(np.int16)
            content = encoded(samples, rate, member[-3:])
            exact, _ = soundfile.read(io.BytesIO(content))
            exact = gain * (exact[slice(*cut)] if cut else exact)
            expected = soxr.resample(exact, rate, 16000 if "wav16k" in path else 8000, "VHQ")
            expected = np.rint(32767 * expected * min(1, 0.99 / np.abs(expected).max())).astype("<i2")
            file_md5 = hashlib.md5(content).hexdigest() if archive == "esc-10" else ""
            md5 = hashlib.md5(expected.tobytes()).hexdigest()
            self.rows[path] = [path, archive, member, *(cut or ("", "")), "" if gain == 1 else gain, md5, file_md5]
            self.serve(path, content)
        self.write_list()

    def write_list(self) -> None:
        self.list = write_csv(self.folder / "list.csv", COLUMNS, self.rows.values())

    def serve(self, path: str, content: bytes | None) -> None:
        archive, folder, member, *_ = PLACES[path]
        files = {f"{folder}/other/not-listed.flac": b"not listed"} | BESIDE.get(archive, {})
        if content is not None:
            files[f"{folder}/{member}"] = content
        served = tar_of(files)
        self.server.put(FILES[archive], served)
        self.sums[FILES[archive]] = hashlib.md5(served).hexdigest()
        (self.folder / "md5sum.txt").write_text("".join(f"{sum}  {file}\n" for file, sum in self.sums.items()))

    def words(self) -> list[str]:
        places = {"out": self.folder / "out", "cache": self.folder / "cache", "list": self.list}
        places |= {"mirror": self.server.url, "checksums": self.folder / "md5sum.txt"}
        return [word for name, value in places.items() for word in (f"--{name}", str(value))]


@pytest.fixture
def mirror(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**12))
    return Mirror(tmp_path, server)


def test_the_tree_holds_what_is_listed_and_the_same_command_continues(mirror: Mirror, capsys) -> None:
    assert main(mirror.words()) == 0
    out = mirror.folder / "out"
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {"speech_mini/SPEAKERS.TXT", *PLACES}
    assert (out / "speech_mini" / "SPEAKERS.TXT").read_text() == "; speaker | sex\n84 | F\n90006 | F\n"
    assert not list((mirror.folder / "cache").rglob("not-listed*"))
    for path, row in mirror.rows.items():
        samples, rate = soundfile.read(out / path, dtype="int16")
        assert rate == (16000 if "wav16k" in path else 8000) and hashlib.md5(samples.tobytes()).hexdigest() == row[6]
    assert len(soundfile.read(out / CHILD)[0]) == 10000 and len(soundfile.read(out / TAP)[0]) == 8000
    kept, damaged = out / READER, out / CHILD
    before = kept.stat().st_mtime_ns
    damaged.write_bytes(damaged.read_bytes()[:100])
    sent = mirror.server.files["speechocean762.tar.gz"].sent
    assert main(mirror.words()) == 0
    assert kept.stat().st_mtime_ns == before and soundfile.info(damaged).frames == 10000
    assert mirror.server.files["speechocean762.tar.gz"].sent == sent
    assert "5 recordings, samples as listed\n" in capsys.readouterr().out


def test_one_tree_fetches_its_archives_alone(mirror: Mirror) -> None:
    assert main([*mirror.words(), "--trees", "noise_mini"]) == 0
    assert not mirror.server.files["train-clean-100.tar.gz"].sent and not (mirror.folder / "out/speech_mini").exists()
    assert main([*mirror.words(), "--trees", "noise"]) == 2


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        (READER, None, "contains no LibriSpeech/train-clean-100"),
        (CHILD, None, "000060015.WAV: listed, but not unpacked from speechocean762"),
        (READER, encoded(np.zeros(32001, np.int16)), "it was changed"),
        (CHILD, encoded(np.zeros(9000, np.int16), ending="wav"), "expected 20160 samples or more, mono"),
        (RAIN, encoded(np.zeros(9000, np.int16), 44100, "ogg"), "it was changed"),
        (TAP, encoded(np.zeros((48001, 2), np.int16), ending="wav"), "mono"),
        (READER, b"no recording", "cannot be read"),
    ],
)
def test_an_archive_of_other_files_is_one_line(mirror, capsys, path, content, words) -> None:
    mirror.serve(path, content)
    assert main(mirror.words()) == 2
    line = capsys.readouterr().err
    assert words in line and line.count("\n") == 1


def test_a_decoder_that_rounds_otherwise_is_told_from_a_changed_file(mirror: Mirror, capsys) -> None:
    mirror.rows[RAIN][6] = "0" * 32
    mirror.write_list()
    assert main(mirror.words()) == 0
    assert "1 are as listed before decoding" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line", [f"{READER},train-clean-100,84.flac,,,", f"{READER},train-clean-100,84.flac,a,b,,{'0' * 32},"]
)
def test_a_list_with_a_bad_cell_names_its_line(mirror: Mirror, capsys, line: str) -> None:
    mirror.list.write_text(f"{','.join(COLUMNS)}\n{line}\n")
    assert main(mirror.words()) == 2
    assert f"{mirror.list}:2:" in capsys.readouterr().err


def test_no_room_is_one_line_and_then_it_continues(mirror: Mirror) -> None:
    resource = pytest.importorskip("resource", reason="Windows limits no sizes of files")
    command = [sys.executable, "-m", "tools.recordings", *mirror.words()]
    folder = Path(recordings.__file__).parent.parent
    assert main(mirror.words()) == 0
    target = mirror.folder / "out" / READER
    size = target.stat().st_size
    target.unlink()
    limit = (size // 2, resource.RLIM_INFINITY)
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )  # fmt: skip
    assert done.returncode == 2 and "free disk space" in done.stderr and not list(target.parent.iterdir())
    assert main(mirror.words()) == 0 and target.stat().st_size == size


def test_the_list_is_that_of_the_recordings(data_folder: Path) -> None:
    """All lossless copies, and that those of 8 kHz come from those of 16 kHz by the command's way.

    The copies at 16 kHz were written as round(s 32767 / 32768), so beyond half of full scale they are one step nearer
    to zero than the originals.
    """
    listed = read_list(LIST)
    speakers = {
        split: {Path(line.path).parts[3] for line in listed if line.path.startswith(f"speech_mini/wav8k/{split}/")}
        for split in ("train", "dev", "test")
    }
    assert [len(found) for found in speakers.values()] == [385, 53, 63] and len(set.union(*speakers.values())) == 501
    assert {Path(line.path).parts[3] for line in listed if line.tree == "speech_more"} <= speakers["train"]
    compared = resampled = 0
    for line in listed:
        if not (copy := data_folder / line.path).is_file():
            continue
        samples, _ = soundfile.read(copy, dtype="int16")
        assert hashlib.md5(samples.tobytes()).hexdigest() == line.md5, line
        compared += 1
        wide = data_folder / line.path.replace("wav8k", "wav16k")
        if line.tree == "speech_mini" and "wav8k" in line.path and wide.is_file() and resampled < 60:
            original = soundfile.read(wide, dtype="int16")[0].astype(int)
            original += np.where(abs(original) > 16384, np.sign(original), 0)
            again = recordings.converted(io.BytesIO(encoded(original.astype(np.int16))), 8000)  # type: ignore[arg-type]
            assert np.array_equal(again, samples), line
            resampled += 1
    assert (compared, resampled) == (1637, 60)
