"""A sweep over target rates: a run each, resumable, and failures that do not stop the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sepkit.cli.main import main
from sepkit.config import BLRConfig, GaussianConfig, LogNormalConfig, RatesConfig, SteeringConfig, TrainConfig, to_dict
from sepkit.errors import UserError
from sepkit.training.sweep import run_name, sweep, towards_rates
from tests.command_server import serving


@pytest.fixture
def variational(config: TrainConfig) -> TrainConfig:
    return replace(
        config,
        model=replace(config.model, encoding=GaussianConfig(), masks=LogNormalConfig()),
        objective=replace(
            config.objective, cost=BLRConfig(), rates=RatesConfig(steering=SteeringConfig(initial_weight=1e-3))
        ),
        trainer=replace(config.trainer, max_epochs=1),
    )


def weights_written(out: Path) -> dict[Path, int]:
    """When the last weights of each run were written."""
    return {path: path.stat().st_mtime_ns for path in out.glob("*/last_model/model.safetensors")}


def target(run: Path) -> float:
    return yaml.safe_load((run / "config.yaml").read_text())["objective"]["rates"]["steering"]["total"]


@pytest.fixture
def configuration(variational: TrainConfig, tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(to_dict(variational)))
    return path


def test_every_rate_has_a_run_and_a_second_call_makes_nothing_again(
    configuration: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line, two at once, in processes that are spared the imports."""
    command = ["train", "--config", str(configuration), "--target-rates", "3", "0.5", "--jobs", "2"]
    command += ["--out", str(tmp_path / "exp")]
    with serving(tmp_path, dict(os.environ)) as program:
        monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
        assert main(command) == 0
        assert capfd.readouterr().out == f"{tmp_path / 'exp'}\n"
        written = weights_written(tmp_path / "exp")
        assert main(command) == 0
    assert weights_written(tmp_path / "exp") == written
    runs = {name: tmp_path / "exp" / name for name in ("rate_3", "rate_0.5")}
    assert {name: target(run) for name, run in runs.items()} == {"rate_3": 3.0, "rate_0.5": 0.5}
    assert all("epoch 1" in (tmp_path / "exp" / f"{name}.log").read_text() for name in runs)
    assert len(written) == 2


@pytest.mark.slow
def test_a_failure_is_named_and_the_others_go_on(
    variational: TrainConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The folder of one run is a file."""
    out = tmp_path / "exp"
    out.mkdir()
    (out / "rate_1").write_text("in the way")
    with pytest.raises(UserError, match=r"^rate_1: training failed, see above; the same command continues"):
        sweep(towards_rates(variational, [1.0, 2.0]), out)
    assert "sepkit train: " in capfd.readouterr().err
    assert (out / "rate_2" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("rates", "jobs", "words"),
    [
        ([0.0], 1, "--target-rates: found 0, expected numbers above 0"),
        ([1.0, float("nan")], 1, "--target-rates: found 1, nan"),
        ([2.0, 2.0], 1, "several that would be named rate_2"),
        ([1.0], 0, "--jobs: found 0"),
    ],
)
def test_impossible_sweeps_are_refused(
    variational: TrainConfig, tmp_path: Path, rates: list[float], jobs: int, words: str
) -> None:
    with pytest.raises(UserError, match=words.replace("[", r"\[")):
        sweep(towards_rates(variational, rates), tmp_path / "exp", jobs)
    assert not (tmp_path / "exp").exists()


def test_targets_of_single_rates_are_refused(variational: TrainConfig, tmp_path: Path) -> None:
    variational.objective.rates = RatesConfig(steering=SteeringConfig(masks=3.0))
    with pytest.raises(UserError, match="found a target of one rate beside --target-rates"):
        towards_rates(variational, [1.0])


def test_jobs_without_rates_are_refused(configuration: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", str(configuration), "--jobs", "2", "--out", str(tmp_path / "exp")]) == 2
    assert "--jobs only applies with --target-rates" in capfd.readouterr().err


@pytest.mark.slow
def test_an_interrupt_reaches_the_runs_and_the_same_command_continues(variational: TrainConfig, tmp_path: Path) -> None:
    """SIGTERM ends the sweep and what it started; no process is left behind."""
    variational.trainer.max_epochs = 1000
    path, out = tmp_path / "long.yaml", tmp_path / "exp"
    path.write_text(yaml.safe_dump(to_dict(variational)))
    command = [sys.executable, "-m", "sepkit", "train", "--config", str(path), "--target-rates", "1", "2"]
    process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = out / "rate_1" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not log.is_file() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    # The pipes close when the last process that has them ends: the run as well as the sweep.
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert not (out / "rate_2").exists()
    epochs = len(log.read_text().splitlines())
    variational.trainer.max_epochs = epochs + 1
    sweep(towards_rates(variational, [1.0]), out)
    assert (out / "rate_1" / "last_model" / "model.safetensors").is_file()


def test_names() -> None:
    assert [run_name(rate) for rate in (1.0, 0.001, 256.0, 1e3)] == ["rate_1", "rate_0.001", "rate_256", "rate_1000"]
