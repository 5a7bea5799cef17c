"""The recipe of rate-distortion curves: its run from first to last stage, what it asks for, and what it refuses."""

import csv
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sepkit.cli._configuration import parse_config
from sepkit.config import SteeringConfig
from sepkit.corpora.pulses import conditions
from sepkit.data.manifest import read_manifest
from sepkit.models import build_model

# Options for evaluation and training at tiny size, with a model of a few hundred parameters.
TINY = {
    "model": {
        "filterbank": {"name": "free", "num_filters": 8, "kernel_size": 16, "stride": 8},
        "encoding": {"name": "gaussian", "activation": "linear"},
        "masker": {
            "name": "conv_tasnet", "bottleneck_channels": 4, "skip_channels": 4, "hidden_channels": 4, "blocks": 2,
            "repeats": 1,
        },
        "masks": {"name": "log_normal"},
    },
    "objective": {"cost": {"name": "blr_nll"}, "rates": {"steering": {"per": "frame", "change": 0.1}}},
    "data": {"segment_seconds": 0.25, "batch_size": 4, "workers": 0},
    "trainer": {"max_epochs": 1, "early_stop_patience": 0, "accelerator": "cpu"},
}  # fmt: skip
CONFIGURATIONS = ("cpu", "paper")


@pytest.fixture
def recipe(repository: Path) -> Path:
    return repository / "egs" / "pulses" / "run.sh"


@pytest.fixture
def command(recipe: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """options -> the command that runs the recipe at tiny size below tmp_path."""
    conf = tmp_path / "tiny.yaml"
    conf.write_text(yaml.safe_dump(TINY))

    def make(*options: str) -> list[str]:
        return [
            str(recipe), "--conf", str(conf),
            "--prepare-options", "--train-mixtures 4 --dev-mixtures 2 --test-mixtures 2 --seconds 0.25",
            "--rates", "5 20.0", "--levels", "", "--conditions", "pulses_2",
            "--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp"), *options,
        ]  # fmt: skip

    return make


@pytest.fixture
def dry(recipe: Path, run: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """dry(options) -> the commands that the stage would run, with nothing run."""

    def make(*options: str) -> str:
        places = ["--data", "DATA", "--exp", str(tmp_path / "exp")]
        (tmp_path / "exp").mkdir(exist_ok=True)
        told = run([str(recipe), *options, *places], train_cmd="echo", decode_cmd="echo")
        return told + "".join(path.read_text() for path in sorted((tmp_path / "exp").glob("*.log")))

    return make


def test_from_first_to_last_stage(command: Callable[..., list[str]], run: Callable[..., str], tmp_path: Path) -> None:
    assert re.findall(r"^stage (\d)", run(command()), re.MULTILINE) == ["1", "2", "3", "4", "5"]
    exp = tmp_path / "exp"
    assert {path.stem for path in (tmp_path / "data").glob("test*.jsonl")} == {"test", "test_pulses_2"}
    assert len(read_manifest(tmp_path / "data" / "train.jsonl")) == 4
    for name, rate in (("rate_5", 5.0), ("rate_20", 20.0)):
        config = yaml.safe_load((exp / name / "config.yaml").read_text())
        assert config["objective"]["rates"]["steering"]["total"] == rate
        for test_set in ("test", "test_pulses_2"):
            summary = json.loads((exp / name / "evaluation" / test_set / "summary.json").read_text())
            assert summary["n_utterances"] == 2 and Path(summary["model"]).name == "last_model"
            assert {"si_sdr_db", "blr_nats_per_sample", "rate_nats_per_dimension"} <= summary["metrics"].keys()
    for kind, curves in (("levels", ["test"]), ("pulses", ["test", "test_pulses_2"])):
        with (exp / "curves" / kind / "rate_distortion.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["curve"] for row in rows] == [name for name in curves for _ in range(2)]
        assert (exp / "curves" / kind / "table_rate_distortion.png").stat().st_size > 10_000
        table = (exp / "curves" / kind / "table.md").read_text()
        assert "| rate_5 | total | 5 |" in table and "| rate_20 | total | 20 |" in table
    assert "<audio" in (exp / "report.html").read_text(encoding="utf-8")


def test_all_conditions_are_measured_with_the_last_model(dry: Callable[..., str], tmp_path: Path) -> None:
    output = dry("--stage", "2", "--stop-stage", "3")
    rates = ["6", "10", "16", "25", "40", "65", "100", "160", "320"]
    trained = re.findall(r"--objective.rates.steering.total (\S+) --out \S+/(\S+)", output)
    assert sorted(trained) == sorted((rate, f"rate_{rate}") for rate in rates)
    measured = re.findall(r"--model \S+/(\S+)/last_model --manifest (.+) --separate-reports", output)
    assert [name for name, _ in measured] == [f"rate_{rate}" for rate in sorted(rates)]
    manifests = {f"DATA/{name}.jsonl" for name in ("test", *(f"test_{name}" for name in conditions()))}
    assert all(set(given.split()) == manifests for _, given in measured)


def test_folders_of_rates(dry: Callable[..., str]) -> None:
    rates = {"0.5": "rate_0.5", "20.0": "rate_20", "1000": "rate_1000", "12.25": "rate_12.25"}
    output = dry("--rates", " ".join(rates), "--levels", "", "--conditions", "", "--stage", "2", "--stop-stage", "3")
    assert dict(re.findall(r"steering.total (\S+) --out \S+/(\S+)", output)) == rates
    assert set(re.findall(r"--model \S+/(\S+)/last_model", output)) == set(rates.values())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_models_are_those_of_appendix_k(name: str, repository: Path) -> None:
    file = repository / "egs" / "pulses" / "conf" / f"{name}.yaml"
    config, _ = parse_config("test", "", ["--config", str(file)], aliases={}, add_options=lambda parser: None)
    # Encoder with mean and deviation, masker, decoder.
    assert sum(parameter.numel() for parameter in build_model(config.model).parameters()) == 9_761
    assert (config.model.encoding.name, config.model.masks.name) == ("gaussian", "log_normal")
    steering = config.objective.rates.steering
    assert isinstance(steering, SteeringConfig) and steering.per == "frame" and steering.change == 0.01
    assert type(config.objective.cost).__name__ == "BLRConfig"
    if name == "paper":
        assert steering.initial_weight == 1e-6
        trainer = config.trainer
        assert (trainer.learning_rate, trainer.max_epochs, trainer.early_stop_patience) == (3e-4, 800, 60)


def test_a_failed_evaluation_ends_the_recipe_with_the_end_of_its_log(command, environment, tmp_path) -> None:
    (tmp_path / "exp").mkdir()
    done = subprocess.run(command("--stage", "3"), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "rate_5: evaluation failed" in done.stderr
    assert "stage 4" not in done.stdout
