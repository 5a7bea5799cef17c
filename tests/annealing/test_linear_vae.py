"""Thresholds of the linear auto-encoder against the Hessians of its losses at zero."""

from __future__ import annotations

import pytest
import torch

from sepkit.annealing.linear_vae import alive, threshold_beta
from sepkit.errors import UserError


def _loss(parameters, variance, noise, beta, kind):
    """E_x[-log p(x | z) + beta KL] or E_x[-beta log p(x, z) + log q(z | x)] of W, V, log D, constants aside."""
    w, v, log_d = parameters
    d = log_d.exp()
    reconstruction = (variance * (1 - w * v) ** 2 + w**2 * d) / (2 * noise)
    second_moment = v**2 * variance + d
    if kind == "kl":
        return reconstruction + beta * 0.5 * (second_moment - log_d)
    return beta * (reconstruction + 0.5 * second_moment) - 0.5 * log_d


@pytest.mark.parametrize("kind", ["kl", "tempered"])
@pytest.mark.parametrize("variance", [0.05, 0.3, 0.49, 0.51, 2.0])
@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_a_latent_lives_where_zero_is_no_minimum(kind, variance, beta):
    """A latent is alive exactly if the Hessian at W = V = 0 has a negative eigenvalue; zero is stationary."""
    noise = 0.5
    d = 1.0 if kind == "kl" else 1 / beta
    zero = torch.tensor([0.0, 0.0, torch.tensor(d).log()], dtype=torch.float64)

    def loss(p):
        return _loss(p, variance, noise, beta, kind)

    assert torch.autograd.functional.jacobian(loss, zero).abs().max() < 1e-6
    lowest = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, zero))[0]
    assert alive(variance, noise, beta, kind) == bool(lowest < 0)


def test_thresholds():
    """It is lambda / v for the weight of the rate, and v / lambda for tempering."""
    assert threshold_beta(0.3, 0.6, "kl") == pytest.approx(0.5)
    assert threshold_beta(1.2, 0.6, "tempered") == pytest.approx(0.5)
    with pytest.raises(UserError, match="data variance: found 0"):
        threshold_beta(0.0, 0.6, "kl")
