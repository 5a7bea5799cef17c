"""Ceilings of the STFT: freer masks reach higher ones, and a free mask is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sepkit.cli.main import main
from sepkit.config import FreeFilterbankConfig, GaussianConfig, LogNormalConfig, ModelConfig, RecurrentConfig
from sepkit.config import STFTFilterbankConfig as STFT
from sepkit.errors import UserError
from sepkit.evaluation.oracle import ORACLE_MASKS, measure_oracle, oracle_estimates
from sepkit.models import build_model, save_model
from sepkit.objectives.costs import pairwise_neg_si_sdr

TINY = RecurrentConfig(hidden_size=3, num_layers=1)


def si_sdr_db(estimates: torch.Tensor, sources: torch.Tensor) -> float:
    return -pairwise_neg_si_sdr(estimates, sources)[0].diagonal().mean().item()


def tones(num_samples: int = 4000) -> torch.Tensor:
    """Two sources that share some bins of a spectrum, and not all."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 2, num_samples, generator=generator)
    smooth = noise[:, 0].cumsum(-1) - noise[:, 0].cumsum(-1).mean(-1, keepdim=True)
    return (smooth / smooth.std(-1, keepdim=True) + torch.tensor([[0.1], [2.0]]) * noise[:, 1]).unsqueeze(0)


def test_masks_that_can_do_more_do_more():
    sources = tones()
    model = build_model(ModelConfig(filterbank=STFT(256, 64), masker=TINY)).eval()
    scores = {k: si_sdr_db(v, sources) for k, v in oracle_estimates(model, sources.sum(1), sources).items()}
    assert list(scores) == list(ORACLE_MASKS)
    order = ["phase_sensitive", "phase_sensitive_positive", "phase_sensitive_signed"]
    assert scores["ratio"] < scores["phase_sensitive"] + 0.5
    assert [scores[name] for name in order] == sorted(scores[name] for name in order)
    assert scores["complex"] > scores["phase_sensitive"] + 3


def test_a_binary_mask_is_exact_where_sources_share_no_bin():
    time = torch.arange(8000) / 8000
    sources = torch.stack([torch.sin(2 * torch.pi * 500 * time), torch.sin(2 * torch.pi * 3000 * time)]).unsqueeze(0)
    model = build_model(ModelConfig(filterbank=STFT(256, 64), masker=TINY)).eval()
    found = oracle_estimates(model, sources.sum(1), sources)
    assert all(si_sdr_db(estimates[..., 500:-500], sources[..., 500:-500]) > 35 for estimates in found.values())


def test_noise_counts_as_one_more_source():
    sources = tones()
    noise = 5 * torch.randn(1, 4000, generator=torch.Generator().manual_seed(3))
    model = build_model(ModelConfig(filterbank=STFT(256, 64), masker=TINY)).eval()
    estimates = oracle_estimates(model, sources.sum(1) + noise, sources)["binary"]
    assert estimates.sum(1).square().sum() < 0.3 * (sources.sum(1) + noise).square().sum()
    # Without noise the masks add up to one, and the estimates to the mixture.
    estimates = oracle_estimates(model, sources.sum(1), sources)["binary"]
    torch.testing.assert_close(estimates.sum(1), sources.sum(1), rtol=0, atol=1e-4)


def test_variational_encodings_have_the_same_ceilings():
    sources = tones(1000)
    plain = build_model(ModelConfig(filterbank=STFT(64, 32), masker=TINY)).eval()
    variational = build_model(
        ModelConfig(filterbank=STFT(64, 32), masker=TINY, encoding=GaussianConfig(), masks=LogNormalConfig())
    ).eval()
    one, other = (oracle_estimates(m, sources.sum(1), sources)["ratio"] for m in (plain, variational))
    torch.testing.assert_close(one, other)


def test_a_learned_filterbank_is_refused():
    model = build_model(ModelConfig(filterbank=FreeFilterbankConfig(8), masker=TINY))
    with pytest.raises(UserError, match=r"^--oracle: this model's filterbank is learned"):
        oracle_estimates(model, torch.randn(1, 100), torch.randn(1, 2, 100))


def test_the_command_prints_the_means_over_mixtures(
    corpus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build_model(ModelConfig(filterbank=STFT(64, 32), masker=TINY))
    folder = str(save_model(model, tmp_path / "model", {}))
    assert main(["models", "--model", folder, "--oracle", str(corpus.manifest)]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = measure_oracle(model, corpus.manifest)
    assert list(found) == list(ORACLE_MASKS) and len(lines) == len(found)
    assert f"complex {found['complex'].mean:.2f} dB" in lines[-1] and found["complex"].n > 0
    assert main(["models", "--oracle", str(corpus.manifest)]) == 2
    assert "give --model" in capsys.readouterr().err
