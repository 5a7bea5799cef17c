"""The reduced update is equal in law to the full one."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch.nn.functional import normalize

from sepkit.schedules import Constant, InverseTemperature
from sepkit.studies.annealed_inference.order_parameters import OrderParameters, collapsed, random_starts
from sepkit.studies.annealed_inference.reduced import Problem, _gradient, fit_reduced, random_means
from tests.complaint import complaint

RADIUS, HEAVY = 3.0, 0.8


def _reduced(schedule, replicas, steps, samples, dimension, **more):
    problem = Problem(dimension, RADIUS, HEAVY, samples)
    return fit_reduced(
        problem, schedule, replicas=replicas, steps=steps, initial_variance=1 / schedule(0), **more
    )  # fmt: skip


def _full(schedule, replicas, steps, samples, dimension, seed):
    """Steps with all d coordinates, whose gradients are autograd's: order parameters and variances (S, K)."""
    generator = torch.Generator().manual_seed(seed)
    means = RADIUS * normalize(torch.randn(replicas, 2, dimension, generator=generator), dim=-1)
    variances = torch.full((replicas, 2), 1 / schedule(0))
    star = RADIUS * torch.eye(dimension)[0]
    for step in range(steps):
        rate = 0.05 / schedule(float(step))
        means.requires_grad_()
        variances.requires_grad_()
        own = torch.randint(2, (replicas, samples), generator=generator)[..., None]
        noise = torch.randn(replicas, samples, dimension, generator=generator)
        deviations = variances.sqrt()[..., None]
        x = torch.where(own == 0, means[:, None, 0], means[:, None, 1])
        x = x + torch.where(own == 0, deviations[:, None, 0], deviations[:, None, 1]) * noise
        squared = (x[:, :, None] - means[:, None]).square().sum(-1)
        log_q = (-squared / (2 * variances[:, None]) - dimension / 2 * variances[:, None].log()).logsumexp(-1)
        modes = [-(x - sign * star).square().sum(-1) / 2 + math.log(w) for sign, w in ((1, HEAVY), (-1, 1 - HEAVY))]
        (log_q - schedule(float(step)) * torch.logaddexp(*modes)).mean(-1).sum().backward()
        with torch.no_grad():
            means = RADIUS * normalize(means - rate * means.grad, dim=-1)
            variances = variances * (1 - 2 * rate / dimension * variances.grad) ** 2
    scaled = (means / RADIUS).double().numpy()
    return OrderParameters(scaled[:, 0, 0], scaled[:, 1, 0], (scaled[:, 0] * scaled[:, 1]).sum(-1)), variances.numpy()


def test_random_means_have_the_law_of_directions():
    """The same order parameters as `random_starts`, by a two-sample test; length R."""
    means = random_means(20_000, 16, RADIUS, generator=np.random.default_rng(5))
    assert np.linalg.norm(means, axis=-1) == pytest.approx(np.full((20_000, 2), RADIUS))
    start = random_starts(20_000, 16, seed=6)
    found = (means[:, 0, 0] / RADIUS, means[:, 1, 0] / RADIUS, (means[:, 0] * means[:, 1]).sum(-1) / RADIUS**2)
    assert min(ks_2samp(a, b).pvalue for a, b in zip(found, (start.m1, start.m2, start.s), strict=True)) > 1e-4


def test_few_steps_have_the_law_of_the_full_update():
    """Overlaps, similarity and variances after ten hot steps: two-sample tests of 3,000 replicas of each."""
    schedule, replicas, dimension, samples = InverseTemperature(1 / 20, 30), 3000, 12, 16
    full, variances = _full(schedule, replicas, 10, samples, dimension, seed=1)
    run = _reduced(schedule, replicas, 10, samples, dimension)
    end = run.order_parameters
    pairs = [(full.m1, end.m1), (full.m2, end.m2), (full.s, end.s), *zip(variances.T, run.variances.T, strict=True)]
    assert [ks_2samp(a, b).pvalue > 1e-4 for a, b in pairs] == [True] * 5


def test_collapse_is_as_likely_as_under_the_full_update():
    """Two proportions of 200 replicas agree within three standard errors."""
    schedule, dimension, samples, steps = InverseTemperature(1 / 90, 100), 32, 32, 160
    full, _ = _full(schedule, 200, steps, samples, dimension, seed=2)
    reduced = _reduced(schedule, 200, steps, samples, dimension).order_parameters
    one, other = (collapsed(end, RADIUS, HEAVY).mean() for end in (full, reduced))
    pooled = (one + other) / 2
    assert abs(one - other) < 3 * math.sqrt(pooled * (1 - pooled) * 2 / 200)


def test_means_between_the_modes_go_to_the_heavier_one():
    """At x1 = 0 the slope of log pi is R tanh(0.5 log(0.8 / 0.2)) = 0.6 R, for each of two narrow components half."""
    means = RADIUS * np.eye(3)[None, 1:]
    problem, variances = Problem(5, RADIUS, HEAVY, 20_000), np.full((1, 2), 1e-3)
    inside, _, _ = _gradient(means, variances, problem, 0.5, np.random.default_rng(0))
    assert inside[0, :, 0] / (0.5 * RADIUS) == pytest.approx([-0.3, -0.3], rel=0.03)
    # Of log q nothing is left, and of -log pi the pull towards the origin.
    assert inside[0, :, 1:] / (0.5 * RADIUS) == pytest.approx(np.eye(2) / 2, rel=0.03, abs=1e-3)


def test_variances_follow_with_their_lag():
    """beta sigma^2 is within 3 % of the stationary lag, 1.219, and 1 at the end."""
    run = _reduced(InverseTemperature(1 / 90, 500), 4, 600, 128, 512, record_every=100)
    for step in (2, 3, 4):
        scaled = run.variance_path[step] * InverseTemperature(1 / 90, 500)(run.steps[step])
        assert scaled.mean() == pytest.approx(1.219, rel=0.03)
    assert run.variances == pytest.approx(np.ones((4, 2)), rel=0.03)


def test_sphere_and_frozen_parts():
    """Means keep their length to 1e-6; frozen parts stay."""
    run = _reduced(Constant(0.5), 5, 20, 16, 7)
    assert np.linalg.norm(run.means, axis=-1) == pytest.approx(np.full((5, 2), RADIUS), abs=1e-6)
    assert (_reduced(Constant(0.5), 5, 20, 16, 7, learn_variances=False).variances == 2.0).all()
    start = random_means(5, 7, RADIUS, np.random.default_rng(0))
    assert (_reduced(Constant(0.5), 5, 20, 16, 7, learn_means=False, means=start).means == start).all()


def test_a_replica_that_is_not_finite_ends_alone():
    """Its failure names replica and step; the others continue."""
    start = random_means(4, 16, RADIUS, np.random.default_rng(0))
    start[2] = math.nan
    run = _reduced(Constant(1.0), 4, 3, 16, 16, means=start)
    assert run.failures == [(2, 0)]
    assert np.isfinite(run.means[[0, 1, 3]]).all() and not (run.means[0] == start[0]).all()


def test_too_few_dimensions():
    """Two components need five dimensions."""
    complaint(lambda: _reduced(Constant(1.0), 1, 1, 8, 4), "expected at least 5")
