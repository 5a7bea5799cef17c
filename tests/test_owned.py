"""No command changes the bytes of a file that sepkit did not write."""

import json
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.files import write_text
from sepkit.models import build_model, save_model
from sepkit.owned import RECORD, writing
from tests.tiny_models import RECURRENT


def noise(path: Path, seed: int = 0, num_samples: int = 4000) -> Path:
    return audio.write(path, np.random.default_rng(seed).normal(0, 0.1, num_samples).astype(np.float32), 8000)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    save_model(build_model(RECURRENT), folder / "model")
    for split in ("train", "dev", "test"):
        for speaker in range(2):
            noise(folder / "speech" / split / f"{split}{speaker}" / "a.wav", speaker)
    sources = [{"path": "speech/test/test0/a.wav"}, {"path": "speech/test/test1/a.wav"}]
    entry = {"id": "a", "sample_rate": 8000, "num_samples": 4000, "sources": sources}
    (folder / "m.jsonl").write_text(json.dumps(entry) + "\n")
    (folder / "est").mkdir()
    for k in (1, 2):
        noise(folder / "est" / f"a_s{k}.wav", k)
    assert main([*EVALUATE, str(folder / "ev"), *of(folder, "evaluate")]) == 0
    return folder


EVALUATE = ["evaluate", "--metrics", "si_sdr", "--out"]


def of(inputs: Path, command: str) -> list[str]:
    return {
        "evaluate": ["--manifest", str(inputs / "m.jsonl"), "--estimates", str(inputs / "est")],
        "prepare": ["--speech", str(inputs / "speech"), "--dev-mixtures", "2", "--test-mixtures", "2"],
        "report": ["--examples", "0"],
        "export": [],
        "summarize": [],
    }[command]


COMMANDS = {
    "evaluate": (["evaluate", "--metrics", "si_sdr"], "", "utterances.csv"),
    "prepare": (["prepare", "folder", "--segment-seconds", "0.2"], "", "test.jsonl"),
    "report": (["report", "{}/ev"], "page.html", "page.html"),
    "summarize": (["summarize", "{}/ev"], "table.md", "table.md"),
}
"""Command -> words, --out below the folder, and a file that it writes."""


@pytest.mark.parametrize("command", COMMANDS)
def test_somebody_elses_file_is_refused_before_the_work_and_ones_own_is_replaced(command, inputs, tmp_path, refused):
    words, out, name = COMMANDS[command]
    line = [word.format(inputs) for word in words]
    line += [*of(inputs, command), "--out", str(tmp_path / out)]
    (tmp_path / name).write_text("mine")
    said = refused(line)
    assert name in said and "not written by sepkit" in said
    assert (tmp_path / name).read_text() == "mine" and os.listdir(tmp_path) == [name], "refused before any work"
    (tmp_path / name).unlink()
    assert main(line) == 0
    first = (tmp_path / name).read_bytes()
    assert main(line) == 0, "the same command again"
    assert len((tmp_path / name).read_bytes()) == len(first) and first != b"mine"


def test_an_input_is_no_output_by_any_of_its_names(tmp_path):
    """By a link of either kind, too, and though an earlier run wrote it."""
    with writing(tmp_path / "out", ()):
        write_text(tmp_path / "out" / "a.txt", "first")
    os.link(tmp_path / "out" / "a.txt", tmp_path / "hard.txt")
    (tmp_path / "soft.txt").symlink_to(tmp_path / "out" / "a.txt")
    for name in ("out/a.txt", "hard.txt", "soft.txt"):
        with writing(tmp_path / "out", [str(tmp_path / name)]), pytest.raises(Exception, match="is an input"):
            write_text(tmp_path / "out" / "a.txt", "second")
    assert (tmp_path / "out" / "a.txt").read_text() == "first"
    with writing(tmp_path / "out", ()):
        write_text(tmp_path / "out" / "a.txt", "second")
    assert (tmp_path / "out" / RECORD).read_text() == "a.txt\n"


def test_python_writes_what_it_is_told_to(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new" and os.listdir(tmp_path) == ["a.txt"]


def test_the_results_of_an_earlier_version_are_known(inputs, tmp_path):
    """Which kept no names: the same command again continues there."""
    line = [*EVALUATE, str(tmp_path), *of(inputs, "evaluate")]
    assert main(line) == 0
    (tmp_path / RECORD).unlink()
    assert main(line) == 0 and main(line) == 0


# ------------------------------------------------------------------------------------------------------------ separate


def separate(inputs: Path, out: Path, *words: object) -> int:
    return main(["separate", *map(str, words), "--model", str(inputs / "model"), "-o", str(out), "--device", "cpu"])


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.glob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", ["talk_s1.wav", "talk_s2.wav", "TALK_S2.WAV", "talk.json", "talk.rttm", "failed.jsonl", "talk_s1.flac"]
)
def test_a_file_beside_the_recording_keeps_its_bytes(name, inputs, tmp_path, capsys):
    noise(tmp_path / "talk.wav")
    (tmp_path / name).write_text('{"mine": 1}')
    before = digests(tmp_path)
    options = ["--rttm"] if name.endswith("rttm") else ["--format", "flac"] if name.endswith("flac") else []
    assert separate(inputs, tmp_path, tmp_path / "talk.wav", *options) == 2
    assert digests(tmp_path) == before and "not written by sepkit" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["talk_s3.wav", "talk.rttm", "talk_s1.flac", "talk_s1.txt", "talks_s1.wav"])
def test_files_that_would_not_be_written_are_no_hindrance(name, inputs, tmp_path):
    noise(tmp_path / "talk.wav")
    (tmp_path / name).write_text("mine")
    assert separate(inputs, tmp_path, tmp_path / "talk.wav") == 0
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
def test_a_recording_is_not_replaced_by_an_estimate_of_another(link, inputs, tmp_path):
    noise(tmp_path / "talk.wav")
    noise(tmp_path / "other.wav", 1)
    given = "talk_s1.wav" if link is None else "other.wav"
    if link is None:
        (tmp_path / "other.wav").rename(tmp_path / given)
    else:
        link(tmp_path / "other.wav", tmp_path / "talk_s1.wav")
    before = digests(tmp_path)
    for words in (["talk.wav", given], [given, "talk.wav"]):
        assert separate(inputs, tmp_path, *(tmp_path / word for word in words)) == 2
    assert digests(tmp_path) == before


def test_what_an_earlier_run_wrote_is_replaced_when_options_change(inputs, tmp_path):
    noise(tmp_path / "talk.wav")
    for options in ([], ["--subtype", "FLOAT"], ["--rttm"], ["--rttm"]):
        assert separate(inputs, tmp_path, tmp_path / "talk.wav", *options) == 0
    assert sorted(digests(tmp_path)) == ["talk.json", "talk.rttm", "talk.wav", "talk_s1.wav", "talk_s2.wav"]


def test_what_a_kill_left_is_made_anew(inputs, tmp_path, monkeypatch):
    """Estimates without the JSON file that records them."""
    noise(tmp_path / "talk.wav")
    with monkeypatch.context() as patch:
        patch.setattr("sepkit.inference.batch.outputs.write_json", lambda *_: os._exit(9))
        child = os.fork()
        if not child:
            separate(inputs, tmp_path, tmp_path / "talk.wav")
        assert os.waitpid(child, 0)[1] == 9 << 8
    assert (tmp_path / "talk_s1.wav").exists() and not (tmp_path / "talk.json").exists()
    assert separate(inputs, tmp_path, tmp_path / "talk.wav") == 0
    assert sorted(os.listdir(tmp_path)) == ["talk.json", "talk.wav", "talk_s1.wav", "talk_s2.wav"]
