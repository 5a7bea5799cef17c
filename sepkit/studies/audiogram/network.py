"""A trained partial VAE without torch: its belief about all dimensions given some of them, and what to measure next.

Importing torch takes seconds, which is too long for a command that answers with one number. The functions of the
weights serve torch tensors (training) and NumPy arrays (use) alike. Their arrays begin with an axis of S models, whose
weights are stacked; data shared by all have length 1 there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sepkit.studies.audiogram.config import PartialVAEConfig

Weights = Mapping[str, Any]
"""Name -> array: `embedding.values` (S, D, E), `embedding.bias` (S, D, 1), and `weight` (S, in, out) and `bias`
(S, 1, out) of `shared`, `encoder.0`, `encoder.1` ... and `decoder.0`, `decoder.1` ..."""

SAMPLES = 64
"""Samples of z that an answer is made of."""

HALF_LOG_2PI = 0.9189385332046727
# As in sepkit.models.latents, which makes the posterior in training.
_LEAST_DEVIATION = 1e-6


def encode(weights: Weights, x: Any, observed: Any, xp: Any) -> tuple[Any, Any]:
    """Return raw means and raw deviations of the posterior of z given the observed values, (S, B, L) each.

    h = sum over observed d of relu(W [x_d, x_d e_d, b_d] + c); the encoder's layers map h to both. The first layer is
    linear in x_d for a given d, so its two coefficients are computed once per dimension, not per datum. The sum of
    rectified values is never negative, so the source's rectification after it is left out.

    Args:
        x: (S or 1, B, D) standardized values; at unobserved places any finite number, which has no effect.
        observed: (S or 1, B, D), 1 where a value is observed and 0 elsewhere.

    Source: Ma et al., "EDDI: Efficient Dynamic Discovery of High-Value Information with Partial VAE", 2019, eq. 9.
    """
    shared, embedding = weights["shared.weight"], weights["embedding.values"]
    slope = shared[:, :1] + embedding @ shared[:, 1:-1]
    offset = weights["embedding.bias"] @ shared[:, -1:] + weights["shared.bias"]
    hidden = _relu((x * observed)[..., None] * slope[:, None] + offset[:, None], xp)
    summed = (hidden * observed[..., None]).sum(-2)
    raw = _layers(weights, "encoder", summed, xp)
    half = raw.shape[-1] // 2
    return raw[..., :half], raw[..., half:]


def decode(weights: Weights, z: Any, noise: Any, xp: Any) -> tuple[Any, Any]:
    """Return means and deviations of p(x_d | z), standardized, (S, B, D) each; no deviation is below `noise`.

    Args:
        z: (S or 1, B, L).
        noise: (S or 1, 1, D), the deviation of one measurement, standardized.
    """
    raw = _layers(weights, "decoder", z, xp)
    half = raw.shape[-1] // 2
    return raw[..., :half], noise + _softplus(raw[..., half:], xp)


def _layers(weights: Weights, name: str, values: Any, xp: Any) -> Any:
    place = 0
    while f"{name}.{place}.weight" in weights:
        if place:
            values = _relu(values, xp)
        values = values @ weights[f"{name}.{place}.weight"] + weights[f"{name}.{place}.bias"]
        place += 1
    return values


def _softplus(values: Any, xp: Any) -> Any:
    return xp.logaddexp(values, xp.zeros_like(values))


def _relu(values: Any, xp: Any) -> Any:
    # The gradient of torch.clip takes several times as long as relu's.
    return xp.relu(values) if hasattr(xp, "relu") else xp.maximum(values, 0)


def latent_draws(latent: int, samples: int = SAMPLES) -> np.ndarray:
    """Return (samples, latent) standard normal numbers whose mean is exactly 0 and whose covariance is exactly 1.

    They are the same for every question, so answers do not depend on chance, and values linear in z come out exactly.
    The number is rounded up to an even one above 2 L.
    """
    samples = max(samples + samples % 2, 2 * latent + 2)
    half = np.random.default_rng([0, samples, latent]).standard_normal((samples // 2, latent))
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
    def variance(self) -> np.ndarray:
        """(B, D) of the predictive distribution: the mean of the variances plus the variance of the means.

        Equation 3 of the thesis, as it is printed, lacks the variance of the means.
        """
        return np.square(self.deviations).mean(1) + self.means.var(1)

    @cached_property
    def deviation(self) -> np.ndarray:
        """(B, D) of the estimate: that of a measurement for observed values, and the predictive one for the others."""
        return np.where(self.observed, self.noise, np.sqrt(self.variance))

    @cached_property
    def distortion(self) -> np.ndarray:
        """(B,) D_p, the mean over z of minus the log density of the observed values, nats; 0 without any."""
        return (self._nll(np.where(self.observed, self.values, 0.0)) * self.observed).sum(1)

    @property
    def partial_elbo(self) -> np.ndarray:
        """(B,) -(D_p + R), nats: thesis, eq. 1."""
        return -(self.distortion + self.rate)

    def nll(self, reference: np.ndarray) -> np.ndarray:
        """Return (B,) the mean over z of minus the log density of (B, D) reference values, nats: thesis, eq. 5."""
        return self._nll(reference).sum(1)

    def _nll(self, reference: np.ndarray) -> np.ndarray:
        residuals = (reference[:, None] - self.means) / self.deviations
        return (0.5 * np.square(residuals) + np.log(self.deviations) + HALF_LOG_2PI).mean(1)


@dataclass(frozen=True)
class TrainedVAE:
    """One trained partial VAE.

    Args:
        center: (D,) mean of the training data, by which values are standardized, as by their deviation `scale`.
        low_elbo: (D + 1,) the partial ELBO that 1 % of the training data are below, by the number of observed
            dimensions; NaN where it is not known.
    """

    config: PartialVAEConfig
    weights: Weights
    center: np.ndarray
    scale: np.ndarray
    low_elbo: np.ndarray

    @classmethod
    def from_arrays(cls, config: PartialVAEConfig, state: Mapping[str, np.ndarray]) -> TrainedVAE:
        """Return the model that the weights and buffers of a stack of one make."""
        buffers = {name: state[name].reshape(-1) for name in ("center", "scale", "low_elbo")}
        return cls(config, {name: array for name, array in state.items() if "." in name}, **buffers)

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

    def nothing_measured(self, count: int) -> np.ndarray:
        """Return (count, D) bool, what is observed before the first measurement: what is known from the beginning."""
        observed = np.ones((count, len(self.config.dimensions)), bool)
        observed[:, self.measurable] = False
        return observed

    def posterior(self, values: np.ndarray, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of q(z | x_O), (B, L) each; arguments as in `predict`."""
        x = (np.where(observed, values, self.center) - self.center) / self.scale
        seen = observed.astype(np.float32)
        mean, raw = encode(self.weights, x.astype(np.float32)[None], seen[None], np)
        return mean[0], _softplus(raw[0], np).clip(_LEAST_DEVIATION)

    def decoded(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and deviations of p(x | z) in the units of the data, (N, D) each, for z (N, L)."""
        noise = (self.noise / self.scale).astype(np.float32)
        means, deviations = decode(self.weights, z[None], noise, np)
        scale = self.scale.astype(np.float32)
        return means[0] * scale + self.center.astype(np.float32), deviations[0] * scale

    def predict(self, values: np.ndarray, observed: np.ndarray, draws: np.ndarray) -> Prediction:
        """Return the model's belief, given the observed values.

        Args:
            values: (B, D), in their units; anything where not observed.
            draws: (S, L), see `latent_draws`.
        """
        mean, deviation = self.posterior(values, observed)
        z = mean[:, None] + deviation[:, None] * draws
        means, deviations = (part.reshape(*z.shape[:2], -1) for part in self.decoded(z.reshape(-1, z.shape[-1])))
        rate = (0.5 * (np.square(deviation) + np.square(mean)) - 0.5 - np.log(deviation)).sum(-1)
        return Prediction(values, observed, means, deviations, self.noise, rate, (mean, deviation))

    def next_dimension(self, prediction: Prediction) -> np.ndarray:
        """Return (B,) the measurable dimension with the largest predictive variance; -1 if all are observed."""
        possible = np.zeros_like(prediction.observed)
        possible[:, self.measurable] = ~prediction.observed[:, self.measurable]
        worth = np.where(possible, prediction.variance, -np.inf)
        return np.where(possible.any(1), worth.argmax(1), -1)

    def acquisition_value(self, prediction: Prediction) -> np.ndarray:
        """Return (B,) the mean variance of all measurable dimensions: predictive, or a measurement's own if observed.

        A mean over unobserved dimensions alone would jump between measurements, and have nothing left at the end.
        """
        return np.square(prediction.deviation)[:, self.measurable].mean(1)
