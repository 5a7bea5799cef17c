"""Logistic regression against values that follow from its equations by hand."""

import math

import numpy as np
import pytest

from sepkit.inference.quality.regression import LogisticRegression, _logistic, fit_logistic, threshold_above

# Twenty rows at each of two values; the mean is 5 and the deviation 2.
SIDES = np.repeat([7.0, 3.0], 20)


def labels(above: int, below: int) -> np.ndarray:
    """This many of the twenty rows at each value are of the kind."""
    return np.concatenate([np.arange(20) < above, np.arange(20) < below])


def test_coefficients_are_those_of_the_equations() -> None:
    """With shares 18/20 and 6/20: sigmoid(b + w) = 0.8 and sigmoid(b - w) = 0.4 where the penalty is 0.2 / log 6.

    The derivatives are sigmoid(b + w) + sigmoid(b - w) = 1.2 for the intercept, which no penalty holds back, and
    (0.8 - 0.4) / 2 - (0.9 - 0.3) / 2 + penalty * w = 0 for the coefficient.
    """
    fitted = _logistic({"x": SIDES}, labels(18, 6), 0.2 / math.log(6))
    assert (fitted.features, fitted.means, fitted.scales) == (["x"], [5.0], [2.0])
    assert fitted.coefficients == pytest.approx([math.log(6) / 2], abs=1e-4)
    assert fitted.intercept == pytest.approx(math.log(8 / 3) / 2, abs=1e-4)
    assert fitted.log_odds({"x": np.array([7.0, 3.0])}) == pytest.approx([math.log(4), math.log(2 / 3)], abs=1e-4)
    # Taken at four deviations, 13; unknown without the feature.
    assert fitted.log_odds({"x": 99.0}) == fitted.log_odds({"x": 13.0}) != fitted.log_odds({"x": 12.0})
    assert math.isnan(fitted.log_odds({}))


@pytest.mark.parametrize(("above", "below", "strength"), [(20, 0, 1e-4), (10, 10, 1.0)], ids=["separable", "useless"])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_penalty_is_the_best_for_rows_left_out(above: int, below: int, strength: float, grouped: bool) -> None:
    kind = labels(above, below)
    rows = [{"same": 1.0, "x": x} for x in SIDES]
    regression, scores = fit_logistic(rows, kind, np.arange(40) // 4 if grouped else None)
    assert regression == _logistic({"x": SIDES}, kind, strength)
    # Rows are left out with their group, or every tenth of each kind.
    fold = np.arange(40) // 4
    if not grouped:
        fold[np.flatnonzero(~kind)], fold[np.flatnonzero(kind)] = np.arange(20) % 10, np.arange(20) % 10
    for number in range(10):
        rest = _logistic({"x": SIDES[fold != number]}, kind[fold != number], strength)
        np.testing.assert_allclose(scores[fold == number], rest.log_odds({"x": SIDES[fold == number]}))


def test_there_is_nothing_to_learn_if_no_feature_varies() -> None:
    assert fit_logistic([{"x": 1.0}] * 4, np.array([True, False, True, False])) is None


def test_few_groups_are_not_left_out_together() -> None:
    rows, kind = [{"x": x} for x in SIDES], labels(15, 5)
    alone, few = (fit_logistic(rows, kind, groups) for groups in (None, np.arange(40) % 9))
    np.testing.assert_array_equal(alone[1], few[1])


def test_shares_above_the_threshold() -> None:
    """A score at the threshold is not above it."""
    regression = LogisticRegression(["x"], [0.0], [1.0], [1.0], 0.0)
    regression.set_threshold(2.0, np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 2.5, 0.0, 0.0]))
    assert (regression.threshold, regression.found, regression.false_alarms) == (2.0, 0.5, 0.2)
    scores = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    assert [threshold_above(scores, share) for share in (0.0, 0.2, 0.39, 0.4)] == [5.0, 4.0, 4.0, 3.0]
