"""The partial VAE: invariances, closed forms against torch.distributions, stacks, and NumPy against torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from sepkit.errors import UserError
from sepkit.studies.acquisition import network
from sepkit.studies.acquisition.audiogram import Audiograms
from sepkit.studies.acquisition.config import DimensionConfig, PartialVAEConfig
from sepkit.studies.acquisition.model import PartialVAE
from sepkit.studies.acquisition.predictive import latent_draws, normal_kl

CONFIG = PartialVAEConfig(
    [DimensionConfig(name, noise=0.5 + place) for place, name in enumerate("abcd")],
    latent=3,
    embedding=5,
    features=7,
    hidden=[11, 9],
)


def _batch(count: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = 10 * torch.randn(1, count, 4, generator=generator)
    observed = torch.rand(1, count, 4, generator=generator) < 0.6
    return values, observed, torch.randn(1, count, 3, generator=generator)


def test_encoder_is_the_pointnet_plus_of_the_paper() -> None:
    """Against the definition: [x, x e_d, b_d] -> shared layer -> relu -> sum over observed -> relu -> layers."""
    model = PartialVAE(CONFIG, [3])
    values, observed, _ = _batch()
    weights = dict(model.named_parameters())
    mean, raw = network.encode(weights, values, observed.float(), torch)
    rows = []
    for x, seen in zip(values[0], observed[0], strict=True):
        total = torch.zeros(7)
        for d in torch.arange(4)[seen]:
            described = torch.cat([x[d : d + 1], x[d] * model.embedding.values[0, d], model.embedding.bias[0, d]])
            total = total + torch.relu(described @ model.shared.weight[0] + model.shared.bias[0, 0])
        hidden = torch.relu(total)
        for place, layer in enumerate(model.encoder):
            hidden = (torch.relu(hidden) if place else hidden) @ layer.weight[0] + layer.bias[0, 0]
        rows.append(hidden)
    torch.testing.assert_close(torch.cat([mean, raw], -1)[0], torch.stack(rows), rtol=1e-5, atol=1e-5)


def test_what_is_not_observed_has_no_effect_and_no_gradient() -> None:
    model = PartialVAE(CONFIG, [1])
    values, observed, noise = _batch()
    values.requires_grad_()
    first = model(values, observed, noise)
    (first.distortion + first.rate).sum().backward()
    assert values.grad is not None and (values.grad[~observed] == 0).all() and (values.grad[observed] != 0).any()
    changed = values.detach().where(observed, torch.nan)
    second = model(changed, observed, noise)
    torch.testing.assert_close(first.distortion, second.distortion, rtol=0, atol=0)
    torch.testing.assert_close(first.rate, second.rate, rtol=0, atol=0)


def test_the_order_of_dimensions_has_no_effect_on_the_posterior() -> None:
    model = PartialVAE(CONFIG, [1]).double()
    values, observed, _ = _batch()
    order = torch.tensor([2, 0, 3, 1])
    weights = dict(model.named_parameters())
    moved = weights | {name: weights[name][:, order] for name in ("embedding.values", "embedding.bias")}
    plain = network.encode(weights, values.double(), observed.double(), torch)
    other = network.encode(moved, values.double()[..., order], observed.double()[..., order], torch)
    torch.testing.assert_close(plain, other, rtol=1e-12, atol=1e-12)


def test_nothing_observed_costs_its_rate_alone() -> None:
    model = PartialVAE(CONFIG, [2])
    values, observed, noise = _batch()
    parts = model(values, torch.zeros_like(observed), noise)
    assert (parts.distortion == 0).all() and (parts.rate > 0).all()
    assert torch.allclose(parts.rate, parts.rate[:, :1].expand_as(parts.rate))


def test_rate_and_distortion_are_those_of_torch_distributions() -> None:
    model = PartialVAE(CONFIG, [4]).double()
    model.set_statistics(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[5.0, 6.0, 7.0, 8.0]]))
    values, observed, noise = (t.double() if t.is_floating_point() else t for t in _batch())
    parts = model(values, observed, noise)
    weights = dict(model.named_parameters())
    mean, raw = network.encode(weights, (values - model.center) / model.scale, observed.double(), torch)
    posterior = Normal(mean, torch.nn.functional.softplus(raw))
    torch.testing.assert_close(parts.rate, kl_divergence(posterior, Normal(0.0, 1.0)).sum(-1), rtol=1e-9, atol=1e-9)
    z = posterior.mean + posterior.stddev * noise
    means, deviations = network.decode(weights, z, model.noise / model.scale, torch)
    likelihood = Normal(means * model.scale + model.center, deviations * model.scale)
    nll = -(likelihood.log_prob(values) * observed).sum(-1)
    torch.testing.assert_close(parts.distortion, nll, rtol=1e-9, atol=1e-9)
    assert (deviations * model.scale >= model.noise).all()


def test_numpy_and_torch_agree(audiogram_vae: PartialVAE, audiograms: Audiograms) -> None:
    vae = audiogram_vae.trained()
    observed = np.random.default_rng(0).random(audiograms.values.shape) < 0.5
    draws = latent_draws(8, 2)
    prediction = vae.predict(audiograms.values, observed, draws)
    values, seen = torch.from_numpy(audiograms.values).float()[None], torch.from_numpy(observed)[None]
    with torch.no_grad():
        parts = [audiogram_vae(values, seen, torch.from_numpy(draw).expand(1, len(observed), -1)) for draw in draws]
    np.testing.assert_allclose(prediction.rate, parts[0].rate[0].numpy(), rtol=1e-4, atol=1e-4)
    distortion = np.mean([part.distortion[0].numpy() for part in parts], axis=0)
    np.testing.assert_allclose(prediction.distortion, distortion, rtol=1e-4, atol=1e-3)


def test_kl_of_normal_distributions_is_that_of_torch() -> None:
    rng = np.random.default_rng(0)
    first, second = [(rng.standard_normal((5, 3)), rng.random((5, 3)) + 0.1) for _ in range(2)]
    expected = kl_divergence(*(Normal(*map(torch.from_numpy, pair)) for pair in (first, second))).sum(-1).numpy()
    np.testing.assert_allclose(normal_kl(first, second), expected, rtol=1e-10)


def test_a_stack_is_its_models() -> None:
    stack = PartialVAE(replace(CONFIG, models=3), [1, 2, 1])
    values, observed, noise = _batch()
    parts = stack(values, observed, noise)
    assert torch.equal(parts.rate[0], parts.rate[2]) and not torch.allclose(parts.rate[0], parts.rate[1])
    for place, (seed, single) in enumerate(zip([1, 2, 1], stack.unstack(), strict=True)):
        fresh = PartialVAE(CONFIG, [seed])
        assert all(torch.equal(a, b) for a, b in zip(single.parameters(), fresh.parameters(), strict=True))
        alone = single(values, observed, noise)
        torch.testing.assert_close(alone.distortion[0], parts.distortion[place], rtol=1e-5, atol=1e-4)
    joined = PartialVAE.stacked(stack.unstack())
    assert all(torch.equal(a, b) for a, b in zip(joined.parameters(), stack.parameters(), strict=True))
    with pytest.raises(ValueError, match="stack of 3"):
        stack.trained()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": 0}, "model.latent: found 0"),
        ({"hidden": [4, 0]}, "model.hidden"),
        ({"dimensions": [DimensionConfig("a"), DimensionConfig("a")]}, "stand twice"),
        ({"dimensions": [DimensionConfig("a", known=True)]}, "none that can be measured"),
        ({"dimensions": [DimensionConfig("a", noise=0.0)]}, "noise > 0"),
    ],
)
def test_bad_configurations_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PartialVAE(replace(CONFIG, **changes))  # type: ignore[arg-type]
