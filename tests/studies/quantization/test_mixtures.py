"""Experts on sines and mixtures of flows: a run of a stack is what it would be alone; the commands at tiny sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sepkit.cells import cell_seed
from sepkit.models.stacked import RealNVP
from sepkit.studies.quantization.config import FlowsConfig, SinesConfig
from sepkit.studies.quantization.laws import Sines, mode_centers, sample_modes
from sepkit.studies.quantization.mixtures import ExpertRuns, _own_samples, train_flows, train_sines

TINY = SinesConfig(seeds=2, examples=200, test_examples=200, steps=20, batch_size=32, hidden=4)


def test_sines_are_what_they_are_said_to_be() -> None:
    """Modes ten apart, with the softmax's probabilities."""
    law = Sines(0.1)
    x, y, mode = law.sample(20_000, torch.Generator().manual_seed(0))
    assert float((y - 10 * (mode + 1)).abs().max()) < 1.7
    share = torch.stack([(mode == k).float().mean() for k in range(3)])
    torch.testing.assert_close(share, law.probabilities(x).mean(0), rtol=0, atol=0.015)


def test_sines_are_learned_by_annealing() -> None:
    """All modes of all runs in few steps; the classifier is near the truth."""
    config = replace(TINY, examples=2000, test_examples=1000, steps=500, batch_size=128, hidden=20)
    found = train_sines(config, "annealed", standardize=True)
    assert found["merged"] == 0 and max(found["total_variation"]) < 0.08
    assert 0.08 < min(found["distortion"]) <= max(found["distortion"]) < 1.5
    assert found["idle"] == [[], []]


def test_a_run_does_not_know_its_neighbors() -> None:
    """The first of two runs is the run alone, with and without growth."""
    x = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    y = 3 * x.sin() + x
    for kind in ("plain", "annealed"):
        both = ExpertRuns(TINY, kind, torch.ones(2))
        alone = ExpertRuns(TINY, kind, torch.ones(1))
        for number in range(5):
            both.step(number, x, y)
            alone.step(number, x[:1], y[:1])
        torch.testing.assert_close(both.cost(x, y)[:1], alone.cost(x[:1], y[:1]), rtol=1e-4, atol=1e-5)


def test_growth_wakes_experts_one_by_one() -> None:
    """A larger n never has a higher distortion on the same parameters before the jitter."""
    runs = ExpertRuns(replace(TINY, jitter=0.0), "split", torch.ones(2))
    x = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    y = 10 * x.sign()

    def nearest() -> torch.Tensor:
        with torch.no_grad():
            return runs.cost(x, y).where(runs.awake[:, None], torch.inf).amin(2)

    for count in (1, 2):
        assert runs.awake.sum(1).tolist() == [count, count]
        before = nearest()
        runs.grow(x, y)
        assert torch.equal(nearest(), before)
    assert bool(runs.awake.all())


def test_own_samples_of_flows() -> None:
    """Every sample once, with weights of sum one for each expert that won any."""
    x = torch.randn(2, 10, 2, generator=torch.Generator().manual_seed(0))
    winners = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 0, 1], [2] * 10])
    weights = torch.nn.functional.one_hot(winners, 3).float()
    own, share = _own_samples(x, weights)
    assert own.shape == (6, 10, 2)
    torch.testing.assert_close(share.sum(1), torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(own[0, :4], x[0, [0, 3, 7, 8]])
    assert torch.equal(own[5], x[1])


def test_one_flow_is_maximum_likelihood() -> None:
    """n = 1 trains a RealNVP on all samples, as torch's Adam does."""
    config = FlowsConfig(seeds=1, steps=3, batch_size=64, hidden=8, couplings=2, samples=50, transport_samples=20)
    found = train_flows(config, "ring", 1)
    assert found["weights"] == [[1.0]]
    seed = cell_seed(config.seed, "flows 0")
    torch.manual_seed(seed)
    flow = RealNVP(2, 2, 8, 1, normalize=False)
    optimizer = torch.optim.Adam(flow.parameters(), lr=config.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    centers = mode_centers("ring")
    for _ in range(3):
        optimizer.zero_grad()
        (-flow.log_prob(sample_modes(centers, 64, generator)[None])).mean().backward()
        optimizer.step()
    draws = torch.Generator().manual_seed(cell_seed(config.seed, "samples"))
    with torch.no_grad():
        flow.sample(50, draws)
        truth = sample_modes(centers, 50, draws)
        assert found["nll_nats"][0] == pytest.approx(-float(flow.log_prob(truth[None]).mean()), rel=1e-4)
