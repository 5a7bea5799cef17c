"""What measures and fits the prediction for models that were never calibrated."""

from __future__ import annotations

import numpy as np
from scipy.stats import mannwhitneyu

from sepkit.inference.quality.by_agreement import ANY_MODEL, FEATURES, any_model_predictor
from sepkit.inference.quality.regression import fit_ridge
from sepkit.inference.runners.base import AGREEMENT
from tools.agreement import Examples, fit, scores


def examples(offset_db: float, seed: int) -> Examples:
    """Return estimates of two sources in 200 mixtures, whose SI-SDR is half of the agreement and an offset."""
    random = np.random.default_rng(seed)
    agreement_db = random.normal(10.0, 4.0, 400)
    si_sdr_db = 0.5 * agreement_db + offset_db + random.normal(0.0, 0.5, 400)
    return Examples({AGREEMENT: agreement_db}, si_sdr_db, si_sdr_db - 3.0, np.repeat(np.arange(200), 2))


def test_a_fit_of_several_models_is_between_them():
    fitted = fit([examples(0.0, 0), examples(2.0, 1)], [AGREEMENT])
    np.testing.assert_allclose(fitted.predict({AGREEMENT: np.array([4.0, 12.0])}), [3.0, 7.0], atol=0.15)


def test_scores_are_those_of_mixtures():
    found = examples(0.0, 0)
    fitted = fit_ridge(found.features, found.si_sdr_db, found.mixture).regression
    predicted = fitted.predict(found.features)
    text = scores(predicted, fitted.interval(predicted, None), found)
    of_mixture, improvement = (values.reshape(200, 2).mean(1) for values in (predicted, found.improvement_db))
    worse = improvement < 0
    area = mannwhitneyu(-of_mixture[worse], -of_mixture[~worse]).statistic / worse.sum() / (~worse).sum()
    assert f"AUC {area:.3f} ({worse.sum()} of 200 worse)" in text and "inside 90 %" in text


def test_what_ships_rises_with_agreement_and_pauses_and_falls_where_estimates_are_alike():
    predictor = any_model_predictor(3)
    assert predictor.model.features == list(FEATURES) and predictor.hypotheses == 3 and predictor.of_any_model
    agreement, likeness, pauses = predictor.model.coefficients
    assert agreement > 0 > likeness and pauses > 0 and predictor.views == 2
    assert ANY_MODEL.stat().st_size < 2000
