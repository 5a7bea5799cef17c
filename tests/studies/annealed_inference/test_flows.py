"""Flows as students: the loss, what a trained one looks like, and replicas that end alone."""

from __future__ import annotations

import math

import pytest
import torch

from sepkit.models.stacked import RealNVP
from sepkit.schedules import Constant
from sepkit.studies.annealed_inference.flows import diagonal_target, fit_flows, full_deviation, tempered_loss


def test_deviation_of_the_target():
    """It is 2.6 for R = 3, w* = .8, as for samples along mu*."""
    assert full_deviation(3.0, 0.8) == pytest.approx(2.6)
    target = diagonal_target(6, 3.0, 0.8)
    assert float(target.means[0].norm()) == pytest.approx(3.0)
    components = (torch.rand(100_000, generator=torch.Generator().manual_seed(0)) > 0.8).long()
    x = target.place(torch.randn(100_000, 6, generator=torch.Generator().manual_seed(1)), components)
    assert float((x @ target.means[0] / 3).std()) == pytest.approx(2.6, abs=0.03)


def test_loss_is_the_divergence():
    """Between the identity flow and a Gaussian target it has a closed form, at any beta."""
    flow = RealNVP(4, couplings=2, hidden=4)
    for parameter in flow.parameters():
        torch.nn.init.zeros_(parameter)
    target = diagonal_target(4, 1e-6, 0.5)
    entropy = 0.5 * 4 * math.log(2 * math.pi * math.e)
    for beta in (0.2, 1.0):
        found = tempered_loss(flow, target, beta, 200_000, torch.Generator().manual_seed(0))
        assert float(found.detach()) == pytest.approx(-entropy + beta * entropy, abs=0.02)


def test_training_fits_a_mode_and_repeats():
    """Without annealing a small flow finds at least one mode: its deviation is 1 or more, and the run repeats."""
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        flow = RealNVP(4, couplings=2, hidden=16, replicas=2)
        target = diagonal_target(4, 3.0, 0.8)
        runs.append(fit_flows(flow, target, Constant(1.0), steps=250, samples=128, learning_rate=3e-3, seed=1))
    assert torch.equal(runs[0].deviations, runs[1].deviations)
    assert not runs[0].flow.training and not runs[0].failures
    # The least loss of one mode is -ln .8 = .22 nats above that of both.
    assert bool((runs[0].losses < 0.6).all()) and bool((runs[0].deviations > 0.8).all())


def test_a_replica_that_is_not_finite_ends_alone():
    """Its failure names replica and step; the others are trained as if it did not exist."""
    torch.manual_seed(0)
    flow = RealNVP(4, couplings=2, hidden=8, replicas=3)
    reference = RealNVP(4, couplings=2, hidden=8, replicas=3)
    reference.load_state_dict(flow.state_dict())
    with torch.no_grad():
        next(flow.parameters())[1] = math.nan
    target = diagonal_target(4, 2.0, 0.8)
    run = fit_flows(flow, target, Constant(0.5), steps=4, samples=16)
    expected = fit_flows(reference, target, Constant(0.5), steps=4, samples=16)
    assert [(f.replica, f.step) for f in run.failures] == [(1, 0)]
    assert run.deviations.isnan().tolist() == [False, True, False]
    assert torch.equal(run.deviations[[0, 2]], expected.deviations[[0, 2]])
