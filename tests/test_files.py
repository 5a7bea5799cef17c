"""Files that are whole or absent, and YAML that is counted before it is made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sepkit import files
from sepkit.errors import UserError
from sepkit.files import atomic_output, file_digest, parse_json, parse_yaml, read_yaml, write_json, write_text

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "stands for 1.23e\\+09 values, expected at most"),
        ("&a [*a]", "nested too deeply, or holds itself"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ("x: " + "9" * 5000, "line 1 holds a number of 5000 characters"),
        ("a: 1\nx: 1" + ":1" * 5000, "line 2 holds a number of 10001 characters"),
        ('x: !!int "x"', "not YAML of plain values"),
        ("x: !!timestamp 2020-99-99", "not YAML of plain values"),
        ("? [1]\n: 2", "not YAML of plain values"),
        ("x: !!python/object/apply:os.system ['true']", "not YAML of plain values"),
        ("x: [", "not YAML of plain values"),
        ("\0", "not YAML of plain values"),
        ("x" * 5_000_000, "found 5000000 characters"),
    ],
)
def test_yaml_beyond_the_limits_is_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        parse_yaml(text, "model.yaml")
    line = str(caught.value)
    assert line.startswith("model.yaml: ") and "\n" not in line and len(line) < 1000


def test_what_the_limits_allow_is_read_as_ever():
    text = "a: &a {x: [1, 2.5e-3, yes, null]}\nb: {<<: *a, y: *a}\nc: 1e-3\n"
    assert parse_yaml(text, "x") == yaml.safe_load(text)
    assert parse_yaml("", "x") is None


def test_a_large_file_is_not_read(tmp_path):
    with (tmp_path / "big.yaml").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="holds 1099511627776 bytes"):
        read_yaml(tmp_path / "big.yaml")


def test_refusing_costs_little_memory(tmp_path):
    """Of a training configuration, `model.yaml` and `quality.yaml`, which all pass here."""
    (tmp_path / "x.yaml").write_text(LAUGHS)
    program = (
        "import sys\nfrom sepkit.cli.main import main\nfrom sepkit.inference.memory import resident_peak_mib\n"
        "code = main(['train', '--config', sys.argv[1], '--out', 'x'])\n"
        "print(resident_peak_mib())\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.yaml")], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and len(done.stderr) < 2001, done.stderr[:3000]
    assert float(done.stdout) < 1000


def test_a_name_as_long_as_names_can_be(tmp_path):
    path = write_text(tmp_path / ("ü" * 125 + ".json"), "x")
    assert path.read_text() == "x" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UserError, match="shorter name"):
        write_text(tmp_path / ("x" * 256), "x")


def test_names_that_are_no_utf_8_are_kept_in_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.wav")
    path = write_json(tmp_path / "x.json", {"input": name})
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
    write_text(tmp_path / "a.json", "x" * 100_000)
    assert len(calls) == 3 and calls[0].startswith(".a.") and calls[1:] == ["replace", tmp_path.name]
    calls.clear()
    with atomic_output(tmp_path / "a.wav") as temporary:
        temporary.write_bytes(b"x")
    assert calls == ["replace"]


def test_digest(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert file_digest(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_json_that_is_nested_too_deeply_is_no_json():
    assert parse_json('{"a": [1]}') == parse_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 100_000, '{"a":' * 100_000, "{", "1" * 5000):
        with pytest.raises(ValueError):
            parse_json(text)
