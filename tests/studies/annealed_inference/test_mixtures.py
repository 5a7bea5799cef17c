"""Mixtures and their stochastic steps against torch's distributions and automatic differentiation."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from sepkit.schedules import Constant, InverseTemperature
from sepkit.studies.annealed_inference.mixtures import (
    Mixture,
    bimodal_target,
    fit_mixtures,
    jko_step,
    random_student,
    reverse_kl_gradient,
)


def _mixture(components, dimension, seed=0):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(components, dimension, generator=generator, dtype=torch.float64)
    variances = torch.rand(components, generator=generator, dtype=torch.float64) + 0.5
    weights = torch.rand(components, generator=generator, dtype=torch.float64) + 0.2
    return Mixture(means, variances, weights / weights.sum())


@pytest.mark.parametrize("components", [1, 2, 5])
def test_density_is_that_of_torch(components):
    """log q agrees at any point."""
    mixture, x = _mixture(components, 4), torch.randn(20, 4, dtype=torch.float64)
    covariance = mixture.variances[:, None, None] * torch.eye(4, dtype=torch.float64)
    expected = MixtureSameFamily(Categorical(mixture.weights), MultivariateNormal(mixture.means, covariance))
    assert torch.allclose(mixture.log_prob(x), expected.log_prob(x), atol=1e-12)


@pytest.mark.parametrize("components", [1, 2, 4])
def test_gradient_is_that_of_automatic_differentiation(components):
    """The written gradient equals autograd's on the same samples, for all replicas, to 1e-5."""
    target, student = bimodal_target(6, 2.0, 0.8), _mixture(components, 6)
    replicas = Mixture(
        torch.stack([student.means, 2 * student.means]), student.variances.expand(2, -1), student.weights
    )
    noise = torch.randn(2, 50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    drawn = torch.randint(components, (2, 50), generator=torch.Generator().manual_seed(3))
    means, variances = replicas.means.clone().requires_grad_(), replicas.variances.clone().requires_grad_()
    moving = Mixture(means, variances, student.weights)
    x = moving.place(noise, drawn)
    loss = (moving.log_prob(x) - 0.3 * target.log_prob(x)).mean(-1)
    loss.sum().backward()
    found = reverse_kl_gradient(replicas, target, 0.3, noise, drawn)
    assert torch.allclose(found.means, means.grad, atol=1e-9)
    assert torch.allclose(found.variances, variances.grad, atol=1e-9)
    assert torch.allclose(found.loss, loss.detach(), atol=1e-9)


def test_step_is_that_of_the_scheme():
    """mu - step gradient back on the sphere, sigma^2 (1 - 2 step / d gradient)^2."""
    student = random_student(3, 10, 2.0, 1.5, seed=1)
    gradient = reverse_kl_gradient(
        student,
        bimodal_target(10, 2.0, 0.8),
        0.5,
        torch.randn(3, 8, 10, dtype=torch.float64),
        torch.zeros(3, 8, dtype=torch.long),
    )
    moved = jko_step(student, gradient, 0.1, radius=2.0)
    free = student.means - 0.1 * gradient.means
    assert torch.allclose(moved.means, 2.0 * free / free.norm(dim=-1, keepdim=True))
    assert torch.allclose(moved.variances, 1.5 * (1 - 2 * 0.1 / 10 * gradient.variances) ** 2)


def test_means_stay_on_the_sphere():
    """|mu| = R to 1e-6 after many steps, also in float32."""
    student = random_student(4, 32, 3.0, 90.0, dtype=torch.float32)
    target = bimodal_target(32, 3.0, 0.8, torch.float32)
    run = fit_mixtures(student, target, InverseTemperature(1 / 90, 50), steps=80, samples=32, record_every=40)
    assert run.student.means.norm(dim=-1).double() / 3 == pytest.approx(torch.ones(4, 2), abs=1e-6)
    assert run.steps == [0, 40, 80] and run.overlaps[0].shape == (4, 2) and not run.failures


def test_variance_of_one_gaussian_becomes_the_temperature():
    """sigma^2 -> 1 / beta for one Gaussian and a Gaussian target, independent of its mean."""
    target = Mixture(torch.zeros(1, 8, dtype=torch.float64), torch.ones(1, dtype=torch.float64), torch.ones(1).double())
    student = random_student(2, 8, 1.0, 1.0, components=1)
    run = fit_mixtures(student, target, Constant(0.2), steps=400, samples=256, step_size=0.05)
    # With the score of q in the gradient the noise of samples vanishes at the optimum.
    assert run.student.variances.flatten().tolist() == pytest.approx([5.0, 5.0], rel=0.02)


def test_a_replica_that_is_not_finite_ends_alone():
    """Its failure names replica and step, its state stays as it was, and the others continue."""
    student = random_student(3, 8, 3.0, 1.0)
    variances = student.variances.clone()
    variances[1] = math.nan
    broken = Mixture(student.means, variances, student.weights)
    run = fit_mixtures(broken, bimodal_target(8, 3.0, 0.8), Constant(1.0), steps=5, samples=16)
    assert [str(f) for f in run.failures] == ["replica 1 ends at step 0: its loss is not finite"]
    assert torch.equal(run.student.means[1], student.means[1])
    assert not torch.equal(run.student.means[0], student.means[0])
