"""What every test may ask for: the folder of real recordings, tiny configurations, and a tiny corpus of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before anything imports torch: tests run in several processes, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import pytest

from sepkit.config import DataConfig, FreeFilterbankConfig, ModelConfig, RecurrentConfig, TrainConfig, TrainerConfig

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_deferred_speechbrain_modules() -> Iterator[None]:
    """Hypothesis touches every module in sys.modules, and those that speechbrain defers fail when touched."""
    yield
    if "speechbrain" in sys.modules:
        for name, module in list(sys.modules.items()):
            if type(module).__module__ == "speechbrain.utils.importutils":
                del sys.modules[name]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real recordings (speech_mini, noise_mini, ...): the variable SEPKIT_DATA, or ../shared/data."""
    folder = Path(os.environ.get("SEPKIT_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"{folder}: no such folder; set SEPKIT_DATA to the folder that holds speech_mini and noise_mini")
    return folder


@pytest.fixture
def tiny_model_config() -> ModelConfig:
    """A separator of a few thousand parameters at 8 kHz."""
    return ModelConfig(
        filterbank=FreeFilterbankConfig(num_filters=16, kernel_size=16, stride=8),
        masker=RecurrentConfig(hidden_size=8, num_layers=1),
    )


@pytest.fixture
def tiny_train_config(tiny_model_config: ModelConfig) -> TrainConfig:
    """A training run of seconds on one CPU thread; `data.train` and `data.dev` are for the test to fill."""
    return TrainConfig(
        model=tiny_model_config,
        data=DataConfig(segment_seconds=0.5, batch_size=2, workers=0),
        trainer=TrainerConfig(max_epochs=2, accelerator="cpu"),
    )
