"""Separators of a tiny model with random weights."""

from dataclasses import replace

import pytest
import torch

from sepkit.config import GaussianConfig, LogNormalConfig, RecurrentConfig, ScoringConfig
from sepkit.inference import Separator
from sepkit.inference.runners.torch_runner import TorchRunner
from sepkit.models import build_model
from tests.tiny_models import RECURRENT


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def separator():
    torch.manual_seed(0)
    return Separator(build_model(RECURRENT))


@pytest.fixture
def chunked():
    return Separator(build_model(RECURRENT), chunk_seconds=0.5, overlap_seconds=0.2, whole_seconds=1.0)


@pytest.fixture(scope="module")
def gru():
    """A model that takes several mixtures at once, on a processor too."""
    torch.manual_seed(0)
    masker = RecurrentConfig(rnn="gru", hidden_size=4, num_layers=1)
    latents = {"encoding": GaussianConfig(), "masks": LogNormalConfig(), "scoring": ScoringConfig()}
    return build_model(replace(RECURRENT, masker=masker, **latents)).eval()


@pytest.fixture
def batch_sizes(monkeypatch):
    """The sizes of the batches that go through a model."""
    found: list[int] = []

    run = TorchRunner.run

    def counted(runner, mixtures, *wanted, **more):
        found.append(len(mixtures))
        return run(runner, mixtures, *wanted, **more)

    monkeypatch.setattr(TorchRunner, "run", counted)
    return found
