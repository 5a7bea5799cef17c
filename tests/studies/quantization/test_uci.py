"""UCI sets: splits that are refused, selections that do not look at the test part, tables, and resuming."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.cli.main import main
from sepkit.errors import UserError
from sepkit.studies.quantization import uci as study
from sepkit.studies.quantization.config import UCIConfig
from sepkit.studies.quantization.uci_sets import read_table
from tests.complaint import complaint
from tests.small_install import run

TINY = UCIConfig(hypotheses=3, hidden=6, epochs=12, batch_size=16, check_every=3, check_every_mcl=1)
Write = Callable[..., Path]


def test_checks(tmp_path: Path, write_set: Write) -> None:
    """A line for each set, in an install without torch and Matplotlib; and its numbers."""
    write_set(tmp_path, "yacht")
    write_set(tmp_path, "wine-quality-red", rows=30, splits=1)
    done = run(tmp_path, "-m", "sepkit", "prepare", "uci", "--data", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().split("\n") == [
        "wine-quality-red: 30 rows, 2 features, 1 splits of 24 and 6 rows, disjoint and complete",
        "yacht: 40 rows, 2 features, 2 splits of 31 or 32 and 8 or 9 rows, disjoint and complete",
    ]
    assert read_table(tmp_path, "wine").name == "wine-quality-red"


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def _keep_first(path: Path) -> None:
    path.write_text(path.read_text().split()[0])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda d: _append(d / "index_test_1.txt", (d / "index_train_1.txt").read_text().split()[0]),
            "appears 2 times in the split",
        ),
        (lambda d: _keep_first(d / "index_test_0.txt"), "are in neither part"),
        (lambda d: _append(d / "index_test_0.txt", "40\n"), "found 40, expected whole numbers from 0 to 39"),
        (lambda d: _append(d / "data.txt", "1 2\n"), "data.txt:41: found '1 2', expected 3 finite numbers"),
        (lambda d: _append(d / "data.txt", "1 2 nan\n"), "data.txt:41: found '1 2 nan', expected 3 finite numbers"),
        (lambda d: _append(d / "data.txt", "1 2 x\n"), "data.txt:41: could not convert"),
        (lambda d: (d / "index_train_0.txt").unlink(), "no such file"),
        (lambda d: _set_column(d, 2), "the target (column 2) or every feature is constant"),
        (lambda d: (_set_column(d, 0), _set_column(d, 1)), "the target (column 2) or every feature is constant"),
    ],
)
def test_bad_sets(tmp_path: Path, write_set: Write, refused, change, line: str) -> None:
    """One line with the file, exit code 2."""
    change(write_set(tmp_path, "yacht"))
    message = refused(["prepare", "uci", "--data", tmp_path])
    assert line in message and str(tmp_path) in message


def _set_column(data: Path, column: int) -> None:
    values = np.loadtxt(data / "data.txt")
    values[:, column] = 3.0
    np.savetxt(data / "data.txt", values)


def test_other_bad_input(tmp_path: Path, write_set: Write) -> None:
    """Constant features are left out; unknown sets, methods and too few rows are refused."""
    _set_column(write_set(tmp_path, "yacht"), 1)
    assert read_table(tmp_path, "yacht").features.shape == (40, 1)
    complaint(lambda: read_table(tmp_path, "yach"), r"--sets: found 'yach' \(did you mean yacht")
    complaint(lambda: read_table(tmp_path / "yacht", "yacht"), "found no SET/data")
    wrong = (tmp_path, ["yacht"], ["mcll"], ["last"], TINY, tmp_path / "out")
    complaint(lambda: study.uci(*wrong), "--methods: found 'mcll'")
    with pytest.raises(UserError, match="split 0 has 32 training rows, expected 100 or more"):
        study.standardized_splits(read_table(tmp_path, "yacht"), replace(TINY, hypotheses=100), held_out=False)


def test_permuting_test_targets(tmp_path: Path, write_set: Write) -> None:
    """Neither `last` nor `held_out` choose by them, and networks stay the same; `reference` does, being the leak."""
    write_set(tmp_path, "yacht", rows=60)
    table = read_table(tmp_path, "yacht")
    target = table.target.copy()
    test = table.splits[0][1]
    target[test] = target[test][::-1]
    permuted = replace(table, target=target, splits=table.splits[:1])
    table = replace(table, splits=table.splits[:1])
    config = replace(TINY, epochs=30, check_every=1)
    chosen: dict[str, list[list[float]]] = {}
    for data in (table, permuted):
        for held_out in (False, True):
            for name, found in study.train_splits(data, "amcl_linear", config, held_out)["selected"].items():
                chosen.setdefault(name, []).append(found["epoch"])
    assert chosen["last"][0] == chosen["last"][1] and chosen["held_out"][0] == chosen["held_out"][1]
    divided = [study.standardized_splits(data, config, False) for data in (table, permuted)]
    stacks = [study.SplitStack(splits, "mcl", config, 6) for splits in divided]
    for stack in stacks:
        stack.train_epoch(0)
    for one, other in zip(*(stack.networks.parameters() for stack in stacks), strict=True):
        assert torch.equal(one, other)


def test_splits_of_a_stack_do_not_know_one_another(tmp_path: Path, write_set: Write) -> None:
    """Batches, order and initial weights of a split are its own, also where its neighbor has a row more."""
    write_set(tmp_path, "yacht")
    table = read_table(tmp_path, "yacht")
    one = replace(table, splits=table.splits[:1])
    divided = [study.standardized_splits(data, TINY, False) for data in (table, one)]
    together, first = (study.SplitStack(splits, "amcl_linear", TINY, 6) for splits in divided)
    for epoch in range(4):
        together.train_epoch(epoch)
        first.train_epoch(epoch)
    for whole, part in zip(together.networks.parameters(), first.networks.parameters(), strict=True):
        torch.testing.assert_close(whole[:1], part, rtol=1e-4, atol=1e-5)
    both, alone = together.score(together.splits.test), first.score(first.splits.test)
    torch.testing.assert_close(both["distortion"][:1], alone["distortion"], rtol=1e-3, atol=1e-4)


def test_command(tmp_path: Path, write_set: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows for every set, method and selection, a table that names the leak, and trainings that are not repeated."""
    write_set(tmp_path / "sets", "yacht")
    conf, out = tmp_path / "tiny.yaml", tmp_path / "out"
    conf.write_text("uci: {hypotheses: 3, hidden: 6, epochs: 6, batch_size: 64, check_every: 2}\n")
    command = ["quantize", "uci", "--data", str(tmp_path / "sets"), "--config", str(conf), "--out", str(out)]
    assert main([*command, "--methods", "mcl", "relaxed_wta_0.1"]) == 0
    printed = capsys.readouterr().out
    assert "a leak" in printed and printed.strip().split("\n")[-1] == str(out / "table.json")
    assert [path.name for path in (out / "figures").iterdir()] == ["figure_6_yacht.png"]
    rows = json.loads((out / "table.json").read_text())
    expected = [(method, select) for select in study.SELECTIONS for method in ("mcl", "relaxed_wta_0.1")]
    assert sorted((row["method"], row["select"]) for row in rows) == sorted(expected)
    for row in rows:
        assert row["set"] == "yacht" and row["folds"] == 2
        assert row["distortion_mean"] == pytest.approx(np.mean(row["distortions"]))
        assert row["rmse_std"] == pytest.approx(np.std(row["rmses"], ddof=1))
        assert 0 < row["distortion_mean"] <= row["rmse_mean"] ** 2 + row["rmse_std"] ** 2
    cells = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert main([*command, "--methods", "mcl", "--select", "last"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == cells
    assert len(json.loads((out / "table.json").read_text())) == 1


def test_paired_difference() -> None:
    """Student's interval: for differences 1 and 3 it is 2 +- 12.706."""
    mean, half = study.paired_difference([2.0, 4.0], [1.0, 1.0])
    assert (mean, half) == (pytest.approx(2), pytest.approx(12.7062, rel=1e-4))
