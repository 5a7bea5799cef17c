from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from sepkit.inference import Separator
from sepkit.inference.options import SeparatorOptions
from sepkit.inference.runners import latents
from sepkit.inference.runners.latents import RunningDeviation, mixture_elbo, spread_of
from sepkit.inference.runners.torch_runner import TorchRunner
from sepkit.models import EncoderMaskerDecoder, build_model
from sepkit.models.latents import Deterministic, LogNormal
from sepkit.models.priors import FixedPrior
from sepkit.models.stft_filterbank import STFTFilterbank
from tests.tiny_models import RECURRENT, VARIATIONAL

RATE = 8000


class NoisyBands(nn.Module):
    """Log-normal masks that give each hypothesis one half of the bins, with or without uncertainty."""

    hypotheses = 2

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.raw_deviation = math.log(math.expm1(deviation))

    def forward(self, features):
        lower = torch.arange(features.shape[1]) < features.shape[1] // 2
        location = torch.stack([lower, ~lower]).float() * 6 - 6
        raw = torch.stack([location, torch.full_like(location, self.raw_deviation)], dim=1)
        return raw[None, ..., None].expand(len(features), -1, -1, -1, features.shape[2])


def noisy_bands(deviation=0.5):
    linear, masks = Deterministic("linear"), LogNormal()
    prior = FixedPrior(masks.standard_prior())
    model = EncoderMaskerDecoder(
        STFTFilterbank(), NoisyBands(deviation), linear, masks, sample_rate=RATE, mask_prior=prior
    )
    return model.eval()


def noise(*shape, level=0.1, seed=0):
    return level * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------------------------------------- Monte Carlo


def test_the_running_deviation_is_that_of_all_values():
    values = 1000 + torch.randn(50, 3, 7, dtype=torch.float64)
    deviation = RunningDeviation()
    deviation.add(values[0])
    assert not deviation.value.any()
    for value in values[1:]:
        deviation.add(value)
    np.testing.assert_allclose(deviation.value, values.std(0), rtol=1e-9)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_the_spread_is_the_deviation_of_sampled_separations(monkeypatch, at_once):
    """Results are equal if draws are made one by one, in pairs, or in one batch."""
    model, mixture = build_model(VARIATIONAL).eval(), noise(2, 400)
    monkeypatch.setattr(latents, "_SECONDS_AT_ONCE", at_once * 800 / RATE)
    spread = spread_of(model, mixture, samples=5, seed=3)
    generator = torch.Generator().manual_seed(3)
    copies = [min(at_once, 5 - start) for start in range(0, 5, at_once)]
    with torch.no_grad():
        batches = [model(mixture.repeat(n, 1), generator=generator, sample=True).estimates for n in copies]
    estimates = torch.cat(batches).unflatten(0, (5, 2)).double()
    np.testing.assert_allclose(spread, estimates.std(0), atol=1e-12)
    assert spread.shape == (2, 2, 400) and spread.min() > 0


def test_the_seed_decides():
    model, mixture = build_model(VARIATIONAL).eval(), noise(1, 400)
    torch.manual_seed(1)
    first = spread_of(model, mixture, 3, seed=1)
    state = torch.get_rng_state()
    second, other = spread_of(model, mixture, 3, seed=1), spread_of(model, mixture, 3, seed=2)
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_points_have_no_spread():
    assert not spread_of(build_model(RECURRENT).eval(), noise(1, 400)).any()


@pytest.mark.parametrize("deviation", [0.05, 0.5])
def test_spread_of_log_normal_masks_is_theirs(deviation):
    # A mask that is the same over frames and bins scales; that it differs from bin to bin averages out over them.
    model, mixture = noisy_bands(deviation), noise(1, 8000)
    share = spread_of(model, mixture, samples=60).square().sum(-1) / model(mixture).estimates.detach().square().sum(-1)
    variance = math.exp(deviation**2) - 1
    # Overlapping windows of one sample each are drawn apart, so that part of the deviation cancels.
    assert (0.2 * variance < share).all() and (share < 1.1 * variance).all()


def test_spread_goes_to_the_rate_and_level_of_the_recording():
    model = noisy_bands(0.3)
    mixture = noise(RATE).numpy()
    plain = Separator(model, options=SeparatorOptions(levels="model")).separate(mixture, RATE, samples=6)
    # The model gets the recording at the level of models that never measured theirs, and its spread goes back.
    factor = mixture.std(dtype=np.float64) / 0.05
    leveled = torch.from_numpy((mixture - mixture.mean(dtype=np.float64)) / factor).float()
    np.testing.assert_allclose(plain.spread, factor * spread_of(model, leveled[None], 6)[0].float(), rtol=1e-5)
    scaled = Separator(model).separate(mixture, RATE, samples=6)
    np.testing.assert_allclose(scaled.spread, plain.spread * np.abs(scaled.gains)[:, None], rtol=1e-5)
    faster = Separator(model).separate(np.repeat(mixture, 2), 2 * RATE, samples=6)
    assert faster.spread.shape == faster.estimates.shape == (2, 2 * RATE)
    assert np.sqrt(np.mean(faster.spread**2)) == pytest.approx(np.sqrt(np.mean(scaled.spread**2)), rel=0.25)
    assert scaled.spread.dtype == np.float32 and Separator(model).separate(mixture, RATE).spread is None


def test_the_spread_of_a_deterministic_model_is_zero():
    spread = Separator(build_model(RECURRENT)).separate(noise(500), RATE, samples=2).spread
    assert isinstance(spread, torch.Tensor) and spread.shape == (2, 500) and not spread.any()


def test_the_bound_on_the_mixture_by_hand():
    model, mixture = build_model(VARIATIONAL).eval(), noise(RATE)
    model.set_signal_statistics(0.0, 0.1)
    with torch.no_grad():
        plain = model(mixture[None])
        sample = plain.encoding.sample(torch.Generator().manual_seed(5))
        reconstruction = model.decode(sample[:, None], RATE)[0, 0]
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
