import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sepkit import config as c
from sepkit.models import build_model
from sepkit.models.latents import Beta, Deterministic, Gamma, Gaussian, LogNormal, Point
from sepkit.registry import build
from sepkit.types import Latent
from tests.complaint import complaint
from tests.models.test_maskers import DIMS, SMALL

ORACLES = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "exp": np.exp,
    "tanh": np.tanh,
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
}


@pytest.mark.parametrize("activation", ORACLES)
def test_links(activation):
    raw = torch.randn(2, 3, 1, 4, 5, dtype=torch.float64)
    point = Deterministic(activation).posterior(raw)
    assert point.shape == (2, 3, 4, 5)
    np.testing.assert_allclose(point.mean.numpy(), ORACLES[activation](raw.numpy()[:, :, 0]), rtol=1e-12, atol=1e-15)


def test_a_point_is_a_latent_of_one_value():
    value = torch.randn(2, 4, 5, requires_grad=True)
    point = Deterministic("linear").posterior(value.unsqueeze(1))
    assert isinstance(point, Latent)
    for one in (point.mean, point.sample(), point.sample(torch.Generator())):
        assert torch.equal(one, value)
    point.sample().sum().backward()
    assert torch.equal(value.grad, torch.ones_like(value))


def test_a_point_has_rate_zero_and_all_its_mass_in_one_place():
    point = Point(torch.tensor([0.0, 2.0, math.nan]))
    assert torch.equal(point.kl(None), torch.zeros(3))
    assert torch.equal(point.log_prob(torch.tensor([0.0, 1.0, math.nan])), torch.tensor([0.0, -math.inf, -math.inf]))


def test_mistakes():
    complaint(lambda: Deterministic("cubic"), "activation: found 'cubic'")
    for shape in ((2, 3), (2, 2, 4, 5)):
        with pytest.raises(ValueError, match="expected"):
            Deterministic().posterior(torch.zeros(shape))


# ---------------------------------------------------------------------------------------------- variational families

FAMILIES = [(c.GaussianConfig(), 2), (c.LogNormalConfig(), 2), (c.GammaConfig(), 1), (c.BetaConfig(), 2)]


@pytest.mark.parametrize(("config", "count"), FAMILIES)
def test_families_make_posteriors_from_raw_values(config, count):
    family = build(config)
    assert family.variational and family.values_per_dimension == count
    for shape in ((2, count, 4, 5), (2, 3, count, 4, 5)):
        posterior = family.posterior(torch.randn(shape))
        assert isinstance(posterior, Latent)
        assert posterior.shape == posterior.sample().shape == shape[:-3] + shape[-2:]
        assert posterior.kl(family.standard_prior()).shape == posterior.shape
    with pytest.raises(ValueError, match=rf"expected \(\.\.\., {count}, K, F\)"):
        family.posterior(torch.randn(2, 3, 4, 5))


def test_families_own_their_links():
    raw = torch.randn(2, 2, 4, 5, dtype=torch.float64)
    first, second = raw.numpy()[:, 0], raw.numpy()[:, 1]
    softplus = ORACLES["softplus"]
    gaussian, log_normal, beta = (family().posterior(raw) for family in (Gaussian, LogNormal, Beta))
    gamma = Gamma().posterior(raw[:, :1])
    np.testing.assert_allclose(gaussian.mean, first)
    np.testing.assert_allclose(gaussian.deviation, softplus(second))
    np.testing.assert_allclose(log_normal.median, np.exp(first))
    np.testing.assert_allclose(log_normal.mean, np.exp(first + softplus(second) ** 2 / 2))
    np.testing.assert_allclose(gamma.mean, softplus(first))
    np.testing.assert_allclose(beta.mean, softplus(first) / (softplus(first) + softplus(second)))
    np.testing.assert_allclose(Gaussian("relu").posterior(raw).mean, np.maximum(first, 0))


@pytest.mark.parametrize(("config", "count"), FAMILIES)
def test_positive_parameters_have_a_floor_and_nan_shows(config, count):
    family = build(config)
    posterior = family.posterior(torch.full((1, count, 2, 3), -1e4))
    for name in {Gamma: ["concentration"], Beta: ["alpha", "beta"]}.get(type(family), ["deviation"]):
        assert (getattr(posterior, name) == torch.tensor(1e-6)).all()
    assert family.posterior(torch.full((1, count, 2, 3), math.nan)).kl(family.standard_prior()).isnan().all()


def test_what_stands_for_a_posterior_at_test():
    raw = torch.randn(1, 2, 3, 4)
    posterior = LogNormal().posterior(raw)
    assert torch.equal(LogNormal().at_test(posterior), posterior.median)
    assert torch.equal(Beta().at_test(Beta().posterior(raw)), Beta().posterior(raw).mean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("config", "count"), FAMILIES)
def test_posteriors_of_half_precision_are_float32(config, count, dtype):
    posterior = build(config).posterior(torch.randn(1, count, 3, 4).to(dtype))
    assert posterior.sample().dtype == posterior.kl(build(config).standard_prior()).dtype == torch.float32


# --------------------------------------------------------------------------------------------- variational models

TINY = c.RecurrentConfig(hidden_size=6, num_layers=1)
FREE = c.FreeFilterbankConfig(num_filters=8)
STFT = c.STFTFilterbankConfig(32, 8)
SUDORMRF = c.FreeFilterbankConfig(8, kernel_size=21, stride=10, padding=10, output_padding=9, multiple=80)
MASKERS = {config.name: config for masker_class, config in SMALL.items() if masker_class not in DIMS}


def variational(filterbank, masks, **fields):
    fields = {"encoding": c.GaussianConfig(), "masker": TINY} | fields
    return build_model(c.ModelConfig(**fields, filterbank=filterbank, masks=masks))


def test_gaussian_log_normal_tasnet_has_the_thesis_size():
    """5.05 million and a second encoder kernel and mask output: "5.2 million"."""
    model = build_model(c.ModelConfig(encoding=c.GaussianConfig(), masks=c.LogNormalConfig()))
    assert sum(p.numel() for p in model.parameters()) == 5_190_833


@pytest.mark.parametrize(
    "masks", [c.LogNormalConfig(), c.BetaConfig(), c.GammaConfig(), c.GaussianConfig()], ids=lambda c: c.name
)
@pytest.mark.parametrize("masker", MASKERS)
def test_any_masker_becomes_variational_by_configuration(masker, masks):
    model = variational(SUDORMRF if "sudormrf" in masker else FREE, masks, masker=MASKERS[masker])
    separation = model(torch.randn(2, 300))
    assert separation.masks.shape == (2, 2, 8, separation.encoding.shape[-1])
    rate_of_encoding = separation.encoding.kl(separation.extras["encoding_prior"])
    rate_of_masks = separation.masks.kl(separation.extras["mask_prior"])
    (separation.estimates.square().sum() + rate_of_encoding.sum() + rate_of_masks.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_with_the_stft_the_mean_is_the_coefficient():
    filterbank = replace(STFT, initial_deviation=0.3)
    model = build_model(c.ModelConfig(filterbank=filterbank, encoding=c.GaussianConfig(), masker=TINY))
    plain = build_model(c.ModelConfig(filterbank=STFT, encoding=c.DeterministicConfig("linear"), masker=TINY))
    mixture = torch.randn(2, 200)
    encoding = model.encode(mixture)
    assert torch.equal(encoding.mean, plain.encode(mixture).mean)
    torch.testing.assert_close(encoding.deviation, torch.full_like(encoding.mean, 0.3))
    model(mixture).estimates.square().sum().backward()
    (learnt,) = [p for name, p in model.named_parameters() if "deviation" in name]
    assert learnt.shape == (17,) and learnt.grad.abs().sum() > 0
    # One value for both halves of a bin.
    with torch.no_grad():
        learnt.add_(torch.randn_like(learnt))
    changed = model.encode(mixture).deviation
    torch.testing.assert_close(changed[:, :17], changed[:, 17:])
    assert (changed.std(-1) == 0).all() and (changed[0, :17, 0].diff() != 0).all()


class Collapsed:
    """A family with the deviations of its posteriors at their floor."""

    def __init__(self, family):
        self.family = family

    def __getattr__(self, name):
        return getattr(self.family, name)

    def posterior(self, raw):
        return self.family.posterior(torch.stack([raw.select(-3, 0), torch.full_like(raw.select(-3, 0), -1e4)], -3))


@pytest.mark.parametrize(
    ("masks", "activation"),
    [(c.LogNormalConfig(), "exp"), (c.GaussianConfig("sigmoid"), "sigmoid")],
    ids=["log_normal", "gaussian"],
)
@pytest.mark.parametrize("bank", [FREE, STFT], ids=["free", "stft"])
@pytest.mark.parametrize("training", [True, False])
def test_posteriors_collapsed_to_points_are_the_deterministic_twin(bank, masks, activation, training):
    """With the same weights but for the heads, and the same activation, estimates agree to 1e-5, also in training."""
    model = variational(bank, masks)
    twin = variational(bank, c.DeterministicConfig(activation), encoding=c.DeterministicConfig("linear"))
    weights = model.state_dict()
    for name, tensor in twin.state_dict().items():
        found = weights[name]
        if found.shape != tensor.shape:
            found = _first_values(found, hypotheses=1 if name.startswith("filterbank") else 2)
        tensor.copy_(found)
    model.encoding_family, model.mask_family = Collapsed(model.encoding_family), Collapsed(model.mask_family)
    mixture = torch.randn(2, 400)
    expected = twin.train(training)(mixture).estimates
    torch.testing.assert_close(model.train(training)(mixture).estimates, expected, rtol=0, atol=1e-5)


def _first_values(weight, hypotheses):
    """Return the rows of the first value, of rows ordered (hypotheses, P = 2, K)."""
    return weight.unflatten(0, (hypotheses, 2, -1))[:, 0].flatten(0, 1)


def test_latents_are_sampled_in_training_alone():
    model, mixture = variational(FREE, c.LogNormalConfig()), torch.randn(2, 200)
    one, two, other = (model(mixture, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.estimates, two.estimates) and not torch.equal(one.estimates, other.estimates)
    decoded = model.decode(one.extras["mask_sample"] * one.extras["encoding_sample"].unsqueeze(1), 200)
    assert torch.equal(decoded, one.estimates)
    tested = model.eval()(mixture)
    assert torch.equal(tested.estimates, model(mixture).estimates)
    assert not tested.extras.keys() & {"encoding_sample", "mask_sample"}


@pytest.mark.parametrize("encoding", [c.GaussianConfig(), c.GammaConfig(), c.LogNormalConfig()], ids=lambda c: c.name)
def test_silence_and_mixtures_shorter_than_a_kernel(encoding):
    model = variational(FREE, c.BetaConfig(), encoding=encoding)
    for mixture in (torch.zeros(2, 200), torch.randn(1, 1), torch.randn(1, 5)):
        separation = model(mixture)
        assert separation.estimates.shape == (len(mixture), 2, mixture.shape[-1])
        rate = separation.encoding.kl(separation.extras["encoding_prior"])
        assert separation.estimates.isfinite().all() and rate.isfinite().all()
        assert rate.shape[-1] == model.frames_for(mixture.shape[-1])


@pytest.mark.parametrize("bank", [FREE, STFT, SUDORMRF], ids=["free", "stft", "sudormrf"])
def test_the_decoders_second_output_is_a_scale(bank):
    config = c.ModelConfig(filterbank=bank, masker=TINY, estimate_scales=True)
    model = build_model(config)
    model.set_signal_statistics(0.0, 0.1)
    without = build_model(replace(config, estimate_scales=False))
    more = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in without.parameters())
    assert more == model.filterbank.full_dim * model.filterbank.kernel_size
    for num_samples in (1, 100, 333):
        separation = model(torch.randn(2, num_samples))
        assert separation.estimate_scales.shape == separation.estimates.shape
        assert (separation.estimate_scales >= 0.1 * 1e-6).all()
    separation.estimate_scales.sum().backward()
    assert model.scale_decoder is not None and model.scale_decoder.filters.grad.abs().sum() > 0
