"""Distributions against torch.distributions and scipy."""

import math

import pytest
import scipy.stats
import torch
from torch import distributions, nn

from sepkit.models.distributions import BetaDistribution, GammaDistribution, LogNormalDistribution, NormalDistribution
from sepkit.types import Density, Latent

PEERS = {NormalDistribution: distributions.Normal, LogNormalDistribution: distributions.LogNormal}
PEERS |= {GammaDistribution: distributions.Gamma, BetaDistribution: distributions.Beta}
FROZEN = {
    NormalDistribution: lambda m, s: scipy.stats.norm(m, s),
    LogNormalDistribution: lambda m, s: scipy.stats.lognorm(s, scale=math.exp(m)),
    GammaDistribution: lambda c, r: scipy.stats.gamma(c, scale=1 / r),
    BetaDistribution: scipy.stats.beta,
}


def parameters(kind, shape=(3, 4), dtype=torch.float64):
    """Two parameters of each kind; only locations may be negative."""
    first, second = (torch.rand(shape, dtype=dtype) * 3 + 0.3 for _ in range(2))
    return (first - 2 if kind in (NormalDistribution, LogNormalDistribution) else first), second


def values(kind, shape=(3, 4)):
    inside = torch.rand(shape, dtype=torch.float64) * 0.98 + 0.01
    return {NormalDistribution: 6 * inside - 3, BetaDistribution: inside}.get(kind, 4 * inside)


@pytest.mark.parametrize("kind", PEERS)
def test_densities_and_moments_equal_those_of_torch(kind):
    """Log density, mean and variance agree to 1e-10."""
    first, second = parameters(kind)
    mine, peer = kind(first, second), PEERS[kind](first, second)
    assert isinstance(mine, Latent) and isinstance(mine, Density)
    value = values(kind)
    torch.testing.assert_close(mine.log_prob(value), peer.log_prob(value), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mine.mean, peer.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mine.variance, peer.variance, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", PEERS)
def test_rates_equal_those_of_torch(kind, dtype):
    """They agree to 1e-5, from another distribution of the kind and from the standard one of scalars."""
    first, second, third, fourth = *parameters(kind, dtype=dtype), *parameters(kind, dtype=dtype)
    for prior in ((third, fourth), torch.tensor([0.5, 1.0], dtype=torch.float64)):
        found = kind(first, second).kl(kind(*prior))
        wide = [tensor.double() for tensor in (first, second, *prior)]
        expected = distributions.kl_divergence(PEERS[kind](*wide[:2]), PEERS[kind](*wide[2:]))
        assert found.dtype == dtype and found.shape == (3, 4)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert kind(first, second).kl(kind(first, second)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", PEERS)
def test_samples_are_of_the_distribution(kind):
    """Kolmogorov-Smirnov accepts them, and the same generator state gives the same samples."""
    first, second = (tensor.item() for tensor in parameters(kind, ()))
    latent = kind(torch.full((20_000,), first), torch.full((20_000,), second))
    drawn = latent.sample(torch.Generator().manual_seed(1))
    assert torch.equal(drawn, latent.sample(torch.Generator().manual_seed(1)))
    assert drawn.shape == latent.shape == (20_000,)
    assert scipy.stats.kstest(drawn.double().numpy(), FROZEN[kind](first, second).cdf).pvalue > 1e-3


@pytest.mark.parametrize("kind", PEERS)
def test_gradients_of_samples_are_those_of_expectations(kind):
    """d E[x] / d parameter from samples agrees with that of the mean in closed form."""
    leaves = [tensor.requires_grad_() for tensor in parameters(kind, ())]
    if kind is LogNormalDistribution:
        leaves[1].data.fill_(0.5)
    wide = kind(*(leaf.expand(400_000) for leaf in leaves))
    found = torch.autograd.grad(wide.sample().mean(), leaves, allow_unused=True)
    for mine, exact in zip(found, torch.autograd.grad(kind(*leaves).mean, leaves, allow_unused=True), strict=True):
        mine, exact = (0.0 if one is None else one.item() for one in (mine, exact))
        assert mine == pytest.approx(exact, abs=0.02, rel=0.05)


@pytest.mark.parametrize("kind", [GammaDistribution, BetaDistribution])
def test_small_concentrations_are_finite(kind):
    """At the floor of 1e-6 samples, densities, rates and gradients stay finite in float32."""
    raw = torch.full((2, 500), -20.0, requires_grad=True)
    positive = nn.functional.softplus(raw).clamp_min(1e-6) + 0 * raw
    latent = kind(positive, positive if kind is BetaDistribution else torch.tensor(1.0))
    sample = latent.sample()
    prior = kind(torch.tensor(1.0), torch.tensor(1.0))
    total = (latent.log_prob(sample) - prior.log_prob(sample)).sum() + latent.kl(prior).sum() + sample.sum()
    total.backward()
    assert total.isfinite() and raw.grad is not None and raw.grad.isfinite().all()
    assert (sample > 0).all()
    if kind is BetaDistribution:
        # Nearly all mass is at the two ends, in equal shares.
        assert (sample < 1).all() and 0.4 < (sample > 0.5).float().mean() < 0.6


@pytest.mark.parametrize("kind", PEERS)
def test_rates_between_kinds_have_no_closed_form(kind):
    """The error names both kinds and the remedy."""
    other = GammaDistribution if kind is not GammaDistribution else NormalDistribution
    with pytest.raises(TypeError, match=f"{kind.__name__} from a {other.__name__} has no closed form.*estimator"):
        kind(torch.tensor(1.0), torch.tensor(1.0)).kl(other(torch.tensor(1.0), torch.tensor(1.0)))
