"""Mixtures that go through a model at once: the same as one by one, from whichever batch, and from folders."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.config import (
    ConvTasNetConfig,
    FreeFilterbankConfig,
    ModelConfig,
)
from sepkit.inference.runners.base import Batches
from sepkit.inference.runners.torch_runner import TorchRunner
from sepkit.models import build_model

BANK = FreeFilterbankConfig(num_filters=8)


def test_each_of_a_batch_is_what_it_is_alone(gru, batch_sizes):
    mixtures = np.random.default_rng(0).standard_normal((5, 900)) * np.logspace(-2, 0, 5)[:, None]
    runner, mixtures = TorchRunner(gru), mixtures.astype(np.float32)
    found = Batches(runner, 4).outputs(mixtures, rates=True)
    assert batch_sizes == [4, 1]
    alone = [runner.run(mixture[None], rates=True) for mixture in mixtures]
    for output, own in zip(found, alone, strict=True):
        np.testing.assert_allclose(output.estimates, own.estimates, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(output.scores, own.scores, rtol=1e-5, atol=1e-6)
    # Rates of a batch are means over it.
    for name in alone[0].rates:
        assert found[0].rates[name] == pytest.approx(np.mean([own.rates[name] for own in alone[:4]]), rel=1e-5)
        assert found[4].rates[name] == pytest.approx(alone[4].rates[name], rel=1e-5)
    assert all(output.rates is None for output in Batches(runner, 8).outputs(mixtures))


def test_what_does_not_fit_into_memory_is_halved_and_said(gru, monkeypatch, capsys):
    run = TorchRunner.run

    def small(runner, mixtures, *wanted, **more):
        if len(mixtures) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return run(runner, mixtures, *wanted, **more)

    monkeypatch.setattr(TorchRunner, "run", small)
    mixtures = np.random.default_rng(0).standard_normal((7, 300)).astype(np.float32)
    batches = Batches(TorchRunner(gru), 6)
    assert len(batches.outputs(mixtures)) == 7 and batches.size == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "sepkit: 6 mixtures at once do not fit into memory; continuing with 3",
        "sepkit: 3 mixtures at once do not fit into memory; continuing with 1",
    ]

    def broken(*arguments, **more):
        raise RuntimeError("sizes do not agree")

    monkeypatch.setattr(TorchRunner, "run", broken)
    with pytest.raises(RuntimeError, match="sizes do not agree"):
        Batches(TorchRunner(gru), 6).outputs(mixtures)


def test_how_many_go_at_once(gru):
    runner = TorchRunner(gru)
    assert [runner.batch_size(seconds) for seconds in (0.0, 5.0, 10.0, 15.0, 30.0, 100.0)] == [4, 4, 4, 2, 1, 1]
    runner.device = "cuda:0"
    assert runner.batch_size(30.0) == 8
    convolutions = build_model(ModelConfig(filterbank=BANK, masker=ConvTasNetConfig(4, 4, 4, blocks=1, repeats=1)))
    assert TorchRunner(convolutions).batch_size(5.0) == 1
