"""A corpus of tones, tiny configurations, and processes to train in (and to kill)."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sepkit.config import (
    DataConfig,
    DynamicMixingConfig,
    FreeFilterbankConfig,
    ModelConfig,
    RecurrentConfig,
    TrainConfig,
    TrainerConfig,
)
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest

RATE = 8000
SAMPLES = 4000


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
        entries.append(
            MixtureEntry(f"mixture{index}", RATE, SAMPLES, sources=sources, noise=NoiseEntry("wav/noise.wav"))
        )
    manifest = folder / "manifest.jsonl"
    write_manifest(manifest, entries)
    return manifest


@pytest.fixture(scope="session")
def train_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("train"), mixtures=14, seed=0)


@pytest.fixture(scope="session")
def dev_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("dev"), mixtures=3, seed=1)


@pytest.fixture
def config(train_manifest: Path, dev_manifest: Path) -> TrainConfig:
    """Seven batches an epoch, with everything random that there is: shuffling, crops, dynamic mixing, dropout."""
    return TrainConfig(
        model=ModelConfig(
            filterbank=FreeFilterbankConfig(num_filters=16, kernel_size=64, stride=32),
            masker=RecurrentConfig(hidden_size=6, num_layers=2, dropout=0.2),
        ),
        data=DataConfig(
            train=str(train_manifest),
            dev=str(dev_manifest),
            segment_seconds=0.1,
            batch_size=2,
            workers=0,
            dynamic_mixing=DynamicMixingConfig(enabled=True),
        ),
        trainer=TrainerConfig(max_epochs=2, accelerator="cpu", checkpoint_every_steps=3),
    )


@pytest.fixture
def corpus() -> Callable[..., Path]:
    return write_corpus


@pytest.fixture
def in_ranks() -> Callable[..., list[int | None]]:
    return run_ranks


def run_ranks(function: Callable[..., None], world: int, *arguments: Any) -> list[int | None]:
    """Exit codes of `world` processes that find each other as under torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_as_rank, args=(function, rank, world, port, arguments)) for rank in range(world)
    ]
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
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
    }
    function(*arguments)
