"""Runs side by side: which one is better, and what no method among them has."""

from pathlib import Path

import numpy as np
import pytest

from sepkit.evaluation.run_folder import EvaluationFolder, Run, TrainingLog
from sepkit.reporting.compared_runs import ComparedRuns, drop_missing_metrics
from sepkit.reporting.figures import SPLIT_COLORS, training_curves


def evaluation(scores: np.ndarray, metric: str = "si_sdr_db") -> EvaluationFolder:
    rows = [{"id": str(i), metric: str(score)} for i, score in enumerate(scores)]
    return EvaluationFolder(Path("x"), "test", {"metrics": {metric: {"mean": float(scores.mean()), "n": 50}}}, rows)


@pytest.mark.parametrize(("gain", "deviation", "best"), [(0.2, 0.1, "b"), (0.2, 3.0, None), (-0.2, 0.1, "a")])
def test_best_is_only_who_is_better_beyond_the_paired_interval(gain: float, deviation: float, best: str | None) -> None:
    generator = np.random.default_rng(0)
    first = generator.normal(5, 4, 50)
    noise = generator.normal(0, deviation, 50)
    second = first + gain + noise - noise.mean()
    assert ComparedRuns("test", {"a": evaluation(first), "b": evaluation(second)}).best("si_sdr_db") == best
    assert ComparedRuns("test", {"a": evaluation(first)}).best("si_sdr_db") is None


def test_of_an_error_the_smaller_is_better() -> None:
    values = np.random.default_rng(0).uniform(1, 2, 50)
    runs = {"a": evaluation(values, "rmse"), "b": evaluation(values - 0.5, "rmse")}
    assert ComparedRuns("test", runs).best("rmse") == "b"


def run(assignment: str | None) -> Run:
    rows = [{"id": "1", "si_sdr_db": "1", "mcl_si_sdr_db": "2", "mcl_si_sdr_db_s1": "2"}]
    metrics = {name: {"mean": 1.0, "n": 1} for name in ("si_sdr_db", "mcl_si_sdr_db")}
    matching = {"hypothesis_usage": [0.5, 0.5], "collapse_rate": 0.0}
    folder = EvaluationFolder(Path("x"), "test", {"metrics": metrics, "matching": matching}, rows)
    log = TrainingLog([{"kind": "epoch", "epoch": 0, "step": 1, "train_loss": 1, "train_usage_1": 0.5, "hard_cost": 2}])
    return Run(Path("x"), "run", [folder], log, {"objective": {"assignment": {"name": assignment}}})


@pytest.mark.parametrize(("assignments", "matching"), [(["pit"], False), (["pit", "amcl"], True), ([None], True)])
def test_what_no_method_of_a_report_has_is_left_out(assignments: list[str | None], matching: bool) -> None:
    runs = [run(assignment) for assignment in assignments]
    for shown in drop_missing_metrics(runs):
        (folder,) = shown.evaluations
        assert folder.metrics[0] == "si_sdr_db" and shown.log is not None
        assert ("mcl_si_sdr_db" in folder.metrics) == ("mcl_si_sdr_db_s1" in folder.columns) == matching
        assert bool(folder.summary["matching"]) == matching
        assert ("train_usage_1" in shown.log.names()) == ("hard_cost" in shown.log.names()) == matching
    assert "mcl_si_sdr_db" in runs[0].evaluations[0].metrics  # what was given is as it was


def test_a_split_has_one_color_in_every_panel() -> None:
    names = ["train_loss", "dev_loss", "dev_si_sdr_db", "train_si_sdr_db", "learning_rate"]
    records = [{"kind": "epoch", "epoch": e, "step": e, **dict.fromkeys(names, float(e))} for e in (1, 2)]
    panels = {"loss": names[:2], "SI-SDR [dB]": names[2:4], "learning rate": names[4:]}
    figures = [training_curves({"run": TrainingLog(records)}, label, drawn) for label, drawn in panels.items()]
    loss, sdr, rate = (figure.axes[0] for figure in figures)
    for axes in (loss, sdr):
        assert {line.get_label(): line.get_color() for line in axes.lines if line.get_marker() == "o"} == SPLIT_COLORS
    assert not {line.get_color() for line in rate.lines} & set(SPLIT_COLORS.values())
