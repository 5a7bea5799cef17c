"""Predictions of SI-SDR without references: ridge regressions on features, with intervals, stored with the model.

Two of them are fitted on the same mixtures: `model` uses everything that a separation tells, `baseline` only the
mixture. Their difference is the model's knowledge about its own output. Beside them are a second head, which tells
whether a recording is separated at all, and the level below which nobody speaks in an estimate.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sepkit.choices import from_dict, to_dict
from sepkit.errors import UserError, shown
from sepkit.files import parse_json, read_yaml, write_text
from sepkit.inference.alone import AloneRule, estimates_summary
from sepkit.inference.features import BASELINE_FEATURES
from sepkit.inference.not_separated import NotSeparatedPredictor, fit_not_separated, recording_summary
from sepkit.inference.ridge import COVERAGE, RidgePredictor, fit_ridge
from sepkit.inference.silence import SilenceThreshold
from sepkit.models.storage.earlier import with_frames
from sepkit.version import __version__

QUALITY = "quality.yaml"
FORMAT = 1
FEATURES_VERSION = 4
"""Goes up when a feature changes its meaning: coefficients of another version would multiply something else."""


@dataclass
class QualityPredictor:
    """Content of a model's `quality.yaml`.

    Args:
        weights: fingerprint of the model it was fitted for.
        hypotheses: n of that model.
        manifest: where the mixtures came from.
        mixtures: number of mixtures used.
        examples: number of estimates of sources in them.
        coverage: share of examples that the intervals should contain.
        model: predicts from everything.
        baseline: predicts from the mixture's level and statistics.
        depth_steps: number of steps of a model of continuous depth that it was fitted with; None for other models.
        not_separated: tells whether a recording is separated at all; None if too few mixtures are not, or too few are.
        silence: counts speakers by the levels of the estimates; None if they do not tell.
        alone: tells recordings of one speaker, whose voice is in all estimates; None if that cannot be told safely.
        sepkit: version that wrote it.
        format: of the file.
        features_version: of the features.
    """

    weights: str
    hypotheses: int
    manifest: str
    mixtures: int
    examples: int
    coverage: float
    model: RidgePredictor
    baseline: RidgePredictor
    depth_steps: int | None = None
    not_separated: NotSeparatedPredictor | None = None
    silence: SilenceThreshold | None = None
    alone: AloneRule | None = None
    sepkit: str = __version__
    format: int = FORMAT
    features_version: int = FEATURES_VERSION

    def predict(self, features: Mapping[str, np.ndarray] | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the expected SI-SDR (n,), the ends of its interval (n, 2) and the baseline's SI-SDR (n,), dB, float32.

        Args:
            features: (n,) each, by name; None: everything is NaN.
        """
        if features is None:
            predicted = baseline = np.full(self.hypotheses, np.nan)
        else:
            predicted, baseline = self.model.predict(features), self.baseline.predict(features)
        interval = self.model.interval(predicted, features)
        return predicted.astype(np.float32), interval.astype(np.float32), baseline.astype(np.float32)

    def likely_not_separated(self, features: Mapping[str, np.ndarray] | None) -> bool | None:
        """Return whether a recording is likely not separated; None if that is not known.

        Args:
            features: (n,) each, by name, of two estimates or more; None: silence, or too short.
        """
        if features is None or self.not_separated is None:
            return None
        return self.not_separated.flags(recording_summary(features, self.model.predict(features)))

    def is_alone(
        self,
        features: Mapping[str, np.ndarray] | None,
        levels_db: np.ndarray,
        voice: Callable[[], Mapping[str, float]],
    ) -> bool | None:
        """Return whether one speaker is alone in a recording; None if that is not known.

        Args:
            features: (n,) each, by name; None: silence, or too short.
            levels_db: (n,) of the estimates, see `sepkit.inference.silence.levels_db`.
            voice: returns what `sepkit.inference.voice_change.voice_change` does; called only if it matters.
        """
        if features is None or self.alone is None:
            return None
        return self.alone.flags(estimates_summary(features, levels_db), voice)

    def digest(self) -> str:
        """Return a hexadecimal digest of everything, which identifies this predictor."""
        return hashlib.blake2b(json.dumps(to_dict(self), sort_keys=True).encode(), digest_size=16).hexdigest()


# ------------------------------------------------------------------------------------------------------------- fitting


def fit_quality(
    features: Mapping[str, np.ndarray],
    targets: np.ndarray,
    mixtures: np.ndarray | Sequence[int],
    improvements_db: np.ndarray | None = None,
    **described: Any,
) -> QualityPredictor:
    """Return all predictors, fitted to the same examples.

    Args:
        features: (N,) each, those of the baseline among them; examples with one that is not finite are left out.
        targets: (N,) SI-SDR, dB.
        mixtures: (N,) number of the mixture that each example comes from.
        improvements_db: (N,) SI-SDR improvements, NaN for a source that is alone; None: whether a recording is
            separated is not predicted.
        **described: weights, hypotheses and manifest of `QualityPredictor`.

    Raises:
        UserError: see `fit_ridge`.
    """
    targets, mixtures = np.asarray(targets, np.float64), np.asarray(mixtures)
    usable = np.isfinite(np.stack([targets, *features.values()])).all(0)
    of_usable = {name: np.asarray(values, np.float64)[usable] for name, values in features.items()}
    targets, mixtures = targets[usable], mixtures[usable]
    fit = fit_ridge(of_usable, targets, mixtures)
    not_separated = None
    if improvements_db is not None:
        improvements = np.asarray(improvements_db, np.float64)[usable]
        not_separated = fit_not_separated(of_usable, fit.left_out_db, improvements, mixtures)
    return QualityPredictor(
        **described,
        mixtures=len(np.unique(mixtures)),
        examples=len(targets),
        coverage=COVERAGE,
        model=fit.predictor,
        baseline=fit_ridge({name: of_usable[name] for name in BASELINE_FEATURES}, targets, mixtures).predictor,
        not_separated=not_separated,
    )


# --------------------------------------------------------------------------------------------------------------- files


def write_quality(predictor: QualityPredictor, folder: Path) -> Path:
    """Write the predictor to a model's folder as plain YAML; return its path.

    Args:
        predictor: of the model in that folder.
        folder: of the model.

    Raises:
        UserError: the folder cannot be written to.
    """
    path = folder / QUALITY
    # JSON has no tuples, so none becomes a tag in the YAML.
    text = yaml.safe_dump(parse_json(json.dumps(to_dict(predictor))), sort_keys=False, allow_unicode=True)
    write_text(path, text)
    return path


def read_quality(folder: Path, weights: str, hypotheses: int) -> QualityPredictor | None:
    """Read the predictor in a model's folder; return None if there is none.

    Args:
        folder: of the model.
        weights: fingerprint of the model that it must be for.
        hypotheses: n of that model.

    Raises:
        UserError: a file that is damaged, of another version, or for another model.
    """
    path = folder / QUALITY
    if not path.is_file():
        return None
    data = with_frames(read_yaml(path, _AGAIN))
    versions = {"format": FORMAT, "features_version": FEATURES_VERSION}
    for field, expected in versions.items():
        found = data.get(field) if isinstance(data, dict) else None
        if found != expected:
            raise UserError(f"{path}: found {field} {shown(found)}, expected {expected}; {_AGAIN}")
    try:
        predictor = from_dict(QualityPredictor, data)
    except UserError as error:
        raise UserError(f"{path}: {error}; {_AGAIN}") from error
    except TypeError as error:
        raise UserError(f"{path}: a field is missing ({error}); {_AGAIN}") from error
    for ridge in (predictor.model, predictor.baseline):
        _check(ridge, path)
    alone = predictor.alone
    for second in filter(None, (predictor.not_separated, *((alone.at_once, alone.in_turn) if alone else ()))):
        _check_columns((second.means, second.scales, second.coefficients), second.features, second.scales, path)
    if predictor.hypotheses != hypotheses or predictor.weights != weights:
        what = f"{predictor.hypotheses} hypotheses" if predictor.hypotheses != hypotheses else "other weights"
        raise UserError(f"{path}: was fitted for a model with {what} than the one beside it; {_AGAIN}")
    return predictor


_AGAIN = "run `sepkit calibrate` again, or delete the file"


def _check(ridge: RidgePredictor, path: Path) -> None:
    _check_columns((ridge.means, ridge.scales, ridge.coefficients), ridge.features, ridge.scales, path)
    parts = ridge.by_likeness
    ends = [ridge.interval_db, *(parts.intervals_db if parts else [])]
    fits = parts is None or (len(parts.intervals_db) == len(parts.edges) + 1 and parts.feature in ridge.features)
    if not fits or not all(len(pair) == 2 and all(map(math.isfinite, pair)) for pair in ends):
        raise UserError(f"{path}: found intervals that are not finite or not one for each part; {_AGAIN}")
    if not math.isfinite(ridge.intercept):
        raise UserError(f"{path}: found an intercept that is not finite; {_AGAIN}")


def _check_columns(
    columns: Sequence[Sequence[float]], features: Sequence[str], scales: Sequence[float], path: Path
) -> None:
    if any(len(column) != len(features) or not all(map(math.isfinite, column)) for column in columns):
        raise UserError(f"{path}: found numbers that are not finite or not one for each feature; {_AGAIN}")
    if not all(scale > 0 for scale in scales):
        raise UserError(f"{path}: found a scale that is not positive; {_AGAIN}")
