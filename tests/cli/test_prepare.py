import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.data.manifest import read_manifest


@pytest.fixture
def speech(tmp_path):
    generator = np.random.default_rng(0)
    for split in ("train", "dev", "test"):
        for speaker in ("a", "b"):
            path = tmp_path / "speech" / split / f"{split}-{speaker}" / "1.wav"
            audio.write(path, 0.1 * generator.standard_normal(9000), 8000)
    return str(tmp_path / "speech")


def test_folder_wavs_and_mixed_follow_on_each_other(speech, tmp_path, capsys):
    out = str(tmp_path / "out")
    options = ["--segment-seconds", "1", "--groups", r"one=.*-\w", "two=x"]
    assert main(["prepare", "folder", "--speech", speech, "--out", out, *options]) == 2
    assert "test_two: 0 speaker(s)" in capsys.readouterr().err
    assert main(["prepare", "folder", "--speech", speech, "--out", out, *options[:-1]]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == out
    wavs = str(tmp_path / "wavs")
    assert main(["prepare", "wavs", "--manifest", f"{out}/test_one.jsonl", "--out", wavs]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == wavs
    mixed = ["--mixture", f"{wavs}/mix", "--sources", f"{wavs}/s1", f"{wavs}/s2", "--out", str(tmp_path / "mixed")]
    assert main(["prepare", "mixed", *mixed]) == 0
    assert len(read_manifest(capsys.readouterr().out.splitlines()[-1])) == 1
    assert main(["prepare", "mixed", wavs, "--out", str(tmp_path / "found")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "found" / "test.jsonl")


@pytest.mark.parametrize(
    "arguments",
    [
        ["folder", "--speech", "/nowhere/at/all", "--out", "OUT"],
        ["mixed", "--mixture", "/nowhere", "--sources", "/nowhere", "--out", "OUT"],
        ["wavs", "--manifest", "/nowhere.jsonl", "--out", "OUT"],
        ["mini", "--speakers", "99", "--out", "OUT"],
        ["folder", "--out", "OUT"],
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, tmp_path, capsys):
    assert main(["prepare", *[str(tmp_path / "out") if word == "OUT" else word for word in arguments]]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1 and captured.err.startswith(f"sepkit prepare {arguments[0]}: ")
    assert captured.out == ""
