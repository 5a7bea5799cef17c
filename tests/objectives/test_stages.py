"""The stage term against the formula written out, utterance by utterance and pair by pair."""

from __future__ import annotations

import itertools
from typing import cast

import numpy as np
import pytest
import torch

from sepkit.config import ConstantConfig, ObjectiveConfig, StagesConfig, TruncatedLinearConfig
from sepkit.objectives import build_objective
from sepkit.objectives.stages import pairwise_magnitude_cost
from sepkit.types import Batch, Latent, ModelTraits, Separation

WINDOW, STRIDE = 16, 6


def magnitudes(signal: np.ndarray) -> np.ndarray:
    """Magnitudes of a signal without its mean, with zeros behind it up to a whole number of strides."""
    padded = np.zeros(120)
    padded[: len(signal)] = signal - signal.mean()
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    frames = [padded[start : start + WINDOW] * window for start in range(0, len(padded) - WINDOW + 1, STRIDE)]
    return np.abs(np.fft.rfft(frames))


def expected_db(estimate: np.ndarray, source: np.ndarray) -> float:
    e, s = estimate - estimate.mean(), source - source.mean()
    scale = max((e @ s) / (s @ s), 0.01)
    wanted = scale * magnitudes(source)
    return 20 * np.log10(np.linalg.norm(magnitudes(estimate) - wanted) / np.linalg.norm(wanted))


def batch_and_separation(num_samples: int = 117) -> tuple[Batch, Separation]:
    """Make utterances of two, two (short), one and no sources, with two hypotheses and three stages."""
    generator = torch.Generator().manual_seed(0)
    active = torch.tensor([[True, True], [True, True], [True, False], [False, False]])
    lengths = torch.tensor([num_samples, 90, num_samples, num_samples])
    sources = torch.randn(4, 2, num_samples, dtype=torch.float64, generator=generator) * active[:, :, None] + 0.1
    sources[1, :, 90:] = 0
    stages = sources.flip(1)[:, None] + torch.randn(4, 3, 2, num_samples, dtype=torch.float64, generator=generator)
    batch = Batch(sources.sum(1), sources, active, lengths)
    estimates = torch.randn(4, 2, num_samples, dtype=torch.float64, generator=generator)
    separation = Separation(estimates, cast(Latent, None), cast(Latent, None))
    separation.extras["stage_estimates"] = stages.requires_grad_()
    return batch, separation


def test_cost_is_the_formula():
    batch, separation = batch_and_separation()
    assert separation.extras["stage_estimates"] is not None
    estimates = separation.extras["stage_estimates"][:, 0].detach()
    found = pairwise_magnitude_cost(estimates, batch.sources, batch.lengths, batch.active, WINDOW, STRIDE)
    assert found.shape == (4, 2, 2) and found.isfinite().all()
    for b, i, j in itertools.product(range(4), range(2), range(2)):
        if batch.active[b, j]:
            length = int(batch.lengths[b])
            expected = expected_db(estimates[b, i, :length].numpy(), batch.sources[b, j, :length].numpy())
            assert found[b, i, j].item() == pytest.approx(expected, abs=1e-3)


def test_each_stage_is_matched_by_itself_and_counts_alike():
    batch, separation = batch_and_separation()
    objective = build_objective(
        ObjectiveConfig(stages=StagesConfig(ConstantConfig(0.5), WINDOW, STRIDE)), ModelTraits({"stage_estimates"})
    )
    assert objective.inputs(batch) == {"wants": {"stage_estimates"}}
    stages = separation.extras["stage_estimates"]
    assert stages is not None
    with torch.no_grad():
        stages[0, 1] = stages[0, 1].flip(0)
    result = objective(batch, separation)
    costs = [
        pairwise_magnitude_cost(stages[:, k], batch.sources, batch.lengths, batch.active, WINDOW, STRIDE)
        for k in range(3)
    ]
    two = torch.stack([torch.minimum(c[:, 0, 0] + c[:, 1, 1], c[:, 0, 1] + c[:, 1, 0]) / 2 for c in costs]).mean(0)
    one = torch.stack([c[:, :, 0].min(1).values for c in costs]).mean(0)
    torch.testing.assert_close(result.terms["stages"], torch.stack([two[0], two[1], one[2], 0 * one[3]]))
    without = build_objective(ObjectiveConfig())(batch, separation).loss
    torch.testing.assert_close(result.loss, without + 0.5 * result.terms["stages"])
    result.loss.sum().backward()
    assert stages.grad is not None and stages.grad.isfinite().all()
    assert (stages.grad[:3] != 0).any(-1).any(-1).all() and (stages.grad[3] == 0).all()
    assert (stages.grad[1, ..., 90:] == 0).all()


def test_perfect_and_silent_estimates_are_finite():
    batch, separation = batch_and_separation()
    for made in (batch.sources[:, None].repeat(1, 3, 1, 1), torch.zeros(4, 3, 2, 117, dtype=torch.float64)):
        separation.extras["stage_estimates"] = made.requires_grad_()
        value = build_objective(ObjectiveConfig(), ModelTraits({"stage_estimates"}))(batch, separation).terms["stages"]
        value.sum().backward()
        assert value.isfinite().all() and made.grad is not None and made.grad.isfinite().all()


def test_the_weight_follows_a_schedule():
    config = ObjectiveConfig(stages=StagesConfig(TruncatedLinearConfig(initial=0.4, end=10.0)))
    objective = build_objective(config, ModelTraits({"stage_estimates"}))
    objective.set_progress(5.0)
    assert objective.scheduled == {"stages_weight": 0.2} and objective.terms["stages"].weight == 0.2
    assert "stages" not in build_objective(config).terms
