"""Mixtures that go through a model at once: the same as one by one, from whichever batch, and from folders."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile
import torch

from sepkit.config import (
    ConvTasNetConfig,
    FreeFilterbankConfig,
    GaussianConfig,
    LogNormalConfig,
    ModelConfig,
    RecurrentConfig,
    ScoringConfig,
)
from sepkit.data import audio
from sepkit.inference import Separator, separate_files
from sepkit.inference import batches as batches_module
from sepkit.inference.batches import Batches, batch_size
from sepkit.inference.run_model import run_model
from sepkit.models import build_model

CPU = torch.device("cpu")
BANK = FreeFilterbankConfig(num_filters=8)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    masker = RecurrentConfig(rnn="gru", hidden_size=4, num_layers=1)
    latents = {"encoding": GaussianConfig(), "masks": LogNormalConfig(), "scoring": ScoringConfig()}
    return build_model(ModelConfig(filterbank=BANK, masker=masker, **latents)).eval()


@pytest.fixture
def sizes(monkeypatch):
    """The sizes of the batches that go through a model."""
    found: list[int] = []

    def counted(model, mixtures, *wanted, **more):
        found.append(len(mixtures))
        return run_model(model, mixtures, *wanted, **more)

    monkeypatch.setattr(batches_module, "run_model", counted)
    return found


def test_each_of_a_batch_is_what_it_is_alone(model, sizes):
    mixtures = torch.randn(5, 900, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 0, 5)[:, None]
    found = Batches(model, 4).outputs(mixtures, keep_separation=True, rates=True)
    assert sizes == [4, 1]
    for mixture, output in zip(mixtures, found, strict=True):
        alone = run_model(model, mixture[None], keep_separation=True, rates=True)
        np.testing.assert_allclose(output.estimates, alone.estimates, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(output.scores, alone.scores, rtol=1e-5, atol=1e-6)
        assert output.rates == pytest.approx(alone.rates, rel=1e-5)
        assert output.separation.masks.shape == alone.separation.masks.shape
        torch.testing.assert_close(output.separation.masks.median, alone.separation.masks.median)
        torch.testing.assert_close(output.separation.encoding.mean, alone.separation.encoding.mean)
    plain = Batches(model, 8).outputs(mixtures)
    assert all(output.rates is None for output in plain)


def test_what_does_not_fit_into_memory_is_halved_and_said(model, monkeypatch, capsys):
    def small(model, mixtures, *wanted, **more):
        if len(mixtures) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return run_model(model, mixtures, *wanted, **more)

    monkeypatch.setattr(batches_module, "run_model", small)
    mixtures = torch.randn(7, 300, generator=torch.Generator().manual_seed(0))
    batches = Batches(model, 6)
    assert len(batches.outputs(mixtures)) == 7 and batches.size == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "sepkit: 6 mixtures at once do not fit into memory; continuing with 3",
        "sepkit: 3 mixtures at once do not fit into memory; continuing with 1",
    ]
    separator = Separator(model)
    assert separator.batch_size(1.0) == 4
    separated = separator.separate_equal(list(mixtures.numpy()), 8000)
    assert len(separated) == 7 and separator.batch_size(1.0) == 2

    def broken(*arguments, **more):
        raise RuntimeError("sizes do not agree")

    monkeypatch.setattr(batches_module, "run_model", broken)
    with pytest.raises(RuntimeError, match="sizes do not agree"):
        Batches(model, 6).outputs(mixtures)


def test_how_many_go_at_once(model):
    assert [batch_size(model, CPU, seconds) for seconds in (0.0, 5.0, 10.0, 15.0, 30.0, 100.0)] == [4, 4, 4, 2, 1, 1]
    assert batch_size(model, torch.device("cuda"), 30.0) == 8
    convolutions = build_model(ModelConfig(filterbank=BANK, masker=ConvTasNetConfig(4, 4, 4, blocks=1, repeats=1)))
    assert batch_size(convolutions, CPU, 5.0) == 1


def test_a_folder_in_batches_is_the_folder_one_by_one(model, sizes, tmp_path, monkeypatch):
    generator, folder = np.random.default_rng(0), tmp_path / "in"
    folder.mkdir()
    for number in range(9):
        waveform = 0.1 * generator.standard_normal(800 if number != 4 else 700).astype(np.float32)
        waveform[5] = np.nan if number == 7 else 0.0
        waveform *= 1e38 if number == 8 else 1.0
        soundfile.write(folder / f"{number}.wav", waveform, 16000, subtype="FLOAT")
    (folder / "3.wav").write_bytes(b"RIFF")
    together = separate_files([folder], Separator(model), tmp_path / "together")
    # 0, 1, 2 and 5; then 6 and 8, whose broken estimates leave each to itself. 3 and 7 cannot be read, 4 is shorter.
    assert sizes == [4, 2]
    monkeypatch.setattr(Separator, "batch_size", lambda self, seconds: 1)
    alone = separate_files([folder], Separator(model), tmp_path / "alone")
    assert (together.separated, together.told) == (6, alone.told)
    assert together.failed == alone.failed and {path[-5:] for path in together.failed} == {"3.wav", "7.wav", "8.wav"}
    for path in sorted((tmp_path / "alone").rglob("*.wav")):
        np.testing.assert_allclose(audio.read(tmp_path / "together" / path.name), audio.read(path), atol=1e-6)
    descriptions = [json.loads((tmp_path / folder / "6.json").read_text()) for folder in ("together", "alone")]
    assert descriptions[0].keys() == descriptions[1].keys()
    assert descriptions[0]["scores"] == pytest.approx(descriptions[1]["scores"], rel=1e-5)
    # Either continues the other.
    assert separate_files([folder], Separator(model), tmp_path / "together").already_done == 6
