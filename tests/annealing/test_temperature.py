"""Findings about temperatures against closed forms, and the command that makes them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.annealing import temperature
from sepkit.cli._configuration import parse_config
from sepkit.cli.main import main
from sepkit.config import AnnealedMCLConfig, ModelConfig, NegSISDRConfig, TruncatedExponentialConfig
from sepkit.errors import UserError
from sepkit.models import build_model, save_model
from sepkit.registry import build


def test_the_initial_temperature_of_a_known_gap() -> None:
    # Two hypotheses whose costs are `gap` apart: H(1 / (1 + exp(-gap / T))) = 0.95 log 2 at one T, found by a scan.
    gap = 7.0
    columns = torch.tensor([[0.0, gap], [gap, 0.0]])
    shares = 1 / (1 + np.exp(-gap / np.linspace(1, 60, 590001)))
    entropies = -shares * np.log(shares) - (1 - shares) * np.log(1 - shares)
    expected = np.linspace(1, 60, 590001)[np.argmax(entropies >= 0.95 * np.log(2))]
    found = temperature.initial_temperature(columns)
    assert expected <= found <= 1.01 * expected
    with pytest.raises(UserError, match="cost the same"):
        temperature.initial_temperature(torch.ones(3, 10))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_both_conditions_hold_for_the_initial_temperature(scale: float) -> None:
    columns = scale * torch.randn(4, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = temperature.initial_temperature(columns)
    share = [temperature._entropy(columns, t) / math.log(4) for t in (found, found / 2)]
    assert share[0] >= 0.95 > share[1]
    assert temperature._entropy(columns, 0.99 * found) / math.log(4) < 0.95


def test_the_command_measures_the_sources_of_a_manifest(tmp_path: Path, corpus) -> None:
    out = tmp_path / "out"
    assert main(["find-temperature", "--manifest", str(corpus.manifest), "--out", str(out)]) == 0
    found = json.loads((out / "temperature.json").read_text())

    def si_sdr(estimate: np.ndarray, source: np.ndarray) -> float:
        estimate, source = estimate - estimate.mean(), source - source.mean()
        target = estimate @ source / (source @ source) * source
        return 10 * math.log10(target @ target / ((estimate - target) @ (estimate - target)))

    # An oracle of its own for the unit.
    expected = np.mean(
        [[abs(si_sdr(pair.mean(0), source)) for source in pair] for pair in map(np.float64, corpus.sources.values())]
    )
    assert found["spread_db"] == pytest.approx(expected, abs=1e-3)
    assert found["mixtures"] == 5 and found["first_split_db"]["median"] > 0
    assert (out / "temperature.png").read_bytes().startswith(b"\x89PNG")


def test_a_bad_mixture_is_left_out_and_named(tmp_path: Path, corpus, capsys) -> None:
    (corpus.folder / "wav" / "mix1_0.wav").write_bytes(b"no audio")
    out = tmp_path / "out"
    assert main(["find-temperature", "--manifest", str(corpus.manifest), "--out", str(out)]) == 0
    found = json.loads((out / "temperature.json").read_text())
    assert found["mixtures"] == 4 and [one["id"] for one in found["skipped"]] == ["mix1"]
    assert "mix1" in capsys.readouterr().err


@pytest.fixture
def model(tmp_path: Path, tiny_model_config: ModelConfig) -> Path:
    torch.manual_seed(0)
    return save_model(build_model(tiny_model_config), tmp_path / "exp" / "model")


def test_the_command_proposes_a_schedule_that_training_takes(tmp_path: Path, corpus, model: Path, capsys) -> None:
    out = tmp_path / "out"
    line = ["find-temperature", "--manifest", str(corpus.manifest), "--model", str(model), "--epochs", "30"]
    assert main([*line, "--out", str(out)]) == 0
    found = json.loads((out / "temperature.json").read_text())
    assert found["entropy_share"] >= 0.95 > found["entropy_share_at_half"]
    assert np.all(np.diff(found["entropies_nats"]) >= -1e-12)
    printed = capsys.readouterr().out
    assert "heuristic" in printed and "% of log 2" in printed
    options = next(text for text in printed.splitlines() if text.startswith("sepkit train")).split()[2:]
    config, _ = parse_config("train", "", options, aliases={}, add_options=lambda parser: None)
    assignment = config.objective.assignment
    assert isinstance(assignment, AnnealedMCLConfig) and isinstance(assignment.temperature, TruncatedExponentialConfig)
    schedule = build(assignment.temperature)
    assert schedule(0) == found["initial_temperature"]
    assert schedule(29.999) == pytest.approx(assignment.floor, rel=0.01)


def test_the_cost_is_that_of_the_run(tmp_path: Path, corpus, model: Path) -> None:
    (tmp_path / "exp" / "config.yaml").write_text(
        "objective: {cost: {name: mse}}\ndata: {segment_seconds: 0.25}\n", encoding="utf-8"
    )
    line = ["find-temperature", "--manifest", str(corpus.manifest), "--model", str(tmp_path / "exp")]
    main([*line, "--out", str(tmp_path / "out")])
    found = json.loads((tmp_path / "out" / "temperature.json").read_text())
    assert (found["cost"], found["segment_seconds"]) == ("mse", 0.25)


def test_the_costs_are_those_of_the_model(corpus, tiny_model_config: ModelConfig) -> None:
    # Against a loop over mixtures, hypotheses and sources.
    torch.manual_seed(1)
    network = build_model(tiny_model_config).eval()
    findings = temperature.of_model(network, corpus.manifest, NegSISDRConfig(), mixtures=3)
    assert findings.data["sources"] == 6
    initial = findings.data["initial_temperature"]
    entropies = []
    for name in ("mix0", "mix1", "mix3"):
        sources = torch.from_numpy(corpus.sources[name]).double()
        with torch.no_grad():
            estimates = network(torch.from_numpy(corpus.sources[name]).sum(0, keepdim=True)).estimates[0].double()
        for source in sources - sources.mean(1, keepdim=True):
            costs = []
            for estimate in estimates - estimates.mean(1, keepdim=True):
                target = estimate @ source / (source @ source) * source
                costs.append(-10 * math.log10((target @ target) / ((estimate - target) @ (estimate - target))))
            weights = np.exp(-np.array(costs) / initial)
            weights /= weights.sum()
            entropies.append(-(weights * np.log(weights)).sum())
    assert findings.data["entropy_nats"] == pytest.approx(np.mean(entropies), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--manifest", "none.jsonl", "--hypotheses", "1"], "--hypotheses"),
        (["--manifest", "none.jsonl", "--segment-seconds", "0"], "--segment-seconds"),
        (["--manifest", "none.jsonl"], "none.jsonl"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(tmp_path: Path, capsys, options: list[str], complaint: str) -> None:
    assert main(["find-temperature", "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and complaint in error
