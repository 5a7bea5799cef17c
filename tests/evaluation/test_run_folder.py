"""Reading what training and evaluation wrote."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sepkit.evaluation.labels import PROPERTIES
from sepkit.evaluation.run_folder import EvaluationFolder, _separated, check_summary, find, load_evaluation, load_run
from tests.complaint import complaint


def test_an_experiment_is_found_from_itself_and_from_its_evaluation(experiments: list[Path]) -> None:
    for folder in (experiments[0], experiments[0] / "evaluation" / "noise"):
        run = load_run(folder)
        assert [evaluation.name for evaluation in run.evaluations] == ["noise"]
        assert run.config == {"model": {"hypotheses": 3, "noise": 0.2}}
        assert run.log is not None
        steps, values = run.log.series("dev_si_sdr_db")
        assert steps.tolist() == [100, 200, 300] and values.tolist() == [1, 2, 3]
        assert np.isnan(run.log.series("gradient_norm", "step")[1]).all()
    assert load_run(experiments[0]).curves["noise"].panels["blr_nll_nats_per_sample"][""][0].tolist() == [1.25, 0.5]


def test_scores_and_summary_agree(experiments: list[Path]) -> None:
    evaluation = load_evaluation(experiments[0] / "evaluation" / "noise")
    for metric in evaluation.metrics:
        assert np.nanmean(evaluation.scores(metric)) == pytest.approx(evaluation.summary["metrics"][metric]["mean"])
    assert len(evaluation.keys()) == len(set(evaluation.keys())) == 30
    assert set(evaluation.entries) == set(evaluation.keys())
    assert evaluation.properties()["sex_pair"].count("F-F") == 15


def test_parts_are_the_manifests() -> None:
    rows = [{"manifest": f"d/{name}.jsonl", "id": str(i), "si_sdr_db": str(i)} for i, name in enumerate("aab")]
    summary = {"manifest": ["d/a.jsonl", "d/b.jsonl"], "metrics": {"si_sdr_db": {"n": 3, "mean": 1}}}
    parts = EvaluationFolder(Path("x"), "x", summary, rows).parts()
    assert [(part.name, part.summary["metrics"]["si_sdr_db"]["mean"]) for part in parts] == [("a", 0.5), ("b", 2.0)]


def test_properties_are_words_or_numbers() -> None:
    rows = [{"sources": "2", "sex_pair": "F-F", "overlap_ratio": "0.1"}, {"sources": "3", "sex_pair": ""}]
    found = EvaluationFolder(Path("x"), "x", {}, rows).properties()
    assert list(found) == ["sources", *PROPERTIES] and found["duration_seconds"] == [None, None]
    assert [found[name] for name in ("sources", *PROPERTIES[:2])] == [["2", "3"], ["F-F", None], [0.1, None]]


def test_a_log_cut_short_by_a_kill_is_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "epoch", "step": 1, "loss": 2}\n{"kind": "ep')
    log = load_run(tmp_path).log
    assert log is not None and len(log.records) == 1
    (tmp_path / "metrics.jsonl").write_text('{"kind\n{"kind": "epoch", "step": 1, "loss": 2}\n')
    complaint(lambda: load_run(tmp_path), r"metrics.jsonl:1: not JSON")


def test_files_are_found_from_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.jsonl").touch()
    near = tmp_path / "exp" / "evaluation"
    near.mkdir(parents=True)
    monkeypatch.chdir("/")
    assert find("data/test.jsonl", near) == tmp_path / "data" / "test.jsonl"
    complaint(lambda: find("data/absent.jsonl", near), r"data/absent.jsonl: no such file")


def test_mistakes_are_said(tmp_path: Path, experiments: list[Path]) -> None:
    complaint(lambda: load_run(tmp_path / "absent"), "no such folder")
    complaint(lambda: load_run(tmp_path), r"neither metrics.jsonl nor summary.json")
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": {}}))
    complaint(lambda: load_run(tmp_path), "utterances.csv: no such file")
    mistakes = [({"mean": None}, "mean is null for 2 utterances"), ({"ci95": [0.0]}, r"\[0.0\], expected two")]
    for change, line in mistakes:
        summary = json.loads((experiments[0] / "evaluation/noise/summary.json").read_text())
        summary["metrics"]["si_sdr_db"] |= {"n": 2} | change
        complaint(partial(check_summary, summary, "s.json"), line)


def test_a_run_has_the_name_of_its_folder(experiments: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(experiments[0])
    assert [load_run(Path()).name, load_run(experiments[0]).name, load_run(Path(), "a").name] == ["first", "first", "a"]


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
    assert _separated(tmp_path) == {Path("/in/a.wav"): tracks, Path("/in/f.wav"): tracks}
