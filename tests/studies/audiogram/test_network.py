"""The partial VAE: invariances, closed forms, stacks, NumPy against torch, and a linear Gaussian set as oracle."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from sepkit.studies.audiogram import model as network
from sepkit.studies.audiogram.config import DimensionConfig, PartialVAEConfig
from sepkit.studies.audiogram.data import Audiograms
from sepkit.studies.audiogram.model import TrainedVAE, latent_draws
from sepkit.studies.audiogram.simulation import greedy_order, play, random_orders
from sepkit.studies.audiogram.task import PartialVAE
from tests.complaint import complaint

DIMENSIONS = [DimensionConfig(name, noise=0.5 + place) for place, name in enumerate("abcd")]
CONFIG = PartialVAEConfig(DIMENSIONS, latent=3, embedding=5, features=7, hidden=[11, 9])


def _batch(count: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = 10 * torch.randn(1, count, 4, generator=generator)
    observed = torch.rand(1, count, 4, generator=generator) < 0.6
    return values, observed, torch.randn(1, count, 3, generator=generator)


def test_encoder_is_the_pointnet_plus_of_the_paper() -> None:
    """Against the definition: [x, x e_d, b_d] -> shared layer -> relu -> sum over observed -> relu -> layers."""
    model = PartialVAE(CONFIG, [3])
    values, observed, _ = _batch()
    mean, raw = network.encode(dict(model.named_parameters()), values, observed.float(), torch)
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
    second = model(values.detach().where(observed, torch.nan), observed, noise)
    assert torch.equal(first.distortion, second.distortion) and torch.equal(first.rate, second.rate)
    nothing = model(values, torch.zeros_like(observed), noise)
    assert (nothing.distortion == 0).all() and (nothing.rate > 0).all()
    assert torch.allclose(nothing.rate, nothing.rate[:, :1].expand_as(nothing.rate))


def test_rate_and_distortion_are_those_of_torch_distributions() -> None:
    model = PartialVAE(CONFIG, [4]).double()
    model.set_statistics(np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0, 8.0]))
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
    observed = np.random.default_rng(0).random(audiograms.values.shape) < 0.5
    draws = latent_draws(2, 8)
    prediction = audiogram_vae.trained()[0].predict(audiograms.values, observed, draws)
    values, seen = torch.from_numpy(audiograms.values).float()[None], torch.from_numpy(observed)[None]
    with torch.no_grad():
        parts = [audiogram_vae(values, seen, torch.from_numpy(draw).expand(1, len(observed), -1)) for draw in draws]
    np.testing.assert_allclose(prediction.rate, parts[0].rate[0].numpy(), rtol=1e-4, atol=1e-4)
    distortion = np.mean([part.distortion[0].numpy() for part in parts], axis=0)
    np.testing.assert_allclose(prediction.distortion, distortion, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": [4, 0]}, "model.hidden"),
        ({"dimensions": [DimensionConfig("a"), DimensionConfig("a")]}, "expected different ones"),
        ({"dimensions": [DimensionConfig("a", known=True)]}, "none that can be measured"),
        ({"dimensions": [DimensionConfig("a", noise=math.inf)]}, "a.noise: found inf"),
        ({"dimensions": [DimensionConfig("b", lowest=9.0, highest=1.0)]}, "b: found 9.0 to 1.0, expected a range"),
    ],
)
def test_bad_configurations_are_refused(changes: dict[str, object], message: str) -> None:
    complaint(lambda: PartialVAE(replace(CONFIG, **changes)), message)


# ------------------------------------------------------------------------------------------------ what to measure next


def _rmse(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def test_draws_have_exactly_the_moments_of_the_prior() -> None:
    draws = latent_draws(4).astype(float)
    np.testing.assert_allclose(draws.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(draws.T @ draws / 64, np.eye(4), atol=1e-5)
    assert latent_draws(4, 7).shape == (10, 4)


def test_predictive_variance_is_that_of_samples(linear_vae: TrainedVAE) -> None:
    """Within 1 % of the variance of 10^5 samples of z and then x."""
    observed = np.array([[True, True, False, False, False]])
    values = np.array([[45.0, 30.0, 0.0, 0.0, 0.0]])
    prediction = linear_vae.predict(values, observed, latent_draws(2, 4096))
    rng = np.random.default_rng(1)
    sampled = linear_vae.predict(values, observed, rng.standard_normal((100_000, 2)).astype(np.float32))
    x = sampled.means[0] + sampled.deviations[0] * rng.standard_normal(sampled.means[0].shape)
    np.testing.assert_allclose(prediction.variance[0], x.var(0), rtol=0.02)
    assert _rmse(prediction.variance[0] / x.var(0) - 1) < 0.01


@pytest.mark.parametrize("seen", [(0,), (0, 2), (0, 1, 4)])
def test_estimates_approach_the_exact_conditional_and_are_never_better(linear_vae, linear, seen) -> None:
    data = linear.draw(4000, seed=2)
    observed = np.zeros(5, bool)
    observed[list(seen)] = True
    hidden = ~observed
    exact = linear.conditional(data.values, observed)[:, hidden] - data.values[:, hidden]
    prediction = linear_vae.predict(data.values, np.tile(observed, (4000, 1)), latent_draws(2, 16))
    found = prediction.estimate[:, hidden] - data.values[:, hidden]
    # On a finite test set the exact one may lose by chance, but not by much.
    assert 0.999 * _rmse(exact) < _rmse(found) < 1.05 * _rmse(exact)
    # Noise-free values are those of the same distribution without the noise of the measurements themselves.
    factor, measured = linear.factor, data.values[:, list(seen)] - linear.mean[list(seen)]
    gain = factor @ factor[list(seen)].T @ np.linalg.inv(linear.covariance[np.ix_(seen, seen)])
    least = _rmse(linear.mean + measured @ gain.T - data.truth)
    assert 0.999 * least < _rmse(prediction.posterior_mean - data.truth) < 1.05 * least


def test_on_linear_gaussian_data_the_order_is_that_of_the_exact_variances(linear_vae: TrainedVAE, linear) -> None:
    """Exact conditional variances do not depend on measured values, so one computable order is best for all."""
    covariance = linear.covariance
    left = np.diag(covariance - covariance[:, :1] @ covariance[:1] / covariance[0, 0])
    best = 1 + int(np.argmax(left[1:]))
    assert (play(linear_vae, linear.draw(200, seed=3), latent_draws(2)).orders[:, 0] == best).mean() > 0.95


def test_greedy_order_begins_with_the_only_informative_dimension(linear_vae: TrainedVAE) -> None:
    # Its predictions never leave the mean: only measuring a dimension itself lowers its error.
    weights = {name: 0 * array if name.startswith("decoder") else array for name, array in linear_vae.weights.items()}
    vae = replace(linear_vae, weights=weights)
    rng = np.random.default_rng(0)
    values = vae.center + 0.1 * rng.standard_normal((64, 5))
    values[:, 3] = vae.center[3] + 40 * rng.standard_normal(64)
    order = greedy_order(vae, Audiograms(vae.names, [str(k) for k in range(64)], values), latent_draws(2, 16))
    assert order[0] == 3 and sorted(order) == [1, 2, 3, 4]


def test_what_is_known_or_measured_is_never_next(audiogram_vae: PartialVAE, audiograms: Audiograms) -> None:
    vae, draws = audiogram_vae.trained()[0], latent_draws(2, 8)
    observed = vae.nothing_measured(len(audiograms))
    observed[:, 4] = True
    prediction = vae.predict(audiograms.values, observed, draws)
    possible = [place for place in range(1, 15) if place != 4]
    assert (vae.next_dimension(prediction) == np.array(possible)[prediction.variance[:, possible].argmax(1)]).all()
    full = vae.predict(audiograms.values, np.ones_like(observed), draws)
    assert (vae.next_dimension(full) == -1).all()
    np.testing.assert_allclose(vae.features(full)["acquisition"], 25.0)
    assert (full.deviation == 5.0).all() and (full.estimate == audiograms.values).all()


def test_random_orders_are_those_of_the_seed_and_the_place(audiogram_vae: PartialVAE) -> None:
    vae = audiogram_vae.trained()[0]
    orders = random_orders(vae, 50, seed=1)
    assert (np.sort(orders, axis=1) == np.arange(1, 15)).all()
    assert (orders == random_orders(vae, 90, seed=1)[:50]).all()
    assert (orders != random_orders(vae, 50, seed=2)).any()
