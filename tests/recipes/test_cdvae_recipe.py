"""The recipe of latents of continuous depth at tiny size, on both kinds of images."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml

MODEL = {"size": 8, "levels": 2, "latent_channels": 2, "width": 4, "drift_width": 4, "depth_steps": 2}
TRAINER = {"max_epochs": 1, "accelerator": "cpu"}
TINY = {"task": "cdvae", "model": MODEL, "data": {"batch_size": 16}, "trainer": TRAINER}


def test_from_first_to_last_stage(repository: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    conf, exp = tmp_path / "tiny.yaml", tmp_path / "exp"
    conf.write_text(yaml.safe_dump(TINY))
    output = run(
        [
            str(repository / "egs" / "cdvae" / "run.sh"), "--conf", str(conf), "--seeds", "4", "--steps", "2 4",
            "--prepare-options", "--images 40 --size 8", "--data", str(tmp_path / "data"), "--exp", str(exp),
        ]
    )  # fmt: skip
    assert re.findall(r"^stage (\d)", output, re.MULTILINE) == list("12345")
    rows = re.findall(r"^\| (sde|ode_like|discrete) \| (\w+) \| 1 \|", (exp / "table.md").read_text(), re.MULTILINE)
    assert rows == [("sde", "2"), ("sde", "4"), ("ode_like", "2"), ("ode_like", "4"), ("discrete", "fixed")]
    assert (exp / "table_depth.png").stat().st_size > 5_000
    ode = json.loads((exp / "ode_like_seed4" / "evaluation" / "test" / "summary.json").read_text())
    assert ode["bound"] is False and "negative_elbo_nats" not in ode["metrics"]
    assert (exp / "sde_seed4" / "evaluation" / "test" / "images.png").stat().st_size > 2_000
    assert "sde_seed4" in (exp / "report.html").read_text(encoding="utf-8")


def test_mnist_trains(repository: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    bits = np.random.default_rng(0).integers(0, 2, (3, 16, 784)).astype(np.uint8)
    np.savez(tmp_path / "mnist.npz", train=bits[0], valid=bits[1], test=bits[2])
    conf = tmp_path / "tiny.yaml"
    conf.write_text(yaml.safe_dump(TINY))
    places = ["--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
    recipe = str(repository / "egs" / "cdvae" / "run.sh")
    extra = ["--extra", "--model.width 4 --model.drift_width 4 --data.batch_size 8", "--steps", "1 2"]
    options = ["--methods", "sde", "--seeds", "0", *extra, "--stop-stage", "3", *places]
    run([recipe, "--conf", str(conf), "--mnist", str(tmp_path / "mnist.npz"), *options])
    summary = json.loads((tmp_path / "exp" / "sde_seed0" / "evaluation" / "test" / "summary.json").read_text())
    assert summary["floor_nats"] is None and list(summary["by_depth_steps"]) == ["1", "2"]
