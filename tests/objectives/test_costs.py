"""Pairwise costs: closed forms, invariances, odd inputs. Parity with other packages is in tests/parity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepkit.config import CostConfig, NegSISDRConfig
from sepkit.objectives import costs
from sepkit.objectives.inner_products import inner_products
from sepkit.registry import build

NAMES = ("neg_si_sdr", "neg_snr", "mse", "log_mse", "blr_nll", "cauchy_nll")
ALL = {name: getattr(costs, f"pairwise_{name}") for name in NAMES}
every_cost = pytest.mark.parametrize("cost", ALL.values(), ids=ALL.keys())


def signals(seed: int, n: int = 3, m: int = 2, num_samples: int = 200, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    estimates = torch.randn(2, n, num_samples, dtype=dtype, generator=generator)
    sources = torch.randn(2, m, num_samples, dtype=dtype, generator=generator)
    estimates[:, : min(n, m)] += 2 * sources[:, : min(n, m)]
    return estimates, sources


def direct(name: str, estimate: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return the dB and power costs of one pair, from their definitions."""
    if name in ("neg_si_sdr", "neg_snr"):
        estimate, source = estimate - estimate.mean(), source - source.mean()
        target = source if name == "neg_snr" else (estimate @ source) / (source @ source + 1e-8) * source
        error = estimate - target
        return -10 * torch.log10(target @ target / (error @ error + 1e-8) + 1e-8)
    mse = (estimate - source).square().mean()
    return mse if name == "mse" else 10 * torch.log10(mse + 1e-8)


@pytest.mark.parametrize("name", ["neg_si_sdr", "neg_snr", "mse", "log_mse"])
def test_definitions(name):
    """Every pair of unequal numbers of estimates and sources agrees with the definition, in float64."""
    estimates, sources = signals(0)
    found = ALL[name](estimates, sources)
    assert found.shape == (2, 3, 2) and found.dtype == torch.float64
    for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(2)):
        torch.testing.assert_close(found[b, i, j], direct(name, estimates[b, i], sources[b, j]), atol=1e-10, rtol=1e-10)


@every_cost
def test_gradient_against_finite_differences(cost):
    """Gradients agree for estimates and for sources."""
    estimates, sources = signals(1, num_samples=6)
    assert torch.autograd.gradcheck(cost, (estimates.requires_grad_(), sources.requires_grad_()))


@every_cost
@pytest.mark.parametrize("num_samples", [32000, 240000])
def test_float32_is_enough(cost, num_samples):
    """float32 inputs give the float64 result to rounding, for good and for bad pairs."""
    estimates, sources = signals(2, num_samples=num_samples, dtype=torch.float32)
    estimates[:, 0] = sources[:, 0] + 1e-3 * estimates[:, 0]
    found = cost(estimates, sources)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), cost(estimates.double(), sources.double()), atol=1e-5, rtol=2e-7)


@every_cost
def test_padding(cost):
    """A padded utterance costs what it costs alone."""
    estimates, sources = signals(3)
    lengths = torch.tensor([150, 1])
    found = cost(estimates, sources, lengths=lengths)
    for b, length in enumerate(lengths):
        alone = cost(estimates[b : b + 1, :, :length], sources[b : b + 1, :, :length])
        torch.testing.assert_close(found[b : b + 1], alone)


@every_cost
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs(cost, dtype):
    """Half precision inputs give float32 results, as from the same numbers in float32, with autocast or not."""
    estimates, sources = (x.to(dtype) for x in signals(4, num_samples=16000))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = cost(estimates, sources)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, cost(estimates.float(), sources.float()), atol=0, rtol=0)


@every_cost
@pytest.mark.parametrize("silent", ["source", "estimate", "both"])
@pytest.mark.parametrize("num_samples", [1, 100])
def test_silence_is_finite(cost, silent, num_samples):
    """Value and gradient are finite, down to a single sample."""
    estimates, sources = signals(5, num_samples=num_samples, dtype=torch.float32)
    if silent != "estimate":
        sources[:, 0] = 0
    if silent != "source":
        estimates[:, 0] = 0
    found = cost(estimates.requires_grad_(), sources)
    assert found.isfinite().all()
    found.sum().backward()
    assert estimates.grad.isfinite().all()


@pytest.mark.parametrize("cost", [costs.pairwise_neg_si_sdr, costs.pairwise_neg_snr])
def test_cost_of_a_silent_source(cost):
    """It is -10 log10(eps), as documented, without gradient."""
    estimates = signals(6)[0].requires_grad_()
    found = cost(estimates, torch.zeros(2, 2, 200, dtype=torch.float64))
    torch.testing.assert_close(found, torch.full_like(found, 80.0))
    found.sum().backward()
    assert (estimates.grad == 0).all()


@pytest.mark.parametrize("cost", [costs.pairwise_neg_si_sdr, costs.pairwise_neg_snr])
@pytest.mark.parametrize("level", [1e-3, 0.1, 1.0, 32767.0])
@pytest.mark.parametrize("num_samples", [1, 3, 400, 8001])
def test_a_constant_signal_is_silent_without_its_mean(cost, level, num_samples):
    """This holds exactly, on every processor; rounding errors of sums would otherwise be divided by themselves."""
    constant = torch.full((2, 2, num_samples), level, dtype=torch.float64)
    found = cost(signals(6, num_samples=num_samples)[0], constant)
    torch.testing.assert_close(found, torch.full_like(found, 80.0))
    found = inner_products(constant, constant, zero_mean=True)
    assert all((product == 0).all() for product in (found.cross, found.estimate_energy, found.source_energy))
    quiet = constant + level * 1e-5 * (torch.arange(num_samples) % 2)
    assert num_samples == 1 or (inner_products(quiet, quiet, zero_mean=True).estimate_energy > 0).all()


@every_cost
def test_inactive_sources(cost):
    """Their columns are finite and pass no gradient; other columns are unchanged."""
    estimates, sources = signals(10)
    active = torch.tensor([[True, False], [True, True]])
    expected = cost(estimates.requires_grad_(), sources)
    (gradient,) = torch.autograd.grad(expected.where(active.unsqueeze(1), 0.0).sum(), estimates)
    sources[0, 1] = 0
    found = cost(estimates, sources, active=active)
    those = active.unsqueeze(1).expand_as(found)
    torch.testing.assert_close(found[those], expected[those])
    assert found.isfinite().all()
    torch.testing.assert_close(torch.autograd.grad(found.sum(), estimates)[0], gradient)


def test_cost_of_a_perfect_estimate():
    """SI-SDR is bounded by eps alone: the residual of a scaled copy is zero."""
    sources = signals(7)[1].float()
    found = costs.pairwise_neg_si_sdr(0.5 * sources, sources, zero_mean=False).diagonal(dim1=1, dim2=2)
    energy = 0.25 * sources.double().square().sum(-1)
    torch.testing.assert_close(found.double(), -10 * torch.log10(energy / 1e-8), atol=1e-2, rtol=0)


def test_limited_si_sdr():
    """A limit adds its distortion to that of the estimate: 1/100 and 1/100 of 20 dB and a limit of 20 are 17 dB."""
    sources = torch.tensor([[[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]]], dtype=torch.float64)
    estimates = sources + 0.1 * sources.flip(1)
    for estimate, expected in ((sources, -20.0), (estimates, -20 + 10 * math.log10(2))):
        found = build(NegSISDRConfig(eps=0.0, max_db=20.0))(estimate, sources)[0].diagonal()
        torch.testing.assert_close(found, torch.full((2,), expected, dtype=torch.float64), atol=1e-6, rtol=0)


@every_cost
def test_nan_stays_in_its_pairs(cost):
    """One NaN in estimate 1 makes only its row NaN."""
    estimates, sources = signals(8)
    estimates[0, 1, 17] = torch.nan
    found = cost(estimates, sources)
    assert found[0, 1].isnan().all()
    assert found.isnan().sum() == 2


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), gain=st.floats(1e-3, 1e3), offset=st.floats(-10, 10), sign=st.sampled_from([-1, 1]))
def test_si_sdr_ignores_gain_and_offset(seed, gain, offset, sign):
    """This holds for gains and offsets of estimate and source, where eps is negligible."""
    estimates, sources = signals(seed)
    expected = costs.pairwise_neg_si_sdr(estimates, sources, eps=1e-30)
    for x, y in ((sign * gain * estimates + offset, sources), (estimates, sign * gain * sources + offset)):
        torch.testing.assert_close(costs.pairwise_neg_si_sdr(x, y, eps=1e-30), expected, atol=1e-6, rtol=1e-6)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), name=st.sampled_from(sorted(ALL)))
def test_equivariance(seed, name):
    """Permuting hypotheses permutes rows, permuting sources permutes columns."""
    estimates, sources = signals(seed)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(3, generator=generator), torch.randperm(2, generator=generator)
    permuted = ALL[name](estimates[:, rows], sources[:, columns])
    torch.testing.assert_close(permuted, ALL[name](estimates, sources)[:, rows][:, :, columns])


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_configuration_builds(name):
    """A configured cost is its function with the configuration's parameters."""
    estimates, sources = signals(9)
    cost = build(CostConfig.choices[name]())
    torch.testing.assert_close(cost(estimates, sources), ALL[name](estimates, sources))
    assert cost.unit == {"mse": "power", "blr_nll": "nats", "cauchy_nll": "nats"}.get(name, "db")
    assert cost.function.__name__ in repr(cost)


def test_nothing_of_the_size_of_all_pairs_is_made():
    """30 x 30 pairs of a second of audio take no more memory than a few copies of the inputs."""
    estimates, sources = (torch.zeros(1, 30, 8000) for _ in range(2))
    with torch.profiler.profile(profile_memory=True) as profile:
        costs.pairwise_neg_si_sdr(estimates, sources)
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest <= 4 * 2 * estimates.numel() * 8 < 30 * 30 * 8000 * 4
