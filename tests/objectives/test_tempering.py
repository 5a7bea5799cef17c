"""Tempering of the evidence lower bound: equal to it at beta = 1, and by hand elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Beta, Gamma, LogNormal, Normal

from sepkit.config import BLRConfig, InverseTemperatureConfig, ObjectiveConfig, RatesConfig, ScheduleConfig
from sepkit.models.distributions import BetaDistribution, GammaDistribution, LogNormalDistribution, NormalDistribution
from sepkit.models.latents import Point
from sepkit.objectives import build_objective
from sepkit.objectives.rates import alive_share, tempered_rate
from sepkit.types import Batch, ModelTraits, Separation

T, K, F = 40, 3, 5
BOTH = frozenset({"encoding_prior", "mask_prior"})
TRAITS = ModelTraits(BOTH, frames_for=lambda samples: samples // 8)
HALF = InverseTemperatureConfig(initial=0.25, end=10.0)


def _batch_and_separation() -> tuple[Batch, Separation]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    sources = random(2, 2, T)
    encoding = NormalDistribution(random(2, K, F).requires_grad_(), random(2, K, F).exp())
    masks = LogNormalDistribution(random(2, 2, K, F).requires_grad_(), random(2, 2, K, F).exp())
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    separation = Separation(
        (sources + 0.3 * random(2, 2, T)).requires_grad_(),
        encoding,
        masks,
        extras={"encoding_prior": NormalDistribution(zero, one), "mask_prior": LogNormalDistribution(zero, one)},
    )
    active = torch.ones(2, 2, dtype=torch.bool)
    return Batch(sources.sum(1), sources, active, torch.tensor([T, T]), list("ab")), separation


def _objective(tempering: ScheduleConfig | None, **rates):
    config = ObjectiveConfig(cost=BLRConfig(), rates=RatesConfig(tempering=tempering, **rates))
    return build_objective(config, TRAITS)


def test_at_beta_one_it_is_the_lower_bound_exactly():
    """Loss and gradients agree bit for bit once the schedule has ended; the schedule is recorded."""
    batch, separation = _batch_and_separation()
    tempered, plain = _objective(HALF), _objective(None)
    tempered.set_progress(10.0)
    found, expected = tempered(batch, separation), plain(batch, separation)
    assert torch.equal(found.loss, expected.loss)
    leaves = [separation.estimates, separation.encoding.mean, separation.masks.location]
    for a, b in zip(
        torch.autograd.grad(found.loss.sum(), leaves, retain_graph=True),
        torch.autograd.grad(expected.loss.sum(), leaves),
        strict=True,
    ):
        assert torch.equal(a, b)
    assert tempered.scheduled["inverse_temperature"] == 1.0


def test_below_one_it_is_the_tempered_divergence():
    """beta (distortion + E -log p(z)) - H(q) over T, from distributions of torch; rates are recorded untempered."""
    batch, separation = _batch_and_separation()
    tempered, plain = _objective(HALF), _objective(None)
    tempered.set_progress(5.0)
    beta = 0.5
    assert tempered.scheduled["inverse_temperature"] == pytest.approx(beta)
    found, expected = tempered(batch, separation), plain(batch, separation)
    loss = beta * expected.terms["separation"]
    for latent, location in (
        (separation.encoding, separation.encoding.mean),
        (separation.masks, separation.masks.location),
    ):
        q = Normal(location, latent.deviation)  # of the logarithm, for masks
        cross = 0.5 * (location.square() + latent.deviation.square()) + 0.5 * math.log(2 * math.pi)
        loss = loss + (beta * cross - q.entropy()).flatten(1).sum(1) / T
    assert torch.allclose(found.loss, loss, atol=1e-10)
    for name, value in expected.statistics.items():
        assert torch.equal(found.statistics[name], value)


def test_gradients_of_the_tempered_gaussian_vanish_at_its_temperature():
    """Without data the best posterior of a standard prior has variance 1 / beta."""
    beta = 0.3
    q = NormalDistribution(torch.zeros(1), torch.tensor([beta**-0.5], requires_grad=True))
    prior = NormalDistribution(torch.zeros(1), torch.ones(1))
    (gradient,) = torch.autograd.grad(tempered_rate(q.kl(prior), q, beta).sum(), q.deviation)
    assert float(gradient) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        (NormalDistribution(torch.tensor(0.3), torch.tensor(2.0)), Normal(0.3, 2.0)),
        (LogNormalDistribution(torch.tensor(0.3), torch.tensor(2.0)), Normal(0.3, 2.0)),
        (GammaDistribution(torch.tensor(1.7), torch.tensor(0.6)), Gamma(1.7, 0.6)),
        (BetaDistribution(torch.tensor(1.7), torch.tensor(0.6)), Beta(torch.tensor(1.7), torch.tensor(0.6))),
    ],
    ids=["normal", "log-normal", "gamma", "beta"],
)
def test_entropies_are_those_of_torch(own, theirs):
    """For log-normals it is that of the logarithm, the entropy minus the mean of the logarithm."""
    assert float(own.base_entropy()) == pytest.approx(float(theirs.entropy()), rel=1e-5)
    if isinstance(own, LogNormalDistribution):
        assert float(own.base_entropy()) == pytest.approx(float(LogNormal(0.3, 2.0).entropy()) - 0.3, rel=1e-5)
    assert float(Point(torch.ones(1)).base_entropy()) == 0


def test_alive_share_counts_dimensions_above_a_hundredth_of_a_nat():
    """Means are over an utterance's own frames."""
    rate = torch.zeros(2, 2, 2, 4)
    rate[0, 0, 0] = 0.02
    rate[0, 0, 1, 3] = 1.0
    rate[1, :, :, 0] = 0.05
    frames = torch.tensor([3, 4])
    # First: only one of four is alive, for the large value is beyond its frames. Second: the mean is .0125 in each.
    assert alive_share(rate, frames).tolist() == [0.25, 1.0]
    assert alive_share(0.5 * rate, frames).tolist() == [0.0, 0.0]
