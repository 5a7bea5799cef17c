"""Predicted against measured SI-SDR, against scipy and brute force."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sepkit.errors import UserError
from sepkit.evaluation import calibration
from sepkit.evaluation.evaluate import EvaluationOptions, evaluate
from sepkit.evaluation.labels import BOUNDS, PREDICTED, RATES
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.evaluation.run_folder import load_evaluation
from sepkit.evaluation.scoring import Hypotheses
from sepkit.reporting.text import evaluation_lines
from tests.complaint import complaint


def pairs(count: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions with ties, and measurements that go with them."""
    generator = np.random.default_rng(seed)
    measured = generator.normal(10, 4, count)
    return np.round(measured + generator.normal(0, 3, count)), measured


def test_correlations_are_scipys() -> None:
    x, y = pairs()
    found = calibration.agreement(x, y)
    assert found.spearman == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert found.rmse_db == pytest.approx(math.sqrt(np.mean((x - y) ** 2)))
    assert found.spearman_ci95 and found.spearman_ci95[0] < found.spearman < found.spearman_ci95[1]
    few = calibration.agreement(x[:4], y[:4])
    assert few.spearman is not None and few.spearman_ci95 is None


def test_correlations_of_resamples_are_those_of_points_written_out() -> None:
    x, y = pairs(25)
    counts = np.random.default_rng(1).integers(0, 4, (20, 25)).astype(float)
    found = calibration.rank_correlations(x, y, counts)
    for place, count in enumerate(counts.astype(int)):
        drawn = np.repeat(x, count), np.repeat(y, count)
        assert found[place] == pytest.approx(stats.spearmanr(*drawn).statistic, abs=1e-12)


def test_intervals_are_as_wide_as_samples_of_the_population_spread() -> None:
    found = [calibration.agreement(*pairs(100, seed)) for seed in range(60)]
    spread = np.std([one.spearman for one in found])
    widths = [one.spearman_ci95[1] - one.spearman_ci95[0] for one in found if one.spearman_ci95]
    assert np.mean(widths) / (2 * 1.96 * spread) == pytest.approx(1, abs=0.3)


def test_sources_of_a_mixture_are_drawn_together() -> None:
    x, y = pairs(40)
    alone = calibration.agreement(x, y)
    # Every point stands twice, in a mixture of two, which adds no information.
    twice = calibration.agreement(np.repeat(x, 2), np.repeat(y, 2), np.repeat(np.arange(40), 2))
    assert twice.spearman_ci95 == pytest.approx(alone.spearman_ci95, abs=0.01)


def test_nothing_is_defined_of_constants_but_errors() -> None:
    found = calibration.agreement([3.0, 3.0, 3.0], [1.0, 2.0, 3.0])
    assert found.spearman is None and found.spearman_ci95 is None
    assert found.rmse_db == pytest.approx(math.sqrt(5 / 3))


@pytest.mark.parametrize("count", [1, 7, 30, 101])
def test_risk_coverage_is_the_mean_of_the_best(count: int) -> None:
    x, y = np.random.default_rng(2).normal(size=(2, count))
    best_first = [measured for _, measured in sorted(zip(x, y, strict=True), reverse=True)]
    for percent, mean in zip(range(10, 101, 10), calibration.risk_coverage(x, y), strict=True):
        assert mean == pytest.approx(np.mean(best_first[: -(-percent * count // 100)]))
    assert calibration.risk_coverage(y, y)[0] == pytest.approx(np.mean(sorted(y)[-math.ceil(count / 10) :]))


def test_coverage_of_intervals() -> None:
    found = calibration.interval_coverage([1.0, 2.0, 3.0, 4.0], [0.0, 2.5, 3.0, 4.5], [2.0, 3.5, 4.0, 5.5])
    assert found == {"coverage": 0.5, "mean_width_db": pytest.approx(1.25)}


class Knowing:
    """Gives the sources with noise, knows how good that is up to an error, and has rates."""

    def __init__(self, corpus: Any, *, error_db: float = 0.5, silent_on: str | None = None) -> None:
        self.separate = corpus.separator()
        self.corpus, self.error_db, self.silent_on = corpus, error_db, silent_on

    def __call__(self, mixture: np.ndarray, sample_rate: int) -> Hypotheses:
        place = self.separate.calls
        self.separate.noise = 0.05 * (1 + place)
        estimates = self.separate(mixture, sample_rate)
        name = list(self.corpus.sources)[place]
        true = si_sdr_db(estimates, self.corpus.sources[name][::-1])
        predicted = true + self.error_db * np.array([1, -1])
        values = (np.full(2, np.nan) if name == self.silent_on else predicted, predicted - 0.2, predicted + 2)
        rates = dict(zip(RATES, (10.0 + place, 4.0, 0.5), strict=True))
        return Hypotheses(estimates, predictions=dict(zip((PREDICTED, *BOUNDS), values, strict=True)), rates=rates)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "utterances.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_a_model_tells_becomes_columns(corpus: Any, tmp_path: Path) -> None:
    summary = evaluate(Knowing(corpus), corpus.manifest, tmp_path / "out", EvaluationOptions(["si_sdr"]))
    assert summary["metrics"]["encoding_rate_nats_per_frame"]["mean"] == pytest.approx(12)
    assert summary["metrics"]["rate_nats_per_dimension"]["n"] == 5
    rows = rows_of(tmp_path / "out")
    for place, row in enumerate(rows):
        assert float(row["encoding_rate_nats_per_frame"]) == 10 + place
        # Hypotheses are in reverse order: the first source's is the second, whose error is -0.5 dB.
        assert row["assignment"] == "2 1"
        assert float(row["predicted_si_sdr_db_s1"]) == pytest.approx(float(row["si_sdr_db_s1"]) - 0.5, abs=1e-3)
        assert float(row["predicted_si_sdr_db_s2"]) == pytest.approx(float(row["si_sdr_db_s2"]) + 0.5, abs=1e-3)
        assert float(row["predicted_si_sdr_db"]) == pytest.approx(float(row["si_sdr_db"]), abs=1e-3)
        assert float(row["predicted_high_db_s1"]) - float(row["predicted_low_db_s1"]) == pytest.approx(2.2)
    assert "rate_nats_per_dimension_s1" not in rows[0] and "predicted_low_db" not in rows[0]
    evaluation = load_evaluation(tmp_path / "out")
    assert not {name for name in evaluation.properties() if "predicted" in name or "rate_nats" in name}


def test_calibration_is_in_the_summary(corpus: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    separate = Knowing(corpus, silent_on="mix2")
    summary = evaluate(separate, corpus.manifest, out, EvaluationOptions(["si_sdr"], calibration=True))
    found = json.loads((out / "summary.json").read_text())["calibration"]
    assert found == summary["calibration"]
    assert found["n_without_prediction"] == 2 and found["sources"]["n"] == 8 and found["mixtures"]["n"] == 4
    rows = [row for row in rows_of(out) if row["id"] != "mix2"]
    names = ("predicted_si_sdr_db", "si_sdr_db")
    predicted, measured = (np.array([float(row[f"{name}_s{j}"]) for row in rows for j in (1, 2)]) for name in names)
    sources = found["sources"]
    assert sources["model"]["spearman"] == pytest.approx(stats.spearmanr(predicted, measured).statistic)
    assert sources["model"]["rmse_db"] == pytest.approx(0.5, abs=1e-3)
    # Of an error of +0.5 dB, the lower end is 0.3 dB too high; of -0.5 dB the true value is inside.
    assert sources["interval"] == {"coverage": 0.5, "mean_width_db": pytest.approx(2.2)}
    assert found["mixtures"]["model"]["rmse_db"] == pytest.approx(0, abs=1e-3)
    curves = sources["risk_coverage"]
    assert curves["percent"][-1] == 100 and curves["best_possible_db"][0] == pytest.approx(measured.max())
    assert curves["model_db"][-1] == pytest.approx(measured.mean())
    printed = "\n".join(evaluation_lines(summary))
    assert "rank correlation" in printed and "2 sources" in printed


def test_each_manifest_is_calibrated_by_itself(make_corpus: Any, tmp_path: Path) -> None:
    corpora = [make_corpus(tmp_path / f"c{i}", seed=i, prefix=f"p{i}_") for i in range(2)]
    separators = [Knowing(corpus) for corpus in corpora]
    merged = {name: place for place, corpus in enumerate(corpora) for name in corpus.sources}
    order = iter(merged.values())
    manifests = [corpus.manifest for corpus in corpora]
    options = EvaluationOptions(["si_sdr"], calibration=True)
    summary = evaluate(lambda x, rate: separators[next(order)](x, rate), manifests, tmp_path / "out", options)
    parts = summary["calibration"]["by_manifest"]
    assert [part["manifest"] for part in parts] == [str(path) for path in manifests]
    assert [part["sources"]["n"] for part in parts] == [10, 10] and summary["calibration"]["sources"]["n"] == 20


def test_calibration_needs_predictions_and_si_sdr(corpus: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sepkit calibrate"):
        evaluate(corpus.separator(), corpus.manifest, tmp_path / "a", EvaluationOptions(["si_sdr"], calibration=True))
    with pytest.raises(UserError, match=r"add si_sdr"):
        evaluate(corpus.separator(), corpus.manifest, tmp_path / "b", EvaluationOptions(["stoi"], calibration=True))
    complaint(lambda: calibration.summarize_calibration([]), r"sepkit calibrate")
