"""Ridge regression of SI-SDR on features, with intervals from the errors for mixtures left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sepkit.errors import UserError
from sepkit.inference.likeness import DOMINANCE

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
