"""The recipe of continuous depth at tiny size: models of chosen and of fixed depth, measured at several steps."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import yaml

TINY = {
    "model": {
        "filterbank": {"name": "stft", "kernel_size": 128, "stride": 64, "complex_masks": True},
        "masker": {"name": "continuous_depth", "model_dim": 8, "hidden_size": 4, "feedforward_dim": 8},
        "masks": {"name": "deterministic", "activation": "linear"},
    },
    "data": {"segment_seconds": 0.5, "batch_size": 4, "workers": 0, "mixtures_per_epoch": 4},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
}


def test_from_first_to_last_stage(repository: Path, speech: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    conf, exp = tmp_path / "tiny.yaml", tmp_path / "exp"
    conf.write_text(yaml.safe_dump(TINY))
    output = run(
        [
            str(repository / "egs" / "continuous_depth" / "run.sh"), "--speech", str(speech), "--conf", str(conf),
            "--prepare-options", "--train-mixtures 8 --dev-mixtures 2 --test-mixtures 2 --segment-seconds 1",
            "--methods", "fixed separate", "--seeds", "3", "--steps", "2 8",
            "--data", str(tmp_path / "data"), "--exp", str(exp),
        ]
    )  # fmt: skip
    assert re.findall(r"^stage (\d)", output, re.MULTILINE) == list("12345")
    fixed = json.loads((exp / "fixed_seed3" / "evaluation" / "test" / "summary.json").read_text())
    assert list(fixed["by_depth_steps"]) == ["2", "8"] and fixed["depth_steps"] == 8
    separate = json.loads((exp / "separate_seed3" / "evaluation" / "test" / "summary.json").read_text())
    assert "by_depth_steps" not in separate and separate["depth_steps"] is None
    table = (exp / "table.md").read_text()
    rows = re.findall(r"^\| (fixed|separate) \| (\w+) \| 1 \| +(-?[\d.]+)", table, re.MULTILINE)
    assert [row[:2] for row in rows] == [("fixed", "2"), ("fixed", "8"), ("separate", "fixed")]
    assert (exp / "table_depth.png").stat().st_size > 5_000
    assert "fixed_seed3" in (exp / "report.html").read_text(encoding="utf-8")
