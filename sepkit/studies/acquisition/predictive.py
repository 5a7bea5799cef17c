"""A trained partial VAE without torch: its belief about all dimensions, given some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sepkit.studies.acquisition import network
from sepkit.studies.acquisition.config import PartialVAEConfig

SAMPLES = 64
"""Samples of z that an answer is made of."""

# As in sepkit.models.latents, which makes the posterior in training.
_LEAST_DEVIATION = 1e-6
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


def latent_draws(samples: int, latent: int, seed: int = 0) -> np.ndarray:
    """Return standard normal numbers whose mean is exactly 0 and whose covariance is exactly 1, (samples, latent).

    They are the same for every question, so answers do not depend on chance, and values linear in z come out exactly.

    Args:
        samples: an even number, more than twice that of latents (else ValueError).
        latent: L.
        seed: of the numbers.
    """
    if samples % 2 or samples <= 2 * latent:
        raise ValueError(f"found {samples} samples for {latent} latents, expected an even number above {2 * latent}")
    half = np.random.default_rng([seed, samples, latent]).standard_normal((samples // 2, latent))
    both = np.concatenate([half, -half])
    factor = np.linalg.cholesky(both.T @ both / samples)
    return np.linalg.solve(factor, both.T).T.astype(np.float32)


@dataclass
class Prediction:
    """A model's belief about B data, by samples of z; in the units of the data.

    Args:
        values: (B, D) the observed values; anything elsewhere.
        observed: (B, D) bool.
        means: (B, S, D) of p(x_d | z) for each sample of z.
        deviations: (B, S, D) of the same.
        noise: (D,) deviation of a measurement.
        rate: (B,) KL(q(z | x_O) || p(z)), nats.
        posterior: mean and deviation of q(z | x_O), (B, L) each.
    """

    values: np.ndarray
    observed: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    noise: np.ndarray
    rate: np.ndarray
    posterior: tuple[np.ndarray, np.ndarray]

    @cached_property
    def estimate(self) -> np.ndarray:
        """(B, D): observed values, and for the others the mean of the predictive distribution."""
        return np.where(self.observed, self.values, self.means.mean(1))

    @cached_property
    def mean_variance(self) -> np.ndarray:
        """(B, D) mean over z of the variance of p(x_d | z): thesis, eq. 3, as it is printed."""
        return np.square(self.deviations).mean(1)

    @cached_property
    def variance(self) -> np.ndarray:
        """(B, D) of the predictive distribution: the mean of the variances plus the variance of the means."""
        return self.mean_variance + self.means.var(1)

    @cached_property
    def deviation(self) -> np.ndarray:
        """(B, D) of the estimate: that of a measurement for observed values, and the predictive one for the others."""
        return np.where(self.observed, self.noise, np.sqrt(self.variance))

    @cached_property
    def distortion(self) -> np.ndarray:
        """(B,) D_p, the mean over z of minus the log density of the observed values, nats; 0 without any."""
        return self.nll(np.where(self.observed, self.values, 0.0), self.observed)

    @property
    def partial_elbo(self) -> np.ndarray:
        """(B,) -(D_p + R), nats: thesis, eq. 1."""
        return -(self.distortion + self.rate)

    def nll(self, reference: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
        """Return (B,) the mean over z of minus the log density of reference values, nats: thesis, eq. 5.

        Args:
            reference: (B, D).
            counted: (B, D) bool, the dimensions that count; None: all.
        """
        residuals = (reference[:, None] - self.means) / self.deviations
        each = (0.5 * np.square(residuals) + np.log(self.deviations) + _HALF_LOG_2PI).mean(1)
        return (each if counted is None else each * counted).sum(1)


@dataclass(frozen=True)
class TrainedVAE:
    """One trained partial VAE.

    Args:
        config: its configuration.
        weights: as in `network`, of a stack of one.
        center: (D,) mean of the training data, by which values are standardized.
        scale: (D,) deviation of the training data.
        low_elbo: (D + 1,) the partial ELBO that 1 % of the training data are below, by the number of observed
            dimensions; NaN where it is not known.
    """

    config: PartialVAEConfig
    weights: network.Weights
    center: np.ndarray
    scale: np.ndarray
    low_elbo: np.ndarray

    @property
    def names(self) -> list[str]:
        """Names of the D dimensions."""
        return [dimension.name for dimension in self.config.dimensions]

    @cached_property
    def noise(self) -> np.ndarray:
        """(D,) deviation of one measurement."""
        return np.array([dimension.noise for dimension in self.config.dimensions], np.float32)

    @cached_property
    def measurable(self) -> np.ndarray:
        """(M,) places of the dimensions to measure, which are those not known from the beginning."""
        return np.array([place for place, d in enumerate(self.config.dimensions) if not d.known])

    def posterior(self, values: np.ndarray, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of q(z | x_O), (B, L) each.

        Args:
            values: as in `predict`.
            observed: as in `predict`.
        """
        x = (np.where(observed, values, self.center) - self.center) / self.scale
        seen = observed.astype(np.float32)
        mean, raw = network.encode(self.weights, x.astype(np.float32)[None], seen[None], np)
        return mean[0], network.softplus(raw[0], np).clip(_LEAST_DEVIATION)

    def predict(self, values: np.ndarray, observed: np.ndarray, draws: np.ndarray) -> Prediction:
        """Return the model's belief, given the observed values.

        Args:
            values: (B, D), in their units; anything where not observed.
            observed: (B, D) bool.
            draws: (S, L), see `latent_draws`.
        """
        mean, deviation = self.posterior(values, observed)
        z = mean[:, None] + deviation[:, None] * draws
        count, samples, latent = z.shape
        noise = (self.noise / self.scale).astype(np.float32)
        means, deviations = network.decode(self.weights, z.reshape(1, count * samples, latent), noise, np)
        shape = (count, samples, len(self.scale))
        scale = self.scale.astype(np.float32)
        return Prediction(
            values,
            observed,
            means[0].reshape(shape) * scale + self.center.astype(np.float32),
            deviations[0].reshape(shape) * scale,
            self.noise,
            normal_kl((mean, deviation), (np.zeros_like(mean), np.ones_like(deviation))),
            (mean, deviation),
        )


def from_arrays(config: PartialVAEConfig, state: Mapping[str, np.ndarray]) -> TrainedVAE:
    """Return the model that weights and buffers make, without torch.

    Args:
        config: of the model.
        state: weights and buffers by name.
    """
    buffers = {name: state[name].reshape(-1) for name in ("center", "scale", "low_elbo")}
    weights = {name: array for name, array in state.items() if "." in name}
    return TrainedVAE(config, weights, **buffers)


def normal_kl(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """Return KL(first || second) of normal distributions, summed over the last axis, nats.

    Args:
        first: mean and deviation.
        second: mean and deviation.
    """
    (mean, deviation), (other_mean, other_deviation) = first, second
    squares = (np.square(deviation) + np.square(mean - other_mean)) / (2 * np.square(other_deviation))
    return (squares - 0.5 + np.log(other_deviation) - np.log(deviation)).sum(-1)
