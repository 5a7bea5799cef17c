"""Predictions of SI-SDR without references: ridge regressions on features, with intervals, stored with the model.

Two of them are fitted on the same mixtures: `model` uses everything that a separation tells, `baseline` only the
mixture. Their difference is the model's knowledge about its own output. Beside them are a second head, which tells
whether a recording is separated at all, and the level below which nobody speaks in an estimate.
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
from sepkit.inference.alone import estimates_summary
from sepkit.inference.features import BASELINE_FEATURES
from sepkit.inference.likeness import DOMINANCE
from sepkit.inference.not_separated import NotSeparatedPredictor, fit_not_separated, recording_summary
from sepkit.inference.silence import SilenceThreshold
from sepkit.version import __version__

QUALITY = "quality.yaml"
FORMAT = 1
FEATURES_VERSION = 3
"""Goes up when a feature changes its meaning: coefficients of another version would multiply something else."""

COVERAGE = 0.9

LIKENESS_BINS = 3
"""Number of parts, by how alike the voices are, that have an interval of their own."""

LEAST_IN_BIN = 30
"""There are fewer parts if one would have fewer examples than this."""

EXAMPLES_PER_FEATURE = 3
"""Fit only with at least this many examples per feature."""

FARTHEST = 4.0
"""Standardized features beyond this are taken at it: a straight line is no guide to where no example was."""

# Strengths of the ridge, times the number of examples. If the strongest is best there is nothing to learn.
_STRENGTHS = np.logspace(-5, 1, 25)


@dataclass
class LikenessIntervals:
    """Intervals that are as wide as the errors for voices that are about as much alike.

    Args:
        feature: that tells likeness, see `sepkit.inference.likeness`.
        edges: between the parts, ascending; a value at an edge is in the lower part.
        intervals_db: of each part, see `RidgePredictor.interval_db`.
    """

    feature: str
    edges: list[float]
    intervals_db: list[list[float]]


@dataclass
class RidgePredictor:
    """SI-SDR as a linear function of features: intercept + sum of coefficient * (feature - mean) / scale.

    Standardized features are limited to four deviations. The interval is the prediction plus two numbers; they depend
    on the likeness of the voices if `by_likeness` is there.

    Args:
        features: names.
        means: of the features, over the examples.
        scales: their standard deviations.
        coefficients: dB for each deviation.
        intercept: dB.
        ridge: strength of the penalty on the squared coefficients, times the number of examples.
        interval_db: from the prediction down and up to the ends of the interval, the first usually negative.
        rank_correlation: Spearman's, of SI-SDR and its predictions by fits without the mixture in question; None where
            either does not vary.
        correlation: Pearson's, in the same way.
        error_db: root mean square of these predictions' errors.
        by_likeness: intervals of their own for voices that are more and less alike; None: one for all.
    """

    features: list[str]
    means: list[float]
    scales: list[float]
    coefficients: list[float]
    intercept: float
    ridge: float
    interval_db: tuple[float, float]
    rank_correlation: float | None
    correlation: float | None
    error_db: float
    by_likeness: LikenessIntervals | None = None

    def predict(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return predictions, (n,) dB; NaN where a feature is.

        Args:
            features: (n,) each, by name.
        """
        table = np.stack([np.asarray(features[name], np.float64) for name in self.features], axis=-1)
        standardized = _standardize(table, np.array(self.means), np.array(self.scales))
        return self.intercept + standardized @ np.array(self.coefficients)

    def interval(self, predicted: np.ndarray, features: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """Return lower and upper ends, (n, 2) dB.

        Args:
            predicted: (n,) dB.
            features: (n,) each, by name; None: the interval is the same for all.
        """
        if self.by_likeness is None or features is None:
            return predicted[:, None] + np.array(self.interval_db)
        part = np.searchsorted(self.by_likeness.edges, features[self.by_likeness.feature])
        return predicted[:, None] + np.array(self.by_likeness.intervals_db)[part]


@dataclass
class QualityPredictor:
    """Content of a model's `quality.yaml`.

    Args:
        weights: fingerprint of the model it was fitted for.
        hypotheses: n of that model.
        samples: of the masks, for the features.
        seed: of those.
        manifest: where the mixtures came from.
        mixtures: number of mixtures used.
        examples: number of estimates of sources in them.
        coverage: share of examples that the intervals should contain.
        model: predicts from everything.
        baseline: predicts from the mixture's level and statistics.
        depth_steps: number of steps of a model of continuous depth that it was fitted with; None for other models.
        not_separated: tells whether a recording is separated at all; None if too few mixtures are not, or too few are.
        silence: counts speakers by the levels of the estimates; None if they do not tell.
        alone: tells recordings of one speaker, whose voice is in all estimates; None if the estimates do not tell.
        sepkit: version that wrote it.
        format: of the file.
        features_version: of the features.
    """

    weights: str
    hypotheses: int
    samples: int
    seed: int
    manifest: str
    mixtures: int
    examples: int
    coverage: float
    model: RidgePredictor
    baseline: RidgePredictor
    depth_steps: int | None = None
    not_separated: NotSeparatedPredictor | None = None
    silence: SilenceThreshold | None = None
    alone: NotSeparatedPredictor | None = None
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

    def is_alone(self, features: Mapping[str, np.ndarray] | None, levels_db: np.ndarray) -> bool | None:
        """Return whether one speaker is alone in a recording; None if that is not known.

        Args:
            features: (n,) each, by name; None: silence, or too short.
            levels_db: (n,) of the estimates, see `sepkit.inference.silence.levels_db`.
        """
        if features is None or self.alone is None:
            return None
        return self.alone.flags(estimates_summary(features, levels_db))

    def digest(self) -> str:
        """Return a hexadecimal digest of everything, which identifies this predictor."""
        return hashlib.blake2b(json.dumps(to_dict(self), sort_keys=True).encode(), digest_size=16).hexdigest()


# ------------------------------------------------------------------------------------------------------------- fitting


@dataclass
class Fit:
    """A predictor, and its predictions for mixtures left out of the fit.

    Args:
        predictor: fitted on all examples.
        left_out_db: (N,) predictions for each example by a fit without the example's mixture.
    """

    predictor: RidgePredictor
    left_out_db: np.ndarray


def fit_ridge(
    features: Mapping[str, np.ndarray],
    targets: np.ndarray,
    mixtures: np.ndarray | Sequence[int],
    coverage: float = COVERAGE,
) -> Fit:
    """Return the ridge regression of targets on features, with the strength that is best for mixtures left out.

    Examples of one mixture share features, so they are left out together. With H the map from targets to fitted values
    and e = y - H y, the errors of a mixture g that is left out are (I - H_gg)^-1 e_g, without another fit.

    The interval is made of quantiles of these errors (jackknife): its ends are the (1 - coverage) / 2 and the
    (1 + coverage) / 2 quantile, with ranks among N + 1. On average over similar mixtures it contains the requested
    share; for other mixtures it promises nothing. Where the voices' likeness is a feature and there are enough
    examples, parts of equal size by likeness have intervals of their own, so that each of them holds its share.

    Args:
        features: (N,) each, finite; those that do not vary are left out.
        targets: (N,) dB, finite.
        mixtures: (N,) number of the mixture that each example comes from.
        coverage: share of examples that the interval should contain.

    Raises:
        UserError: fewer than three examples for each feature, or features or targets that do not vary.

    Source: thesis, appendix A, section 3.3 (ridge regression, strength by leaving one out); Barber et al., "Predictive
    inference with the jackknife+", 2021 (intervals).
    """
    names = [name for name in features if _varies(features[name])]
    targets, mixtures = np.asarray(targets, np.float64), np.asarray(mixtures)
    groups = [np.flatnonzero(mixtures == mixture) for mixture in np.unique(mixtures)]
    # Groups of one size are solved together.
    by_size = [np.stack([g for g in groups if len(g) == size]) for size in sorted({len(group) for group in groups})]
    if len(targets) < EXAMPLES_PER_FEATURE * max(1, len(names)) or len(groups) < 2:
        raise UserError(
            f"found {len(targets)} estimates of sources in {len(groups)} mixtures that could be used, expected"
            f" {EXAMPLES_PER_FEATURE * max(1, len(names))} or more for {len(names)} features; give a longer manifest"
        )
    if not names or not _varies(targets):
        raise UserError("every mixture looks alike or is separated alike; give mixtures that differ")
    from scipy.stats import pearsonr, spearmanr

    table = np.stack([np.asarray(features[name], np.float64) for name in names], axis=-1)
    means, scales = table.mean(0), table.std(0)
    standardized = _standardize(table, means, scales)
    center = standardized.mean(0)
    left, singular, right = np.linalg.svd(standardized - center, full_matrices=False)
    along = left.T @ (targets - targets.mean())

    def left_out_errors(ridge: float) -> np.ndarray:
        shrink = singular**2 / (singular**2 + ridge)
        errors = targets - targets.mean() - left @ (shrink * along)
        for rows in by_size:
            hat = 1 / len(targets) + (left[rows] * shrink) @ left[rows].swapaxes(-1, -2)
            errors[rows] = np.linalg.solve(np.eye(rows.shape[1]) - hat, errors[rows][..., None])[..., 0]
        return errors

    tried = [(float(ridge), left_out_errors(float(ridge))) for ridge in _STRENGTHS * len(targets)]
    ridge, errors = min(tried, key=lambda pair: float(np.mean(np.square(pair[1]))))
    coefficients = right.T @ (singular / (singular**2 + ridge) * along)
    left_out = targets - errors
    predictor = RidgePredictor(
        features=names,
        means=means.tolist(),
        scales=scales.tolist(),
        coefficients=coefficients.tolist(),
        intercept=float(targets.mean() - center @ coefficients),
        ridge=ridge,
        interval_db=_interval(errors, coverage),
        rank_correlation=_plain(spearmanr(left_out, targets)[0]),  # type: ignore[arg-type]
        correlation=_plain(pearsonr(left_out, targets)[0]),  # type: ignore[arg-type]
        error_db=float(np.sqrt(np.mean(np.square(errors)))),
        by_likeness=_likeness_intervals(features[DOMINANCE], errors, coverage) if DOMINANCE in names else None,
    )
    return Fit(predictor, left_out)


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
        **described: weights, hypotheses, samples, seed and manifest of `QualityPredictor`.

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


def _varies(values: np.ndarray) -> bool:
    values = np.asarray(values, np.float64)
    return bool(np.ptp(values) > 1e-9 * max(1e-3, float(np.abs(values).max())))


def _standardize(table: np.ndarray, means: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.clip((table - means) / scales, -FARTHEST, FARTHEST)


def _interval(errors: np.ndarray, coverage: float) -> tuple[float, float]:
    """Return the two numbers that lead from a prediction to the ends of the interval."""
    # The next error is above the k-th largest of N errors with probability k / (N + 1): "weibull".
    low, high = np.quantile(errors, [(1 - coverage) / 2, (1 + coverage) / 2], method="weibull")
    return float(low), float(high)


def _likeness_intervals(likeness: np.ndarray, errors: np.ndarray, coverage: float) -> LikenessIntervals | None:
    """Return intervals of parts of equal size, or None if there would be only one part."""
    count = min(LIKENESS_BINS, len(errors) // LEAST_IN_BIN)
    edges = np.unique(np.quantile(likeness, np.arange(1, count) / count)) if count > 1 else np.empty(0)
    part = np.searchsorted(edges, likeness)
    if not len(edges) or np.bincount(part, minlength=len(edges) + 1).min() < LEAST_IN_BIN // 2:
        return None
    intervals = [list(_interval(errors[part == number], coverage)) for number in range(len(edges) + 1)]
    return LikenessIntervals(DOMINANCE, edges.tolist(), intervals)


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


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
    data = read_yaml(path, _AGAIN)
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
    for second in filter(None, (predictor.not_separated, predictor.alone)):
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
