import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.config import ScoringConfig
from sepkit.data import audio
from sepkit.models import build_model, save_model
from tests.tiny_models import RECURRENT


@pytest.fixture
def model(tmp_path):
    return str(save_model(build_model(RECURRENT), tmp_path / "exp" / "model"))


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "x.wav"
    audio.write(path, 0.1 * np.random.default_rng(0).standard_normal(500).astype(np.float32), 8000)
    return str(path)


def test_separates_and_ends_with_the_folder(tmp_path, model, recording, printed):
    out = str(tmp_path / "out")
    assert printed(["separate", recording, "--model", model, "--out", out, "--device", "cpu"]).splitlines()[-1] == out
    assert (tmp_path / "out" / "x_s2.wav").is_file()


@pytest.mark.parametrize("summary", ["out", "out/x_s2.wav"])
def test_a_summary_replaces_no_output(tmp_path, model, recording, refused, summary):
    line = ["separate", recording, "--model", model, "--out", str(tmp_path / "out"), "--device", "cpu"]
    path = tmp_path / summary
    assert f"{path}: is there, not written by sepkit" in refused([*line, "--summary", path])
    assert audio.info(tmp_path / "out" / "x_s2.wav").num_samples == 500


def test_what_to_expect_is_said_once(tmp_path, capsys):
    """Separate two recordings of 44.1 kHz with the shipped model."""
    generator = np.random.default_rng(0)
    for name in ("first", "second"):
        waveform = np.cumsum(generator.standard_normal(44100)).astype(np.float32)
        audio.write(tmp_path / "in" / f"{name}.wav", 0.1 * waveform / np.abs(waveform).max(), 44100)
    line = ["separate", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(line) == 0
    captured = capsys.readouterr()
    *told, last, folder = captured.out.splitlines()
    outputs = {
        name: ", ".join(str(tmp_path / "out" / f"{name}_s{i}.wav") for i in (1, 2)) for name in ("first", "second")
    }
    assert told[::2] == [f"{tmp_path / 'in' / name}.wav → {files}" for name, files in outputs.items()]
    assert re.fullmatch(r"2 files, 2 s of audio in \S+ s", last) and folder == str(tmp_path / "out")
    # Noise is unlike all that was counted and predicted, and nothing is said of it with confidence.
    assert set(told[1::2]) == {"  2 outputs; quality unknown: unlike the recordings that the prediction was fitted on"}
    # What was done before is not told again.
    assert main(line) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["2 files already separated", folder]


def test_some_failures_exit_with_1(tmp_path, model, recording, capsys):
    (tmp_path / "bad.wav").write_text("no audio")
    out = str(tmp_path / "out")
    with pytest.raises(SystemExit) as ended:
        main(["separate", recording, str(tmp_path / "bad.wav"), "--model", model, "--out", out])
    captured = capsys.readouterr()
    assert ended.value.code == 1
    assert captured.out.splitlines()[-1] == out
    assert "bad.wav" in captured.err and "1 file failed" in captured.err


@pytest.mark.parametrize("option", ["--model", "--device", "--import"])
def test_mistakes_exit_with_2_and_one_line(tmp_path, model, recording, refused, option):
    line = ["separate", recording, "--model", model, "--out", str(tmp_path / "out")]
    assert refused([*line, option, tmp_path / "none"])


@pytest.mark.parametrize(
    ("speakers", "word"),
    [("some", "expected auto or a whole number"), ("auto", "does not count speakers"), ("3", "use --link-speakers 3")],
)
def test_wrong_speakers_exit_with_2_and_one_line(tmp_path, model, recording, refused, speakers, word):
    line = ["separate", recording, "--model", model, "--out", tmp_path / "out", "--speakers", speakers]
    assert word in refused(line)


@pytest.mark.parametrize("speakers", [1, 2])
def test_a_model_that_does_not_count_writes_as_many_as_asked_for(tmp_path, model, recording, printed, speakers):
    out = tmp_path / "out"
    told = printed(["separate", recording, "--model", model, "--out", out, "--speakers", speakers])
    assert f"\n  {speakers} speaker" in told
    assert json.loads((out / "x.json").read_text())["speakers"] == speakers == len(list(out.glob("*.wav")))


def test_a_number_of_speakers_is_taken(tmp_path, recording):
    config = replace(RECURRENT, hypotheses=3, scoring=ScoringConfig(4))
    model = str(save_model(build_model(config), tmp_path / "scored"))
    line = ["separate", recording, "--model", model, "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*line, "--speakers", "2"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["x.json", "x_s1.wav", "x_s2.wav"]
    assert main([*line, "--speakers", "auto"]) == 0


def test_arguments_are_checked_before_torch_is_imported(tmp_path):
    code = "import sys; from sepkit.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    for line in (["nosuch.wav"], [str(tmp_path), "--model", "boxed_8k"], ["x.wav", "--chunk-seconds", "0"]):
        command = [sys.executable, "-c", code, "separate", *line]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout.split() == ["2", "False"] and done.stderr.count("\n") == 1


def test_the_help_fits_two_screens(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["separate", "--help"])
    text = capsys.readouterr().out
    assert text.count("\n") <= 100 and all(len(line) <= 100 for line in text.splitlines())
    assert text.index("Input and output") < text.index("Model:") < text.index("Long recordings") and "type:" not in text


def test_estimates_go_to_a_folder_by_default(tmp_path, model, recording, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["separate", recording, "--model", model, "--device", "cpu"]) == 0
    assert (tmp_path / "separated" / "x_s1.wav").is_file()


def test_models_lists_and_describes(model, printed):
    listed = printed(["models"])
    assert all(name in listed for name in ("conv_tasnet", "sepformer", "asteroid:FILE"))
    described = printed(["models", "--model", model])
    assert "sample_rate: 8000" in described and "name: recurrent" in described
    assert main(["models", "--model", model + "/none"]) == 2
