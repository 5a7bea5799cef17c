"""The objective: scales of dB and likelihood costs, padding, inactive sources, named terms."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from sepkit.config import (
    AnnealedMCLConfig,
    AssignmentConfig,
    BLRConfig,
    CauchyConfig,
    CostConfig,
    MCLConfig,
    NegSISDRConfig,
    ObjectiveConfig,
)
from sepkit.objectives import Objective, build_objective, costs, hard_pit_si_sdr_db
from sepkit.objectives.assignment import PIT, TooFewHypothesesError
from sepkit.types import Batch, Latent, Separation

LENGTHS = [400, 250, 400, 400]


def batch_and_separation(n: int = 2, m: int = 2) -> tuple[Batch, Separation]:
    """Four utterances; the second is short, the third has one source, the fourth has none."""
    generator = torch.Generator().manual_seed(0)
    sources = torch.randn(4, m, 400, dtype=torch.float64, generator=generator)
    active = torch.ones(4, m, dtype=torch.bool)
    active[2, 1:], active[3] = False, False
    sources = sources * active[:, :, None]
    sources[1, :, 250:] = 0
    estimates = torch.randn(4, n, 400, dtype=torch.float64, generator=generator)
    estimates[:, : min(n, m)] += sources[:, : min(n, m)]
    mixture = sources.sum(1) + 0.1
    batch = Batch(mixture, sources, active, torch.tensor(LENGTHS))
    return batch, Separation(estimates.requires_grad_(), cast(Latent, None), cast(Latent, None))


def test_db_costs_are_averaged_over_active_sources():
    """Each utterance alone, without padding and without its inactive columns."""
    batch, separation = batch_and_separation()
    result = build_objective(ObjectiveConfig())(batch, separation)
    for b, length in enumerate(LENGTHS):
        sources = batch.sources[b : b + 1, batch.active[b], :length]
        alone = PIT()(costs.pairwise_neg_si_sdr(separation.estimates[b : b + 1, :, :length], sources))
        torch.testing.assert_close(result.loss[b : b + 1], alone)
    assert result.loss[3] == 0
    assert torch.equal(result.terms["separation"], result.loss)


@pytest.mark.parametrize("config", [BLRConfig(), CauchyConfig(scale=0.5)])
@pytest.mark.parametrize("signal_std", [1.0, 0.2])
def test_likelihood_costs_are_summed_over_t(config, signal_std):
    """Sum over active sources over the utterance's own samples, of signals divided by the training deviation."""
    batch, separation = batch_and_separation()
    result = build_objective(ObjectiveConfig(cost=config), signal_std)(batch, separation)
    function = costs.pairwise_blr_nll if isinstance(config, BLRConfig) else costs.pairwise_cauchy_nll
    parameters: dict[str, Any] = {} if isinstance(config, BLRConfig) else {"scale": 0.5}
    for b, length in enumerate(LENGTHS):
        sources = batch.sources[b : b + 1, batch.active[b], :length] / signal_std
        cost = function(separation.estimates[b : b + 1, :, :length] / signal_std, sources, **parameters)
        expected = PIT()(cost) * batch.active[b].sum() / length
        torch.testing.assert_close(result.loss[b : b + 1], expected)


def test_cauchy_takes_the_decoders_scales():
    """Where the model has them, in the units of the mixture."""
    batch, separation = batch_and_separation()
    separation.estimate_scales = torch.full_like(separation.estimates, 0.1)
    found = build_objective(ObjectiveConfig(cost=CauchyConfig(scale=7.0)), signal_std=0.2)(batch, separation)
    separation.estimate_scales = None
    expected = build_objective(ObjectiveConfig(cost=CauchyConfig(scale=0.5)), signal_std=0.2)(batch, separation)
    torch.testing.assert_close(found.loss, expected.loss)


@pytest.mark.parametrize("cost", sorted(CostConfig.choices))
@pytest.mark.parametrize("assignment", sorted(AssignmentConfig.choices))
def test_every_pair_of_choices(cost, assignment):
    """Finite value and gradient, none for an utterance without sources, none behind the end."""
    batch, separation = batch_and_separation(n=3)
    batch.sources[2, 1] = torch.nan
    config = ObjectiveConfig(CostConfig.choices[cost](), AssignmentConfig.choices[assignment]())
    result = build_objective(config)(batch, separation)
    result.loss.sum().backward()
    gradient = separation.estimates.grad
    assert gradient is not None
    assert result.loss.isfinite().all() and result.loss[3] == 0
    assert gradient.isfinite().all() and (gradient[3] == 0).all() and (gradient[1, :, 250:] == 0).all()
    assert (gradient[:3] != 0).any()


def test_inactive_sources_without_eps():
    """eps = 0 makes NaN of a zero source; an inactive one keeps it out of value and gradient."""
    batch, separation = batch_and_separation()
    result = build_objective(ObjectiveConfig(cost=NegSISDRConfig(eps=0.0)))(batch, separation)
    result.loss.sum().backward()
    gradient = separation.estimates.grad
    assert gradient is not None and gradient.isfinite().all() and result.loss.isfinite().all()


def test_a_nan_estimate_is_seen_in_its_own_utterance():
    """The loss of that utterance is NaN, the others stay."""
    batch, separation = batch_and_separation()
    objective = build_objective(ObjectiveConfig())
    clean = objective(batch, separation).loss
    separation.estimates = separation.estimates.detach().clone()
    separation.estimates[0, 0, 5] = torch.nan
    found = objective(batch, separation).loss
    assert found[0].isnan()
    torch.testing.assert_close(found[1:], clean[1:])


def test_terms_and_weights():
    """The loss is the weighted sum; terms are reported unweighted."""
    batch, separation = batch_and_separation()
    terms = {"one": lambda batch, separation: torch.ones(4), "two": lambda batch, separation: torch.full((4,), 2.0)}
    result = Objective(terms, {"two": 0.25})(batch, separation)
    assert result.loss.tolist() == [1.5] * 4
    assert {name: value[0].item() for name, value in result.terms.items()} == {"one": 1.0, "two": 2.0}
    with pytest.raises(ValueError, match=r"unknown terms \['three'\]"):
        Objective(terms, {"three": 1.0})


def test_progress_reaches_the_assignment():
    """Also beside terms that have none."""
    objective = build_objective(ObjectiveConfig(assignment=AnnealedMCLConfig()))
    objective.terms["other"] = lambda batch, separation: torch.zeros(4)
    objective.set_progress(10)
    term: Any = objective.terms["separation"]
    assert term.assignment.temperature == pytest.approx(5 * 0.9**10)


def test_more_sources_than_hypotheses():
    """PIT refuses, MCL does not."""
    batch, separation = batch_and_separation(n=2, m=3)
    with pytest.raises(TooFewHypothesesError):
        build_objective(ObjectiveConfig())(batch, separation)
    assert build_objective(ObjectiveConfig(assignment=MCLConfig()))(batch, separation).loss.isfinite().all()


def test_hard_pit_si_sdr():
    """The negative PIT loss, NaN where there is nothing to score, without a graph."""
    batch, separation = batch_and_separation()
    found = hard_pit_si_sdr_db(separation.estimates, batch.sources, batch.active, batch.lengths)
    loss = build_objective(ObjectiveConfig())(batch, separation).loss
    torch.testing.assert_close(found[:3], -loss[:3].detach())
    assert found[3].isnan() and not found.requires_grad
    sources = batch.sources[:1]
    shuffled = hard_pit_si_sdr_db(sources.flip(1) + 0.01 * separation.estimates[:1], sources)
    assert shuffled.item() > 30
