"""What a model predicts of its own output without references, fitted by `sepkit calibrate` and stored with the model.

Two ridge regressions of SI-SDR are fitted on the same mixtures: `model` uses everything that a separation tells,
`baseline` only the mixture. Their difference is the model's knowledge about its own output. Beside them are what tells
whether a recording is separated at all, and what tells how many speak.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sepkit.choices import from_dict, to_dict
from sepkit.errors import UserError, shown
from sepkit.files import parse_json, read_yaml, write_text
from sepkit.inference.quality.activity import ActivityThreshold
from sepkit.inference.quality.failure import failure_features, fit_failure
from sepkit.inference.quality.features import BASELINE_FEATURES
from sepkit.inference.quality.regression import (
    COVERAGE,
    FARTHEST,
    LogisticRegression,
    RidgeFit,
    RidgeRegression,
    fit_ridge,
)
from sepkit.inference.quality.single_speaker import SingleSpeakerDetector
from sepkit.inference.runners.base import AGREEMENT
from sepkit.version import __version__

QUALITY = "quality.yaml"
FORMAT = 2
FEATURES_VERSION = 6
"""Goes up when a feature changes its meaning: coefficients of another version would multiply something else."""


@dataclass
class QualityPredictor:
    """Content of a model's `quality.yaml`.

    Args:
        weights: fingerprint of the model it was fitted for.
        manifest: where the mixtures came from.
        examples: number of estimates of sources in the mixtures.
        coverage: share of examples that the intervals should contain, of mixtures like those and of harder ones.
        model: predicts from everything.
        one_view: predicts where the agreement of views is not known, if the model was calibrated with several views.
        baseline: predicts from the mixture's statistics.
        views: how many views of a recording the model has by default, and had when this was fitted.
        depth_steps: number of steps of a model of continuous depth that it was fitted with; None for other models.
        failure: flags recordings that are not separated; None if too few mixtures are not, or too few are.
        activity: counts speakers by the levels of the estimates; None if they do not tell.
        single_speaker: tells recordings of one speaker from those of several; None if that cannot be told safely.
        of_any_model: whether it stands on the agreement of views alone, and was not fitted for this model.
        sepkit: version that wrote it.
    """

    weights: str
    hypotheses: int
    manifest: str
    mixtures: int
    examples: int
    coverage: float
    model: RidgeRegression
    baseline: RidgeRegression
    one_view: RidgeRegression | None = None
    views: int = 1
    depth_steps: int | None = None
    failure: LogisticRegression | None = None
    activity: ActivityThreshold | None = None
    single_speaker: SingleSpeakerDetector | None = None
    of_any_model: bool = False
    sepkit: str = __version__
    format: int = FORMAT
    features_version: int = FEATURES_VERSION

    def predict(self, features: Mapping[str, np.ndarray] | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the expected SI-SDR (n,), the ends of its interval (n, 2) and the baseline's SI-SDR (n,), dB, float32.

        Without features (silence, or too short) everything is NaN.
        """
        model = self._regression(features)
        if features is None:
            predicted = baseline = np.full(self.hypotheses, np.nan)
        else:
            predicted, baseline = model.predict(features), self.baseline.predict(features)
        interval = model.interval(predicted, features)
        return predicted.astype(np.float32), interval.astype(np.float32), baseline.astype(np.float32)

    def _regression(self, features: Mapping[str, np.ndarray] | None) -> RidgeRegression:
        alone = self.one_view is not None and features is not None and AGREEMENT not in features
        return self.one_view if alone and self.one_view is not None else self.model

    def out_of_domain(self, features: Mapping[str, np.ndarray] | None) -> bool | None:
        """Return whether a recording or its estimates are unlike all that the prediction was fitted on.

        They are if a feature is farther than four deviations from its mean; the length does not count.
        """
        if features is None:
            return None
        model = self._regression(features)
        far = [
            np.abs((np.asarray(features[name]) - mean) / scale) > FARTHEST
            for name, mean, scale in zip(model.features, model.means, model.scales, strict=True)
            if name != "log_duration_seconds"
        ]
        return bool(np.any(far))

    def likely_not_separated(self, features: Mapping[str, np.ndarray] | None) -> bool | None:
        """Return whether a recording of two estimates or more is likely not separated; None if that is not known."""
        if features is None or self.failure is None:
            return None
        return self.failure.flags(failure_features(features, self._regression(features).predict(features)))

    def digest(self) -> str:
        """Return a hexadecimal digest of everything, which identifies this predictor."""
        return hashlib.blake2b(json.dumps(to_dict(self), sort_keys=True).encode(), digest_size=16).hexdigest()


def fit_quality(
    features: Mapping[str, np.ndarray],
    targets: np.ndarray,
    mixtures: np.ndarray | Sequence[int],
    improvements_db: np.ndarray | None = None,
    kinds: np.ndarray | Sequence[str] | None = None,
    harder: Sequence[tuple[Mapping[str, np.ndarray], np.ndarray]] = (),
    **described: Any,
) -> QualityPredictor:
    """Return predictors of SI-SDR and of failure, fitted to the same examples.

    Args:
        features: (N,) each, those of the baseline among them; examples with one that is not finite are left out.
        targets: (N,) SI-SDR, dB.
        mixtures: (N,) number of the mixture of each example.
        improvements_db: (N,) SI-SDR improvements, NaN for a source that is alone; None: failure is not predicted.
        kinds: Kind of situation of each example, (N,); None: all are of one kind.
        harder: Features and targets of further kinds that only the intervals are fitted on.
        **described: weights, hypotheses and manifest of `QualityPredictor`.

    Raises:
        UserError: too few examples, or all alike.
    """
    targets, mixtures = np.asarray(targets, np.float64), np.asarray(mixtures)
    usable = np.isfinite(np.stack([targets, *features.values()])).all(0)
    of_usable = {name: np.asarray(values, np.float64)[usable] for name, values in features.items()}
    targets, mixtures = targets[usable], mixtures[usable]
    fit = fit_ridge(of_usable, targets, mixtures)
    of_one_view = {name: values for name, values in of_usable.items() if name != AGREEMENT}
    one_view = fit_ridge(of_one_view, targets, mixtures) if AGREEMENT in of_usable else None
    named = np.zeros(usable.shape, int) if kinds is None else np.asarray(kinds)
    of_kinds = np.unique(named[usable], return_inverse=True)[1]
    for own in filter(None, (fit, one_view)):
        _fit_interval(own, of_usable, targets, mixtures, of_kinds, harder)
    failure = None
    if improvements_db is not None:
        failure = fit_failure(of_usable, fit.left_out_db, np.asarray(improvements_db, np.float64)[usable], mixtures)
    return QualityPredictor(
        **described,
        mixtures=len(np.unique(mixtures)),
        examples=len(targets),
        coverage=COVERAGE,
        model=fit.regression,
        baseline=fit_ridge({name: of_usable[name] for name in BASELINE_FEATURES}, targets, mixtures).regression,
        one_view=None if one_view is None else one_view.regression,
        failure=failure,
    )


def _fit_interval(
    fit: RidgeFit,
    features: Mapping[str, np.ndarray],
    targets: np.ndarray,
    mixtures: np.ndarray,
    kinds: np.ndarray,
    harder: Sequence[tuple[Mapping[str, np.ndarray], np.ndarray]],
) -> None:
    """Fit the interval on the examples and on harder ones, which are kinds and mixtures of their own."""
    errors, rows = [targets - fit.left_out_db], [{name: features[name] for name in fit.regression.features}]
    all_mixtures, all_kinds = [mixtures], [kinds]
    for own, true in harder:
        row = {name: np.asarray(own[name], np.float64) for name in fit.regression.features}
        error = true - fit.regression.predict(row)
        known = np.isfinite(error)
        errors.append(error[known])
        rows.append({name: values[known] for name, values in row.items()})
        all_mixtures.append(all_mixtures[-1].max() + 1 + np.arange(len(errors[-1])))
        all_kinds.append(np.full(len(errors[-1]), all_kinds[-1].max() + 1))
    together = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    of_mixtures, of_kinds = np.concatenate(all_mixtures), np.concatenate(all_kinds)
    fit.regression.fit_interval(np.concatenate(errors), together, of_mixtures, of_kinds)


# --------------------------------------------------------------------------------------------------------------- files


def write_quality(predictor: QualityPredictor, folder: Path) -> Path:
    """Write the predictor to a model's folder; return its path."""
    return write_text(folder / QUALITY, predictor_text(predictor))


def predictor_text(predictor: QualityPredictor) -> str:
    """Return a predictor as plain YAML."""
    # JSON has no tuples, so none becomes a tag in the YAML.
    return yaml.safe_dump(parse_json(json.dumps(to_dict(predictor))), sort_keys=False, allow_unicode=True)


def read_quality(folder: Path, weights: str, hypotheses: int) -> QualityPredictor | None:
    """Read the predictor in a model's folder; return None if there is none.

    Args:
        weights: fingerprint of the model that it must be for.
        hypotheses: n of that model.

    Raises:
        UserError: a file that is damaged, of another version, or for another model.
    """
    path = folder / QUALITY
    if not path.is_file():
        return None
    data = read_yaml(path, _AGAIN)
    for field, expected in {"format": FORMAT, "features_version": FEATURES_VERSION}.items():
        found = data.get(field) if isinstance(data, dict) else None
        if found != expected:
            raise UserError(f"{path}: found {field} {shown(found)}, expected {expected}; {_AGAIN}")
    try:
        predictor = from_dict(QualityPredictor, data)
    except UserError as error:
        raise UserError(f"{path}: {error}; {_AGAIN}") from error
    except TypeError as error:
        raise UserError(f"{path}: a field is missing ({error}); {_AGAIN}") from error
    single = predictor.single_speaker
    logistic = [predictor.failure, single and single.one, single and single.noise]
    for model in filter(None, (predictor.model, predictor.baseline, predictor.one_view, *logistic)):
        _check(model, path)
    if predictor.hypotheses != hypotheses or predictor.weights != weights:
        what = f"{predictor.hypotheses} hypotheses" if predictor.hypotheses != hypotheses else "other weights"
        raise UserError(f"{path}: was fitted for a model with {what} than the one beside it; {_AGAIN}")
    return predictor


_AGAIN = "run `sepkit calibrate` again, or delete the file"


def _check(model: RidgeRegression | LogisticRegression, path: Path) -> None:
    spread = getattr(model, "spread", None)
    columns = (model.means, model.scales, model.coefficients, *([] if spread is None else [spread]))
    if any(len(column) != len(model.features) or not all(map(math.isfinite, column)) for column in columns):
        raise UserError(f"{path}: found numbers that are not finite or not one for each feature; {_AGAIN}")
    if not all(scale > 0 for scale in model.scales):
        raise UserError(f"{path}: found a scale that is not positive; {_AGAIN}")
    ends = (*model.interval_db, model.spread_intercept) if isinstance(model, RidgeRegression) else ()
    if not all(map(math.isfinite, (model.intercept, *ends))):
        raise UserError(f"{path}: found an intercept or an interval that is not finite; {_AGAIN}")
