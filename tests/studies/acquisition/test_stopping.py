"""Areas, stopping indices, offsets and the ridge that predicts errors, against scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from sepkit.errors import UserError
from sepkit.files import read_yaml, write_yaml
from sepkit.reporting.compared_runs import better
from sepkit.studies.acquisition.measures import area, mean_offset, rmse, stopping_index
from sepkit.studies.acquisition.simulation import Sessions
from sepkit.studies.acquisition.stopping import (
    FEATURES,
    STOPPING,
    best_index,
    features_of,
    fit_stopping,
    read_stopping,
    stopping_scores,
    write_stopping,
)


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    """Errors that fall with the number of measurements, by as much as each session's own uncertainty says."""
    rng = np.random.default_rng(0)
    count, steps = 60, 8
    hard = rng.uniform(0.5, 2.0, (count, 1))
    errors = 3.0 + 8 * hard * np.exp(-0.4 * np.arange(steps + 1)) + 0.2 * rng.standard_normal((count, steps + 1))
    orders = np.tile(np.arange(steps), (count, 1))
    acquisition = np.square(errors) + rng.standard_normal(errors.shape)
    elbo = -4.0 * np.arange(steps + 1) - 3 * hard + 0.3 * rng.standard_normal(errors.shape)
    return Sessions("largest_variance", "noise-free", orders, errors, errors, errors, acquisition, elbo)


def test_errors_areas_and_indices() -> None:
    assert rmse(np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[1.0, 5.0], [3.0, 4.0]])) == pytest.approx(
        [4.5**0.5, 12.5**0.5]
    )
    curves = np.array([[9.0, 5.0, 3.0, 2.0], [9.0, 8.0, 7.0, 6.0], [1.0, 4.0, 9.0, 1.0]])
    assert area(curves).tolist() == [10.0, 21.0, 14.0]
    assert stopping_index(curves, 3.5).tolist() == [2, 3, 3]
    assert stopping_index(curves, 4.5).tolist() == [2, 3, 1]
    assert mean_offset(np.array([1, 4]), np.array([3, 3])) == 1.5


def test_the_oracle_has_no_offset_and_stops_below_the_threshold(sessions: Sessions) -> None:
    oracle = stopping_index(sessions.rmse, 6.0)
    scores = stopping_scores(sessions, oracle, 6.0)
    assert scores["offset"] == 0 == scores["early"] == scores["late"] and scores["error_db"] < 6
    assert scores["index"] == oracle.mean() and "predicted_db" not in scores
    known = stopping_scores(sessions, oracle, 6.0, predicted=sessions.rmse)
    assert known.pop("predicted_db") == known["error_db"] and known == scores


@pytest.mark.parametrize("names", [FEATURES, ("measurements",)])
def test_the_ridge_is_that_of_scikit_learn(sessions: Sessions, names: tuple[str, ...]) -> None:
    rule = fit_stopping(sessions, names)
    assert rule.features == list(names) and rule.sessions == 60 and rule.reference == "noise-free"
    features = features_of(sessions)
    table = np.stack([features[name][:, 1:].ravel() for name in names], axis=-1)
    standardized = np.clip((table - table.mean(0)) / table.std(0), -rule.limit, rule.limit)
    fitted = Ridge(alpha=rule.ridge).fit(standardized, sessions.rmse[:, 1:].ravel())
    np.testing.assert_allclose(rule.predict(features)[:, 1:].ravel(), fitted.predict(standardized), rtol=1e-6)


def test_uncertainty_beats_the_number_alone(sessions: Sessions) -> None:
    features = features_of(sessions)
    offsets = {}
    for names in (FEATURES, ("measurements",)):
        stops = stopping_index(fit_stopping(sessions, names).predict(features), 6.0)
        offsets[names] = stopping_scores(sessions, stops, 6.0)["offset"]
    assert offsets[FEATURES] < offsets[("measurements",)]
    numbers = fit_stopping(sessions, ("measurements",)).predict(features)
    assert np.ptp(stopping_index(numbers, 6.0)) == 0


def test_best_index_is_the_best(sessions: Sessions) -> None:
    oracle = stopping_index(sessions.rmse, 6.0)
    by_hand = [np.abs(oracle - index).mean() for index in range(1, 9)]
    assert best_index(sessions, 6.0) == 1 + int(np.argmin(by_hand))


def test_a_rule_is_kept_beside_its_model(sessions: Sessions, tmp_path: Path) -> None:
    rule = fit_stopping(sessions)
    rule.weights, rule.manifest = "abc", "dev.csv"
    assert read_stopping(tmp_path, "abc") is None
    write_stopping(rule, tmp_path)
    assert read_stopping(tmp_path, "abc") == rule
    with pytest.raises(UserError, match="fitted for another model"):
        read_stopping(tmp_path, "abd")
    data = read_yaml(tmp_path / STOPPING)
    for change in ({"means": [1.0]}, {"scales": [0.0, 1.0, 1.0]}, {"format": 2}, {"intercept": "x"}, {"extra": 1}):
        write_yaml(tmp_path / STOPPING, data | change)
        with pytest.raises(UserError, match="sepkit calibrate"):
            read_stopping(tmp_path, "abc")


def test_of_all_measures_by_rate_smaller_is_better() -> None:
    for name in ("distortion_nats", "negative_elbo_nats", "rmse_area_db", "stopping_offset", "stopping_index"):
        assert better(name) == -1
    assert better("si_sdr_db") == 1


def test_too_few_sessions_are_refused(sessions: Sessions) -> None:
    few = Sessions(
        "x",
        "measured",
        *(getattr(sessions, name)[:1] for name in ("orders", "rmse", "rmse", "nll", "acquisition", "partial_elbo")),
    )
    with pytest.raises(UserError):
        fit_stopping(few)
