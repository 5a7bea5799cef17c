"""Linear models with a penalty on their coefficients: ridge regression with an interval, and logistic regression."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sepkit.errors import UserError, shown

COVERAGE = 0.9
_ENDS = [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]
LEAST_COVERAGE = 0.88
"""Share of the examples of every kind of situation that the interval contains where it was fitted."""

EXAMPLES_PER_FEATURE = 3
"""A ridge regression is only fitted with at least this many examples per feature."""

FARTHEST = 4.0
"""Standardized features beyond this are taken at it: a straight line is no guide to where no example was."""

# Strengths of the penalty, times the number of examples. If the strongest ridge is best there is nothing to learn.
_RIDGES = np.logspace(-5, 1, 25)
_LOGISTIC_STRENGTHS = np.logspace(-4, 0, 9)
_FOLDS = 10
# A share of fewer examples is unreliable.
_LEAST_OF_A_KIND = 20
# Smaller errors count as this: their logarithm says nothing of what to expect.
_LEAST_ERROR_DB = 0.2
# Quantiles that stand for the errors of a kind of situation, however many there are.
_RANKS = 1000


@dataclass
class LinearModel:
    """A linear function of features: intercept + sum of coefficient * (feature - mean) / scale.

    Standardized features are limited to four deviations.

    Args:
        features: Names of the features.
        means, scales: Means and standard deviations of the features, over the examples.
        coefficients: Change of the result for each deviation of a feature.
        intercept: Result where all features have their means.
    """

    features: list[str]
    means: list[float]
    scales: list[float]
    coefficients: list[float]
    intercept: float

    def _standardized(self, features: Mapping[str, Any]) -> np.ndarray:
        table = np.stack([np.asarray(features[name], np.float64) for name in self.features], axis=-1)
        return _standardize(table, self.means, self.scales)

    def check(self) -> None:
        """Check numbers that were read from a file.

        Raises:
            UserError: a number is missing or not finite, or a scale is not positive.
        """
        columns = (self.means, self.scales, self.coefficients)
        if not self.features or any(len(own) != len(self.features) or not np.isfinite(own).all() for own in columns):
            raise UserError("found numbers that are not finite or not one for each feature")
        if not all(scale > 0 for scale in self.scales):
            raise UserError("found a scale that is not positive")
        if not math.isfinite(self.intercept):
            raise UserError("found an intercept that is not finite")


@dataclass
class RidgeRegression(LinearModel):
    """A linear model with a penalty on its squared coefficients, and an interval about its predictions, dB.

    Args:
        ridge: Strength of the penalty, times the number of examples.
        interval_db: Distances from the prediction down and up to the ends of the interval, the first usually negative;
            in units of the scale of the error if there is a `spread`, see `fit_interval`.
        rank_correlation: Spearman's correlation of targets and their predictions by fits without the mixture in
            question; None where either does not vary.
        correlation: Pearson's correlation, in the same way.
        error_db: Root mean square of these predictions' errors.
        spread, spread_intercept: Logarithm of the scale of the error, nats for each deviation of the features and at
            their means; None: the interval has one width.
    """

    ridge: float
    interval_db: tuple[float, float]
    rank_correlation: float | None
    correlation: float | None
    error_db: float
    spread: list[float] | None = None
    spread_intercept: float = 0.0

    def check(self) -> None:
        """Check numbers that were read from a file.

        Raises:
            UserError: a number is missing or not finite, or a scale is not positive.
        """
        super().check()
        if not np.isfinite([*self.interval_db, self.spread_intercept, *(self.spread or [])]).all():
            raise UserError("found an interval that is not finite")
        if self.spread is not None and len(self.spread) != len(self.features):
            raise UserError("found a spread that is not one for each feature")

    def predict(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return predictions, (n,) dB; NaN where a feature is.

        Args:
            features: Features of the estimates by name, (n,) each.

        Raises:
            UserError: a feature is missing.
        """
        if missing := [name for name in self.features if name not in features]:
            raise UserError(
                f"quality.yaml: names the feature {shown(missing[0])}, which the model does not have; run "
                "`sepkit calibrate` again"
            )
        return self.intercept + self._standardized(features) @ np.array(self.coefficients)

    def interval(self, predicted: np.ndarray, features: Mapping[str, np.ndarray] | None) -> np.ndarray:
        """Return lower and upper ends, (n, 2) dB, of the interval about predictions.

        Args:
            predicted: Predictions, (n,) dB.
            features: Features that they were made from, (n,) each; None: there are none, and a varying width is NaN.
        """
        if self.spread is None:
            return predicted[:, None] + np.array(self.interval_db)
        scales = np.full(len(predicted), np.nan)
        if features is not None:
            scales = np.exp(self.spread_intercept + self._standardized(features) @ np.array(self.spread))
        return predicted[:, None] + scales[:, None] * np.array(self.interval_db)

    @property
    def half_width_db(self) -> float:
        """Half the width of the interval, dB; of examples with mean features if it varies."""
        low, high = self.interval_db
        return (high - low) / 2 * (1.0 if self.spread is None else math.exp(self.spread_intercept))

    def fit_interval(
        self, errors_db: np.ndarray, features: Mapping[str, np.ndarray], mixtures: np.ndarray, kinds: np.ndarray
    ) -> None:
        """Make the interval as wide as the features let expect, so that it holds in each kind of situation.

        A second regression, of the logarithm of the absolute error, gives a scale s(x); the ends are the quantiles of
        e / s(x), each kind counting the same, times the least factor for which `LEAST_COVERAGE` of every kind is
        inside (conformal prediction with normalized errors, by groups).

        Args:
            errors_db: Target minus prediction by a fit without the mixture in question, (N,).
            features: Features of the examples, (N,) each.
            mixtures: Number of the mixture of each example, (N,).
            kinds: Kind of situation of each example, (N,).

        Source: Papadopoulos et al., "Normalized nonconformity measures for regression conformal prediction", 2008;
        Romano et al., "With malice toward none: assessing uncertainty via equalized coverage", 2020.
        """
        varying = {name: features[name] for name in self.features}
        scale, left_out = fit_ridge(varying, np.log(np.maximum(np.abs(errors_db), _LEAST_ERROR_DB)), mixtures)
        slopes = dict(zip(scale.features, scale.coefficients, strict=True))
        self.spread = [slopes.get(name, 0.0) for name in self.features]
        self.spread_intercept = scale.intercept
        relative = [(errors_db / np.exp(left_out))[kinds == kind] for kind in np.unique(kinds)]
        ranks = (np.arange(_RANKS) + 0.5) / _RANKS
        low, high = np.quantile(np.concatenate([np.quantile(own, ranks) for own in relative]), _ENDS)
        reaches = [np.maximum(own / low, own / high) for own in relative if len(own) >= _LEAST_OF_A_KIND]
        factor = max([1.0, *(np.quantile(own, LEAST_COVERAGE, method="higher") for own in reaches)])
        self.interval_db = (float(factor * low), float(factor * high))


def fit_ridge(
    features: Mapping[str, np.ndarray], targets: np.ndarray, mixtures: np.ndarray | Sequence[int]
) -> tuple[RidgeRegression, np.ndarray]:
    """Return the ridge regression of targets on features, with the strength that is best for mixtures left out, and
    (N,) dB: the prediction for each example by a fit without its mixture.

    Examples of one mixture share features, so they are left out together. With H the map from targets to fitted values
    and e = y - H y, the errors of a mixture g that is left out are (I - H_gg)^-1 e_g, without another fit.

    The interval is made of quantiles of these errors (jackknife): its ends are the (1 - coverage) / 2 and the
    (1 + coverage) / 2 quantile, with ranks among N + 1. On average over similar mixtures it contains the requested
    share; for other mixtures it promises nothing.

    Args:
        features: (N,) each, finite; those that do not vary are left out.
        targets: (N,) dB, finite.
        mixtures: (N,) number of the mixture of each example.

    Raises:
        UserError: fewer than three examples for each feature, or features or targets that do not vary.

    Source: thesis, appendix A, section 3.3 (ridge regression, strength by leaving one out); Barber et al., "Predictive
    inference with the jackknife+", 2021 (intervals).
    """
    names = [name for name in features if _varies(features[name])]
    least = EXAMPLES_PER_FEATURE * max(1, len(names))
    targets, mixtures = np.asarray(targets, np.float64), np.asarray(mixtures)
    groups = [np.flatnonzero(mixtures == mixture) for mixture in np.unique(mixtures)]
    # Groups of one size are solved together.
    by_size = [np.stack([g for g in groups if len(g) == size]) for size in sorted({len(group) for group in groups})]
    if len(targets) < least or len(groups) < 2:
        raise UserError(
            f"found {len(targets)} estimates of sources in {len(groups)} mixtures that could be used, expected"
            f" {least} or more for {len(names)} features; give a longer manifest"
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

    tried = [(float(ridge), left_out_errors(float(ridge))) for ridge in _RIDGES * len(targets)]
    ridge, errors = min(tried, key=lambda pair: float(np.mean(np.square(pair[1]))))
    coefficients = right.T @ (singular / (singular**2 + ridge) * along)
    left_out = targets - errors
    # The next error is above the k-th largest of N errors with probability k / (N + 1): "weibull".
    low, high = np.quantile(errors, _ENDS, method="weibull")
    regression = RidgeRegression(
        features=names,
        means=means.tolist(),
        scales=scales.tolist(),
        coefficients=coefficients.tolist(),
        intercept=float(targets.mean() - center @ coefficients),
        ridge=ridge,
        interval_db=(float(low), float(high)),
        rank_correlation=_plain(spearmanr(left_out, targets)[0]),  # type: ignore[arg-type]
        correlation=_plain(pearsonr(left_out, targets)[0]),  # type: ignore[arg-type]
        error_db=float(np.sqrt(np.mean(np.square(errors)))),
    )
    return regression, left_out


@dataclass
class LogisticRegression(LinearModel):
    """Log-odds that a recording is of a kind, nats.

    Args:
        threshold: Log-odds above which a recording is of the kind.
        found: Share of the examples of the kind that are above it, by fits without the example.
        false_alarms: Share of the others that are, in the same way.
    """

    threshold: float = math.inf
    found: float = 0.0
    false_alarms: float = 0.0

    def log_odds(self, features: Mapping[str, Any]) -> Any:
        """Return log-odds of recordings, (N,) or a number; NaN where a feature is not known.

        Args:
            features: Features by name, (N,) each or a number.
        """
        known = {name: features.get(name, math.nan) for name in self.features}
        return self.intercept + self._standardized(known) @ np.array(self.coefficients)

    def set_threshold(self, threshold: float, of_kind: np.ndarray, others: np.ndarray) -> None:
        """Set the threshold, and the shares of examples above it.

        Args:
            threshold: Log-odds.
            of_kind: Log-odds of left out examples of the kind, (N,).
            others: Log-odds of other left out examples, (N,).
        """
        self.threshold = threshold
        self.found, self.false_alarms = float(np.mean(of_kind > threshold)), float(np.mean(others > threshold))


def fit_logistic(
    rows: Sequence[Mapping[str, float]], labels: np.ndarray, groups: np.ndarray | None = None
) -> tuple[LogisticRegression, np.ndarray] | None:
    """Return the regression, without threshold, and (N,) log-odds of each row by a fit without its tenth of the rows.

    The strength of the penalty is the one that is best for rows left out. There is no regression if no feature varies.

    Args:
        rows: Features of N recordings by name, finite.
        labels: (N,) bool, which rows are of the kind; both kinds are among them.
        groups: (N,) int from 0, rows that are left out together; None: each alone.
    """
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    table = {name: values for name, values in table.items() if np.ptp(values) > 1e-9}
    if not table:
        return None
    fold = np.arange(len(labels)) % _FOLDS
    # Each fold has its share of both kinds.
    fold[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % _FOLDS
    if groups is not None and groups.max() >= _FOLDS - 1:
        fold = groups % _FOLDS

    def left_out(strength: float) -> np.ndarray:
        scores = np.empty(len(labels))
        for number in range(_FOLDS):
            rest = fold != number
            fitted = _logistic({name: values[rest] for name, values in table.items()}, labels[rest], strength)
            scores[~rest] = fitted.log_odds({name: values[~rest] for name, values in table.items()})
        return scores

    tried = [(float(strength), left_out(float(strength))) for strength in _LOGISTIC_STRENGTHS]
    strength, scores = min(tried, key=lambda pair: float(np.logaddexp(0, np.where(labels, -pair[1], pair[1])).mean()))
    return _logistic(table, labels, strength), scores


def _logistic(features: Mapping[str, np.ndarray], labels: np.ndarray, strength: float) -> LogisticRegression:
    from scipy.optimize import minimize

    table = np.stack(list(features.values()), axis=-1)
    means, scales = table.mean(0), np.maximum(table.std(0), 1e-9)
    design = _standardize(table, means, scales)
    signs = np.where(labels, 1.0, -1.0)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (weights[0] + design @ weights[1:])
        pull = -signs / (1 + np.exp(np.clip(margins, -500, 500))) / len(signs)
        value = float(np.logaddexp(0, -margins).mean() + strength / 2 * weights[1:] @ weights[1:])
        return value, np.concatenate([[pull.sum()], design.T @ pull + strength * weights[1:]])

    weights = minimize(loss, np.zeros(design.shape[1] + 1), jac=True, method="L-BFGS-B").x
    return LogisticRegression(list(features), means.tolist(), scales.tolist(), weights[1:].tolist(), float(weights[0]))


def threshold_above(scores: np.ndarray, share: float) -> float:
    """Return the score that at most this share of all scores is above.

    >>> threshold_above(np.array([3.0, 1.0, 2.0, 4.0]), 0.25)
    3.0

    Args:
        scores: Scores, (N,).
        share: Share of the scores, 0 to 1.
    """
    return float(np.sort(scores)[len(scores) - math.floor(share * len(scores)) - 1])


def _varies(values: np.ndarray) -> bool:
    values = np.asarray(values, np.float64)
    return bool(np.ptp(values) > 1e-9 * max(1e-3, float(np.abs(values).max())))


def _standardize(table: np.ndarray, means: np.ndarray | list[float], scales: np.ndarray | list[float]) -> np.ndarray:
    return np.clip((table - np.asarray(means)) / np.asarray(scales), -FARTHEST, FARTHEST)


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
