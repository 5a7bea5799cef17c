"""Flows as students: the target, what a trained one looks like, and replicas that end alone."""

import math

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from sepkit.models.stacked import RealNVP
from sepkit.schedules import Constant
from sepkit.studies.annealed_inference.config import AnnealedInferenceConfig, FlowsConfig
from sepkit.studies.annealed_inference.experiments import fit_flows, full_deviation, target_log_prob


def test_the_target_is_that_of_torch():
    """Its density, and its deviation along mu*, which is 2.6 for R = 3, w* = .8."""
    mean = torch.full((6,), 3 / math.sqrt(6))
    parts = MultivariateNormal(torch.stack([mean, -mean]), torch.eye(6).expand(2, 6, 6))
    target = MixtureSameFamily(Categorical(torch.tensor([0.8, 0.2])), parts)
    torch.manual_seed(0)
    x = target.sample((100_000,))
    torch.testing.assert_close(target_log_prob(x, 3.0, 0.8), target.log_prob(x), rtol=1e-4, atol=1e-4)
    assert full_deviation(3.0, 0.8) == pytest.approx(2.6)
    assert float((x @ mean / 3).std()) == pytest.approx(2.6, abs=0.03)


def test_training_fits_a_mode_and_repeats():
    """Without annealing a small flow finds at least one mode: its deviation is 1 or more, and the run repeats."""
    config = AnnealedInferenceConfig(flows=FlowsConfig(samples=128, learning_rate=3e-3))
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        flow = RealNVP(4, couplings=2, hidden=16, replicas=2)
        runs.append(fit_flows(flow, config, Constant(1.0), steps=250, seed=1))
    (deviations, losses, failures), again = runs
    assert torch.equal(deviations, again[0]) and not flow.training and not failures
    # The least loss of one mode is -ln .8 = .22 nats above that of both.
    assert bool((losses < 0.6).all()) and bool((deviations > 0.8).all())


def test_a_replica_that_is_not_finite_ends_alone():
    """Its failure names replica and step; the others are trained as if it did not exist."""
    torch.manual_seed(0)
    flow = RealNVP(4, couplings=2, hidden=8, replicas=3)
    reference = RealNVP(4, couplings=2, hidden=8, replicas=3)
    reference.load_state_dict(flow.state_dict())
    with torch.no_grad():
        next(flow.parameters())[1] = math.nan
    config = AnnealedInferenceConfig(radius=2.0, flows=FlowsConfig(samples=16))
    deviations, _, failures = fit_flows(flow, config, Constant(0.5), steps=4, seed=0)
    expected = fit_flows(reference, config, Constant(0.5), steps=4, seed=0)[0]
    assert failures == [(1, 0)] and deviations.isnan().tolist() == [False, True, False]
    assert torch.equal(deviations[[0, 2]], expected[[0, 2]])
