"""Reading what training and evaluation wrote."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sepkit.evaluation import run_folder
from sepkit.evaluation.labels import PROPERTIES
from tests.complaint import complaint


def test_an_experiment_is_found_from_itself_and_from_its_evaluation(experiments: list[Path]) -> None:
    for folder in (experiments[0], experiments[0] / "evaluation" / "noise"):
        run = run_folder.load_run(folder)
        assert [evaluation.name for evaluation in run.evaluations] == ["noise"]
        assert run.config == {"model": {"hypotheses": 3, "noise": 0.2}}
        assert run.log is not None
        steps, values = run.log.series("dev_si_sdr_db")
        assert steps.tolist() == [100, 200, 300] and values.tolist() == [1, 2, 3]
        assert np.isnan(run.log.series("gradient_norm", "step")[1]).all()
    panels = run_folder.load_run(experiments[0]).curves["noise"].panels
    assert panels["blr_nll_nats_per_sample"][""][0].tolist() == [1.25, 0.5]


def test_scores_and_summary_agree(experiments: list[Path]) -> None:
    evaluation = run_folder.load_evaluation(experiments[0] / "evaluation" / "noise")
    for metric in evaluation.metrics:
        assert np.nanmean(evaluation.scores(metric)) == pytest.approx(evaluation.summary["metrics"][metric]["mean"])
    assert len(evaluation.keys()) == len(set(evaluation.keys())) == 30
    assert set(evaluation.entries) == set(evaluation.keys())
    assert evaluation.properties()["sex_pair"].count("F-F") == 15


def test_parts_are_the_manifests() -> None:
    rows = [{"manifest": f"d/{name}.jsonl", "id": str(i), "si_sdr_db": str(i)} for i, name in enumerate("aab")]
    summary = {"manifest": ["d/a.jsonl", "d/b.jsonl"], "metrics": {"si_sdr_db": {"n": 3, "mean": 1}}}
    parts = run_folder.EvaluationFolder(Path("x"), "x", summary, rows).parts()
    assert [(part.name, part.summary["metrics"]["si_sdr_db"]["mean"]) for part in parts] == [("a", 0.5), ("b", 2.0)]


def test_properties_are_words_or_numbers() -> None:
    rows = [{"sources": "2", "sex_pair": "F-F", "overlap_ratio": "0.1"}, {"sources": "3", "sex_pair": ""}]
    found = run_folder.EvaluationFolder(Path("x"), "x", {}, rows).properties()
    assert list(found) == ["sources", *PROPERTIES] and found["duration_seconds"] == [None, None]
    assert [found[name] for name in ("sources", *PROPERTIES[:2])] == [["2", "3"], ["F-F", None], [0.1, None]]


def test_a_log_cut_short_by_a_kill_is_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "epoch", "step": 1, "loss": 2}\n{"kind": "ep')
    log = run_folder.load_run(tmp_path).log
    assert log is not None and len(log.records) == 1
    (tmp_path / "metrics.jsonl").write_text('{"kind\n{"kind": "epoch", "step": 1, "loss": 2}\n')
    complaint(lambda: run_folder.load_run(tmp_path), r"metrics.jsonl:1: not JSON")


def test_files_are_found_from_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.jsonl").touch()
    near = tmp_path / "exp" / "evaluation"
    near.mkdir(parents=True)
    monkeypatch.chdir("/")
    assert run_folder.find("data/test.jsonl", near) == tmp_path / "data" / "test.jsonl"
    complaint(lambda: run_folder.find("data/absent.jsonl", near), r"data/absent.jsonl: no such file")


def test_mistakes_are_said(tmp_path: Path, experiments: list[Path]) -> None:
    complaint(lambda: run_folder.load_run(tmp_path / "absent"), "no such folder")
    complaint(lambda: run_folder.load_run(tmp_path), r"no metrics.jsonl or summary.json")
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": {}}))
    complaint(lambda: run_folder.load_run(tmp_path), "utterances.csv: no such file")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("", [], "its content is [], expected a mapping"),
        ("n_utterances", None, "n_utterances is missing"),
        ("n_utterances", -1, "n_utterances is -1, expected a whole number of 0 or more"),
        ("n_utterances", 2**63, "n_utterances is 9223372036854775808, expected a whole number of 0 or more"),
        ("n_utterances", 3.0, "n_utterances is 3.0, expected a whole number of 0 or more"),
        ("n_utterances", True, "n_utterances is True, expected a whole number of 0 or more"),
        ("n_skipped", "3", "n_skipped is '3', expected a whole number of 0 or more"),
        ("skipped", {}, "skipped is {}, expected a list"),
        ("skipped", [{"id": "a", "reason": "b"}, {"id": "a"}], "skipped[1].reason is missing"),
        ("skipped", [{"id": "a", "reason": "\0"}], "skipped[0].reason is '\\x00', expected text"),
        ("metrics.x.mean", math.inf, "metrics.x.mean is inf, expected a number or null"),
        ("metrics.x.mean", -(2**63) - 1, "metrics.x.mean is -9223372036854775809, expected a number or null"),
        ("metrics.x.mean", None, "metrics.x.mean is null for 2 utterances"),
        ("metrics.x.ci95", [0.0], "metrics.x.ci95 is [0.0], expected two"),
        ("metrics.x.ci95", 3, "metrics.x.ci95 is 3, expected a list or null"),
        ("metrics.x.ci95", [0, None], "metrics.x.ci95[1] is None, expected a number"),
        ("metrics.x.n", None, "metrics.x.n is None, expected a whole number of 0 or more"),
        ("metrics_left_out", {"pesq": 1}, "metrics_left_out.pesq is 1, expected text"),
        ("manifest", ["a", 3], "manifest[1] is 3, expected text"),
        ("manifest", 3, "manifest is 3, expected text or a list or null"),
    ],
)
def test_a_summary_that_does_not_fit(place: str, value: Any, words: str) -> None:
    summary: dict[str, Any] = {"n_utterances": 2, "metrics": {"x": {"mean": 1, "ci95": [0.5, 1.5], "n": 2}}}
    fits: dict[str, Any] = {"n_skipped": 0, "manifest": None, "metrics_left_out": None, "wall_seconds": -(2**63)}
    run_folder.check_summary(summary | fits, "s.json")
    *above, last = place.split(".")
    part = summary
    for name in above:
        part = part[name]
    part[last] = value
    if words == f"{place} is missing":
        del part[last]
    assert f"s.json: {words}" in complaint(lambda: run_folder.check_summary(summary if place else value, "s.json"))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([1], r"found \[1\], expected a record with its kind"),
        ({"step": 1}, "expected a record with its kind"),
        ({"kind": "epoch"}, "step is missing"),
        ({"kind": "epoch", "step": None}, "step is None, expected a finite number"),
        ({"kind": "epoch", "step": 1, "epoch": None}, "epoch is None, expected a finite number"),
        ({"kind": "epoch", "step": 1, "loss": 1.1e150}, "loss is 1.1e\\+150, expected a finite number"),
        ({"kind": "epoch", "step": 1, "loss": "low"}, "loss is 'low', expected a finite number"),
        ({"kind": "epoch", "step": 1, "loss": None, "other": -1e150}, ""),
    ],
)
def test_a_record_that_does_not_fit(record: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    if words:
        complaint(lambda: run_folder.load_run(tmp_path), rf"metrics.jsonl:1: .*{words}")
        return
    log = run_folder.load_run(tmp_path).log
    assert log is not None and log.names() == ["loss", "other"] and log.names("step") == []


def test_curves_by_name(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("curve,rate,a,b\nx,1,2,\nx,3,4,none\n,5,6,7\n")
    curve = run_folder.read_curve(tmp_path / "c.csv")
    lines = curve.panels.items()
    found = {name: {label: [x.tolist(), y.tolist()] for label, (x, y) in own.items()} for name, own in lines}
    assert curve.x_name == "rate"
    assert found == {"a": {"x": [[1, 3], [2, 4]], "": [[5], [6]]}, "b": {"": [[5], [7]]}}
    (tmp_path / "c.csv").write_text("curve,rate\nx,1\n")
    complaint(lambda: run_folder.read_curve(tmp_path / "c.csv"), "found columns rate, expected two of numbers or more")


def test_a_run_has_the_name_of_its_folder(experiments: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(experiments[0])
    runs = [run_folder.load_run(*words) for words in ([Path()], [experiments[0]], [Path(), "a"])]
    assert [run.name for run in runs] == ["first", "first", "a"]


def test_descriptions_name_files_beside_them_and_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("not JSON")
    (tmp_path / "c.json").write_bytes(b"\xff\xfe")
    (tmp_path / "d.json").write_text('["estimates"]')
    (tmp_path / "e.json").write_text('{"estimates": ["e_s1.wav"]}')
    names = ["a_s2.wav", "a_s1.wav", "gone.wav", "../a_s1.wav", 5]
    for name in ("a", "f"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"estimates": names, "input": f"/in/{name}.wav"}))
    for name in names[:2]:
        (tmp_path / name).touch()
    tracks = [tmp_path / "a_s2.wav", tmp_path / "a_s1.wav"]
    assert run_folder._separated(tmp_path) == {Path("/in/a.wav"): tracks, Path("/in/f.wav"): tracks}
