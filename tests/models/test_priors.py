"""Priors: the convolution of the sources' posteriors, the flow's density and Jacobian, and errors."""

import pytest
import scipy.signal
import scipy.stats
import torch

from sepkit import config as c
from sepkit.errors import UserError
from sepkit.models import build_model, load_checkpoint, save_model
from sepkit.models.distributions import GammaDistribution, NormalDistribution
from sepkit.models.latents import Beta, Gamma, Gaussian, LogNormal, Point
from sepkit.models.priors import AdaptivePrior, FlowPrior, convolution

TINY = {"filterbank": c.FreeFilterbankConfig(num_filters=8), "masker": c.RecurrentConfig(hidden_size=6, num_layers=1)}


def tiny(**fields) -> c.ModelConfig:
    return c.ModelConfig(**(TINY | {"encoding": c.GaussianConfig(), "masks": c.LogNormalConfig()} | fields))


def test_standard_priors():
    """N(0, 1), LN(0, 1), Gamma(1/2, 1), Beta(1, 1)."""
    value = torch.tensor([0.2, 0.7], dtype=torch.float64)
    for family, oracle in {
        Gaussian: scipy.stats.norm(),
        LogNormal: scipy.stats.lognorm(1.0),
        Gamma: scipy.stats.gamma(0.5),
        Beta: scipy.stats.uniform(),
    }.items():
        found = family().standard_prior().log_prob(value)
        assert found.tolist() == pytest.approx(oracle.logpdf(value.numpy()).tolist(), abs=1e-12)


# ------------------------------------------------------------------------------------------------------- adaptive


@pytest.mark.parametrize("kind", [NormalDistribution, GammaDistribution])
def test_the_adaptive_prior_is_the_convolution(kind):
    """It agrees with the numerical convolution of the two densities, on a grid."""
    if kind is NormalDistribution:
        parameters = torch.tensor([[0.4, 0.7], [-1.1, 1.3]], dtype=torch.float64)
        frozen = [scipy.stats.norm(*row) for row in parameters.tolist()]
    else:
        parameters = torch.tensor([[2.4, 1.0], [3.1, 1.0]], dtype=torch.float64)
        frozen = [scipy.stats.gamma(row[0]) for row in parameters.tolist()]
    first, second = (column.reshape(1, 2, 1, 1) for column in parameters.T)
    sources = kind(first, second if kind is NormalDistribution else torch.tensor(1.0, dtype=torch.float64))
    single = Gaussian().standard_prior() if kind is NormalDistribution else Gamma().standard_prior()
    density = AdaptivePrior(single)(sources)
    step = 1e-3
    grid = torch.arange(-12 if kind is NormalDistribution else 0, 30, step, dtype=torch.float64)
    pieces = [distribution.pdf(grid.numpy()) for distribution in frozen]
    expected = scipy.signal.fftconvolve(*pieces)[: 2 * len(grid)] * step
    at = torch.arange(len(expected), dtype=torch.float64) * step + 2 * grid[0]
    found = density.log_prob(at.reshape(1, 1, -1)).exp()[0, 0]
    near = (at > -6) & (at < 15)
    torch.testing.assert_close(found[near], torch.as_tensor(expected)[near], rtol=0, atol=1e-5)


def test_sources_that_do_not_speak_add_nothing():
    """If no source speaks, or none is known, it is the prior of a single source."""
    mean, deviation = torch.randn(3, 2, 4, 5, requires_grad=True), torch.rand(3, 2, 4, 5) + 0.1
    active = torch.tensor([[True, True], [False, True], [False, False]])
    single = Gaussian().standard_prior()
    density = AdaptivePrior(single)(NormalDistribution(mean, deviation), active)
    assert isinstance(density, NormalDistribution)
    torch.testing.assert_close(density.mean[0], mean[0].sum(0))
    torch.testing.assert_close(density.deviation[0], deviation[0].square().sum(0).sqrt())
    torch.testing.assert_close(density.mean[1], mean[1, 1])
    torch.testing.assert_close(density.deviation[1], deviation[1, 1])
    assert (density.mean[2] == 0).all() and (density.deviation[2] == 1).all()
    assert AdaptivePrior(single)() is single and AdaptivePrior(single).of_sources() is single
    density.log_prob(torch.zeros(3, 4, 5)).sum().backward()
    assert mean.grad is not None and mean.grad.isfinite().all() and mean.grad[0].abs().sum() > 0


@pytest.mark.parametrize("encoding", [c.GaussianConfig(), c.GammaConfig()], ids=lambda config: config.name)
def test_a_model_convolves_what_it_is_shown(encoding):
    """Sources are divided by the training deviation but keep their means, so that linear encodings add up."""
    model = build_model(tiny(encoding=encoding, encoding_prior=c.AdaptivePriorConfig()))
    model.set_signal_statistics(0.3, 0.5)
    sources = torch.randn(2, 3, 120)
    active = torch.tensor([[True, True, True], [True, False, True]])
    separation = model(sources.sum(1), sources=sources, active=active)
    assert separation.source_encodings.shape == (2, 3, *separation.encoding.shape[1:])
    by_hand = convolution(separation.source_encodings, active, model.encoding_prior.of_sources())
    value = separation.extras["encoding_sample"]
    torch.testing.assert_close(separation.extras["encoding_prior"].log_prob(value), by_hand.log_prob(value))
    assert separation.encoding.kl(separation.extras["encoding_prior"]).isfinite().all()
    # Without sources, as at test.
    alone = model.eval()(sources.sum(1))
    assert alone.source_encodings is None and alone.extras["encoding_prior"] is model.encoding_prior.of_sources()
    if encoding.name == "gaussian":
        separation = build_model(tiny(encoding_prior=c.AdaptivePriorConfig()))(sources.sum(1), sources=sources)
        found = separation.extras["encoding_prior"].mean
        torch.testing.assert_close(found, separation.encoding.mean, rtol=1e-4, atol=1e-5)


def test_convolutions_without_a_closed_form():
    with pytest.raises(UserError, match="adaptive needs gaussian or gamma encodings"):
        build_model(tiny(encoding=c.LogNormalConfig(), encoding_prior=c.AdaptivePriorConfig()))
    with pytest.raises(TypeError, match="found Point"):
        convolution(Point(torch.zeros(1, 2, 3, 4)), None, Gaussian().standard_prior())


# ----------------------------------------------------------------------------------------------------------- flow


@pytest.fixture
def zuko():
    return pytest.importorskip("zuko", reason="zuko is missing: pip install 'sepkit[flow]'")


def moved(flow: FlowPrior, size: float = 1.0) -> FlowPrior:
    """A flow in float64 whose weights are well away from where they start."""
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return flow.double()


def test_the_flows_density_integrates_to_one_in_two_dimensions(zuko):
    """The trapezoid rule on a grid gives 1, and the density is no Gaussian's."""
    density = moved(FlowPrior(2, transforms=2, hidden_features=8, hidden_layers=2), 0.3)()
    axis = torch.linspace(-12, 12, 1201, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis).T
    with torch.no_grad():
        log_density = density.log_prob(grid.unsqueeze(0)).sum(1).reshape(1201, 1201)
    assert (log_density.exp().sum() * (axis[1] - axis[0]) ** 2).item() == pytest.approx(1.0, abs=1e-5)
    assert (log_density - log_density.T).abs().max() > 0.1


def test_the_flows_jacobian_is_triangular(zuko):
    """Each network's has ones on the diagonal, so volumes stay. Orders alternate, and frames do not meet."""
    flow = moved(FlowPrior(5, transforms=2, hidden_features=16))
    for number, transform in enumerate(flow.transforms):
        jacobian = torch.autograd.functional.jacobian(transform(), torch.randn(5, dtype=torch.float64))
        jacobian = jacobian.flip(0, 1) if number % 2 else jacobian
        assert (jacobian.triu(1) == 0).all() and (jacobian.diagonal() == 1).all()
        assert (jacobian.tril(-1) != 0).any()
    at = torch.randn(5, dtype=torch.float64)
    whole = torch.autograd.functional.jacobian(lambda z: flow.noise(z.unsqueeze(-1)).squeeze(-1), at)
    assert torch.linalg.det(whole).item() == pytest.approx(1.0, abs=1e-9)
    value = torch.randn(2, 5, 7, dtype=torch.float64)
    torch.testing.assert_close(flow.noise(value[..., 3:4]), flow.noise(value)[..., 3:4])


def test_a_models_flow_is_trained_and_stored(zuko, tmp_path):
    model = build_model(tiny(encoding_prior=c.FlowPriorConfig(transforms=2, hidden_features=8)))
    separation = model(torch.randn(2, 200))
    value = separation.extras["encoding_sample"]
    rate = separation.encoding.log_prob(value) - separation.extras["encoding_prior"].log_prob(value)
    assert rate.shape == separation.encoding.shape
    rate.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.encoding_prior.parameters())
    again = load_checkpoint(save_model(model, tmp_path))
    with torch.no_grad():
        expected = separation.extras["encoding_prior"].log_prob(value)
        torch.testing.assert_close(again.encoding_prior().log_prob(value), expected, rtol=0, atol=0)


def test_the_flow_of_the_thesis_size(zuko):
    """6 x MADE(512, [1024, 1024], 512): 12.6 million parameters beside the model's 5.2, "17.8 million"."""
    assert sum(p.numel() for p in FlowPrior(512).parameters()) + 5_190_833 == pytest.approx(17.8e6, rel=0.005)


# --------------------------------------------------------------------------------------------------------- refused


def test_points_have_no_prior():
    assert not build_model(c.ModelConfig(**TINY))(torch.randn(1, 50)).extras
    with pytest.raises(UserError, match=r"model.encoding_prior: found flow, but Deterministic.* is deterministic"):
        build_model(c.ModelConfig(**TINY, encoding_prior=c.FlowPriorConfig()))
