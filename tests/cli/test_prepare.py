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


def test_folder_wavs_and_mixed_follow_on_each_other(speech, tmp_path, printed, capsys):
    out = str(tmp_path / "out")
    options = ["--segment-seconds", "1", "--groups", r"one=.*-\w", "two=x"]
    assert main(["prepare", "folder", "--speech", speech, "--out", out, *options]) == 2
    assert "test_two: 0 speaker(s)" in capsys.readouterr().err
    assert printed(["prepare", "folder", "--speech", speech, "--out", out, *options[:-1]]).splitlines()[-1] == out
    wavs = str(tmp_path / "wavs")
    assert printed(["prepare", "wavs", "--manifest", f"{out}/test_one.jsonl", "--out", wavs]).splitlines()[-1] == wavs
    mixed = ["--mixture", f"{wavs}/mix", "--sources", f"{wavs}/s1", f"{wavs}/s2", "--out", str(tmp_path / "mixed")]
    assert len(read_manifest(printed(["prepare", "mixed", *mixed]).splitlines()[-1])) == 1
    found = tmp_path / "found"
    assert printed(["prepare", "mixed", wavs, "--out", found]).splitlines()[-1] == str(found / "test.jsonl")


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
