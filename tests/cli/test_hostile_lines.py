"""Command lines that no careful person types: each is one line and exit code 2, and nothing is written."""

import sys

import pytest

from sepkit.cli.main import main
from sepkit.limits import MESSAGE_CHARACTERS, SEED

OUT = [
    ["audiogram", "simulate", "--model", "m", "--manifest", "x"],
    ["audiogram", "tables", "x"],
    ["evaluate", "--manifest", "x.jsonl"],
    ["export", "boxed_8k"],
    ["find-temperature", "--manifest", "x"],
    ["prepare", "folder", "--speech", "in"],
    ["prepare", "mini"],
    ["prepare", "mixed", "in"],
    ["prepare", "wavs", "--manifest", "x"],
    ["quantize", "gaussians"],
    ["quantize", "uci", "--data", "in"],
    ["report", "x"],
    ["separate", "x.wav"],
    ["annealed-inference", "formulas"],
    ["summarize", "x"],
    ["train", "--data.train", "x.jsonl"],
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command says."""
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and len(told.err) <= MESSAGE_CHARACTERS + 1, told
    assert "failed:" not in told.err and told.err.strip().isprintable()
    return told.err


@pytest.mark.parametrize("line", OUT, ids=lambda line: " ".join(line[:2]))
def test_an_empty_out_is_not_the_working_folder(line, folder, capsys):
    """What a shell makes of `--out "$UNSET"`."""
    for out in (["--out", ""], ["--out="]):
        assert "--out: found nothing" in complaint([*line, *out], capsys)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (["separate", ""], "INPUT: found nothing"),
        (["separate", "x.wav", "--model", ""], "--model: found nothing"),
        (["evaluate", "--manifest", "", "--out", "o"], "--manifest: found nothing"),
        (["evaluate", "--manifest", "x", "--estimates", "", "--out", "o"], "--estimates: found nothing"),
        (["prepare", "folder", "--speech", "", "--out", "o"], "--speech: found nothing"),
        (["train", "--config", "", "--out", "o"], "--config : "),
        (["train", "--import", "", "--out", "o"], "--import : no such file"),
    ],
)
def test_nothing_in_place_of_a_name(line, what, folder, capsys):
    (folder / "mine.wav").write_text("mine")
    assert what in complaint(line, capsys)
    assert [path.name for path in folder.iterdir()] == ["mine.wav"]


WITH_SEEDS = {
    "train": ["train", "--data.train", "x.jsonl", "--out", "o", "--seed"],
    "train, as a key": ["train", "--data.train", "x.jsonl", "--out", "o", "--trainer.seed"],
    "prepare mini": ["prepare", "mini", "--out", "o", "--seed"],
    "prepare folder": ["prepare", "folder", "--speech", "in", "--out", "o", "--seed"],
    "find-temperature": ["find-temperature", "--manifest", "x", "--out", "o", "--seed"],
}


@pytest.mark.parametrize("name", WITH_SEEDS)
def test_seeds_out_of_range(name, folder, capsys):
    for seed in ("-1", str(SEED + 1), str(2**64), "9" * 4000, "1" + "0" * 5000, "nan", "1.5", ""):
        told = complaint([*WITH_SEEDS[name], seed], capsys)
        assert "seed" in told and "found" in told
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("value", ["-1", str(SEED + 1), "1" + "0" * 60, ".inf", "[1]", "{a: 1}", "'1'", "true"])
def test_seeds_of_configurations_out_of_range(value, folder, capsys):
    (folder / "c.yaml").write_text(f"data: {{train: x.jsonl}}\ntrainer: {{seed: {value}}}\n")
    assert "trainer.seed: found" in complaint(["train", "--config", "c.yaml", "--out", "o"], capsys)


FILES = {
    "ends.py": (b"import sys\nsys.exit(0)\n", "cannot be executed (SystemExit: 0)"),
    "ends_with_a_line.py": (b"raise SystemExit('bye')\n", "cannot be executed (SystemExit: bye)"),
    "raises.py": (b"raise ValueError('x' * 10**6 + '\\n\\a')\n", "cannot be executed (ValueError: xxx"),
    "raises_what_is_no_exception.py": (b"class E(BaseException): pass\nraise E('x')\n", "cannot be executed (E: x)"),
    "recurses.py": (b"def f(): f()\nf()\n", "cannot be executed (RecursionError"),
    "nested.py": (b"(" * 5000, "cannot be executed"),
    "bytes.py": (b"\0\1\2\xff" * 50, "cannot be executed ("),
    "latin.py": (b"x = '\xe9'\n", "cannot be executed (SyntaxError"),
    "prose.py": (b"This is no Python.\n", "cannot be executed (SyntaxError"),
    "text.txt": (b"x = 1\n", "expected a Python file (.py)"),
    "compiled.pyc": (b"abc", "cannot be executed (ImportError"),
    "extension.so": (b"\x7fELF", "cannot be executed (ImportError"),
    # Modules that are imported already, and one that would be later.
    "numpy.py": (b"x = 1\n", "a module that is installed has the name numpy"),
    "json.py": (b"x = 1\n", "a module that is installed has the name json"),
    "this.py": (b"x = 1\n", "a module that is installed has the name this"),
}


@pytest.mark.parametrize("name", FILES)
def test_imports_of_what_cannot_be_imported(name, folder, capsys):
    content, expected = FILES[name]
    (folder / name).write_bytes(content)
    before = {key: sys.modules.get(key) for key in ("numpy", "json", "this", "ends")}
    for line in (["train", "--out", "o"], ["separate", "x.wav", "--out", "o"]):
        told = complaint([*line, "--import", name], capsys)
        assert f"--import {name}: " in told and expected in told
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == [name]
    assert {key: sys.modules.get(key) for key in before} == before


@pytest.mark.parametrize("name", [".", "/dev/null", "a\0b.py", "n" * 300 + ".py"])
def test_imports_of_what_is_no_file(name, capsys):
    told = complaint(["train", "--out", "o", "--import", name], capsys)
    assert "no such file" in told or "name is too long" in told
