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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.choices import from_dict, to_dict
from sepkit.errors import UserError
from sepkit.files import read_yaml, write_yaml
from sepkit.studies.acquisition.measures import mean_offset, stopping_index
from sepkit.studies.acquisition.predictive import TrainedVAE
from sepkit.studies.acquisition.simulation import Sessions

STOPPING = "stopping.yaml"
FORMAT = 1
FEATURES = ("measurements", "acquisition", "partial_elbo")
_AGAIN = "run `sepkit calibrate` again, or delete the file"


@dataclass
class StoppingRule:
    """The predicted error: intercept + sum of coefficient * (feature - mean) / scale, with limited features.

    Args:
        features: names, of `FEATURES`.
        means: of the features over the validation sessions.
        scales: their standard deviations.
        coefficients: dB per deviation.
        intercept: dB.
        ridge: strength of the penalty, chosen by leaving sessions out.
        limit: largest absolute value of a standardized feature; larger ones are cut to it.
        error_db: root mean square of the errors of predictions for sessions left out.
        correlation: Pearson's, of error and prediction for sessions left out; None where either does not vary.
        reference: of the errors.
        sessions: number of sessions of the fit.
        manifest: where they came from.
        weights: fingerprint of the model that it was fitted for.
        format: of the file.
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

    def predict(self, features: dict[str, np.ndarray]) -> np.ndarray:
        """Return the expected error, dB; never below 0.

        Args:
            features: by name, all of one shape, which is that of the result.
        """
        total = np.full(np.shape(features[self.features[0]]), self.intercept)
        for name, mean, scale, coefficient in zip(
            self.features, self.means, self.scales, self.coefficients, strict=True
        ):
            total += coefficient * np.clip((features[name] - mean) / scale, -self.limit, self.limit)
        return total.clip(0.0)


def features_of(sessions: Sessions) -> dict[str, np.ndarray]:
    """Return the features of a rule after 0, 1 ... M measurements, (N, M + 1) each.

    Args:
        sessions: N of them.
    """
    count, columns = sessions.acquisition.shape
    return {
        "measurements": np.tile(np.arange(columns, dtype=float), (count, 1)),
        "acquisition": sessions.acquisition.astype(float),
        "partial_elbo": sessions.partial_elbo.astype(float),
    }


def fit_stopping(sessions: Sessions, features: Sequence[str] = FEATURES) -> StoppingRule:
    """Return the rule that predicts the error of these sessions best, from one measurement on.

    Args:
        sessions: with validation data.
        features: names that it may use; ("measurements",) is the baseline.

    Raises:
        UserError: too few sessions, or errors that do not vary.
    """
    from sepkit.inference.ridge import fit_ridge

    count, columns = sessions.rmse.shape
    table = {name: values[:, 1:].ravel() for name, values in features_of(sessions).items() if name in features}
    groups = np.repeat(np.arange(count), columns - 1)
    fitted = fit_ridge(table, sessions.rmse[:, 1:].ravel().astype(float), groups).predictor
    return StoppingRule(
        features=fitted.features,
        means=fitted.means,
        scales=fitted.scales,
        coefficients=fitted.coefficients,
        intercept=fitted.intercept,
        ridge=fitted.ridge,
        limit=_limit(),
        error_db=fitted.error_db,
        correlation=fitted.correlation,
        reference=sessions.reference,
        sessions=count,
    )


def _limit() -> float:
    from sepkit.inference.ridge import FARTHEST

    return FARTHEST


def best_index(sessions: Sessions, threshold: float) -> int:
    """Return the single number of measurements whose mean offset from the oracle's is least on these sessions.

    Args:
        sessions: N of them.
        threshold: error that is good enough, dB.
    """
    oracle = stopping_index(sessions.rmse, threshold)
    candidates = range(1, sessions.rmse.shape[1])
    return min(candidates, key=lambda index: mean_offset(np.full(len(oracle), index), oracle))


def stopping_scores(
    sessions: Sessions, stops: np.ndarray, threshold: float, predicted: np.ndarray | None = None
) -> dict[str, float]:
    """Return O, the mean stopping index, the mean error there, predicted and true, and shares stopped early and late.

    Args:
        sessions: with test data.
        stops: (N,) where each stops.
        threshold: dB.
        predicted: (N, M + 1) errors, dB, by which the rule stops; None: the rule does not predict any.
    """
    oracle = stopping_index(sessions.rmse, threshold)
    here = np.arange(len(stops)), stops
    scores = {
        "offset": mean_offset(stops, oracle),
        "index": float(stops.mean()),
        "error_db": float(sessions.rmse[here].mean()),
        "early": float((stops < oracle).mean()),
        "late": float((stops > oracle).mean()),
    }
    return scores if predicted is None else scores | {"predicted_db": float(predicted[here].mean())}


# ------------------------------------------------------------------------------------------------------------ the file


def fingerprint(vae: TrainedVAE) -> str:
    """Return the hexadecimal digest of a model's weights.

    Args:
        vae: the model.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(vae.weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(vae.weights[name], np.float32).tobytes())
    return digest.hexdigest()


def write_stopping(rule: StoppingRule, folder: Path) -> Path:
    """Write the rule to a model's folder; return its path.

    Args:
        rule: of the model in that folder.
        folder: of the model.

    Raises:
        UserError: the folder cannot be written to.
    """
    return write_yaml(folder / STOPPING, to_dict(rule))


def read_stopping(folder: Path, weights: str) -> StoppingRule | None:
    """Return the rule in a model's folder; None if there is none.

    Args:
        folder: of the model.
        weights: `fingerprint` of the model.

    Raises:
        UserError: a file that is damaged, of another version, or for another model.
    """
    path = folder / STOPPING
    if not path.is_file():
        return None
    data = read_yaml(path)
    try:
        rule = from_dict(StoppingRule, data)
    except (UserError, TypeError) as error:
        raise UserError(f"{path}: damaged ({' '.join(str(error).split())}); {_AGAIN}") from error
    columns = (rule.means, rule.scales, rule.coefficients)
    numbers = [*(number for column in columns for number in column), rule.intercept, rule.limit]
    if (
        rule.format != FORMAT
        or any(len(column) != len(rule.features) for column in columns)
        or not set(rule.features) <= set(FEATURES)
        or not all(map(math.isfinite, numbers))
        or not all(scale > 0 for scale in rule.scales)
    ):
        raise UserError(f"{path}: damaged or of another version; {_AGAIN}")
    if rule.weights != weights:
        raise UserError(f"{path}: was fitted for another model than the one beside it; {_AGAIN}")
    return rule
