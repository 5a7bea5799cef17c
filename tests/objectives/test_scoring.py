"""Scores predict winners: brute force over pairs, inactive sources, padding and both kinds of matching."""

import itertools

import numpy as np
import pytest
import torch

from sepkit import config as c
from sepkit.objectives import ScoringTerm, build_objective, costs
from sepkit.objectives.costs import PairwiseCosts, Step
from sepkit.types import Batch, ModelTraits, Separation


def batch_and_separation(n: int = 4, m: int = 3) -> tuple[Batch, Separation]:
    """Six utterances with 3, 2, 1, 0, 3 and 2 sources, the second of them short; one hypothesis may win several."""
    generator = torch.Generator().manual_seed(1)
    active = torch.arange(m) < torch.tensor([3, 2, 1, 0, 3, 2])[:, None]
    sources = torch.randn(6, m, 300, dtype=torch.float64, generator=generator) * active[:, :, None]
    lengths = torch.tensor([300, 200, 300, 300, 300, 300])
    sources[1, :, 200:] = 0
    estimates = torch.randn(6, n, 300, dtype=torch.float64, generator=generator)
    estimates[4, 1] += 3 * sources[4].sum(0)
    scores = torch.randn(6, n, dtype=torch.float64, generator=generator).requires_grad_()
    separation = Separation(estimates.requires_grad_(), None, None, scores=scores)
    return Batch(sources.sum(1) + 0.1, sources, active, lengths), separation


def wins_of(estimates: np.ndarray, sources: np.ndarray, one_to_one: bool) -> np.ndarray:
    """Return the number of sources that each hypothesis wins in one utterance, by SI-SDR."""

    def si_sdr(e, s):
        e, s = e - e.mean(), s - s.mean()
        return 10 * np.log10((e @ s) ** 2 / ((e @ e) * (s @ s) - (e @ s) ** 2))

    table = np.array([[si_sdr(e, s) for s in sources] for e in estimates]).reshape(len(estimates), len(sources))
    if one_to_one:
        matchings = itertools.permutations(range(len(estimates)), len(sources))
        best = max(matchings, key=lambda ks: sum(table[k, j] for j, k in enumerate(ks)))
    else:
        best = table.argmax(0) if len(sources) else []
    return np.bincount(np.array(best, dtype=int), minlength=len(estimates))


@pytest.mark.parametrize("kind", ["binary", "cross_entropy"])
@pytest.mark.parametrize("one_to_one", [False, True])
def test_value_is_the_cross_entropy_with_who_won(kind, one_to_one):
    batch, separation = batch_and_separation()
    term = ScoringTerm(PairwiseCosts(costs.PairwiseCost(costs.pairwise_neg_si_sdr, "db")), one_to_one, kind)
    found = term(Step(batch, separation))
    several = False
    for b, length in enumerate(batch.lengths.tolist()):
        estimates = separation.estimates[b, :, :length].detach().numpy()
        wins = wins_of(estimates, batch.sources[b, batch.active[b], :length].numpy(), one_to_one)
        several |= wins.max() > 1
        scores = separation.scores[b].detach().numpy()
        if kind == "binary":
            chance = 1 / (1 + np.exp(-scores))
            expected = -np.where(wins > 0, np.log(chance), np.log(1 - chance)).mean()
        else:
            chance = np.exp(scores) / np.exp(scores).sum()
            expected = -(wins / max(1, wins.sum()) * np.log(chance)).sum()
        assert found[b].item() == pytest.approx(expected, abs=1e-10)
    assert several is not one_to_one


def test_who_won_is_not_learned_from_scores():
    """The gradient reaches only scores; an utterance without speakers pushes all of them down."""
    batch, separation = batch_and_separation()
    term = ScoringTerm(PairwiseCosts(costs.PairwiseCost(costs.pairwise_neg_si_sdr, "db")))
    term(Step(batch, separation)).sum().backward()
    assert separation.estimates.grad is None or not separation.estimates.grad.any()
    assert separation.scores.grad is not None and (separation.scores.grad[3] > 0).all()


@pytest.mark.parametrize("cost", sorted(c.CostConfig.choices))
@pytest.mark.parametrize("assignment", sorted(c.AssignmentConfig.choices))
def test_every_objective_takes_scores(cost, assignment):
    batch, separation = batch_and_separation()
    config = c.ObjectiveConfig(c.CostConfig.choices[cost](), c.AssignmentConfig.choices[assignment]())
    result = build_objective(config, ModelTraits({"scores"}))(batch, separation)
    plain = build_objective(config)(batch, separation)
    torch.testing.assert_close(result.loss, plain.loss + 0.1 * result.terms["scoring"])
    assert set(result.terms) == {"separation", "scoring"} and set(plain.terms) == {"separation"}
    assert result.terms["separation"][3] == 0 and result.terms["scoring"][3] > 0


def test_choices_reach_the_term():
    batch, separation = batch_and_separation()
    separation.estimates = separation.estimates.detach()

    def scoring(assignment, kind="binary"):
        config = c.ObjectiveConfig(assignment=assignment, scoring=c.ScoringLossConfig(weight=2.0))
        result = build_objective(config, ModelTraits({"scores"}, score_loss=kind))(batch, separation)
        torch.testing.assert_close(result.loss, result.terms["separation"] + 2 * result.terms["scoring"])
        return result.terms["scoring"]

    assert torch.equal(scoring(c.PITConfig()), scoring(c.SinkhornConfig()))
    assert not torch.equal(scoring(c.PITConfig()), scoring(c.MCLConfig()))
    assert not torch.equal(scoring(c.MCLConfig()), scoring(c.MCLConfig(), "cross_entropy"))


def test_low_precision_scores_are_taken():
    batch, separation = batch_and_separation()
    objective = build_objective(c.ObjectiveConfig(), ModelTraits({"scores"}))
    separation.scores = separation.scores.detach().bfloat16()
    found = objective(batch, separation).loss
    assert found.dtype == torch.float64
    separation.scores = separation.scores.double()
    torch.testing.assert_close(found, objective(batch, separation).loss, rtol=1e-12, atol=0)
