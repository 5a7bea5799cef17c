"""Files that are whole or absent, and YAML that is counted before it is made."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
import yaml

from sepkit import files
from sepkit.data.manifest import read_manifest
from sepkit.data.segments import read_segments
from sepkit.evaluation.diarization import read_rttm
from sepkit.evaluation.run_folder import load_evaluation, read_curve
from sepkit.reporting.clusters import read_embeddings
from sepkit.studies.audiogram.data import read_audiograms
from tests.complaint import complaint
from tests.peak_memory import PEAK_MEMORY

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "expands to 1.23e\\+09 values, expected at most"),
        ("&a [*a]", "nested too deeply, or contains itself"), ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ("x: " + "9" * 5000, "line 1 contains a number of 5000 characters"),
        ("a: 1\nx: 1" + ":1" * 5000, "line 2 contains a number of 10001 characters"),
        ("a: 1\nb: 2\na: 3\n", "'a' stands in line 1 and again in line 3"),
        ("x:\n- {a: 1, 'a': 2}\n", "'a' stands in line 2 and again in line 2"),
        ("1: x\n1: y\n", "'1' stands in line 1 and again in line 2"), ('x: !!int "x"', "not YAML of plain values"),
        ("x: !!timestamp 2020-99-99", "not YAML of plain values"), ("? [1]\n: 2", "not YAML of plain values"),
        ("x: !!python/object/apply:os.system ['true']", "not YAML of plain values"),
        ("x: [", "not YAML of plain values"), ("\0", "not YAML of plain values"),
        ("x" * 5_000_000, "found 5000000 characters"),
    ],
)  # fmt: skip
def test_yaml_beyond_the_limits_is_refused_in_one_line(text, message):
    line = complaint(lambda: files.parse_yaml(text, "model.yaml"), message)
    assert line.startswith("model.yaml: ") and len(line) < 1000


def test_what_the_limits_allow_is_read_as_ever():
    text = "a: &a {x: [1, 2.5e-3, yes, null]}\nb: {<<: *a, x: 1, y: *a}\nc: 1e-3\n1: 2\n'1': 3\n"
    assert files.parse_yaml(text, "x") == yaml.safe_load(text)
    assert files.parse_yaml("", "x") is None


def test_a_large_file_is_not_read(tmp_path):
    with (tmp_path / "big.yaml").open("wb") as file:
        file.truncate(1 << 40)
    words = r"\(1,099,511,627,776 bytes, expected at most 4,000,000\)"
    complaint(lambda: files.read_yaml(tmp_path / "big.yaml"), words)


READERS = {
    "a manifest": read_manifest,
    "segments": read_segments,
    "RTTM": read_rttm,
    "a table": files.read_csv,
    "a curve": read_curve,
    "an evaluation": lambda path: load_evaluation(path.parent),
    "JSON": files.read_json,
    "YAML": files.read_yaml,
    "a journal": lambda path: list(files.journal_rows(path)),
    "audiograms": read_audiograms,
    "embeddings": read_embeddings,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["large", "endless", "pipe", "folder"])
def test_text_without_an_end_is_refused(reader, kind, tmp_path):
    path = tmp_path / "summary.json"
    if kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    complaint(lambda: reader(path), r"summary\.json")


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    """And no others: of processes that run, or of other machines."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    with files.atomic_output(tmp_path / "x.wav") as own:
        own.touch()
    machine, name = own.name.split(".")[2].split("-")[0], own.name
    dead = name.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    kept = [name.replace(f"-{os.getpid()}-", f"-{os.getppid()}-"), dead.replace(machine, "0" * 8), ".x.tmp.wav"]
    kept += [f".x.{ended.pid}.wav", f"x.{machine}-{ended.pid}-1.tmp.wav"]
    (tmp_path / "out").mkdir()
    for file in [dead, *kept]:
        (tmp_path / "out" / file).touch()
    files.write_text(tmp_path / "out" / "y.txt", "y")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*kept, "y.txt"])


def test_a_line_of_a_journal_says_whether_it_is_whole(tmp_path):
    rows = [{"key": "a", "name": os.fsdecode(b"caf\xe9"), "text": ', "digest": "0"}'}, {"key": "ü", "x": [1.5, None]}]
    text = "".join(map(files.journal_line, rows)).encode("utf-8", "backslashreplace")
    (tmp_path / "journal").write_bytes(text)
    assert list(files.journal_rows(tmp_path / "journal")) == rows
    for at in range(len(text)):
        (tmp_path / "journal").write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        assert list(files.journal_rows(tmp_path / "journal")) in (rows[:1], rows[1:], [])
    broken = '{"key": ]'
    line = f'{broken}, "digest": "{hashlib.blake2b(f"{broken}}}".encode(), digest_size=8).hexdigest()}"}}\n'
    (tmp_path / "journal").write_bytes(line.encode() + text)
    assert list(files.journal_rows(tmp_path / "journal")) == rows


def test_refusing_costs_little_memory(tmp_path):
    """Of a training configuration, `model.yaml` and `quality.yaml`, which all pass here."""
    (tmp_path / "x.yaml").write_text(LAUGHS)
    program = (
        f"{PEAK_MEMORY}\nimport sys\nfrom sepkit.cli.main import main\n"
        "code = main(['train', '--config', sys.argv[1], '--out', 'x'])\nprint(resident_peak_mib())\nsys.exit(code)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "x.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and len(done.stderr) < 2001, done.stderr[:3000]
    assert float(done.stdout) < 1000


def test_a_name_as_long_as_names_can_be(tmp_path):
    assert files.write_text(tmp_path / ("ü" * 125 + ".json"), "x").read_text() == "x"
    assert len(list(tmp_path.iterdir())) == 1
    complaint(lambda: files.write_text(tmp_path / ("x" * 256), "x"), "shorter name")


def test_names_that_are_no_utf_8_are_kept_in_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.wav")
    path = files.write_json(tmp_path / "x.json", {"input": name})
    path.read_bytes().decode("utf-8")
    assert json.loads(path.read_text())["input"] == name


def test_what_is_durable_is_synced_before_and_after_its_name(tmp_path, monkeypatch):
    calls: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def replace(source, target) -> None:
        calls.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(files.os, "replace", replace)
    files.write_text(tmp_path / "a.json", "x" * 100_000)
    assert len(calls) == 3 and calls[0].startswith(".a.") and calls[1:] == ["replace", tmp_path.name]
    calls.clear()
    with files.atomic_output(tmp_path / "a.wav") as temporary:
        temporary.write_bytes(b"x")
    assert calls == ["replace"]


def test_digest(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert files.file_digest(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_json_that_is_nested_too_deeply_is_no_json():
    assert files.parse_json('{"a": [1]}') == files.parse_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 100_000, '{"a":' * 100_000, "{", "1" * 5000):
        with pytest.raises(ValueError):
            files.parse_json(text)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_said_and_worked_on(number, tmp_path, monkeypatch, capsys):
    fcntl = pytest.importorskip("fcntl", reason="Windows locks in another way")

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with files.locked(tmp_path / "new" / ".lock", timeout=0):
            pass
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"no locks ({os.strerror(number)})" in said
    with files.locked(tmp_path / ".lock"), pytest.raises(filelock.Timeout), files.locked(tmp_path / ".lock", timeout=0):
        pass
    assert capsys.readouterr().err == ""


def test_machines_of_one_name_leave_each_others_temporary_files(tmp_path, monkeypatch):
    """On a disk that they share: each was started at another time, which the system has a number of."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.is_file():
        pytest.skip("this system numbers no starts")
    with files.atomic_output(tmp_path / "x.txt") as own:
        own.touch()
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **how: "other" if self == boot else real(self, **how))
    files._machine.cache_clear()
    try:
        with files.atomic_output(tmp_path / "x.txt") as other:
            other.touch()
    finally:
        files._machine.cache_clear()
    assert own.name != other.name


def test_json_objects_begin_with_the_number_of_their_format(tmp_path):
    assert files.write_json(tmp_path / "x.json", {"b": 1, "format": 7}).read_text() == '{\n "format": 1,\n "b": 1\n}\n'
    # A file that is read, added to and written again keeps one number.
    more = files.read_json(tmp_path / "x.json") | {"a": 2}
    assert files.write_json(tmp_path / "y.json", more).read_text().count("format") == 1
    assert files.write_json(tmp_path / "rows.json", [{"a": 1}]).read_text() == '[\n {\n  "a": 1\n }\n]\n'


@pytest.mark.parametrize(
    "text",
    [
        "path,speaker,start\na b.wav,Ann Lee,0.5\n", "path, speaker, start\na b.wav, Ann Lee, 0.5\n",
        'path, "speaker", start\n"a b.wav", "Ann Lee", 0.5\n', "path;speaker;start\na b.wav;Ann Lee;0.5\n",
        "path ;speaker ;start\r\na b.wav;Ann Lee;0.5\r\n", "\ufeffpath;speaker;start\na b.wav;Ann Lee;0.5\n",
        "path\tspeaker\tstart\na b.wav\tAnn Lee\t0.5\n",
    ],
)  # fmt: skip
def test_tables_are_read_as_spreadsheets_write_them(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    row = {"path": "a b.wav", "speaker": "Ann Lee", "start": "0.5"}
    assert files.read_csv(tmp_path / "x.csv") == (list(row), [(2, row)])


def test_commas_part_a_table_whose_first_line_has_one(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("path,note\na;b.wav,c;d\n")
    assert files.read_csv(tmp_path / "x.csv")[1] == [(2, {"path": "a;b.wav", "note": "c;d"})]


def test_a_quote_beyond_the_columns_of_a_table_is_no_formula(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,'=2,'\n")
    assert files.read_csv(tmp_path / "x.csv")[1] == [(2, {"a": "1", "b": "=2", None: ["'"]})]
