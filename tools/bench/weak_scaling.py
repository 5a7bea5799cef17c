"""Weak scaling of `sepkit train`: one process per device, each with its own batch; 1, 2 on CPUs, up to 8 GPUs.

`python -m tools.bench weak_scaling` runs it. The training is the command itself under torchrun, on mixtures of tones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from sepkit.config import ConvTasNetConfig, DataConfig, ModelConfig, TrainConfig, TrainerConfig, to_dict
from sepkit.training.synthetic import write_synthetic_set
from tools.bench.timing import environment

SAMPLE_RATE = 8000


@dataclass(frozen=True)
class Sizes:
    """Size of the training.

    Args:
        masker: of the model.
        batch: mixtures of each process in a step.
        seconds: of each mixture.
        steps: of an epoch; the first epoch warms up.
        epochs: all but the first are timed.
    """

    masker: ConvTasNetConfig
    batch: int
    seconds: float
    steps: int
    epochs: int


FULL = Sizes(ConvTasNetConfig(), 4, 3.0, 5, 4)
REHEARSAL = Sizes(ConvTasNetConfig(4, 8, 4, blocks=2, repeats=1), 1, 0.2, 2, 2)


def run(sizes: Sizes = FULL, most: int | None = None) -> dict[str, Any]:
    """Measure samples a second by number of processes, and efficiency: the rate over N times that of one process.

    Each process has one thread on CPUs (gloo), or one GPU (nccl). Rates are medians of epochs. `most` limits the number
    of processes; None: 2 on CPUs, else the number of GPUs up to 8.
    """
    gpus = torch.cuda.device_count()
    counts = [count for count in (1, 2, 4, 8) if count <= (most or min(8, gpus) or 2)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            rates = _rates(Path(folder), count, sizes, gpus > 0)
            median = sorted(rates)[len(rates) // 2]
            single = rows[0]["samples_per_second"]["ours"] if rows else median
            rows.append(
                {
                    "what": f"{count} process{'es' * (count > 1)}, {sizes.batch} x {sizes.seconds:g} s each",
                    "peer": "as many times one process",
                    "threads": None if gpus else 1,
                    "processes": count,
                    "samples_per_second": {"ours": median},
                    "efficiency": median / (count * single),
                    "remark": f"efficiency {median / (count * single):.2f}",
                    "epochs": len(rates),
                }
            )
            print(rows[-1]["what"], f"{median:.2f} samples/s,", rows[-1]["remark"], flush=True)
    device = torch.cuda.get_device_name() if gpus else None
    return {"rows": rows, "environment": environment() | {"device": device}}


def _rates(folder: Path, count: int, sizes: Sizes, on_gpu: bool) -> list[float]:
    """Return samples a second of each epoch but the first."""
    here = folder / str(count)
    samples = sizes.steps * sizes.batch * count
    manifest = write_synthetic_set(
        here, sample_rate=SAMPLE_RATE, sources=2, mixtures=samples, seconds=max(sizes.seconds, 0.5)
    )
    config = TrainConfig(
        model=ModelConfig(sample_rate=SAMPLE_RATE, masker=sizes.masker),
        data=DataConfig(
            train=str(manifest), segment_seconds=sizes.seconds, batch_size=sizes.batch, workers=2 if on_gpu else 0
        ),
        trainer=TrainerConfig(
            max_epochs=sizes.epochs, devices=count, accelerator="gpu" if on_gpu else "cpu", precision="auto"
        ),
    )
    file = here / "config.yaml"
    file.write_text(yaml.safe_dump(to_dict(config)), encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m", "sepkit"]
    command = [sys.executable, *launcher, "train", "--config", str(file), "--out", str(here / "exp")]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"sepkit train under torchrun with {count} processes failed:\n{done.stderr[-2000:]}")
    lines = (here / "exp" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    epochs = [record for record in map(json.loads, lines) if record["kind"] == "epoch"]
    return [samples / record["seconds"] for record in epochs[1:]]
