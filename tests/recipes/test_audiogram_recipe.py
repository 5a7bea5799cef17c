"""The recipe of audiograms: its run at tiny size, the commands of its stages, and what it refuses."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

TINY = {
    "task": "audiogram",
    "model": {"latent": 2, "embedding": 2, "features": 4, "hidden": [8]},
    "data": {"batch_size": 16},
    "trainer": {"max_epochs": 1, "gradient_clip_norm": 0, "accelerator": "cpu"},
}


@pytest.fixture
def recipe(repository: Path) -> Path:
    return repository / "egs" / "audiogram" / "run.sh"


def test_strategies_and_figures_at_tiny_size(recipe: Path, run: Callable[..., str], tmp_path: Path) -> None:
    conf = tmp_path / "tiny.yaml"
    conf.write_text(yaml.safe_dump(TINY))
    output = run(
        [
            str(recipe), "--conf", str(conf), "--prepare-options", "--examples 64", "--draws", "3", "--seeds", "0 1",
            "--rates", "", "--missingness", "", "--corruptions", "", "--gap-epochs", "",
            "--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp"), "--stop-stage", "4",
        ]
    )  # fmt: skip
    assert re.findall(r"^stage (\d)", output, re.MULTILINE) == ["1", "2", "3", "4"]
    assert "| 3 | random | " in (tmp_path / "exp" / "tables" / "strategies.md").read_text()
    assert (tmp_path / "exp" / "tables" / "strategies_information.png").stat().st_size > 10_000


@pytest.mark.slow
def test_all_stages_at_tiny_size(recipe: Path, run: Callable[..., str], tmp_path: Path) -> None:
    conf, rates = tmp_path / "tiny.yaml", tmp_path / "rates.yaml"
    conf.write_text(yaml.safe_dump(TINY))
    rates.write_text(yaml.safe_dump(TINY | {"objective": {"steering": {"initial_weight": 0.05}}}))
    output = run(
        [
            str(recipe), "--conf", str(conf), "--rates-conf", str(rates), "--prepare-options", "--examples 64",
            "--draws", "0 1", "--seeds", "0 1", "--rates", "1 4", "--rate-seeds", "0 1", "--gap-epochs", "1 2",
            "--gap-rates", "2", "--gap-seeds", "0",
            "--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp"),
        ]
    )  # fmt: skip
    assert re.findall(r"^stage (\d)", output, re.MULTILINE) == list("123456789")
    for name in ("strategies", "rates", "corruption", "gap"):
        assert "medical device" in (tmp_path / "exp" / "tables" / f"{name}.md").read_text()
    assert (tmp_path / "exp" / "figures" / "figure_2_session.png").is_file()


@pytest.fixture
def dry(recipe: Path, environment: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """dry(options) -> the training and simulation commands that stages would run."""

    def make(*options: str) -> str:
        places = ["--data", "DATA", "--exp", str(tmp_path / "exp")]
        done = subprocess.run(
            [str(recipe), *options, *places], capture_output=True, text=True, check=True,
            env=environment | {"train_cmd": "echo", "decode_cmd": "echo"},
        )  # fmt: skip
        return done.stdout

    return make


def test_the_thesis_settings_are_the_defaults(dry: Callable[..., str]) -> None:
    output = dry("--stage", "2", "--stop-stage", "2")
    seeds = re.escape("--stack.seeds [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]")
    assert len(re.findall(rf"--data\.train DATA/\d/train\.csv .* {seeds} ", output)) == 5
    output = dry("--stage", "5", "--stop-stage", "5")
    lines = [line for line in output.split("\n") if "--stack.target_rates" in line]
    steps = [0.125 * k for k in range(1, 13)] + [1.75 + 0.25 * k for k in range(26)] + [9.0 + k for k in range(7)]
    targets = [re.search(r"--stack.target_rates \[(.*)\]", line)[1] for line in lines]
    assert len(lines) == 20 and all([float(word) for word in found.split(",")] == steps for found in targets)
    assert "--data.missingness.kind dynamic" in lines[0] and "--data.missingness.kind static" in lines[-1]
