"""The objective: scales of dB and likelihood costs, padding, inactive sources, named terms."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from sepkit import config as c
from sepkit.objectives import Objective, build_objective, costs
from sepkit.objectives.assignment import MCL, PIT
from sepkit.objectives.costs import PairwiseCosts, Step, Term
from sepkit.objectives.objective import ReconstructionTerm, SeparationTerm, hard_si_sdr_db, matching_statistics
from sepkit.registry import build
from sepkit.types import Batch, ModelTraits, Separation

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
    batch = Batch(sources.sum(1) + 0.1, sources, active, torch.tensor(LENGTHS))
    return batch, Separation(estimates.requires_grad_(), None, None)


def test_db_costs_are_averaged_over_active_sources():
    """Each utterance's value equals that alone, without padding and inactive columns."""
    batch, separation = batch_and_separation()
    result = build_objective(c.ObjectiveConfig())(batch, separation)
    for b, length in enumerate(LENGTHS):
        sources = batch.sources[b : b + 1, batch.active[b], :length]
        alone = PIT()(costs.pairwise_neg_si_sdr(separation.estimates[b : b + 1, :, :length], sources))
        torch.testing.assert_close(result.loss[b : b + 1], alone)
    assert result.loss[3] == 0
    assert torch.equal(result.terms["separation"], result.loss)


def test_utterances_below_the_floor_have_no_gradient():
    batch, separation = batch_and_separation()
    free = build_objective(c.ObjectiveConfig())(batch, separation).loss[:3]
    middle = free.detach().sort().values[1].item()
    held = build_objective(c.ObjectiveConfig(floor=middle))(batch, separation).loss[:3]
    torch.testing.assert_close(held, free.clamp_min(middle))
    held[free.argmin()].backward()
    assert not separation.estimates.grad.any()


HALF = partial(costs.pairwise_cauchy_nll, scale=0.5)


@pytest.mark.parametrize(
    ("config", "function"), [(c.BLRConfig(), costs.pairwise_blr_nll), (c.CauchyConfig(scale=0.5), HALF)]
)
@pytest.mark.parametrize("signal_std", [1.0, 0.2])
def test_likelihood_costs_are_summed_over_t(config, function, signal_std):
    """It is a sum over active sources and the utterance's own samples, of signals divided by the training deviation."""
    batch, separation = batch_and_separation()
    result = build_objective(c.ObjectiveConfig(cost=config), ModelTraits(signal_std=signal_std))(batch, separation)
    for b, length in enumerate(LENGTHS):
        sources = batch.sources[b : b + 1, batch.active[b], :length] / signal_std
        cost = function(separation.estimates[b : b + 1, :, :length] / signal_std, sources)
        torch.testing.assert_close(result.loss[b : b + 1], PIT()(cost) * batch.active[b].sum() / length)


def test_cauchy_takes_the_decoders_scales():
    """It does if the model has scales, in the units of the mixture."""
    batch, separation = batch_and_separation()

    def loss(scale: float) -> torch.Tensor:
        config = c.ObjectiveConfig(cost=c.CauchyConfig(scale=scale))
        return build_objective(config, ModelTraits(signal_std=0.2))(batch, separation).loss

    expected = loss(0.5)
    separation.estimate_scales = torch.full_like(separation.estimates, 0.1)
    torch.testing.assert_close(loss(7.0), expected)


@pytest.mark.parametrize("cost", sorted(c.CostConfig.choices))
@pytest.mark.parametrize("assignment", sorted(c.AssignmentConfig.choices))
def test_every_pair_of_choices(cost, assignment):
    """Value and gradient are finite; there is none for an utterance without sources, or behind the end."""
    batch, separation = batch_and_separation(n=3)
    batch.sources[2, 1] = torch.nan
    config = c.ObjectiveConfig(c.CostConfig.choices[cost](), c.AssignmentConfig.choices[assignment]())
    result = build_objective(config)(batch, separation)
    result.loss.sum().backward()
    gradient = separation.estimates.grad
    assert result.loss.isfinite().all() and result.loss[3] == 0
    assert gradient.isfinite().all() and (gradient[3] == 0).all() and (gradient[1, :, 250:] == 0).all()
    assert (gradient[:3] != 0).any()


@pytest.mark.parametrize("mixture", ["constant", "silent", "one sample", "not a number"])
@pytest.mark.parametrize("cost", sorted(c.CostConfig.choices))
@pytest.mark.parametrize("what", ["separation", "reconstruction"])
def test_inactive_sources_never_reach_the_gradient(what, cost, mixture):
    """The mixture of an utterance without sources has no effect, whatever the cost makes of it without eps.

    Values and gradients of the other utterances are those of a batch without it.
    """
    batch, separation = batch_and_separation()
    batch.mixture[3] = {"constant": 0.1, "silent": 0.0, "one sample": 0.3, "not a number": math.nan}[mixture]
    if mixture == "one sample":
        batch.lengths[3] = 1
    batch.sources[3] = batch.mixture[3]
    separation.extras["source_reconstructions"] = separation.estimates
    config = c.CostConfig.choices[cost]()
    if hasattr(config, "eps"):
        config = replace(config, eps=0.0)
    pairwise = PairwiseCosts(build(config))
    term = SeparationTerm(pairwise, PIT()) if what == "separation" else ReconstructionTerm("source", pairwise)
    value = term(Step(batch, separation))
    (gradient,) = torch.autograd.grad(value.sum(), separation.estimates)
    first = replace(separation, estimates=separation.estimates[:3])
    first.extras["source_reconstructions"] = first.estimates
    alone = term(Step(Batch(batch.mixture[:3], batch.sources[:3], batch.active[:3], batch.lengths[:3]), first))
    (gradient_alone,) = torch.autograd.grad(alone.sum(), separation.estimates)
    assert value.isfinite().all() and gradient.isfinite().all()
    assert value[3] == 0 and (gradient[3] == 0).all() and (gradient[:3] != 0).any()
    torch.testing.assert_close(value[:3], alone)
    torch.testing.assert_close(gradient, gradient_alone)


def test_a_cost_of_ones_own_that_knows_nothing_of_activity():
    """It is called without activity; inactive sources are then replaced by the mixture."""
    batch, separation = batch_and_separation()
    seen = []

    def cost(estimates, sources, lengths=None):
        seen.append(sources)
        return (estimates.unsqueeze(2) - sources.unsqueeze(1)).square().mean(-1)

    term = SeparationTerm(PairwiseCosts(costs.PairwiseCost(cost, "power")), MCL())
    assert term(Step(batch, separation))[3] == 0
    assert torch.equal(seen[0][3], batch.mixture[3].expand(2, -1))


class Fixed(Term):
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, step: Step) -> torch.Tensor:
        return torch.full((4,), self.value)


def test_terms_and_weights():
    """The loss is the weighted sum; terms are reported unweighted."""
    batch, separation = batch_and_separation()
    terms = {"one": Fixed(1.0), "two": Fixed(2.0)}
    result = Objective(terms, {"two": 0.25})(batch, separation)
    assert result.loss.tolist() == [1.5] * 4
    assert {name: value[0].item() for name, value in result.terms.items()} == {"one": 1.0, "two": 2.0}
    with pytest.raises(ValueError, match=r"unknown terms \['three'\]"):
        Objective(terms, {"three": 1.0})


def test_hard_matchings():
    """They are the negative losses of PIT and MCL, NaN without sources, and have no graph."""
    batch, separation = batch_and_separation(n=3)
    found = hard_si_sdr_db(separation.estimates, batch.sources, batch.active, batch.lengths)
    for name, assignment in (("si_sdr_db", c.PITConfig()), ("mcl_si_sdr_db", c.MCLConfig())):
        loss = build_objective(c.ObjectiveConfig(assignment=assignment))(batch, separation).loss
        torch.testing.assert_close(found[name][:3], -loss[:3].detach())
        assert found[name][3].isnan() and not found[name].requires_grad
    assert set(hard_si_sdr_db(separation.estimates[:, :1], batch.sources)) == {"mcl_si_sdr_db"}


def test_schedules_are_reported_and_reach_the_assignment():
    """Other terms without schedules do not prevent it."""
    objective = build_objective(c.ObjectiveConfig(assignment=c.AnnealedMCLConfig(unit="spread")), data_scale=2.0)
    objective.terms["other"] = Fixed(1.0)
    objective.set_progress(10)
    assert objective.scheduled == {"temperature": pytest.approx(2 * 5 * 0.9**10)}
    assert objective.terms["separation"].assignment.temperature == pytest.approx(2 * 5 * 0.9**10)
    assert build_objective(c.ObjectiveConfig()).scheduled == {}


def test_matching_statistics_by_hand():
    """Two hypotheses; the second utterance has one source, the third none, whose column holds NaN."""
    cost = torch.tensor([[[1.0, 5.0], [3.0, 4.0]], [[7.0, 0.0], [6.0, 0.0]], [[torch.nan] * 2] * 2])
    weights = torch.tensor([[[0.5, 0.0], [0.5, 1.0]], [[0.25, 0.0], [0.75, 0.0]], [[0.0] * 2] * 2])
    found = matching_statistics(cost, weights, torch.tensor([[True, True], [True, False], [False, False]]))
    expected = {"hard_cost": [2.5, 6.0, 0.0], "usage_1": [0.5, 0.0, 0.0], "usage_2": [0.5, 1.0, 0.0]}
    assert {name: found[name].tolist() for name in expected} == expected
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert found["entropy_nats"].tolist() == pytest.approx([math.log(2) / 2, entropy, 0.0])


def test_costs_are_computed_once_for_all_terms(monkeypatch):
    batch, separation = batch_and_separation()
    calls = []
    of = PairwiseCosts.of
    monkeypatch.setattr(PairwiseCosts, "of", lambda self, *arguments: calls.append(1) or of(self, *arguments))
    pairwise = PairwiseCosts(build(c.NegSISDRConfig()))
    first, second = SeparationTerm(pairwise, PIT()), SeparationTerm(pairwise, MCL())
    result = Objective({"pit": first, "mcl": second})(batch, separation)
    assert len(calls) == 1
    assert (result.terms["mcl"] <= result.terms["pit"]).all()
    first(Step(batch, replace(separation, estimates=separation.estimates.detach() * 2 + 1)))
    assert len(calls) == 2
