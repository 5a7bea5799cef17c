"""`sepkit benchmark` on tiny models and corpora: what the table says is what the evaluations say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sepkit.cli.benchmark import _home
from sepkit.cli.main import main
from sepkit.config import STFTFilterbankConfig
from sepkit.models import build_model, save_model
from tests.tiny_models import RECURRENT

# A filterbank of few frames: the operations of recurrent layers are counted frame by frame.
TINY = replace(RECURRENT, filterbank=STFTFilterbankConfig(256, 128))


@pytest.fixture
def line(tmp_path: Path, make_corpus: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two models and one that is not there, and two corpora, the second of which has a mixture without references."""
    corpora = [make_corpus(tmp_path / "near"), make_corpus(tmp_path / "far")]
    corpora[1].entries[0].sources, corpora[1].entries[0].mixture = [], corpora[1].entries[0].sources[0].path
    corpora[1].rewrite()
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        save_model(build_model(TINY), tmp_path / name / "model", {})
    (tmp_path / "first/model/README.md").write_text("---\nlicense: mit\n---\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sepkit.inference.memory.peak_memory_mib", lambda model, seconds: 12.3)
    models, manifests = ["nosuch", "first/model", "second/model"], ["near/test.jsonl", "there=far/test.jsonl"]
    return ["benchmark", "--models", *models, "--corpora", *manifests, "--out", "out", "--device", "cpu"]


def test_the_table_holds_every_model_on_every_corpus_and_what_it_costs(line, tmp_path, monkeypatch, capsys):
    def run() -> dict[str, Any]:
        with pytest.raises(SystemExit) as stop:
            main([*line, "--home", "second/model=there"])
        assert stop.value.code == 1
        printed = capsys.readouterr()
        assert printed.out.splitlines()[-1] == "out/benchmark.md" and "nosuch: no such file or folder" in printed.err
        return json.loads((tmp_path / "out/benchmark.json").read_text())

    found = run()
    absent, *rows = found["models"]
    page = (tmp_path / "out/benchmark.md").read_text()
    assert absent["scores"] == {} and "- `nosuch`: nosuch: no such file" in page and "| `nosuch` | - | - |" in page
    for row, home in zip(rows, ("near", "there"), strict=True):
        name = row["model"]
        summaries = {
            corpus: json.loads((tmp_path / "out" / name.replace("/", "_") / corpus / "summary.json").read_text())
            for corpus in ("near", "there")
        }
        means = {corpus: summary["metrics"]["si_sdri_db"]["mean"] for corpus, summary in summaries.items()}
        away = "there" if home == "near" else "near"
        assert {corpus: score["mean"] for corpus, score in row["scores"].items()} == means
        assert row["scores"][away]["drop_db"] == pytest.approx(means[home] - means[away])
        assert row["scores"][home]["drop_db"] is None and row["home"] == home
        assert (row["scores"]["near"]["n_skipped"], row["scores"]["there"]["n_skipped"]) == (0, 1)
        factors = [summary["real_time_factor"] for summary in summaries.values()]
        assert row["real_time_factor"] == pytest.approx(sum(factors) / 2) and row["memory_mib"] == 12.3
        assert row["parameters"] == sum(weight.numel() for weight in build_model(TINY).parameters())
        assert row["license"] == ("mit" if name.startswith("first") else None)
        (shown,) = [text for text in page.splitlines() if f"| `{name}`" in text]
        mark = f"{means[home]:.2f} \u00b1 "
        assert mark in shown and f"({means[home] - means[away]:.2f} \u00b1 " in shown and ", 1 skipped" in shown

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("separated or measured again")

    monkeypatch.setattr("sepkit.inference.separator.Separator.separate", refuse)
    monkeypatch.setattr("sepkit.inference.memory.peak_memory_mib", refuse)
    (tmp_path / "out/first_model/near/summary.json").unlink()
    assert run() == found


def test_the_home_of_a_public_model_is_what_it_was_trained_on():
    corpora = ["mini", "wsj0-2mix", "Libri2Mix", "wham", "whamr"]
    homes = {
        "sepformer-whamr16k": "whamr",
        "sepformer-wham": "wham",
        "sepformer-wsj02mix": "wsj0-2mix",
        "convtasnet-libri2mix-noisy16k": "Libri2Mix",
        "tf-locoformer-dns": "mini",
        "exp/model": "mini",
    }
    assert {model: _home(model, corpora) for model in homes} == homes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "a/b", "a_b", "--corpora", "near/test.jsonl"], "another is written to out/a_b too"),
        (["--models", "a", "--corpora", "near/test.jsonl", "near=b.jsonl"], "'near', another has that name too"),
        (["--models", "a", "--corpora", "?=b.jsonl"], "its name is '?', expected letters"),
        (["--models", "a", "--corpora", "near/test.jsonl", "--home", "a=far"], "--home a=far: expected MODEL=NAME"),
    ],
)
def test_what_cannot_be_meant(arguments, words, capsys):
    assert main(["benchmark", *arguments, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
