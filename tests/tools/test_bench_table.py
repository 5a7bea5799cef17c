"""The page that the benchmark writes, from fixed results; and that one line's failure leaves the others alone."""

from __future__ import annotations

import json
import sys
import types

import pytest

from tools.bench import __main__ as bench
from tools.bench import table

ENVIRONMENT = {
    "machine": "a machine",
    "processors": 2,
    "versions": {"torch": "2.0", "asteroid": "0.7"},
    "python": "3.11",
}
PAIR = {
    "what": "Conv-TasNet, 4 s, whole file",
    "peer": "asteroid",
    "threads": 1,
    "least_ratio": 1.7,
    "ratio": {"median": 1.856, "range": [1.7, 2.0]},
    "real_time_factor": {"ours": 0.1, "theirs": 0.2},
    "peak_memory_mb": {"ours": 120.4, "theirs": 431.0},
    "most_peak_memory_mb": None,
    "difference": {"ours": 3e-6, "theirs": 1e-6},
    "share_of_peak": {"ours": 0.5, "theirs": 0.25},
    "input": "noise",
}


def page(tmp_path, **results):
    (tmp_path / "results").mkdir(exist_ok=True)
    for line, result in results.items():
        (tmp_path / "results" / f"{line}.json").write_text(json.dumps(result))
    return table.write_table(list(results) or ["separate"], tmp_path / "results", tmp_path / "README.md").read_text()


def cells(text, start):
    """The cells, by column, of the row that starts so."""
    lines = text.split("\n")
    number = next(k for k, line in enumerate(lines) if line.startswith(f"| {start}"))
    head = max(k for k in range(number) if lines[k].startswith("| what"))
    names, values = ([cell.strip() for cell in lines[k].strip("|").split("|")] for k in (head, number))
    return dict(zip(names, values, strict=True))


def separate(*rows, **more):
    return {"rows": list(rows), "environment": ENVIRONMENT, **more}


def test_a_pair(tmp_path):
    text = page(tmp_path, separate=separate(PAIR, peaks={"1": {"gflops": 150.0, "gigabytes_per_second": 15.0}}))
    assert cells(text, "Conv-TasNet") == {
        "what": "Conv-TasNet, 4 s, whole file",
        "against": "asteroid",
        "threads": "1",
        "times faster": "1.86 [1.70, 2.00]",
        "asked": "1.7 x",
        "met": "yes",
        "real-time factor": "0.100 / 0.200",
        "difference": "3e-06 / 1e-06",
        "peak memory, MB": "120 / 431",
        "share of sgemm peak": "0.50 / 0.25",
    }
    assert "Measured peaks: 150 GFLOP/s and 15.0 GB/s on 1 thread(s)." in text
    assert "a machine; 2 processors; torch 2.0, asteroid 0.7; Python 3.11." in text


@pytest.mark.parametrize(
    "change",
    [
        {"ratio": {"median": 1.69, "range": [1.6, 1.8]}},
        {"most_peak_memory_mb": 120},
        {"most_memory_ratio": 0.25},
        {"snr_db": 49.9, "least_snr_db": 50.0},
    ],
    ids=lambda change: "-".join(change),
)
def test_what_is_missed_says_so(tmp_path, change):
    assert cells(page(tmp_path, separate=separate(PAIR | change)), "Conv-TasNet")["met"] == "**no**"


def test_what_was_not_run_says_so(tmp_path):
    left_out = {"what": "DPRNN", "peer": "asteroid", "threads": 1, "least_ratio": 1.8, "left_out": "there is none"}
    text = page(tmp_path, separate=separate(PAIR, left_out))
    assert cells(text, "DPRNN")["times faster"] == "left out: there is none"
    text = page(tmp_path, metrics={"failed": "RuntimeError: too bad"}, train={"left_out": "no time"})
    assert "It failed: RuntimeError: too bad" in text and "It was left out: no time" in text
    assert table.NOT_RUN in table.write_table(["data"], tmp_path / "none", tmp_path / "README.md").read_text()
    assert table.OTHER_VERSION in page(tmp_path, separate={"rows": [{"speakers": 2}], "environment": ENVIRONMENT})


def test_every_line_of_the_tool_has_a_note():
    assert set(bench.LINES) <= set(table.NOTES)


def test_quality_by_chunks(tmp_path):
    quality = {"what": "loss by chunks", "most_loss_db": 0.1, "model": "boxed", "input": "speech"}
    measured = quality | {
        "whole_si_sdri_db": {"one_order": 9.0, "any_order": 9.0},
        "chunked_si_sdri_db": {"one_order": 8.95, "any_order": 9.01},
        "loss_db": 0.05,
    }
    assert cells(page(tmp_path, separate=separate(PAIR, quality=measured)), "loss")["met"] == "yes"
    worse = measured | {"loss_db": 0.11}
    assert cells(page(tmp_path, separate=separate(PAIR, quality=worse)), "loss")["met"] == "**no**"
    none = quality | {"left_out": "no trained model"}
    assert "no trained model" in cells(page(tmp_path, separate=separate(PAIR, quality=none)), "loss")["times faster"]


def test_a_training_step(tmp_path):
    row = {
        "model": "Conv-TasNet",
        "peer": "asteroid",
        "threads": 2,
        "least_ratio": 1.1,
        "ratio": {"median": 1.2, "range": [1.1, 1.3]},
        "losses_db": {"ours": [20.0, 19.0], "theirs": [20.0, 19.00002]},
        "peak_memory_mb": {"ours": 4000.0, "theirs": 9000.0},
    }
    found = cells(page(tmp_path, train=separate(row)), "Conv-TasNet")
    assert (found["difference"], found["peak memory, MB"], found["met"]) == ("2e-05 dB", "4000 / 9000", "yes")


def test_lines_of_other_forms(tmp_path):
    assignment = {
        "version": table.VERSIONS["assignment"],
        "rows": [
            {
                "speakers": 2,
                "peer": "asteroid",
                "level_db": level,
                "threads": 1,
                "measured": "loss",
                "ratios": {"pit": {"asteroid": {"median": 9.0, "range": [8.0, 10.0]}}},
                "differences": {"pit": {"loss_db": 1e-6}, "asteroid": {"loss_db": 1e-5}},
                "left_out": {},
                "least_ratios": {"asteroid": 8.0},
            }
            for level in (6.0, 40.0)
        ],
        "missed_targets": ["mcl, n = 8: too slow"],
    }
    data = {"reached": {"seek_over_whole_file": 1.9}, "targets": {"seek_over_whole_file": 2.0}}
    evaluate = {
        "num_mixtures": 200,
        "seconds_each": 4,
        "processes": 2,
        "seconds": {"sepkit": 9.0, "asteroid": 71.0},
        "ratios": {"asteroid": 7.8},
        "largest_differences": {"sdr": 5e-8},
    }
    scaling = {
        "rows": [
            {
                "what": "time",
                "by": "duration in seconds",
                "values": [60.0, 3600.0],
                "seconds": [1.0, 60.0],
                "exponent": 1.0,
                "most_exponent": 1.1,
                "met": True,
            }
        ]
    }
    text = page(tmp_path, assignment=assignment, data=data, evaluate=evaluate, scaling=scaling)
    assert text.count("PIT, 2 speakers, loss") == 1 and "Missed: mcl, n = 8: too slow." in text
    assert cells(text, "PIT")["times faster"] == "9.00 [8.00, 10.00]" and cells(text, "PIT")["met"] == "yes"
    assert "Not yet run" not in text
    assert "Not yet run: 3 cases;" in page(tmp_path, assignment=assignment | {"cases_left": 3})
    grown = {**assignment, "rows": [row | {"heap": "grown"} for row in assignment["rows"]]}
    assert "| PIT, 2 speakers, loss, in a process whose heap has grown |" in page(tmp_path, assignment=grown)
    assert cells(text, "seek over whole file")["met"] == "**no**"
    assert cells(text, "200 mixtures")["seconds"] == "9.0 / 71.0"
    assert cells(text, "time")["to"] == "3600: 60 s" and cells(text, "time")["asked"] == "at most 1.1"


def test_a_line_that_fails_leaves_the_others_alone(tmp_path, monkeypatch, capsys):
    def fail():
        raise FileNotFoundError("/some/folder/of/mine: no recordings")

    monkeypatch.setenv("SEPKIT_DATA", "/some/folder/of/mine")
    lines = {
        "data": types.SimpleNamespace(run=fail),
        "metrics": types.SimpleNamespace(run=lambda: separate(PAIR)),
        "train": types.SimpleNamespace(run=fail, missing=lambda: "there is no machine for it"),
    }
    for name, module in lines.items():
        monkeypatch.setitem(sys.modules, f"tools.bench.{name}", module)
    assert bench.main(["data", "metrics", "train"], tmp_path) == 1
    text = (tmp_path / "README.md").read_text()
    assert "It failed: FileNotFoundError: $SEPKIT_DATA: no recordings" in text
    assert cells(text, "Conv-TasNet")["met"] == "yes" and "It was left out: there is no machine for it" in text
    assert text.count(table.NOT_RUN) == len(bench.LINES) - 3
    # What another machine found stays, where this one cannot run the line.
    (tmp_path / "results" / "train.json").write_text(json.dumps(separate(PAIR | {"what": "of a GPU"})))
    assert bench.main(["train"], tmp_path) == 0
    assert "of a GPU" in (tmp_path / "README.md").read_text()
    assert bench.main(["--table"], tmp_path) == 0
    assert bench.main(["nonsense"], tmp_path) == 2 and "nonsense: unknown, expected" in capsys.readouterr().err


def test_the_page_in_the_repository_is_that_of_the_results_beside_it(tmp_path):
    written = table.write_table(bench.LINES, table.FOLDER / "results", tmp_path / "README.md").read_text()
    assert (table.FOLDER / "README.md").read_text() == written


# ------------------------------------------------------------------------------------------------- versions, machines


def at(commit, median, low, high, **here):
    """Results of a pair at a commit."""
    ratio = {"median": median, "range": [low, high]}
    return separate(PAIR | {"ratio": ratio}) | {
        "environment": ENVIRONMENT | {"commit": commit, "measured_on": "2026-01-02"} | here
    }


def test_the_page_shows_what_a_line_was_at_the_commit_before(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    for result in (at("aaa", 1.9, 1.7, 2.0), at("bbb", 1.5, 1.4, 1.6, machine="another")):
        table.keep_history("separate", result, results)
    for found, words in ((at("ccc", 1.8, 1.6, 1.9), ""), (at("ccc", 1.5, 1.4, 1.6), ", **slower now**")):
        table.keep_history("separate", found, results)
        assert cells(page(tmp_path, separate=found), "Conv-TasNet")["before"] == f"1.90 [1.70, 2.00]{words}"
    assert len((results / table.HISTORY).read_text().splitlines()) == 3


def test_other_machines_and_versions_are_marked(tmp_path):
    metrics = at("aaa", 2, 1, 3, machine="old", measured_on="2025-01-01")
    text = page(tmp_path, separate=at("aaa", 2, 1, 3), metrics=metrics, steps={"version": 0, "rows": {}})
    of_metrics, of_separate, of_steps = text.split("## ")[1:]
    assert table.OTHER_MACHINE.format("a machine") in of_metrics
    assert "another machine" not in of_separate
    assert table.OTHER_VERSION in of_steps
