import math

import pytest
import torch

from sepkit.inference.runners.latents import mixture_elbo
from sepkit.inference.runners.torch_runner import TorchRunner
from sepkit.models import build_model
from tests.tiny_models import VARIATIONAL

RATE = 8000


def noise(*shape, level=0.1, seed=0):
    return level * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_bound_on_the_mixture_by_hand():
    model, mixture = build_model(VARIATIONAL).eval(), noise(RATE)
    model.set_signal_statistics(0.0, 0.1)
    with torch.no_grad():
        plain = model(mixture[None])
        reconstruction = model.decode(plain.encoding.sample(torch.Generator().manual_seed(5))[:, None], RATE)[0, 0]
    encoding_rate = plain.encoding.kl(plain.extras["encoding_prior"]).sum().item()
    # Multivariate Student t, see pairwise_blr_nll; its matrix inverted and its determinant taken in closed form.
    e, x = reconstruction.double().numpy() / 0.1, mixture.double().numpy() / 0.1
    a0, b0, lambda0, t = 1.0, 1e-3, 1e-6, len(x)
    quadratic = x @ x - (e @ x) ** 2 / (lambda0 + e @ e)
    evidence = (
        math.lgamma(a0 + t / 2)
        - math.lgamma(a0)
        - t / 2 * math.log(2 * math.pi * b0)
        - math.log1p(e @ e / lambda0) / 2
        - (a0 + t / 2) * math.log1p(quadratic / (2 * b0))
    )
    expected = (evidence - encoding_rate) / RATE
    bound = mixture_elbo(model, mixture[None], plain, seed=5)
    assert bound is not None and bound.item() == pytest.approx(expected, rel=1e-5)
    runner, samples = TorchRunner(model), mixture.numpy()[None]
    assert runner.run(samples).rates is None
    assert "mixture_elbo_nats_per_sample" not in runner.run(samples, rates=True).rates
    output = runner.run(samples, rates=True, evidence=True)
    assert output.rates is not None and output.rates["mixture_elbo_nats_per_sample"] == pytest.approx(expected, abs=0.1)
    for what, posterior, prior in (
        ("encoding", plain.encoding, plain.extras["encoding_prior"]),
        ("mask", plain.masks, plain.extras["mask_prior"]),
    ):
        share = (posterior.kl(prior)[0].mean(-1) > 0.01).double().mean().item()
        assert output.rates[f"{what}_alive_share"] == pytest.approx(share)
