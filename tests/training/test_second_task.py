"""A task that is not separation goes through the ordinary commands: train, resume, smoke, summarize, report."""

import multiprocessing
import signal
from pathlib import Path

import pytest
import yaml

from sepkit.cli.main import main
from tests.training.runs import assert_same_weights, epochs, run_process, train_interrupted

TASK = str(Path(__file__).with_name("line_task.py"))
OPTIONS = ("--import", TASK, "--task", "line", "--trainer.checkpoint_every_steps", "3", "--trainer.accelerator", "cpu")


def train(out: Path, *more: str) -> int:
    return main(["train", *OPTIONS, *more, "--out", str(out)])


def seeded(seed: str, out: Path) -> int:
    return train(out, "--seed", seed)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of three epochs of four batches, with seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("line")
    for seed in ("0", "1"):
        assert seeded(seed, folder / f"line_seed{seed}") == 0
    return folder


def test_a_killed_run_ends_as_if_it_had_not_been_killed(trained, tmp_path, capfd) -> None:
    assert run_process(train_interrupted, "0", tmp_path / "exp", 7, signal.SIGKILL, seeded) == -signal.SIGKILL
    assert train(tmp_path / "exp") == 0
    assert "resuming from" in capfd.readouterr().err
    assert_same_weights(tmp_path / "exp", trained / "line_seed0")


@pytest.mark.slow
def test_workers_that_are_started_anew_load_the_same(trained: Path, tmp_path: Path) -> None:
    """As on Python 3.14, macOS and Windows: what they get is pickled, and its class is in the user's file."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        assert train(tmp_path / "exp", "--seed", "0", "--data.workers", "1") == 0
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert_same_weights(tmp_path / "exp", trained / "line_seed0")


def test_records_and_files_are_those_of_any_run(trained: Path) -> None:
    out = trained / "line_seed0"
    lines = epochs(out)
    assert len(lines) == 3
    assert {"train_loss", "train_absolute_error", "dev_loss", "dev_absolute_error", "learning_rate"} <= lines[0].keys()
    assert lines[-1]["dev_loss"] < lines[0]["dev_loss"]
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["task"] == "line" and config["data"]["points"] == 16
    description = yaml.safe_load((out / "model" / "model.yaml").read_text())
    assert description["kind"] == "line" and description["info"]["monitor"] == "dev_loss"


def test_fine_tuning(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "exp", "--init-from", str(trained / "line_seed0"), "--trainer.max_epochs", "1") == 0
    assert "loaded 2 of 2 tensors" in capfd.readouterr().err


def test_smoke(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", *OPTIONS]) == 0
    assert "(line)" in capfd.readouterr().out


def test_summarize(trained: Path, tmp_path: Path) -> None:
    """There is no `evaluate` for it: the best model's dev scores are in the table."""
    runs = [str(trained / f"line_seed{seed}") for seed in (0, 1)]
    assert main(["summarize", *runs, "--out", str(tmp_path / "table.md")]) == 0
    infos = [yaml.safe_load(Path(run, "model", "model.yaml").read_text())["info"] for run in runs]
    mean = sum(info["dev_loss"] for info in infos) / 2
    text = (tmp_path / "table.md").read_text()
    assert "line" in text and f"{mean:.2f}" in text and "±" in text


def test_report(trained: Path, tmp_path: Path) -> None:
    assert main(["report", str(trained / "line_seed0"), "--out", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "Training curve: absolute error" in text and "points: 16" in text


@pytest.mark.parametrize("command", ["separate", "calibrate", "export", "evaluate"])
def test_commands_for_separators_refuse_the_model(trained, tmp_path, command, capfd) -> None:
    model, out = str(trained / "line_seed0"), str(tmp_path / "out")
    (tmp_path / "in.wav").touch()
    arguments = {
        "separate": [str(tmp_path / "in.wav"), "--model", model, "--out", out],
        "calibrate": [model, "--manifest", "dev.jsonl"],
        "export": [model, "--out", f"{out}.onnx"],
        "evaluate": ["--model", model, "--manifest", "dev.jsonl", "--out", out],
    }
    assert main([command, *arguments[command]]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "found a model of kind 'line', expected separation" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([*OPTIONS, "--trainer.monitor", "pit"], "trainer.monitor: found pit, expected auto or loss"),
        ([*OPTIONS, "--trainer.growth.epochs", "[1]"], "trainer.growth: task line has no hypotheses"),
        (["--task", "seperation"], "task: unknown choice 'seperation' (did you mean separation?)"),
        (["--data.train", "x.jsonl"], "task was line when this training began, now separation"),
    ],
)
def test_options_of_other_tasks_are_refused(trained: Path, tmp_path: Path, options, words: str, capfd) -> None:
    out = trained / "line_seed0" if words.startswith("task was") else tmp_path
    assert main(["train", *options, "--out", str(out)]) == 2
    assert words in capfd.readouterr().err
