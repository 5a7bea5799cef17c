"""Likelihood costs against scipy's multivariate t and the thesis's closed form."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t

from sepkit.objectives.likelihoods import pairwise_blr_nll, pairwise_cauchy_nll


def signals(num_samples: int, dtype=torch.float64):
    generator = torch.Generator().manual_seed(num_samples)
    return (torch.randn(2, k, num_samples, dtype=torch.float64, generator=generator).to(dtype) for k in (3, 2))


@pytest.mark.parametrize("prior", [(1.0, 1e-3, 0.0, 1e-6), (2.5, 0.7, 0.4, 3.0)])
@pytest.mark.parametrize("num_samples", [1, 50])
def test_blr_is_a_multivariate_t(prior, num_samples):
    """It has 2 a0 degrees of freedom, location mu0 e, shape b0/a0 (I + e e^T / lambda0), to 1e-8 in float64."""
    a0, b0, mu0, lambda0 = prior
    estimates, sources = signals(num_samples)
    found = pairwise_blr_nll(estimates, sources, *prior)
    for b, i, j in np.ndindex(2, 3, 2):
        estimate, source = estimates[b, i].numpy(), sources[b, j].numpy()
        shape = b0 / a0 * (np.eye(num_samples) + np.outer(estimate, estimate) / lambda0)
        expected = -multivariate_t(mu0 * estimate, shape, df=2 * a0).logpdf(source)
        assert found[b, i, j].item() == pytest.approx(expected, rel=1e-8, abs=1e-8 * num_samples)


@pytest.mark.parametrize("si_sdr_db", [0.0, 20.0, 40.0, 60.0])
def test_blr_in_float32(si_sdr_db):
    """It agrees with eq. 55 in float64 to 1e-4 nats a sample at T = 24000."""
    estimates, sources = signals(24000, torch.float32)
    estimates = sources[:, :1] + 10 ** (-si_sdr_db / 20) * estimates
    found = pairwise_blr_nll(estimates, sources)
    assert found.dtype == torch.float32
    e, s = estimates[0, 0].double(), sources[0, 0].double()
    precision = e @ e + 1e-6
    gain = e @ s / precision
    scale = 1e-3 + ((s - gain * e).square().sum() + 1e-6 * gain**2) / 2
    expected = (
        12000 * math.log(2 * math.pi)
        - 0.5 * math.log(1e-6 / precision)
        - math.log(1e-3)
        + 12001 * math.log(scale)
        - math.lgamma(12001)
    )
    assert found[0, 0, 0].item() / 24000 == pytest.approx(expected / 24000, abs=1e-5)


@pytest.mark.parametrize("gain", [1e-2, 1.0, 1e2])
def test_blr_hardly_depends_on_the_level(gain):
    """A gain g on the estimate only adds log|g|, from the prior of the regression's gain."""
    estimates, sources = signals(8000)
    change = pairwise_blr_nll(gain * estimates, sources) - pairwise_blr_nll(estimates, sources)
    torch.testing.assert_close(change, torch.full_like(change, math.log(gain)), atol=1e-3, rtol=0)


def test_blr_at_240000_samples():
    """It is finite and differentiable in float32, also with silence on either side."""
    estimates, sources = signals(240_000, torch.float32)
    estimates[0, 0], sources[0, 0] = 0, 0
    cost = pairwise_blr_nll(estimates.requires_grad_(), sources)
    cost.sum().backward()
    assert cost.isfinite().all() and estimates.grad.isfinite().all()


@pytest.mark.parametrize("num_samples", [1, 50])
def test_cauchy_is_a_multivariate_t(num_samples):
    """It has one degree of freedom and scale matrix diag(scale^2), for one number and for one a sample."""
    estimates, sources = signals(num_samples)
    scales = torch.rand(estimates.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    shared, own = pairwise_cauchy_nll(estimates, sources, 0.3), pairwise_cauchy_nll(estimates, sources, scales)
    for b, i, j in np.ndindex(2, 3, 2):
        location, source = estimates[b, i].numpy(), sources[b, j].numpy()
        for found, diagonal in ((shared, np.full(num_samples, 0.3)), (own, scales[b, i].numpy())):
            expected = -multivariate_t(location, np.diag(diagonal**2), df=1).logpdf(source)
            assert found[b, i, j].item() == pytest.approx(expected, rel=1e-8)


def test_cauchy_scales_learn():
    """Estimates, sources and scales get gradients, with padding."""
    estimates, sources = signals(6)
    scales = torch.rand(estimates.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    lengths = torch.tensor([6, 4])
    inputs = [x.requires_grad_() for x in (estimates, sources, scales)]
    assert torch.autograd.gradcheck(lambda e, s, c: pairwise_cauchy_nll(e, s, c, lengths=lengths), inputs)
