"""Prediction and choice of measurements: variances by sampling, and a linear Gaussian set with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.errors import UserError
from sepkit.studies.acquisition.acquisition import acquisition_value, information_gain, next_dimension, rewards
from sepkit.studies.acquisition.audiogram import Audiograms
from sepkit.studies.acquisition.model import PartialVAE
from sepkit.studies.acquisition.predictive import TrainedVAE, latent_draws, normal_kl
from sepkit.studies.acquisition.simulation import greedy_order, play, random_orders


def _rmse(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def test_draws_have_exactly_the_moments_of_the_prior() -> None:
    draws = latent_draws(64, 4).astype(float)
    np.testing.assert_allclose(draws.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(draws.T @ draws / 64, np.eye(4), atol=1e-5)
    with pytest.raises(ValueError, match="even number"):
        latent_draws(8, 4)


def test_predictive_variance_is_that_of_samples(linear_vae: TrainedVAE, linear: object) -> None:
    """Within 1 % of the variance of 10^5 samples of z and then x."""
    observed = np.array([[True, True, False, False, False]])
    values = np.array([[45.0, 30.0, 0.0, 0.0, 0.0]])
    prediction = linear_vae.predict(values, observed, latent_draws(4096, 2))
    rng = np.random.default_rng(1)
    sampled = linear_vae.predict(values, observed, rng.standard_normal((100_000, 2)).astype(np.float32))
    x = sampled.means[0] + sampled.deviations[0] * rng.standard_normal(sampled.means[0].shape)
    np.testing.assert_allclose(prediction.variance[0], x.var(0), rtol=0.02)
    assert _rmse(prediction.variance[0] / x.var(0) - 1) < 0.01
    assert (prediction.mean_variance < prediction.variance).all()


@pytest.mark.parametrize("seen", [(0,), (0, 2), (0, 1, 4)])
def test_estimates_approach_the_exact_conditional_and_are_never_better(
    linear_vae: TrainedVAE, linear, seen: tuple[int, ...]
) -> None:
    data = linear.draw(4000, seed=2)
    observed = np.zeros(5, bool)
    observed[list(seen)] = True
    hidden = ~observed
    exact = linear.conditional(data.values, observed)[:, hidden] - data.values[:, hidden]
    prediction = linear_vae.predict(data.values, np.tile(observed, (4000, 1)), latent_draws(16, 2))
    found = prediction.estimate[:, hidden] - data.values[:, hidden]
    # On a finite test set the exact one may lose by chance, but not by much.
    assert 0.999 * _rmse(exact) < _rmse(found) < 1.05 * _rmse(exact)


def test_on_linear_gaussian_data_the_order_is_that_of_the_exact_variances(linear_vae: TrainedVAE, linear) -> None:
    """Exact conditional variances do not depend on measured values, so one computable order is best for all."""
    observed = [0]
    covariance = linear.covariance
    gain = covariance[:, observed] @ np.linalg.inv(covariance[np.ix_(observed, observed)])
    left = np.diag(covariance - gain @ covariance[observed])
    best = int(np.argmax(np.where(np.isin(np.arange(5), observed), -np.inf, left)))
    sessions = play(linear_vae, linear.draw(200, seed=3), "largest_variance", latent_draws(64, 2))
    assert (sessions.orders[:, 0] == best).mean() > 0.95


def test_greedy_order_begins_with_the_only_informative_dimension(linear_vae: TrainedVAE) -> None:
    vae = _with_one_informative_dimension(linear_vae)
    rng = np.random.default_rng(0)
    values = vae.center + 0.1 * rng.standard_normal((64, 5))
    values[:, 3] = vae.center[3] + 40 * rng.standard_normal(64)
    order = greedy_order(vae, Audiograms(vae.names, [str(k) for k in range(64)], values), latent_draws(16, 2))
    assert order[0] == 3 and sorted(order) == [1, 2, 3, 4]


def _with_one_informative_dimension(vae: TrainedVAE) -> TrainedVAE:
    """A model whose predictions never leave the mean: only measuring a dimension itself lowers its error."""
    weights = {
        name: np.zeros_like(array) if name.startswith("decoder") else array for name, array in vae.weights.items()
    }
    return TrainedVAE(vae.config, weights, vae.center, vae.scale, vae.low_elbo)


def test_rewards_leave_out_what_is_known_and_what_is_measured(
    audiogram_vae: PartialVAE, audiograms: Audiograms
) -> None:
    vae = audiogram_vae.trained()
    observed = np.zeros(audiograms.values.shape, bool)
    observed[:, [0, 4]] = True
    prediction = vae.predict(audiograms.values, observed, latent_draws(8, 2))
    for kind in ("largest_variance", "mean_variance", "information_gain"):
        worth = rewards(vae, prediction, kind)  # type: ignore[arg-type]
        assert np.isneginf(worth[:, [0, 4]]).all() and np.isfinite(worth[:, [1, 2, 3, 5, 14]]).all()
        assert not np.isin(next_dimension(worth), [0, 4]).any()
    with pytest.raises(UserError, match="expected one of largest_variance"):
        rewards(vae, prediction, "luck")  # type: ignore[arg-type]


def test_the_acquisition_value_counts_measured_thresholds_with_the_noise_of_a_measurement(
    audiogram_vae: PartialVAE, audiograms: Audiograms
) -> None:
    vae = audiogram_vae.trained()
    everything = np.ones(audiograms.values.shape, bool)
    prediction = vae.predict(audiograms.values, everything, latent_draws(8, 2))
    np.testing.assert_allclose(acquisition_value(vae, prediction), 25.0)
    assert (prediction.deviation == 5.0).all() and (prediction.estimate == audiograms.values).all()


def test_information_gain_is_the_mean_divergence_over_outcomes(linear_vae: TrainedVAE) -> None:
    values, observed = np.array([[45.0, 0, 0, 0, 0]]), np.array([[True, False, False, False, False]])
    prediction = linear_vae.predict(values, observed, latent_draws(512, 2))
    found = information_gain(linear_vae, prediction, outcomes=512)
    rng = np.random.default_rng(4)
    sampled = linear_vae.predict(values, observed, rng.standard_normal((4000, 2)).astype(np.float32))
    x = sampled.means[0, :, 2] + sampled.deviations[0, :, 2] * rng.standard_normal(4000)
    after_values, after = np.repeat(values, 4000, 0), np.repeat(observed, 4000, 0)
    after_values[:, 2], after[:, 2] = x, True
    exact = normal_kl(linear_vae.posterior(after_values, after), linear_vae.posterior(values, observed)).mean()
    assert found[0, 2] == pytest.approx(exact, rel=0.1)
    assert found[0, 0] == 0


def test_random_orders_are_those_of_the_seed_and_the_place(audiogram_vae: PartialVAE) -> None:
    vae = audiogram_vae.trained()
    orders = random_orders(vae, 50, seed=1)
    assert (np.sort(orders, axis=1) == np.arange(1, 15)).all()
    assert (orders == random_orders(vae, 90, seed=1)[:50]).all()
    assert (orders != random_orders(vae, 50, seed=2)).any()


def test_sessions_are_refused_for_incomplete_data_and_unknown_strategies(
    audiogram_vae: PartialVAE, audiograms: Audiograms
) -> None:
    vae, few = audiogram_vae.trained(), audiograms[np.arange(3)]
    with pytest.raises(UserError, match="expected one of largest_variance"):
        play(vae, few, "luck", latent_draws(8, 2))
    few.values = few.values.copy()
    few.values[0, 3] = np.nan
    with pytest.raises(UserError, match="need complete audiograms"):
        play(vae, few, "random", latent_draws(8, 2))
