"""Mixtures that go through a model at once: the same as one by one, from whichever batch, and from folders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepkit.config import (
    ConvTasNetConfig,
    FreeFilterbankConfig,
    ModelConfig,
)
from sepkit.inference import runners
from sepkit.inference.runners import Batches, batch_size, run_model
from sepkit.models import build_model

CPU = torch.device("cpu")
BANK = FreeFilterbankConfig(num_filters=8)


def test_each_of_a_batch_is_what_it_is_alone(gru, batch_sizes):
    mixtures = torch.randn(5, 900, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 0, 5)[:, None]
    found = Batches(gru, 4).outputs(mixtures, rates=True)
    assert batch_sizes == [4, 1]
    alone = [run_model(gru, mixture[None], rates=True) for mixture in mixtures]
    for output, own in zip(found, alone, strict=True):
        np.testing.assert_allclose(output.estimates, own.estimates, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(output.scores, own.scores, rtol=1e-5, atol=1e-6)
    # Rates of a batch are means over it.
    for name in alone[0].rates:
        assert found[0].rates[name] == pytest.approx(np.mean([own.rates[name] for own in alone[:4]]), rel=1e-5)
        assert found[4].rates[name] == pytest.approx(alone[4].rates[name], rel=1e-5)
    assert all(output.rates is None for output in Batches(gru, 8).outputs(mixtures))


def test_what_does_not_fit_into_memory_is_halved_and_said(gru, monkeypatch, capsys):
    def small(model, mixtures, *wanted, **more):
        if len(mixtures) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return run_model(model, mixtures, *wanted, **more)

    monkeypatch.setattr(runners, "run_model", small)
    mixtures = torch.randn(7, 300, generator=torch.Generator().manual_seed(0))
    batches = Batches(gru, 6)
    assert len(batches.outputs(mixtures)) == 7 and batches.size == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "sepkit: 6 mixtures at once do not fit into memory; continuing with 3",
        "sepkit: 3 mixtures at once do not fit into memory; continuing with 1",
    ]

    def broken(*arguments, **more):
        raise RuntimeError("sizes do not agree")

    monkeypatch.setattr(runners, "run_model", broken)
    with pytest.raises(RuntimeError, match="sizes do not agree"):
        Batches(gru, 6).outputs(mixtures)


def test_how_many_go_at_once(gru):
    assert [batch_size(gru, CPU, seconds) for seconds in (0.0, 5.0, 10.0, 15.0, 30.0, 100.0)] == [4, 4, 4, 2, 1, 1]
    assert batch_size(gru, torch.device("cuda"), 30.0) == 8
    convolutions = build_model(ModelConfig(filterbank=BANK, masker=ConvTasNetConfig(4, 4, 4, blocks=1, repeats=1)))
    assert batch_size(convolutions, CPU, 5.0) == 1
