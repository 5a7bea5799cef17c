"""Hours of work, in small: what is counted is there, and another call goes on."""

from __future__ import annotations

import json

import pytest

from tools.bench import __main__ as bench
from tools.bench import soak

SMALL = {"separations": 1, "files": 1, "rows": 1, "seconds": 0.0}


def test_the_line_runs_and_another_call_goes_on(tmp_path, monkeypatch):
    log = tmp_path / "results" / "soak.jsonl"
    monkeypatch.setattr(soak.run, "__defaults__", (*(SMALL[name] for name in SMALL), log))
    monkeypatch.setattr(soak, "PORTIONS", 1)
    monkeypatch.setattr(bench, "write_table", lambda *arguments: tmp_path / "README.md")
    for sitting in (1, 2):
        assert bench.main(["soak"], tmp_path) == 0
        found = json.loads((tmp_path / "results" / "soak.json").read_text())
        assert found["sittings"] == found["rounds"] == sitting
        assert {name: job["items"] for name, job in found["memory"].items()} == dict.fromkeys(
            ("separations", "files", "rows"), sitting
        )
        assert 0 < found["open_files"]["first"] <= found["open_files"]["most"] < 300
        # What a killed call leaves.
        log.write_text(log.read_text() + '{"sizes": {"separations"')


def test_slopes_are_those_of_a_sitting():
    sizes = {"separations": 2000, "files": 1000, "rows": 5000}
    lines = [
        {"sizes": sizes, "sitting": sitting, "round": 1 + k // 10, "job": "files", "open_files": 9, "seconds": 1.0}
        | {"mib": 500.0 * sitting + (k if sitting == 2 else 0)}
        for sitting in (1, 2)
        for k in range(20)
    ]
    found = soak.summarize(lines)
    # A hundred files a portion: 1 MiB a portion is 10 for 1000.
    assert found["memory"]["files"]["mib_for_1000_items"] == [pytest.approx(0, abs=1e-6), pytest.approx(10)]
    assert found["memory"]["files"]["items"] == 4000 and found["rounds"] == 4 and found["seconds"] == 40
