"""Bound on the mixture's evidence against distortion, from run folders with invented numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from sepkit.cli.main import main


def make_run(folder: Path, bounds: list[float | None], evidences: list[float | None]) -> str:
    """An experiment measured on one set: mixtures with a bound on their evidence and that of their references."""
    evaluation = folder / "evaluation" / "test"
    evaluation.mkdir(parents=True)
    score = {"mean": 1.0, "n": 1, "ci95": [1.0, 1.0]}
    (evaluation / "summary.json").write_text(json.dumps({"n_utterances": len(bounds), "metrics": {"si_sdr_db": score}}))
    rows = [
        f"test.jsonl,m{i},{'' if b is None else b},{'' if e is None else e}\n"
        for i, (b, e) in enumerate(zip(bounds, evidences, strict=True))
    ]
    header = "manifest,id,mixture_elbo_nats_per_sample,blr_nats_per_sample\n"
    (evaluation / "utterances.csv").write_text(header + "".join(rows))
    return str(folder)


def test_rank_correlation_of_mixtures_that_have_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    bounds = generator.standard_normal(40)
    evidences = bounds + generator.standard_normal(40)
    runs = [
        make_run(tmp_path / "gamma", [*bounds, None, 3.0], [*evidences, 1.0, None]),
        make_run(tmp_path / "plain", [None] * 4, [1.0, 2.0, 3.0, 4.0]),
    ]
    out = tmp_path / "table.md"
    assert main(["summarize", *runs, "--figure", "evidence", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    text = out.read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| test |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    expected = scipy.stats.spearmanr(-bounds, -evidences)[0]
    assert cells[:7] == [
        "test",
        "gamma",
        "40",
        "-",
        f"{-bounds.mean():.3f}",
        f"{-evidences.mean():.3f}",
        f"{expected:.2f}",
    ]
    low, high = (float(word) for word in cells[7].split(" to "))
    assert low < expected < high and "| test | plain |" not in text
    assert (tmp_path / "table_evidence.png").read_bytes().startswith(b"\x89PNG") and "table_evidence.png" in text


def test_models_without_a_bound_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "plain", [None, None, None], [1.0, 2.0, 3.0])
    assert main(["summarize", run, "--figure", "evidence", "--out", str(tmp_path / "t.md")]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "mixture_elbo_nats_per_sample" in error and "plain" in error
