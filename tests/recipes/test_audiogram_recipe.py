"""The recipe of audiograms: its run at tiny size, and what its stages train by default."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

TINY = {
    "task": "audiogram",
    "model": {"latent": 2, "embedding": 2, "features": 4, "hidden": [8]},
    "data": {"batch_size": 16},
    "trainer": {"max_epochs": 1, "gradient_clip_norm": 0, "accelerator": "cpu"},
}


def test_all_stages_at_tiny_size(repository: Path, run: Callable[..., str], tmp_path: Path) -> None:
    conf = tmp_path / "tiny.yaml"
    conf.write_text(yaml.safe_dump(TINY))
    output = run(
        [
            str(repository / "egs" / "audiogram" / "run.sh"), "--conf", str(conf), "--prepare-options", "--examples 64",
            "--draws", "3", "--seeds", "0 1", "--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp"),
        ]
    )  # fmt: skip
    assert re.findall(r"^stage (\d)", output, re.MULTILINE) == list("1234")
    text = (tmp_path / "exp" / "tables" / "strategies.md").read_text()
    assert "| 3 | random | " in text and "medical device" in text
    assert (tmp_path / "exp" / "tables" / "strategies_information.png").stat().st_size > 10_000


def test_five_draws_and_ten_seeds_are_the_default(
    repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [str(repository / "egs" / "audiogram" / "run.sh"), "--stage", "2", "--stop-stage", "2"]
    done = subprocess.run(
        [*command, "--data", "DATA", "--exp", str(tmp_path / "exp")], capture_output=True, text=True, check=True,
        env=environment | {"train_cmd": "echo"},
    )  # fmt: skip
    seeds = re.escape("--stack.seeds [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]")
    assert len(re.findall(rf"--data\.train DATA/\d/train\.csv .* {seeds} ", done.stdout)) == 5
