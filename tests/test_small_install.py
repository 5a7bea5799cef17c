"""What works without torch and scipy, and what is said where it does not."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sepkit.data import audio
from tests.small_install import modules_of_small_install, run
from tests.tiny_models import RECURRENT

# Rooms and files that a small install can import. The rest of these rooms belongs to extras.
ROOMS = {
    "sepkit": ("config", "matching", "objectives.formulas", "reporting.text", "reporting.web"),
    "sepkit.data": ("activity", "audio", "manifest", "mixing", "resampling", "segments"),
    "sepkit.evaluation": ("clusters", "evaluate", "meeting", "run_folder"),
    "sepkit.models": ("export.graph_file", "published.card", "published.names", "storage.folders"),
}
SMALL = [f"{room}.{name}" for room, names in ROOMS.items() for name in names]


def sepkit(folder: Path, *words: str | Path) -> str:
    """Run a command that succeeds; return what it prints."""
    done = run(folder, "-m", "sepkit", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Their imports take most of the time of commands that are refused.
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from sepkit.cli.main import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue()]))
"""


def refused(folder: Path, commands: Sequence[Sequence[str | Path]], without: str = "") -> list[str]:
    """Run commands in one process, each of which ends with exit code 2 and a line; return the lines."""
    words = json.dumps([list(map(str, command)) for command in commands])
    done = run(folder, "-c", ONE_AFTER_ANOTHER, words, without=without)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(commands)
    assert all(code == 2 and len(said.strip().splitlines()) == 1 for code, said in told), told
    return [said.strip() for _, said in told]


def test_the_small_install_has_what_separates_and_nothing_that_trains():
    found = modules_of_small_install()
    assert {"numpy", "onnxruntime", "soundfile", "soxr", "tqdm", "yaml"} <= found
    assert not {"torch", "scipy", "safetensors", "lightning", "onnx", "huggingface_hub", "matplotlib"} & found


def test_its_modules_import(tmp_path):
    script = f"import sys, importlib\nfor name in {SMALL}: importlib.import_module(name)\n"
    script += "assert not {'torch', 'scipy'} & set(sys.modules)\nimport importlib.util\n"
    script += "assert importlib.util.find_spec('torch') is None and importlib.util.find_spec('scipy') is None"
    done = run(tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr


def test_help_needs_no_extra(tmp_path):
    assert sepkit(tmp_path, "train", "--help").startswith("usage")


def test_it_separates_streams_clusters_evaluates_and_makes_the_page(tmp_path):
    script = "import sys\nfrom pathlib import Path\nfrom tools.small_install import commands\n"
    script += "for name, taken in commands(Path(sys.argv[1]), 4.0): print(name, taken)"
    done = run(tmp_path, "-c", script, tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 8


def test_a_model_in_torch_is_refused_in_one_line(tmp_path):
    from sepkit.models import build_model, save_model

    save_model(build_model(RECURRENT), tmp_path / "model")
    recording = audio.write(tmp_path / "x.wav", np.zeros(8000), 8000)
    commands = (["separate", "--model", "model", recording], ["web", "model", "--out", "page"])
    assert all("pip install 'sepkit[torch]'" in line for line in refused(tmp_path, commands))


def test_graphs_need_onnxruntime_which_a_line_says(tmp_path):
    recording = audio.write(tmp_path / "x.wav", np.zeros(8000), 8000)
    commands = (["separate", recording], ["cluster", recording, "--out", "c"], ["web", "boxed_8k", "--out", "page"])
    assert all("pip install onnxruntime" in line for line in refused(tmp_path, commands, without="onnxruntime"))


def test_estimates_are_measured(corpus, tmp_path):
    folder = tmp_path / "estimates"
    folder.mkdir()
    for name, sources in corpus.sources.items():
        for k, source in enumerate(sources):
            audio.write(folder / f"{name}_s{k + 1}.wav", source, 8000)
    arguments = ["--estimates", folder, "--manifest", corpus.manifest, "--processes", "2"]
    assert "SI-SDR [dB]" in sepkit(tmp_path, "evaluate", *arguments, "--out", tmp_path / "all")
    done = run(tmp_path, "-m", "sepkit", "evaluate", *arguments, "--out", tmp_path / "sdr", "--metrics", "sdr")
    assert done.returncode == 2 and "pip install 'sepkit[evaluate]'" in done.stderr


NEEDING = (
    ("train --config recurrent_stft --data.train x --data.dev x --out exp", "train"),
    ("smoke --config recurrent_stft", "train"),
    ("calibrate exp --manifest dev.jsonl", "evaluate"),
    ("prepare mini --out mini", "evaluate"),
    ("report exp --out x.html", "report"),
    ("summarize exp --out x.md", "report"),
    ("find-temperature --manifest x --out x", "torch"),
    ("export boxed_8k --out x.onnx", "torch"),
    ("quantize sines --out x", "torch"),
)


def test_a_command_that_needs_more_says_so_in_one_line_before_any_work(tmp_path):
    (tmp_path / "x.wav").write_bytes(b"RIFF")
    before = sorted(tmp_path.iterdir())
    for line, (words, extra) in zip(refused(tmp_path, [words.split() for words, _ in NEEDING]), NEEDING, strict=True):
        assert re.search(rf"needs \w+, which is not installed: pip install 'sepkit\[{extra}\]'$", line), (words, line)
    assert sorted(path for path in tmp_path.iterdir() if path.name != "small_install") == before
