"""Hypotheses without a source become silent; the others are left alone."""

import numpy as np
import pytest
import torch

from sepkit.config import ObjectiveConfig, SilenceConfig
from sepkit.objectives import build_objective, costs
from sepkit.objectives.costs import Step
from sepkit.objectives.objective import PairwiseCosts, SilenceTerm
from sepkit.types import Batch, Separation


def batch_and_separation() -> tuple[Batch, Separation]:
    """Make utterances of two, one, one (short) and no sources, with 3 hypotheses; the second is the first source."""
    generator = torch.Generator().manual_seed(0)
    active = torch.tensor([[True, True], [True, False], [True, False], [False, False]])
    sources = torch.randn(4, 2, 200, dtype=torch.float64, generator=generator) * active[:, :, None]
    lengths = torch.tensor([200, 200, 120, 200])
    sources[2, :, 120:] = 0
    estimates = 0.5 * torch.randn(4, 3, 200, dtype=torch.float64, generator=generator)
    estimates[:, 1] += 2 * sources[:, 0]
    return Batch(sources.sum(1) + 0.01, sources, active, lengths), Separation(estimates.requires_grad_(), None, None)


def pairs() -> PairwiseCosts:
    return PairwiseCosts(costs.PairwiseCost(costs.pairwise_neg_si_sdr, "db"))


def test_value_is_the_level_of_what_is_left_over():
    batch, separation = batch_and_separation()
    found = SilenceTerm(pairs(), 20.0)(Step(batch, separation))
    estimates = separation.estimates.detach().numpy()

    def level_db(b: int, k: int) -> float:
        length = int(batch.lengths[b])
        mixture = batch.mixture[b, :length].numpy()
        return 10 * np.log10((estimates[b, k, :length] ** 2).sum() / (mixture**2).sum() + 0.01)

    for b in (1, 2):
        assert found[b].item() == pytest.approx((level_db(b, 0) + level_db(b, 2)) / 2)
    assert any(found[0].item() == pytest.approx(level_db(0, k)) for k in (0, 2))
    assert found[3].item() == 0
    found.sum().backward()
    gradient = separation.estimates.grad
    assert gradient is not None and gradient.isfinite().all()
    assert (gradient[1, [0, 2]] != 0).any(1).all() and (gradient[1, 1] == 0).all() and (gradient[3] == 0).all()
    assert (gradient[2, :, 120:] == 0).all()


def test_silence_is_the_best_and_finite():
    batch, separation = batch_and_separation()
    separation.estimates.data[1, [0, 2]] = 0
    found = SilenceTerm(pairs(), 30.0)(Step(batch, separation))
    assert found[1].item() == pytest.approx(-30.0)
    found.sum().backward()
    assert separation.estimates.grad is not None and separation.estimates.grad.isfinite().all()


def test_it_is_a_named_term_of_the_objective():
    batch, separation = batch_and_separation()
    result = build_objective(ObjectiveConfig(silence=SilenceConfig(weight=0.5, threshold_db=20.0)))(batch, separation)
    expected = SilenceTerm(pairs(), 20.0)(Step(batch, separation))
    torch.testing.assert_close(result.terms["silence"], expected.to(result.terms["silence"]))
    without = build_objective(ObjectiveConfig())(batch, separation).loss
    torch.testing.assert_close(result.loss, without + 0.5 * result.terms["silence"])
