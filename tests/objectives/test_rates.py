"""Rates: the objective against the evidence lower bound by hand, free nats by brute force, steering."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import multivariate_t
from torch import Tensor

from sepkit import config as c
from sepkit.models.distributions import LogNormalDistribution, NormalDistribution
from sepkit.objectives import Objective, build_objective
from sepkit.objectives.costs import Step, Term, pairwise_blr_nll, pairwise_neg_si_sdr
from sepkit.objectives.rates import Steering, alive_share, build_rates, elementwise_rate, total_rate
from sepkit.types import Batch, ModelTraits, Separation

T, K, F = 40, 3, 5


class WithoutClosedForm(NormalDistribution):
    """A normal distribution whose rate has no closed form."""

    def kl(self, prior):
        raise TypeError("no closed form")


def kl(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the rate of each element of a normal distribution from N(0, 1)."""
    return 0.5 * (deviation**2 + mean**2 - 1) - deviation.log()


def frames_for(num_samples: int) -> int:
    """Return one frame for eight samples."""
    return num_samples // 8


BOTH = frozenset({"encoding_prior", "mask_prior"})
TRAITS = ModelTraits(BOTH, frames_for=frames_for)
STANDARD = NormalDistribution(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
STANDARD_MASK = LogNormalDistribution(STANDARD.mean, STANDARD.deviation)


def batch_and_separation(n: int = 2) -> tuple[Batch, Separation]:
    """Three utterances; the second is short, the third has no source."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    active = torch.tensor([[True, True], [True, False], [False, False]])
    sources = random(3, 2, T) * active[..., None]
    sources[1, :, 24:] = 0
    estimates = (sources[:, [1, 0]] + 0.3 * random(3, 2, T))[:, [0, 1] + [0] * (n - 2)]
    encoding = NormalDistribution(random(3, K, F).requires_grad_(), random(3, K, F).exp())
    masks = LogNormalDistribution(random(3, n, K, F).requires_grad_(), random(3, n, K, F).exp())
    extras = {"encoding_prior": STANDARD, "mask_prior": STANDARD_MASK}
    extras |= {"encoding_sample": encoding.sample(generator), "mask_sample": masks.sample(generator)}
    separation = Separation(estimates.clone().requires_grad_(), encoding, masks, extras=extras)
    return Batch(sources.sum(1), sources, active, torch.tensor([T, 24, T]), list("abc")), separation


def rates_by_hand(separation: Separation) -> tuple[list[float], list[float]]:
    """Return the KL of the frames that are an utterance's own: 5, 3, and none that counts."""
    encoding, masks = separation.encoding, separation.masks
    rates = kl(encoding.mean, encoding.deviation), kl(masks.location, masks.deviation)
    return tuple([rate[b, ..., :frames].sum().item() for b, frames in enumerate((5, 3, 0))] for rate in rates)


# ------------------------------------------------------------------------------------------------ the lower bound


def test_with_weights_of_one_the_objective_is_the_negative_elbo_a_sample():
    """Distortion by scipy's multivariate t under the best permutation, rates by the closed form, over T: to 1e-7."""
    batch, separation = batch_and_separation()
    result = build_objective(c.ObjectiveConfig(cost=c.BLRConfig()), replace(TRAITS, signal_std=0.5))(batch, separation)
    of_encoding, of_masks = rates_by_hand(separation)

    def nll(estimate: Tensor, source: Tensor) -> float:
        e, s = (x.detach().numpy() / 0.5 for x in (estimate, source))
        shape = 1e-3 * (torch.eye(len(e), dtype=torch.float64).numpy() + e[:, None] * e / 1e-6)
        return -multivariate_t(0 * e, shape, df=2).logpdf(s)

    for b, length in enumerate((T, 24)):
        estimates, sources = separation.estimates[b, :, :length], batch.sources[b, batch.active[b], :length]
        orders = [(0, 1), (1, 0)]
        distortion = min(sum(nll(estimates[i], s) for i, s in zip(order, sources, strict=False)) for order in orders)
        elbo = -distortion - of_encoding[b] - of_masks[b]
        assert result.loss[b].item() == pytest.approx(-elbo / length, rel=1e-7)
        assert result.terms["encoding_rate"][b].item() == pytest.approx(of_encoding[b] / length, rel=1e-9)
        assert result.terms["mask_rate"][b].item() == pytest.approx(of_masks[b] / length, rel=1e-9)
    assert result.loss[2] == 0


def test_weights_multiply_each_rate():
    batch, separation = batch_and_separation()
    rates = c.RatesConfig(c.RateConfig(c.ConstantConfig(0.25)), c.RateConfig(c.LinearWarmupConfig(6.0, 10)))
    objective = build_objective(c.ObjectiveConfig(cost=c.BLRConfig(), rates=rates), TRAITS)
    assert objective.scheduled == {"encoding_rate_weight": 0.25, "mask_rate_weight": 0.0}
    objective.set_progress(5)
    result = objective(batch, separation)
    terms = result.terms
    expected = terms["separation"] + 0.25 * terms["encoding_rate"] + 3 * terms["mask_rate"]
    torch.testing.assert_close(result.loss, expected)
    assert objective.scheduled == {"encoding_rate_weight": 0.25, "mask_rate_weight": 3.0}


def test_what_has_no_source_has_no_gradient():
    """Neither does anything behind the end of a short utterance."""
    batch, separation = batch_and_separation()
    build_objective(c.ObjectiveConfig(cost=c.BLRConfig()), TRAITS)(batch, separation).loss.sum().backward()
    gradient = separation.encoding.mean.grad
    assert (gradient[2] == 0).all() and (gradient[1, :, 3:] == 0).all()
    assert (gradient[0] != 0).all() and (gradient[1, :, :3] != 0).all()


def test_points_add_no_terms():
    batch, separation = batch_and_separation()
    assert set(build_objective(c.ObjectiveConfig())(batch, separation).terms) == {"separation"}
    objective = build_objective(c.ObjectiveConfig(), ModelTraits({"mask_prior"}, frames_for=frames_for))
    assert set(objective(batch, separation).terms) == {"separation", "mask_rate"}


@pytest.mark.parametrize("per", ["frame", "sample", "utterance"])
def test_rates_are_recorded_without_weights(per):
    batch, separation = batch_and_separation()
    rates = c.RatesConfig(c.RateConfig(free_nats=1e6), steering=c.SteeringConfig(total=1.0, per=per))
    statistics = build_objective(c.ObjectiveConfig(rates=rates), TRAITS)(batch, separation).statistics
    unit = {"frame": (5, 3), "sample": (T, 24), "utterance": (1, 1)}[per]
    for name, by_hand in zip(("encoding", "mask"), rates_by_hand(separation), strict=True):
        found = statistics[f"{name}_rate_nats_per_{per}"]
        assert found.tolist() == pytest.approx([by_hand[0] / unit[0], by_hand[1] / unit[1], 0.0])
        assert not found.requires_grad


# -------------------------------------------------------------------------------------------------------- free nats


@pytest.mark.parametrize("over", ["element", "frame", "utterance"])
@pytest.mark.parametrize("nats", [0.0, 0.7, 6.0, 1e3])
@pytest.mark.parametrize("shape", [(2, K, F), (2, 3, K, F)])
def test_free_nats_by_brute_force(over, nats, shape):
    rate = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2
    frames = torch.tensor([F, 2])
    found = total_rate(rate, frames, nats, over)
    for b in range(2):
        own = rate[b, ..., : frames[b]]
        groups = {"element": own.flatten(), "frame": own.flatten(0, -2).sum(0), "utterance": own.sum()[None]}[over]
        assert found[b].item() == pytest.approx(sum(max(nats, group) for group in groups.tolist()))


@pytest.mark.parametrize("over", ["element", "frame", "utterance"])
def test_a_sampled_rate_below_zero_counts_where_nothing_is_free(over):
    rate = torch.tensor([[[-3.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    found = total_rate(rate, torch.tensor([2]), 0.0, over)
    found.sum().backward()
    assert found.tolist() == [-2.0] and rate.grad is not None and rate.grad.flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("over", ["element", "frame", "utterance"])
def test_free_nats_are_not_reduced(over):
    """Below them there is no gradient, above them the whole one."""
    rate = torch.tensor([[[0.1, 5.0]]], dtype=torch.float64, requires_grad=True)
    total_rate(rate, torch.tensor([2]), 1.0, over).sum().backward()
    assert rate.grad.flatten().tolist() == ([1.0, 1.0] if over == "utterance" else [0.0, 1.0])
    rate.grad = None
    total_rate(rate, torch.tensor([2]), 10.0, over).sum().backward()
    assert rate.grad is not None and (rate.grad == 0).all()


# ------------------------------------------------------------------------------------------------------- estimators


def test_the_sample_at_hand_is_the_estimate():
    """It is log q(z) - log p(z) of the decoded z, or the closed form if requested or available."""
    batch, separation = batch_and_separation()
    posterior = separation.encoding
    prior, sample = (separation.extras[f"encoding_{name}"] for name in ("prior", "sample"))
    ratio = posterior.log_prob(sample) - prior.log_prob(sample)
    for estimator, expected in (("sample", ratio), ("analytic", posterior.kl(prior)), ("auto", posterior.kl(prior))):
        torch.testing.assert_close(elementwise_rate(posterior, prior, sample, estimator), expected)
    config = c.ObjectiveConfig(rates=c.RatesConfig(estimator="sample"))
    found = build_objective(config, TRAITS)(batch, separation).terms["encoding_rate"]
    torch.testing.assert_close(found[0], ratio[0].sum() / T)


def test_without_a_closed_form():
    """`auto` takes a sample, `analytic` raises; validation always draws the same sample."""
    _, separation = batch_and_separation()
    posterior = WithoutClosedForm(separation.encoding.mean, separation.encoding.deviation)
    prior, sample = (separation.extras[f"encoding_{name}"] for name in ("prior", "sample"))
    expected = posterior.log_prob(sample) - prior.log_prob(sample)
    torch.testing.assert_close(elementwise_rate(posterior, prior, sample), expected)
    with pytest.raises(TypeError, match="no closed form"):
        elementwise_rate(posterior, prior, sample, "analytic")
    with torch.no_grad():
        one, two = (elementwise_rate(posterior, prior, None) for _ in range(2))
    assert torch.equal(one, two)
    one, two = (elementwise_rate(posterior, prior, None) for _ in range(2))
    assert not torch.equal(one, two)


# ------------------------------------------------------------------------------------------ identical mask priors


def test_permutations_change_the_cost_alone():
    """PIT on the cost is PIT on the whole bound: the mask rate is the same in any order of the hypotheses."""
    batch, separation = batch_and_separation()
    objective = build_objective(c.ObjectiveConfig(cost=c.BLRConfig()), TRAITS)
    loss = objective(batch, separation).loss
    masks = separation.masks
    separation.estimates = separation.estimates.flip(1)
    separation.masks = LogNormalDistribution(masks.location.flip(1), masks.deviation.flip(1))
    torch.testing.assert_close(objective(batch, separation).loss, loss)


def test_mask_priors_that_differ_between_hypotheses_are_refused():
    batch, separation = batch_and_separation()
    location = torch.tensor([0.0, 0.5], dtype=torch.float64).reshape(2, 1, 1)
    separation.extras["mask_prior"] = LogNormalDistribution(location, torch.ones_like(location))
    with pytest.raises(ValueError, match="differs between hypotheses"):
        build_objective(c.ObjectiveConfig(), TRAITS)(batch, separation)
    separation.extras["mask_prior"] = LogNormalDistribution(0 * location, torch.ones_like(location))
    assert build_objective(c.ObjectiveConfig(), TRAITS)(batch, separation).loss.isfinite().all()


# --------------------------------------------------------------------------------------------- an adaptive prior


def test_the_adaptive_prior_adds_the_rate_of_the_sources():
    """The rate is summed over active sources, from the prior of a single one, with the encoding's weight."""
    batch, separation = batch_and_separation()
    source = NormalDistribution(torch.randn(3, 2, K, F, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))
    separation.source_encodings, separation.extras["source_prior"] = source, STANDARD
    adaptive = ModelTraits(BOTH, frames_for=frames_for, adaptive_prior=True)
    rates = c.RatesConfig(c.RateConfig(c.ConstantConfig(0.5)))
    result = build_objective(c.ObjectiveConfig(cost=c.BLRConfig(), rates=rates), adaptive)(batch, separation)
    rate = kl(source.mean, source.deviation)
    expected = torch.stack([rate[0].sum() / T, rate[1, 0, :, :3].sum() / 24, rate.new_zeros(())])
    torch.testing.assert_close(result.terms["source_rate"], expected)
    parts = result.terms
    whole = parts["separation"] + 0.5 * (parts["encoding_rate"] + parts["source_rate"]) + parts["mask_rate"]
    torch.testing.assert_close(result.loss, whole)


def test_sources_are_asked_for_where_they_are_needed():
    """Inactive sources are passed as zeros, whatever they hold."""
    batch, _ = batch_and_separation()
    batch.sources[1, 1] = math.nan
    adaptive = ModelTraits(BOTH, frames_for=frames_for, adaptive_prior=True)
    assert build_objective(c.ObjectiveConfig(), TRAITS).inputs(batch) == {"wants": set()}
    inputs = build_objective(c.ObjectiveConfig(), adaptive).inputs(batch)
    assert set(inputs) == {"wants", "sources", "active"} and inputs["sources"].isfinite().all()


# --------------------------------------------------------------------------------------------------------- steering


def test_the_weight_follows_the_rate():
    """It rises by 1 + change above the target, falls below it, and stays within the tolerance."""
    steering = Steering(("a", "b"), 10.0, c.SteeringConfig(initial_weight=1.0, change=0.25, tolerance=0.1))
    for rates, expected in (((8.0, 4.0), 1.25), ((6.0, 4.9), 1.25), ((5.0, 4.1), 1.25), ((4.0, 4.0), 1.0)):
        steering.after_step(dict(zip("ab", rates, strict=True)))
        assert steering.weight == pytest.approx(expected)
    steering.after_step({"a": 1.0})
    assert steering.weight == pytest.approx(1.0)


def test_a_rate_is_led_to_its_target():
    """Free means under a weight w settle where w * rate' = gain'; the target is met within the tolerance."""
    mean = torch.full((1, 4, 6), 2.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([mean], lr=0.1)
    batch = Batch(torch.zeros(1, 48), torch.zeros(1, 1, 48), torch.ones(1, 1, dtype=torch.bool), torch.tensor([48]))
    config = c.RatesConfig(steering=c.SteeringConfig(encoding=1.0, initial_weight=1e-2, change=0.02))
    terms, steerings = build_rates(config, ModelTraits({"encoding_prior"}, frames_for=frames_for))

    class Gain(Term):
        def __call__(self, step: Step) -> Tensor:
            return 0.5 * (mean - 2).square().mean((1, 2))

    objective = Objective({"gain": Gain(), **terms}, steerings=steerings)
    for _ in range(1500):
        posterior = NormalDistribution(mean, torch.ones_like(mean))
        result = objective(batch, Separation(mean, posterior, posterior, extras={"encoding_prior": STANDARD}))
        optimizer.zero_grad()
        result.loss.sum().backward()
        optimizer.step()
        objective.after_step({name: value.mean().item() for name, value in result.statistics.items()})
    assert result.statistics["encoding_rate_nats_per_frame"].item() == pytest.approx(1.0, rel=0.05)


def test_one_weight_for_the_total_or_one_for_each():
    total, steerings = build_rates(c.RatesConfig(steering=c.SteeringConfig(total=5.0)), TRAITS)
    assert len(steerings) == 1 and total["encoding_rate"].steering is total["mask_rate"].steering is steerings[0]
    assert steerings[0].statistics == ("encoding_rate_nats_per_frame", "mask_rate_nats_per_frame")
    each, steerings = build_rates(c.RatesConfig(steering=c.SteeringConfig(encoding=5.0, masks=2.0)), TRAITS)
    assert [s.target for s in steerings] == [5.0, 2.0]
    steerings[0].weight = 0.5
    assert (each["encoding_rate"].weight, each["mask_rate"].weight) == (0.5, 1e-6)
    one, steerings = build_rates(c.RatesConfig(steering=c.SteeringConfig(masks=2.0)), TRAITS)
    assert len(steerings) == 1 and one["encoding_rate"].weight == 1.0


def test_steered_weights_are_remembered():
    config = c.ObjectiveConfig(rates=c.RatesConfig(steering=c.SteeringConfig(encoding=5.0, masks=2.0)))
    one, two = (build_objective(config, TRAITS) for _ in range(2))
    for _ in range(7):
        one.after_step({"encoding_rate_nats_per_frame": 9.0, "mask_rate_nats_per_frame": 1.0})
    assert one.scheduled != two.scheduled
    two.load_state_dict(one.state_dict())
    assert one.scheduled == two.scheduled
    assert one.scheduled["encoding_rate_weight"] == pytest.approx(1e-6 * 1.01**7)


def test_a_target_that_is_not_reached_is_reported():
    """A line with the rate comes every N epochs; none if the target is reached, or with warnings turned off."""
    config = c.ObjectiveConfig(rates=c.RatesConfig(steering=c.SteeringConfig(encoding=5.0, warn_after_epochs=10)))
    objective = build_objective(config, TRAITS)
    far = {"encoding_rate_nats_per_frame": 3.0}
    assert objective.warnings(far, 9) == objective.warnings({"encoding_rate_nats_per_frame": 5.4}, 10) == []
    for epochs in (10, 20):
        (line,) = objective.warnings(far, epochs)
        assert f"after {epochs} epochs encoding_rate_nats_per_frame is 3, the target 5" in line and "\n" not in line
    assert Steering(("a",), 5.0, c.SteeringConfig(warn_after_epochs=0)).warning({"a": 3.0}, 20) is None


# ----------------------------------------------------------------------------------------------------------- margin


def test_margin():
    """It is the mean of max(|u| - 1, 0)^2 over hypotheses and own samples of standardized estimates."""
    batch, separation = batch_and_separation()
    assert "margin" not in build_objective(c.ObjectiveConfig(), ModelTraits(signal_std=0.5))(batch, separation).terms
    result = build_objective(c.ObjectiveConfig(margin_weight=2.0), ModelTraits(signal_std=0.5))(batch, separation)
    for b, length in enumerate((T, 24)):
        beyond = [max(abs(u) / 0.5 - 1, 0) ** 2 for u in separation.estimates[b, :, :length].flatten().tolist()]
        assert result.terms["margin"][b].item() == pytest.approx(sum(beyond) / len(beyond))
    assert result.terms["margin"][2] == 0
    torch.testing.assert_close(result.loss, result.terms["separation"] + 2 * result.terms["margin"])


# ---------------------------------------------------------------------------------------------------- auto-encoding


@pytest.mark.parametrize("cost", [c.BLRConfig(), c.NegSISDRConfig()], ids=["nats", "db"])
def test_reconstructions_are_compared_with_what_was_encoded(cost):
    """Each active source is compared with its own, the mixture in every utterance, on the scale of the separation."""
    batch, separation = batch_and_separation()
    noise = torch.randn(3, 3, T, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    separation.extras["source_reconstructions"] = made = batch.sources + noise[:, :2]
    separation.reconstructions = batch.mixture + noise[:, 2]
    batch.mixture[2] = noise[2, 0]
    config = c.ObjectiveConfig(cost=cost, autoencoding=c.AutoencodingConfig(sources=0.5, mixtures=2.0))
    result = build_objective(config, ModelTraits(signal_std=0.5))(batch, separation)

    def compared(found: Tensor, signal: Tensor) -> float:
        if isinstance(cost, c.BLRConfig):
            return pairwise_blr_nll(found[None, None] / 0.5, signal[None, None] / 0.5).item() / len(signal)
        return pairwise_neg_si_sdr(found[None, None], signal[None, None]).item()

    for b, length in enumerate((T, 24, T)):
        each = [compared(made[b, j, :length], batch.sources[b, j, :length]) for j in range(2) if batch.active[b, j]]
        count = 1 if isinstance(cost, c.BLRConfig) else max(len(each), 1)
        assert result.terms["source_reconstruction"][b].item() == pytest.approx(sum(each) / count, rel=1e-9)
        of_mixture = compared(separation.reconstructions[b, :length], batch.mixture[b, :length])
        assert result.terms["mixture_reconstruction"][b].item() == pytest.approx(of_mixture, rel=1e-9)
    parts = result.terms
    expected = parts["separation"] + 0.5 * parts["source_reconstruction"] + 2 * parts["mixture_reconstruction"]
    torch.testing.assert_close(result.loss, expected)


def test_mixtures_without_sources_are_learnt_from():
    """Their loss per sample is the mixture's negative bound: reconstruction and the encoding's rate."""
    batch, separation = batch_and_separation()
    separation.reconstructions = batch.mixture + 0.1
    batch.mixture[2] = 1.0
    config = c.ObjectiveConfig(cost=c.BLRConfig(), autoencoding=c.AutoencodingConfig(mixtures=1.0))
    objective = build_objective(config, TRAITS)
    assert objective.inputs(batch) == {"wants": {"reconstructions"}}
    result = objective(batch, separation)
    rate = kl(separation.encoding.mean, separation.encoding.deviation)[2].sum() / T
    nll = pairwise_blr_nll(separation.reconstructions[2:, None], batch.mixture[2:, None]).squeeze() / T
    torch.testing.assert_close(result.loss[2], nll + rate)
    assert result.terms["mask_rate"][2] == 0


def test_auto_encoding_of_sources_has_their_rate_and_asks_for_them():
    batch, _ = batch_and_separation()
    config = c.ObjectiveConfig(cost=c.BLRConfig(), autoencoding=c.AutoencodingConfig(sources=1.0))
    objective = build_objective(config, TRAITS)
    assert {"source_reconstruction", "source_rate"} <= set(objective.terms)
    assert set(objective.inputs(batch)) == {"wants", "sources", "active"}


def test_alive_share_counts_dimensions_above_a_hundredth_of_a_nat():
    """Means are over an utterance's own frames."""
    rate = torch.zeros(2, 2, 2, 4)
    rate[0, 0, 0] = 0.02
    rate[0, 0, 1, 3] = 1.0
    rate[1, :, :, 0] = 0.05
    frames = torch.tensor([3, 4])
    # First: only one of four is alive, for the large value is beyond its frames. Second: the mean is .0125 in each.
    assert alive_share(rate, frames).tolist() == [0.25, 1.0]
    assert alive_share(0.5 * rate, frames).tolist() == [0.0, 0.0]
