"""The benchmark's suites at tiny sizes: both sides are checked against each other, and the page shows the results."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tools.bench import __main__ as bench
from tools.bench import accelerator, assignment, measure, metrics, separate, shipped, table, train

CONV_TASNET = {"n_filters": 16, "bn_chan": 8, "hid_chan": 16, "skip_chan": 8, "n_blocks": 2, "n_repeats": 1}
DPRNN = {"n_filters": 8, "bn_chan": 8, "hid_size": 8, "n_repeats": 1, "chunk_size": 20}
SEPFORMER = {"channels": 16, "layers": 1, "feed_forward": 16, "repeats": 1, "chunk": 20}
TINY = train.Sizes(2, 800, 0.0, 1, tiny=True)


class InThisProcess(measure.Contestant):
    """Stands in for `Contestant` where its processes would only cost time."""

    def __init__(self, maker: str, *arguments: Any, threads: int = 1) -> None:
        self.call = measure.bound(maker, *arguments)()

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, function: Any, *arguments: Any) -> Any:
        measure._STATE.update(function=self.call, after_torch=0.0)
        return function(*arguments)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    for package in ("asteroid", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'sepkit[peers]'")
    monkeypatch.delenv("SEPKIT_DATA", raising=False)
    monkeypatch.setattr(measure, "Contestant", InThisProcess)
    monkeypatch.setattr(assignment, "NUM_SAMPLES", 2000)
    monkeypatch.setattr(assignment, "LEAST_TURNS", 1)
    for suite in (separate, shipped, train, assignment):
        monkeypatch.setattr(suite, "available_processes", lambda: 1)
        monkeypatch.setattr(suite, "apart", lambda function, *arguments: function(*arguments), raising=False)


def check(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        low, high = row["ratio"]["range"]
        assert 0 < low <= row["ratio"]["median"] <= high and row["turns"] >= 1, row
        assert np.isfinite(row["difference"]) and row["unit"] and row["peer"] and row["threads"] == 1
        assert table.difference_of(row) in table._cells(row)["difference"]


def test_separate() -> None:
    pytest.importorskip("speechbrain", reason="speechbrain is missing: pip install 'sepkit[peers]'")
    rows = [
        separate.Row("Conv-TasNet", 0.5, 1, sizes=CONV_TASNET, turns=2),
        separate.Row("DPRNN", 0.5, 1, sizes=DPRNN, turns=2),
        separate.Row("Conv-TasNet", 1.5, 0, "chunked", CONV_TASNET, turns=1),
        separate.Row("SepFormer", 0.5, 1, sizes=SEPFORMER, turns=1),
    ]
    found = separate.run(None, rows)["rows"]
    check(found)
    assert [row["what"] for row in found] == [row.what for row in rows]
    assert found[0]["difference"] < separate.TOLERANCE and found[2]["difference"] > 20


def test_a_precision_that_is_refused_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    row = separate.Row("Conv-TasNet", 0.5, 1, "bfloat16", CONV_TASNET, turns=1)
    if torch.cpu._is_avx512_bf16_supported():
        check(separate.run(None, [row])["rows"])
    for ability in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, ability, lambda: False)
    (record,) = separate.run(None, [row])["rows"]
    assert "precision" in record["left_out"] and "ratio" not in record


def test_shipped() -> None:
    check(shipped.run(None, [shipped.Row("graph", "ONNX Runtime", 0.5, 1, turns=1)])["rows"])


def test_train() -> None:
    check(train.run(None, ("Conv-TasNet", "DPRNN"), TINY)["rows"])


def test_assignment() -> None:
    pytest.importorskip("torchmetrics")
    found = assignment.run(None, (2,), seconds=0.0)["rows"]
    check(found)
    assert len(found) == 2 * len(assignment.PEERS)


def test_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("mir_eval", "pb_bss_eval"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'sepkit[peers,dev]'")
    monkeypatch.setattr(metrics, "LEAST_TURNS", 1)
    found = metrics.run(None, 0.01, mixture_seconds=1.0)["rows"]
    check(found)
    assert all(row["difference"] < 1e-6 for row in found)


@pytest.mark.parametrize(
    ("suite", "limit", "run"),
    [
        (separate, 0.0, lambda: separate.run(None, [separate.Row("Conv-TasNet", 0.5, 1, sizes=CONV_TASNET, turns=1)])),
        (shipped, 5e-4, lambda: shipped.run(None, [shipped.Row("graph", "ONNX Runtime", 0.5, 1, turns=1)])),
        (train, -1.0, lambda: train.run(None, ("Conv-TasNet",), TINY)),
        (assignment, 0.0, lambda: assignment.run(None, (2,), 0.0)),
        (metrics, -1.0, lambda: metrics.run(None, 0.01, 1.0)),
    ],
    ids=["separate", "shipped", "train", "assignment", "metrics"],
)
def test_outputs_that_differ_are_an_error(suite: Any, limit: float, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "TOLERANCE" if hasattr(suite, "TOLERANCE") else "TOLERANCE_DB", limit)
    if suite is shipped:
        # Graphs are exported for seconds, which test_shipped spends.
        found = {"ours": np.ones(2), "theirs": np.array([1.0, 0.999])}
        monkeypatch.setattr(shipped, "compare_apart", lambda *_: ({"seconds": {}}, found))
    with pytest.raises(RuntimeError, match="differ"):
        run()


def test_memory_is_that_of_the_process_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (tmp_path / "filler.py").write_text("def make(mb):\n    return lambda: len(bytearray(mb * 2**20))\n")
    monkeypatch.syspath_prepend(tmp_path)
    # What the process that starts it has had does not count.
    bytearray(400 * 2**20)
    with measure.Contestant("filler:make", 100) as contestant:
        assert contestant.ask(measure.memory_mb) < 60
        assert contestant.ask(measure.call_seconds) > 0
        assert 90 < contestant.ask(measure.memory_mb) < 160
    forking = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forking)
    with pytest.raises(ZeroDivisionError), measure.Contestant("operator:truediv", 1, 0):
        pass


def test_an_interrupted_suite_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measured(row: int) -> dict[str, Any]:
        calls.append(row)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {"what": str(row), "threads": 1, "left_out": "so"}

    with pytest.raises(KeyboardInterrupt):
        measure.measure_each("suite", [1, 2, 3], measured, tmp_path)
    assert [row["what"] for row in measure.measure_each("suite", [1, 2, 3], measured, tmp_path)] == ["1", "2", "3"]
    assert calls == [1, 2, 2, 3] and not list(tmp_path.iterdir())
    # Another commit is another measurement.
    calls[:] = [0, 0]
    (tmp_path / "suite.json").write_text(json.dumps({"of": {"commit": "x"}, "records": {"1": {}}}))
    measure.measure_each("suite", [1], measured, tmp_path)
    assert calls[2:] == [1]


def test_a_suite_that_fails_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(unfinished: Path) -> None:
        raise FileNotFoundError("no recordings")

    row = json.loads((table.FOLDER / "results" / "metrics.json").read_text())
    monkeypatch.setattr(separate, "run", fail)
    monkeypatch.setattr(metrics, "run", lambda unfinished: row)
    assert bench.main(["separate", "metrics"], tmp_path) == 1
    assert [path.stem for path in (tmp_path / "results").glob("*.json")] == ["metrics"]
    assert "| SDR | mir_eval | 1 |" in (tmp_path / "README.md").read_text() and (tmp_path / table.CHART).is_file()
    assert bench.main(["nonsense"], tmp_path) == 2


def test_the_page_in_the_repository_is_that_of_the_results_beside_it(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(table.FOLDER / "results")
    written = table.write_page(tmp_path).read_text()
    assert (table.FOLDER / "README.md").read_text() == written
    front = written.partition("<details>")[0]
    assert len([line for line in front.splitlines() if line.startswith("| ")]) == 2 + len(table.HEADLINES)


def test_accelerator() -> None:
    pytest.importorskip("asteroid")
    check([accelerator._measured("Conv-TasNet", precision, False, TINY) for precision in accelerator.TOLERANCE_DB])


@pytest.mark.slow
def test_learning(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.bench import learning

    monkeypatch.setenv("SEPKIT_DATA", str(data_folder))
    monkeypatch.setattr(learning, "apart", lambda function, *arguments: function(*arguments))
    race = learning.Race((0.05, 0.4), mixtures=4, epoch=4, tiny=True, shared=["--model.masker.num_layers", "1"])
    names = [name for name in learning.SYSTEMS if name != "sepkit Conv-TasNet"]
    rows = learning.run(tmp_path, race, names)["rows"]
    assert [row["what"] for row in rows] == names
    for row in rows:
        first, second = row["scores"]
        assert 0 < first["spent_minutes"] < second["spent_minutes"] and first["mixtures"] < second["mixtures"]
        assert first["parameters"] == second["parameters"] > 1e5 and first["n"] == 4
        assert first["mean"] != second["mean"], "the second score is of a model that was trained on"
    for path in (tmp_path / "learning" / "scores").iterdir():
        path.write_text(path.read_text().replace('"n": 4', '"n": 5'))
    again = learning.run(tmp_path, race, names)["rows"]
    assert {score["n"] for row in again for score in row["scores"]} == {5}, "scores that are there are kept"
    of = tmp_path / "learning" / "of.json"
    of.write_text(of.read_text().replace('"commit"', '"committed"'))
    again = learning.run(tmp_path, race, names[:1])["rows"]
    assert {score["n"] for row in again for score in row["scores"]} == {4}, "those of another commit are not"


def test_scores_of_learning_are_columns_of_minutes() -> None:
    score = {"core_minutes": 5, "spent_minutes": 5.04, "parameters": 5_040_000, "mean": 2.346, "ci95": [2.0, 3.04]}
    cells = table._cells({"what": "a", "scores": [score, score | {"core_minutes": 15.0, "mean": -1}]})
    assert cells["system"] == "a" and cells["parameters"] == "5.0 M"
    assert cells["CPU minutes used"] == "5.0, 5.0"
    assert (cells["5 minutes"], cells["15 minutes"]) == ("2.35 (2.00 to 3.04)", "-1.00 (2.00 to 3.04)")
