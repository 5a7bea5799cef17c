"""The line `shipped`: the model in the box against its graph in other runtimes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.bench import shipped
from tools.bench.table import _of_pairs

pytest.importorskip("onnxruntime", reason="onnxruntime is missing: pip install 'sepkit[export]'")


@pytest.fixture
def in_this_process(monkeypatch, contestant_in_this_process):
    monkeypatch.delenv("SEPKIT_DATA", raising=False)
    monkeypatch.setattr(shipped, "Contestant", contestant_in_this_process)
    monkeypatch.setattr(shipped, "RECORDINGS", 3)


def test_pairs_are_timed_and_checked(in_this_process):
    rows = [
        shipped.Row("graph", "ONNX Runtime", 0.5, 1, 1e-3, 10.0, turns=1),
        shipped.Row("predict", "sepkit, without them", 1, 1, 1e-3, turns=1),
        shipped.Row("batches", "sepkit, one by one", 0.5, 1, 1e9, turns=1),
    ]
    result = shipped.run(rows, None)
    for record in result["rows"]:
        assert record["ratio"]["median"] > 0
        assert record["difference"] is None or record["difference"]["ours"] < shipped.TOLERANCE
    cells = _of_pairs(result).rows
    assert [row["met"] for row in cells] == ["yes", "yes", "**no**"]
    assert cells[0]["asked"] == "0.001 x, real-time factor at most 10"


def test_other_estimates_are_no_result(in_this_process, monkeypatch):
    monkeypatch.setattr(shipped, "onnx_runtime", lambda *arguments: shipped.estimates(*arguments[:2]))
    monkeypatch.setattr(shipped.contestants, "largest_difference", lambda expected, found: 1e-3)
    with pytest.raises(RuntimeError, match="the estimates differ from those of ONNX Runtime by"):
        shipped.run([shipped.Row("graph", "ONNX Runtime", 0.5, 1, turns=1)], None)


@pytest.mark.slow
def test_every_row_of_the_line(monkeypatch):
    pytest.importorskip("openvino", reason="openvino is missing: pip install openvino")
    pytest.importorskip("asteroid", reason="asteroid is missing: pip install 'sepkit[peers]'")
    monkeypatch.delenv("SEPKIT_DATA", raising=False)
    rows = [replace(row, seconds=1, threads=1, turns=1) for row in shipped.ROWS]
    assert len(shipped.run(rows, None)["rows"]) == len(shipped.ROWS)
