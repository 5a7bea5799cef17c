"""Costs equal asteroid's and fast_bss_eval's over the whole range that a model passes through."""

import fast_bss_eval
import numpy as np
import pytest
import torch

from sepkit.objectives import costs
from tests.published import peer

LEVELS_DB = (-30.0, -15.0, 0.0, 6.0, 20.0, 30.0, 45.0)


def pairs_at(si_sdr_db: float, num_samples: int = 32000, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 estimates (4, 2, T) of the sources (4, 2, T), whose SI-SDR in their own order is about `si_sdr_db`."""
    generator = torch.Generator().manual_seed(int(si_sdr_db) + 1000)
    sources, noise = 0.1 * torch.randn(2, 4, 2, num_samples, generator=generator)
    return 0.7 * sources + 0.7 * 10 ** (-si_sdr_db / 20) * noise + offset, sources - offset


@pytest.mark.parametrize("level_db", LEVELS_DB)
@pytest.mark.parametrize(("ours", "kind"), [(costs.pairwise_neg_si_sdr, "sisdr"), (costs.pairwise_neg_snr, "snr")])
@pytest.mark.parametrize("zero_mean", [True, False])
def test_asteroid(level_db, ours, kind, zero_mean):
    """The same formula with the same eps, to 1e-4 dB, against asteroid in float32 and in float64."""
    theirs = peer("asteroid.losses").sdr.PairwiseNegSDR(kind, zero_mean=zero_mean)
    estimates, sources = pairs_at(level_db)
    cost = ours(estimates, sources, zero_mean=zero_mean)
    assert cost.dtype == torch.float32
    torch.testing.assert_close(cost, theirs(estimates, sources), atol=1e-4, rtol=0)
    torch.testing.assert_close(cost.double(), theirs(estimates.double(), sources.double()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("level_db", (*LEVELS_DB, 60.0))
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_fast_bss_eval(level_db, offset):
    """float32 inputs without eps give float64's figure to 1e-4 dB, beside a constant offset too."""
    estimates, sources = pairs_at(level_db, offset=offset)
    cost = costs.pairwise_neg_si_sdr(estimates, sources, eps=0.0)
    for b, i, j in np.ndindex(4, 2, 2):
        exact = fast_bss_eval.si_sdr(sources[b, j, None].double(), estimates[b, i, None].double(), zero_mean=True)
        assert cost[b, i, j].item() == pytest.approx(-exact.item(), abs=1e-4)


@pytest.mark.parametrize("level_db", LEVELS_DB)
def test_asteroid_gradient(level_db):
    """The gradient is that of asteroid in float64."""
    losses = peer("asteroid.losses")
    estimates, sources = pairs_at(level_db, num_samples=4000)
    ours = estimates.clone().requires_grad_()
    costs.pairwise_neg_si_sdr(ours, sources).sum().backward()
    theirs = estimates.double().requires_grad_()
    losses.pairwise_neg_sisdr(theirs, sources.double()).sum().backward()
    assert (ours.grad - theirs.grad).norm() <= 3e-5 * theirs.grad.norm()
