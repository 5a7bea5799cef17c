"""Findings about temperatures against closed forms, and the command that makes them."""

import json
import math

import numpy as np
import pytest
import torch

from sepkit.annealing import temperature
from sepkit.cli._configuration import parse_config
from sepkit.cli.main import main
from sepkit.config import AnnealedMCLConfig, ModelConfig, NegSISDRConfig, TruncatedExponentialConfig
from sepkit.data import audio
from sepkit.models import build_model, save_model
from sepkit.registry import build
from tests.complaint import complaint


def _orthogonal(levels_db: list[float], num_samples: int = 4000) -> torch.Tensor:
    """Make (1, m, T) sines of whole numbers of periods: zero mean, orthogonal, at the given levels."""
    t = torch.arange(num_samples, dtype=torch.float64) / num_samples
    rows = [10 ** (level / 20) * torch.sin(2 * math.pi * (j + 3) * t) for j, level in enumerate(levels_db)]
    return torch.stack(rows).unsqueeze(0)


def _si_sdr_db(estimate: np.ndarray, source: np.ndarray) -> float:
    """An oracle of its own for the unit."""
    estimate, source = estimate - estimate.mean(), source - source.mean()
    target = estimate @ source / (source @ source) * source
    return 10 * math.log10(target @ target / ((estimate - target) @ (estimate - target)))


def _findings(corpus, out, *options: str) -> dict:
    """Run the command on a corpus, and read what it writes."""
    assert main(["find-temperature", "--manifest", str(corpus.manifest), "--out", str(out), *options]) == 0
    return json.loads((out / "temperature.json").read_text())


@pytest.mark.parametrize(
    ("levels_db", "expected"),
    [([0.0, 0.0], 0.0), ([2.5, 0.0], 2.5), ([5.0, 0.0], 5.0), ([0.0] * 3, 10 * math.log10(2))],
)
def test_the_spread_of_two_sources_is_their_level_gap(levels_db, expected):
    spread = temperature.spread_db(_orthogonal(levels_db), torch.ones(1, len(levels_db), dtype=torch.bool))
    assert spread.item() == pytest.approx(expected, abs=1e-5)


def test_spread_passes_over_inactive_sources():
    sources = _orthogonal([2.5, 0.0, 0.0]).repeat(2, 1, 1)
    sources[0, 2] = torch.nan
    spread = temperature.spread_db(sources, torch.tensor([[True, True, False], [True, False, False]]))
    assert spread[0].item() == pytest.approx(2.5, abs=1e-5)
    assert spread[1].isnan()


def test_the_entropy_of_two_hypotheses_is_the_binary_one():
    for gap, t in ((4.0, 3.0), (0.0, 0.01)):
        share = 1 / (1 + math.exp(-gap / t))
        expected = -share * math.log(share) - (1 - share) * math.log(1 - share)
        entropy = temperature.softmin_entropy(torch.tensor([[1.0], [1.0 + gap]]), t)
        assert entropy.item() == pytest.approx(expected, abs=1e-7)


def test_the_entropy_rises_with_the_temperature_from_zero_to_log_n():
    cost = 10 * torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    means = [temperature.softmin_entropy(cost, t).mean().item() for t in np.geomspace(1e-3, 1e5, 60)]
    assert np.all(np.diff(means) >= 0)
    assert means[0] < 1e-3 and means[-1] == pytest.approx(math.log(3), abs=1e-6)


def test_the_critical_temperature_is_that_of_a_numerical_second_derivative():
    # Two hypotheses that part by +-h from the middle between two sources, in the angle.
    reach = 1 / (1 + 10 ** (-5 / 10))

    def cost(angle: float) -> float:
        part = reach * math.cos(angle) ** 2
        return -10 * math.log10(part / (1 - part))

    def free_energy(h: float, t: float) -> float:
        angles = (math.pi / 4 - h, math.pi / 4 + h)
        costs = [[cost(a) for a in angles], [cost(math.pi / 2 - a) for a in angles]]
        return -t * sum(math.log(sum(math.exp(-c / t) for c in row)) for row in costs)

    critical = temperature.si_sdr_critical_temperature_db(2, 5.0)
    for t, sign in ((1.02 * critical, 1), (0.98 * critical, -1)):
        assert math.copysign(1, free_energy(1e-3, t) - free_energy(0.0, t)) == sign
    assert temperature.si_sdr_critical_temperature_db(2, math.inf) == math.inf


def test_the_initial_temperature_of_a_known_gap():
    # Two hypotheses whose costs are `gap` apart: H(1 / (1 + exp(-gap / T))) = 0.95 log 2 at one T, found by a scan.
    gap = 7.0
    columns = torch.tensor([[0.0, gap], [gap, 0.0]])
    shares = 1 / (1 + np.exp(-gap / np.linspace(1, 60, 590001)))
    entropies = -shares * np.log(shares) - (1 - shares) * np.log(1 - shares)
    expected = np.linspace(1, 60, 590001)[np.argmax(entropies >= 0.95 * np.log(2))]
    assert expected <= temperature.initial_temperature(columns) <= 1.01 * expected
    complaint(lambda: temperature.initial_temperature(torch.ones(3, 10)), "cost the same")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_both_conditions_hold_for_the_initial_temperature(scale):
    columns = scale * torch.randn(4, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = temperature.initial_temperature(columns)
    share = [temperature._entropy(columns, t) / math.log(4) for t in (found, found / 2)]
    assert share[0] >= 0.95 > share[1]
    assert temperature._entropy(columns, 0.99 * found) / math.log(4) < 0.95


def test_the_command_measures_the_sources_of_a_manifest(tmp_path, corpus):
    found = _findings(corpus, tmp_path / "out")
    pairs = map(np.float64, corpus.sources.values())
    expected = np.mean([[abs(_si_sdr_db(pair.mean(0), source)) for source in pair] for pair in pairs])
    assert found["spread_db"] == pytest.approx(expected, abs=1e-3)
    assert found["mixtures"] == 5 and found["critical_temperature_db"] == pytest.approx(10 / math.log(10) * 11)


def test_a_bad_mixture_is_left_out_and_named(tmp_path, corpus, capsys):
    (corpus.folder / "wav" / "mix1_0.wav").write_bytes(b"no audio")
    audio.write(corpus.folder / "wav" / "mix0_1.WAV", np.zeros(4000, np.float32), 8000)
    found = _findings(corpus, tmp_path / "out")
    assert found["mixtures"] == 3 and [one["id"] for one in found["skipped"]] == ["mix0", "mix1"]
    assert [one["reason"].startswith("fewer") for one in found["skipped"]] == [True, False]
    assert "mix1" in capsys.readouterr().err


@pytest.fixture
def model(tmp_path, tiny_model_config: ModelConfig):
    torch.manual_seed(0)
    return save_model(build_model(tiny_model_config), tmp_path / "exp" / "model")


def test_the_command_proposes_a_schedule_that_training_takes(tmp_path, corpus, model, capsys):
    out = tmp_path / "out"
    found = _findings(corpus, out, "--model", str(model), "--epochs", "30")
    assert found["entropy_share"] >= 0.95 > found["entropy_share_at_half"]
    assert np.all(np.diff(found["entropies_nats"]) >= -1e-12)
    ends = [found["initial_temperature"] / 1000, 10 * found["initial_temperature"]]
    assert found["temperatures"][:: len(found["temperatures"]) - 1] == pytest.approx(ends)
    assert (out / "temperature.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "heuristic" in printed and "% of log 2" in printed
    options = next(text for text in printed.splitlines() if text.startswith("sepkit train")).split()[2:]
    config, _ = parse_config("train", "", options, aliases={}, add_options=lambda parser: None)
    assignment = config.objective.assignment
    assert isinstance(assignment, AnnealedMCLConfig) and isinstance(assignment.temperature, TruncatedExponentialConfig)
    schedule = build(assignment.temperature)
    assert schedule(0) == found["initial_temperature"]
    assert schedule(29.999) == pytest.approx(assignment.floor, rel=0.01)


def test_the_cost_is_that_of_the_run(tmp_path, corpus, model):
    config = "objective: {cost: {name: mse}}\ndata: {segment_seconds: 0.25}\n"
    (tmp_path / "exp" / "config.yaml").write_text(config)
    found = _findings(corpus, tmp_path / "out", "--model", str(tmp_path / "exp"))
    assert (found["cost"], found["segment_seconds"]) == ("mse", 0.25)


def test_the_costs_are_those_of_the_model(corpus, tiny_model_config):
    # Against a loop over mixtures, hypotheses and sources.
    torch.manual_seed(1)
    network = build_model(tiny_model_config).eval()
    findings = temperature.of_model(network, corpus.manifest, NegSISDRConfig(), mixtures=3)
    assert findings.data["sources"] == 6
    initial = findings.data["initial_temperature"]
    entropies = []
    for name in ("mix0", "mix1", "mix3"):
        with torch.no_grad():
            estimates = network(torch.from_numpy(corpus.sources[name]).sum(0, keepdim=True)).estimates[0].double()
        for source in corpus.sources[name].astype(np.float64):
            weights = np.exp(np.array([_si_sdr_db(estimate, source) for estimate in estimates.numpy()]) / initial)
            weights /= weights.sum()
            entropies.append(-(weights * np.log(weights)).sum())
    assert findings.data["entropy_nats"] == pytest.approx(np.mean(entropies), abs=1e-5)


def test_mixtures_without_sources_or_with_costs_that_are_not_finite_are_left_out(corpus, tiny_model_config):
    """The first of all, too; and the spread of a mixture with one speaker is not known."""
    for name in ("mix0_0.wav", "mix0_1.WAV", "mix2_1.WAV"):
        audio.write(corpus.folder / "wav" / name, np.zeros(4000, np.float32), 8000)
    torch.manual_seed(1)
    network = build_model(tiny_model_config).eval()
    found = temperature.of_model(network, corpus.manifest, NegSISDRConfig()).data
    assert (found["sources"], found["skipped"]) == (7, [{"id": "mix0", "reason": "no active source"}])
    known = temperature.of_sources(corpus.manifest).data
    assert (known["mixtures"], found["spread_db"]) == (3, pytest.approx(known["spread_db"]))
    with torch.no_grad():
        next(network.masker.parameters()).fill_(math.nan)
    words = r"used \(mix0: no active source\)"
    complaint(lambda: temperature.of_model(network, corpus.manifest, NegSISDRConfig()), words)


@pytest.mark.parametrize(("more", "complaint"), [(["--segment-seconds", "0"], "--segment-seconds"), ([], "none.jsonl")])
def test_mistakes_exit_with_2_and_one_line(tmp_path, refused, more, complaint):
    assert complaint in refused(["find-temperature", "--out", tmp_path / "out", "--manifest", "none.jsonl", *more])
