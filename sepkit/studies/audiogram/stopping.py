"""When an estimate is good enough: predict its error from what the model knows about itself.

The prediction is a linear function of three numbers that need no reference: the number of measured dimensions, the mean
predictive variance (of what is unseen), and the partial ELBO (of what is seen). It is fitted on validation sessions by
ridge regression and kept beside the model. The baseline only knows the number of measurements, so it stops all sessions
at the same one.

Source: thesis, part A, section 3.3.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.choices import from_dict, to_dict
from sepkit.errors import UserError
from sepkit.files import read_yaml, write_yaml
from sepkit.studies.audiogram.network import TrainedVAE

STOPPING = "stopping.yaml"
FORMAT = 1
FEATURES = ("measurements", "acquisition", "partial_elbo")
BASELINE = ("measurements",)
_AGAIN = "run `sepkit calibrate` again, or delete the file"


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
        """Return the expected error, dB, never below 0, of `features_of` any shape."""
        total = np.full(np.shape(features[self.features[0]]), self.intercept)
        for name, mean, scale, coefficient in zip(
            self.features, self.means, self.scales, self.coefficients, strict=True
        ):
            total += coefficient * np.clip((features[name] - mean) / scale, -self.limit, self.limit)
        return total.clip(0.0)


def features_of(numbers: np.ndarray, acquisition: np.ndarray, partial_elbo: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features of a rule after some numbers of measurements, by name, all of one shape."""
    parts = (np.broadcast_to(numbers, np.shape(acquisition)), acquisition, partial_elbo)
    return {name: part.astype(float) for name, part in zip(FEATURES, parts, strict=True)}


def fit_stopping(
    features: Mapping[str, np.ndarray], errors: np.ndarray, reference: str, names: Sequence[str] = FEATURES
) -> StoppingRule:
    """Return the rule that predicts the errors of N validation sessions best, from one measurement on.

    Args:
        features: of the sessions, (N, M + 1) each.
        errors: (N, M + 1) after 0, 1 ... M measurements, dB.
    """
    from sepkit.inference.quality.regression import FARTHEST, fit_ridge

    count, columns = errors.shape
    table = {name: values[:, 1:].ravel() for name, values in features.items() if name in names}
    groups = np.repeat(np.arange(count), columns - 1)
    fitted = fit_ridge(table, errors[:, 1:].ravel().astype(float), groups).regression
    shared = ("features", "means", "scales", "coefficients", "intercept", "ridge", "error_db", "correlation")
    own = {name: getattr(fitted, name) for name in shared}
    return StoppingRule(**own, limit=FARTHEST, reference=reference, sessions=count)


def stopping_index(errors: np.ndarray, threshold: float) -> np.ndarray:
    """Return (B,) the first number of measurements, 1 or more, with an error below the threshold, for (B, M + 1)
    errors.

    It is M if there is none. With true errors it is the oracle's index, with predicted ones that of a rule.
    """
    below = errors[:, 1:] < threshold
    return np.where(below.any(1), below.argmax(1) + 1, errors.shape[1] - 1)


def mean_offset(stops: np.ndarray, oracle: np.ndarray) -> float:
    """Return O, the mean of |s - s_hat| over N sessions: thesis, eq. 7."""
    return float(np.abs(stops - oracle).mean())


def best_index(errors: np.ndarray, threshold: float) -> int:
    """Return the single number of measurements with the least mean offset from the oracle's, for (N, M + 1) errors."""
    oracle = stopping_index(errors, threshold)
    return min(range(1, errors.shape[1]), key=lambda index: mean_offset(np.full(len(oracle), index), oracle))


def stopping_scores(
    errors: np.ndarray, stops: np.ndarray, threshold: float, predicted: np.ndarray | None = None
) -> dict[str, float]:
    """Return O, the mean stopping index, and the mean error there, true and predicted (N, M + 1), for N sessions,
    dB."""
    here = np.arange(len(stops)), stops
    scores = {
        "offset": mean_offset(stops, stopping_index(errors, threshold)),
        "index": float(stops.mean()),
        "error_db": float(errors[here].mean()),
    }
    return scores if predicted is None else scores | {"predicted_db": float(predicted[here].mean())}


# ------------------------------------------------------------------------------------------------------------ the file


def fingerprint(vae: TrainedVAE) -> str:
    """Return the hexadecimal digest of a model's weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(vae.weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(vae.weights[name], np.float32).tobytes())
    return digest.hexdigest()


def write_stopping(rule: StoppingRule, folder: Path) -> Path:
    """Write the rule to its model's folder; return its path."""
    return write_yaml(folder / STOPPING, to_dict(rule))


def read_stopping(folder: Path, weights: str) -> StoppingRule | None:
    """Return the rule in a model's folder; None if there is none. It must be for the model with this fingerprint."""
    path = folder / STOPPING
    if not path.is_file():
        return None
    try:
        rule = from_dict(StoppingRule, read_yaml(path))
    except UserError as error:
        raise UserError(f"{path}: damaged ({' '.join(str(error).split())}); {_AGAIN}") from error
    columns = (rule.means, rule.scales, rule.coefficients)
    numbers = [*(number for column in columns for number in column), rule.intercept, rule.limit]
    if (
        rule.format != FORMAT
        or not rule.features
        or any(len(column) != len(rule.features) for column in columns)
        or not set(rule.features) <= set(FEATURES)
        or not all(map(math.isfinite, numbers))
        or not all(scale > 0 for scale in rule.scales)
    ):
        raise UserError(f"{path}: damaged or of another version; {_AGAIN}")
    if rule.weights != weights:
        raise UserError(f"{path}: was fitted for another model than the one beside it; {_AGAIN}")
    return rule
