"""What tests of training share: changed configurations, runs that are killed or have ranks, and what runs have written.

A test that trains in a process that it kills forks it, which spares the imports.
"""

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from sepkit.config import TrainConfig
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest
from sepkit.training.run import train
from sepkit.training.task import Task

RATE = 8000
SAMPLES = 4000
BATCHES = 7
"""Of an epoch of the configuration of these tests."""


def write_corpus(folder: Path, mixtures: int, seed: int, silent: dict[int, set[int]] | None = None) -> Path:
    """Manifest of two-source mixtures of tones with a little noise; `silent` names sources that say nothing."""
    generator = np.random.default_rng(seed)
    time = np.arange(SAMPLES) / RATE
    audio.write(folder / "wav" / "noise.wav", 0.01 * generator.standard_normal(SAMPLES).astype(np.float32), RATE)
    entries = []
    for index in range(mixtures):
        sources = []
        for part in range(2):
            tone = 0.1 * np.sin(2 * np.pi * generator.uniform(100, 2000) * time) * generator.uniform(0.5, 1)
            if part in (silent or {}).get(index, set()):
                tone = np.zeros(SAMPLES)
            path = f"wav/{index}_{part}.wav"
            audio.write(folder / path, tone.astype(np.float32), RATE)
            sources.append(SourceEntry(path, speaker=f"speaker{index}-{part}"))
        noise = NoiseEntry("wav/noise.wav")
        entries.append(MixtureEntry(f"mixture{index}", RATE, SAMPLES, sources=sources, noise=noise))
    return write_manifest(folder / "manifest.jsonl", entries)


# ------------------------------------------------------------------------------------------------------ configurations


def with_trainer(config: Any, **changes: Any) -> Any:
    return replace(config, trainer=replace(config.trainer, **changes))


def with_data(config: TrainConfig, **changes: Any) -> TrainConfig:
    return replace(config, data=replace(config.data, **changes))


def with_model(config: TrainConfig, **changes: Any) -> TrainConfig:
    return replace(config, model=replace(config.model, **changes))


def with_objective(config: Any, **changes: Any) -> Any:
    return replace(config, objective=replace(config.objective, **changes))


def plain(config: TrainConfig, **trainer: Any) -> TrainConfig:
    """One epoch without anything random but the order and the crops, and without clipping."""
    config = with_model(config, masker=replace(config.model.masker, dropout=0.0))  # type: ignore[type-var]
    config = with_data(config, dynamic_mixing=replace(config.data.dynamic_mixing, enabled=False))
    return with_trainer(config, **({"max_epochs": 1, "gradient_clip_norm": 0.0} | trainer))


# ------------------------------------------------------------------------------------------------------------ processes


def run_process(function: Callable[..., None], *arguments: Any) -> int | None:
    """Exit code of a forked process (negative: the signal that killed it)."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join(120)
    assert not process.is_alive(), "the process hangs"
    return process.exitcode


def train_interrupted(
    config: Any, out: Path, at_batch: int, number: int = signal.SIGKILL, training: Callable[..., Any] = train
) -> None:
    """Train, and get a signal just before a batch is used."""
    step = Task.training_step

    def interrupted_step(self: Task, batch: Any, batch_idx: int) -> None:
        if self.position.batches == at_batch:
            os.kill(os.getpid(), number)
        step(self, batch, batch_idx)

    Task.training_step = interrupted_step  # type: ignore[method-assign]
    training(config, out)


def run_ranks(function: Callable[..., None], world: int, *arguments: Any) -> list[int | None]:
    """Exit codes of `world` processes that find each other as under torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [(function, rank, world, port, arguments) for rank in range(world)]
    processes = [context.Process(target=_as_rank, args=rank) for rank in ranks]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    hanging = [process for process in processes if process.is_alive()]
    for process in hanging:
        process.kill()
    assert not hanging, "a rank hangs"
    return [process.exitcode for process in processes]


def _as_rank(function: Callable[..., None], rank: int, world: int, port: int, arguments: tuple[Any, ...]) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip
    function(*arguments)


# ------------------------------------------------------------------------------------------------------ what runs wrote


def weights(out: Path, name: str = "last_model") -> dict[str, torch.Tensor]:
    return load_file(out / name / "model.safetensors")


def records(out: Path) -> list[dict[str, Any]]:
    """All lines of a run's metrics.jsonl, without the times that they hold."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "mixtures_per_second")} for line in lines]


def epochs(out: Path) -> list[dict[str, Any]]:
    return [line for line in records(out) if line["kind"] == "epoch"]


def assert_same_weights(out: Path, reference: Path, *names: str) -> None:
    for name in names or ("last_model",):
        found, expected = weights(out, name), weights(reference, name)
        assert found.keys() == expected.keys()
        for key in expected:
            assert torch.equal(found[key], expected[key]), f"{name}: {key}"


def assert_same_run(out: Path, reference: Path) -> None:
    assert_same_weights(out, reference, "model", "last_model")
    assert records(out) == records(reference)
