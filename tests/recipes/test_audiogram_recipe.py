"""The recipe of audiograms: its run at tiny size."""

import re
from collections.abc import Callable
from pathlib import Path

import yaml

MODEL = {"latent": 2, "embedding": 2, "features": 4, "hidden": [8]}
TRAINER = {"max_epochs": 1, "gradient_clip_norm": 0, "accelerator": "cpu"}
TINY = {"task": "audiogram", "model": MODEL, "data": {"batch_size": 16}, "trainer": TRAINER}


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
