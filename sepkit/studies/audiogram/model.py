"""A trained model of audiograms without torch: estimates, the next measurement, and when to stop.

Importing torch takes seconds, which is too long for a command that answers with one number. The functions of the
weights serve torch tensors (training) and NumPy arrays (use) alike. Their arrays begin with an axis of S models, whose
weights are stacked; data shared by all have length 1 there.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.choices import from_dict
from sepkit.errors import Bounds, UserError
from sepkit.files import read_yaml
from sepkit.studies.audiogram.config import AGE, KIND, PartialVAEConfig, StackConfig, threshold_name
from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE, check_value, named_values

Weights = Mapping[str, Any]
"""Name -> array: `embedding.values` (S, D, E), `embedding.bias` (S, D, 1), and `weight` (S, in, out) and `bias`
(S, 1, out) of `shared`, `encoder.0`, `encoder.1` ... and `decoder.0`, `decoder.1` ..."""

SAMPLES = 64
"""Samples of z that an answer is made of."""

HALF_LOG_2PI = 0.9189385332046727
# As in sepkit.models.latents, which makes the posterior in training.
_LEAST_DEVIATION = 1e-6

DEFAULT_STOP_DB = 5.0
"""Root mean squared error that is good enough, dB."""

STOPPING = "stopping.yaml"
"""File of the stopping rule in a model's folder."""
FORMAT = 1
FEATURES = ("measurements", "acquisition", "partial_elbo")
"""Features from which a stopping rule predicts the error."""
BASELINE = ("measurements",)
"""The same of the baseline, which stops all sessions at the same number."""
_AGAIN = "run `sepkit calibrate` again, or delete the file"

_DESCRIPTION, _WEIGHTS = "model.yaml", "model.safetensors"
_EXPECTED = "expected a partial VAE of audiograms that `sepkit train --config audiogram` wrote (EXP/model)"


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
    return np.linalg.solve(np.linalg.cholesky(both.T @ both / samples), both.T).T.astype(np.float32)


@dataclass
class Prediction:
    """A model's belief about B data, by samples of z; in the units of the data.

    Args:
        values: (B, D) the observed values; anything elsewhere.
        observed: (B, D) bool.
        means: (B, S, D) of p(x_d | z) for each sample of z.
        rate: (B,) KL(q(z | x_O) || p(z)), nats.
    """

    values: np.ndarray
    observed: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    noise: np.ndarray
    rate: np.ndarray

    @cached_property
    def estimate(self) -> np.ndarray:
        """(B, D): observed values, and for the others the mean of the predictive distribution."""
        return np.where(self.observed, self.values, self.means.mean(1))

    @cached_property
    def posterior_mean(self) -> np.ndarray:
        """(B, D) of the noise-free values: for observed ones, between the measurement and what the others suggest.

        Given z, a measured value is the noise-free one, N(mean, deviation^2 - noise^2), plus noise.
        """
        residuals = np.where(self.observed[:, None], self.values[:, None] - self.means, 0.0)
        return (self.means + (1 - np.square(self.noise / self.deviations)) * residuals).mean(1)

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
        residuals = (np.where(self.observed, self.values, 0.0)[:, None] - self.means) / self.deviations
        nll = (0.5 * np.square(residuals) + np.log(self.deviations) + HALF_LOG_2PI).mean(1)
        return (nll * self.observed).sum(1)

    @property
    def partial_elbo(self) -> np.ndarray:
        """(B,) -(D_p + R), nats: thesis, eq. 1."""
        return -(self.distortion + self.rate)


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
    def from_stack(cls, config: PartialVAEConfig, state: Mapping[str, np.ndarray]) -> list[TrainedVAE]:
        """Return the models of a stack.

        Args:
            config: Configuration of the stack.
            state: Name -> weights and buffers, (S, ...) each.
        """
        found = []
        for place in range(config.models):
            own = {name: array[place : place + 1] for name, array in state.items()}
            buffers = {name: own[name].reshape(-1) for name in ("center", "scale", "low_elbo")}
            found.append(cls(config, {name: array for name, array in own.items() if "." in name}, **buffers))
        return found

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
        """Return the values observed before the first measurement, (count, D) bool."""
        observed = np.ones((count, len(self.config.dimensions)), bool)
        observed[:, self.measurable] = False
        return observed

    def predict(self, values: np.ndarray, observed: np.ndarray, draws: np.ndarray) -> Prediction:
        """Return the model's belief, given the observed values.

        Args:
            values: (B, D), in their units; anything where not observed.
            observed: (B, D) bool.
            draws: (S, L), see `latent_draws`.
        """
        x = ((np.where(observed, values, self.center) - self.center) / self.scale).astype(np.float32)
        mean, raw = (part[0] for part in encode(self.weights, x[None], observed.astype(np.float32)[None], np))
        deviation = _softplus(raw, np).clip(_LEAST_DEVIATION)
        rate = (0.5 * (np.square(deviation) + np.square(mean)) - 0.5 - np.log(deviation)).sum(-1)
        z = mean[:, None] + deviation[:, None] * draws
        scale, noise = self.scale.astype(np.float32), (self.noise / self.scale).astype(np.float32)
        parts = decode(self.weights, z.reshape(1, -1, z.shape[-1]), noise, np)
        means, deviations = (part.reshape(*z.shape[:2], -1) * scale for part in parts)
        return Prediction(values, observed, means + self.center.astype(np.float32), deviations, self.noise, rate)

    def next_dimension(self, prediction: Prediction) -> np.ndarray:
        """Return (B,) the measurable dimension with the largest predictive variance; -1 if all are observed."""
        possible = np.zeros_like(prediction.observed)
        possible[:, self.measurable] = ~prediction.observed[:, self.measurable]
        worth = np.where(possible, prediction.variance, -np.inf)
        return np.where(possible.any(1), worth.argmax(1), -1)

    def features(self, prediction: Prediction) -> dict[str, np.ndarray]:
        """Return the features of a stopping rule, (B,) each, by name.

        The acquisition value is the mean variance of all measurable dimensions, a measurement's own if observed. A mean
        over unobserved ones alone would jump between measurements, and have nothing left at the end.
        """
        numbers = prediction.observed[:, self.measurable].sum(1)
        acquisition = np.square(prediction.deviation)[:, self.measurable].mean(1)
        columns = (numbers, acquisition, prediction.partial_elbo)
        return {name: column.astype(float) for name, column in zip(FEATURES, columns, strict=True)}

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal digest of the weights."""
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self.weights):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(self.weights[name], np.float32).tobytes())
        return digest.hexdigest()

    @cached_property
    def draws(self) -> np.ndarray:
        """Samples of z for all answers."""
        return latent_draws(self.config.latent, max(SAMPLES, 4 * self.config.latent))


def low_elbos(vae: TrainedVAE, values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the partial ELBO that 1 % of these data are below, by the number of observed dimensions, (D + 1,) nats.

    For each number, random dimensions are observed, those known from the beginning first.

    Args:
        vae: The model.
        values: (N, D) complete data, in the dimensions' units.
        draws: (S, L) standard normal numbers, see `latent_draws`.
    """
    numbers = np.random.default_rng([0, 1]).random(values.shape) - vae.nothing_measured(len(values))
    ranks = numbers.argsort(1).argsort(1)
    elbos = [vae.predict(values, ranks < count, draws).partial_elbo for count in range(values.shape[1] + 1)]
    return np.percentile(elbos, 1.0, axis=1)


# ----------------------------------------------------------------------------------------------------- when to stop


@dataclass
class StoppingRule:
    """The predicted error, dB: intercept + sum of coefficient * (feature - mean) / scale, with limited features.

    Args:
        ridge: strength of the penalty, chosen by leaving sessions out.
        limit: largest absolute value of a standardized feature; larger ones are cut to it.
        error_db: root mean square of the errors of predictions for sessions left out.
    """

    features: list[str]
    means: list[float]
    scales: list[float]
    coefficients: list[float]
    intercept: float
    ridge: float
    limit: float
    error_db: float
    correlation: float | None
    reference: str
    sessions: int
    manifest: str = ""
    weights: str = ""
    format: int = FORMAT

    def predict(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the expected error, dB, never below 0, of features of any shape, see `TrainedVAE.features`."""
        total = np.full(np.shape(features[self.features[0]]), self.intercept)
        columns = (self.features, self.means, self.scales, self.coefficients)
        for name, mean, scale, coefficient in zip(*columns, strict=True):
            total += coefficient * np.clip((features[name] - mean) / scale, -self.limit, self.limit)
        return total.clip(0.0)


def read_stopping(folder: Path, weights: str) -> StoppingRule | None:
    """Return the rule in a model's folder; None if there is none. It must be for the model with this fingerprint."""
    path = folder / STOPPING
    if not path.is_file():
        return None
    try:
        rule = from_dict(StoppingRule, read_yaml(path))
    except UserError as error:
        raise UserError(f"{path}: damaged ({' '.join(str(error).split())}); {_AGAIN}") from error
    lengths = {len(column) for column in (rule.features, rule.means, rule.scales, rule.coefficients)}
    numbers = [*rule.means, *rule.scales, *rule.coefficients, rule.intercept, rule.limit]
    has_form = rule.format == FORMAT and len(lengths) == 1 and lengths != {0} and set(rule.features) <= set(FEATURES)
    if not has_form or not all(map(math.isfinite, numbers)) or not min(rule.scales) > 0:
        raise UserError(f"{path}: damaged or of another version; {_AGAIN}")
    if rule.weights != weights:
        raise UserError(f"{path}: was fitted for another model than the one beside it; {_AGAIN}")
    return rule


# ----------------------------------------------------------------------------------------------------------- the model


def load_model(model: str | os.PathLike[str]) -> AudiogramModel:
    """Return a trained model, ready for sessions, with its calibration; torch is not needed.

    Args:
        model: EXP or EXP/model that `sepkit train --config audiogram` wrote.

    Raises:
        UserError: there is no such model, a stack of several, or a damaged file.
    """
    (folder, vaes) = load_stack(model)
    if len(vaes) > 1:
        raise UserError(f"{folder}: found a stack of {len(vaes)} models, expected one; train without `stack`")
    return AudiogramModel(vaes[0], folder, read_stopping(folder, vaes[0].fingerprint))


def load_stack(model: str | os.PathLike[str]) -> tuple[Path, list[TrainedVAE]]:
    """Return the folder of a model or of a stack of them, and its partial VAEs, as `load_model` does."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = _find(Path(model))
    description = read_yaml(folder / _DESCRIPTION)
    if not isinstance(description, dict) or description.get("kind") != KIND:
        raise UserError(f"{folder}: found another kind of model; {_EXPECTED}")
    config = from_dict(PartialVAEConfig, description.get("model"), "model")
    config.check()
    try:
        vaes = TrainedVAE.from_stack(config, load_file(folder / _WEIGHTS))
        # Weights that do not fit their description fail at the first question, and damaged ones overflow.
        with np.errstate(all="ignore"):
            for vae in vaes:
                found = vae.predict(np.zeros((1, len(vae.names))), vae.nothing_measured(1), vae.draws)
                if not np.isfinite([found.estimate, found.variance]).all():
                    raise ValueError("what it predicts is not finite")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{folder / _WEIGHTS}: damaged, or of other dimensions than {_DESCRIPTION} states ({reason}); get it again"
        ) from error
    return folder, vaes


def _find(path: Path) -> Path:
    folders = [path, path / "model"] if path.is_dir() else [path.parent] if path.is_file() else []
    for folder in folders:
        if (folder / _DESCRIPTION).is_file() and (folder / _WEIGHTS).is_file():
            return folder
    raise UserError(f"{path}: no model there; {_EXPECTED}")


def seeds_of(folder: Path) -> list[int]:
    """Return the seeds of a stack, by the configuration beside its folder; of a model without one it is 0.

    Args:
        folder: Folder of the model, beside config.yaml.

    Raises:
        UserError: config.yaml is damaged.
    """
    file = folder.parent / "config.yaml"
    if not file.is_file():
        return [0]
    found = read_yaml(file)
    try:
        return from_dict(StackConfig, {"seeds": found["stack"]["seeds"] or [found["trainer"]["seed"]]}, "stack").seeds
    except (KeyError, TypeError) as error:
        raise UserError(f"{file}: damaged ({error}), expected the configuration of a training of audiograms") from error


@dataclass(frozen=True)
class AudiogramModel:
    """A trained partial VAE, ready for sessions; without `stopping` it is not calibrated."""

    vae: TrainedVAE
    folder: Path
    stopping: StoppingRule | None = None

    def session(self, age: float | None = None) -> Session:
        """Return a session with nothing measured; an unknown age is marginalized."""
        return Session(self, age)


class Session:
    """The measurements of one listener, and the model's answers; see `AudiogramModel.session`.

    Measuring a threshold again replaces the old value. sepkit is research software, not a medical device.
    """

    def __init__(self, model: AudiogramModel, age: float | None = None) -> None:
        self.model = model
        self.notes: list[str] = []
        self._dimensions = {d.name: d for d in model.vae.config.dimensions}
        self._values: dict[str, float] = {}
        self._prediction: Prediction | None = None
        if age is not None:
            if AGE not in self._dimensions:
                raise UserError(f"age: found {age:g}, but the model was trained without ages; leave it out")
            check_value(self._dimensions[AGE], age)
            self._values[AGE] = float(age)
        elif AGE in self._dimensions:
            self.notes.append("age: not given, marginalized")

    def measured(self, ear: str, hz: int, db: float) -> Session:
        """Return the session with the threshold of an ear at a frequency measured; a repeated one replaces the old
        one."""
        return self.measured_all({threshold_name(ear, hz): float(db)})

    def measured_all(self, measured: Mapping[str, float] | Iterable[str]) -> Session:
        """Return the session with all of these measured, by name or as words such as `right_1000=35`; all or none is
        accepted."""
        values, notes = named_values(measured, self.model.vae.config.dimensions)
        for name, value in values.items():
            if name in self._values:
                notes.append(f"{name}: measured again, {value:g} replaces {self._values[name]:g}")
        self._values |= values
        self.notes += notes
        self._prediction = None
        return self

    @property
    def count(self) -> int:
        """Number of measured thresholds."""
        return sum(not self._dimensions[name].known for name in self._values)

    def next(self) -> str | None:
        """Return the name of the threshold with the largest predictive variance; None if all are measured."""
        place = int(self.model.vae.next_dimension(self.prediction)[0])
        return None if place < 0 else self.model.vae.names[place]

    def estimate(self) -> dict[str, float]:
        """Return name -> threshold, dB HL: the measured value, or the expected one."""
        return self._thresholds(self.prediction.estimate[0])

    def deviation(self) -> dict[str, float]:
        """Return name -> standard deviation, dB: of a measurement, or of the prediction."""
        return self._thresholds(self.prediction.deviation[0])

    def expected_error_db(self) -> float | None:
        """Return the expected root mean squared error of the estimates, dB; None if the model is not calibrated."""
        if self.model.stopping is None:
            return None
        return float(self.model.stopping.predict(self.model.vae.features(self.prediction))[0])

    def stop(self, stop_at_db: float = DEFAULT_STOP_DB) -> bool | None:
        """Return whether the estimates are good enough: all is measured, or some is and the expected error is below;
        None if the model is not calibrated and something is left to measure."""
        if self.count == len(self.model.vae.measurable):
            return True
        expected = self.expected_error_db()
        return None if expected is None else bool(self.count > 0 and expected < stop_at_db)

    def out_of_range(self) -> bool:
        """Whether the measurements are unlike the training data: 1 % of those have such a low partial ELBO."""
        limit = self.model.vae.low_elbo[len(self._values)]
        return bool(math.isfinite(limit) and self.prediction.partial_elbo[0] < limit)

    def answer(self, stop_at_db: float = DEFAULT_STOP_DB) -> dict[str, Any]:
        """Return all of this as plain data: next, estimate, deviation, expected_error_db, stop, out_of_range ..."""
        Bounds(gt=0, lt=math.inf, note=" dB").check("--stop-at-db", stop_at_db)
        expected, notes = self.expected_error_db(), list(self.notes)
        if expected is None:
            notes.append("the model is not calibrated, so that errors are not predicted; see `sepkit calibrate`")
        if not self.count:
            notes.append("nothing is measured: estimates are means at this age")
        if self.out_of_range():
            notes.append("the measurements are unlike the training data: do not rely on estimates, measure everything")
        upcoming = self.next()
        if upcoming is None:
            notes.append("everything is measured: nothing is left to choose")
        return {
            "next": upcoming,
            "estimate": {name: round(value, 2) for name, value in self.estimate().items()},
            "deviation": {name: round(value, 2) for name, value in self.deviation().items()},
            "expected_error_db": None if expected is None else round(expected, 2),
            "stop": self.stop(stop_at_db),
            "out_of_range": self.out_of_range(),
            "measured": self.count,
            "notes": notes,
            "notice": NOT_A_MEDICAL_DEVICE,
        }

    @property
    def prediction(self) -> Prediction:
        """The model's present belief."""
        if self._prediction is None:
            vae = self.model.vae
            values = np.array([[self._values.get(name, 0.0) for name in vae.names]])
            self._prediction = vae.predict(values, np.array([[name in self._values for name in vae.names]]), vae.draws)
        return self._prediction

    def _thresholds(self, row: np.ndarray) -> dict[str, float]:
        return {self.model.vae.names[place]: float(row[place]) for place in self.model.vae.measurable}
