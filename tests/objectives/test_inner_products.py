"""Inner products are exact, differentiable and independent of padding."""

import pytest
import torch

from sepkit.objectives import inner_products as module
from sepkit.objectives.inner_products import inner_products


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_samples", [1, 7, 1500, 5000])
@pytest.mark.parametrize("zero_mean", [False, True])
def test_against_einsum(monkeypatch, num_samples, zero_mean):
    """Chunks add up to the plain sums over time, for any length of the last chunk."""
    monkeypatch.setattr(module, "_CHUNK_NUMBERS_CPU", 1)
    estimates, sources = noise(3, 4, num_samples), noise(3, 2, num_samples, seed=1)
    found = inner_products(estimates, sources, zero_mean=zero_mean)
    if zero_mean:
        estimates, sources = (x - x.mean(-1, keepdim=True) for x in (estimates, sources))
    expected = (
        torch.einsum("bnt,bmt->bnm", estimates, sources),
        estimates.square().sum(-1)[:, :, None],
        sources.square().sum(-1)[:, None, :],
        torch.full((3, 1, 1), float(num_samples), dtype=torch.float64),
    )
    for value, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(value, reference, atol=1e-10, rtol=1e-12)


def test_float32_is_summed_in_float64():
    """A sum of a million float32 squares is exact to 1e-12, and nothing is returned in less than float64."""
    signal = 1 + 0.1 * noise(1, 1, 1_000_000, dtype=torch.float32)
    found = inner_products(signal, signal).estimate_energy
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, signal.double().square().sum(-1, keepdim=True), atol=0, rtol=1e-12)


@pytest.mark.parametrize("zero_mean", [False, True])
@pytest.mark.parametrize("lengths", [None, [5, 3]])
def test_gradients(zero_mean, lengths):
    """Derivatives for estimates and sources agree with finite differences."""
    lengths = None if lengths is None else torch.tensor(lengths)

    def function(estimates, sources):
        return inner_products(estimates, sources, lengths, zero_mean)[:3]

    inputs = noise(2, 3, 5).requires_grad_(), noise(2, 2, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(function, inputs)


def test_gradient_dtype_and_autocast():
    """Under bfloat16 autocast nothing is computed in bfloat16, and each input gets a gradient of its own dtype."""
    estimates = noise(2, 2, 100, dtype=torch.float32).requires_grad_()
    half = estimates.detach().bfloat16().requires_grad_()
    sources = noise(2, 2, 100, dtype=torch.float32, seed=1)
    inner_products(estimates, sources).cross.square().sum().backward()
    expected, estimates.grad = estimates.grad, None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inner_products(estimates, sources).cross.square().sum().backward()
        inner_products(half, sources).cross.square().sum().backward()
    torch.testing.assert_close(estimates.grad, expected, atol=0, rtol=0)
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(half.grad.float(), expected, atol=0.05 * expected.abs().max().item(), rtol=0.05)


def test_padding_is_left_out():
    """Samples behind the end, NaN included, affect neither value nor gradient."""
    lengths = torch.tensor([40, 100, 1])
    estimates, sources = noise(3, 2, 100), noise(3, 3, 100, seed=1)
    for b, length in enumerate(lengths):
        estimates[b, :, length:] = torch.nan
        sources[b, :, length:] = torch.inf
    estimates.requires_grad_()
    found = inner_products(estimates, sources, lengths, zero_mean=True)
    (gradient,) = torch.autograd.grad(found.cross.square().sum() + found.estimate_energy.sum(), estimates)
    for b, length in enumerate(lengths):
        alone = inner_products(estimates[b : b + 1, :, :length], sources[b : b + 1, :, :length], zero_mean=True)
        for whole, part in zip(found, alone, strict=True):
            torch.testing.assert_close(whole[b : b + 1], part)
        assert gradient[b, :, :length].isfinite().all()
        assert (gradient[b, :, length:] == 0).all()


@pytest.mark.parametrize(
    ("estimates", "sources", "more", "words"),
    [
        ((2, 5), (1, 2, 5), {}, "expected estimates"),
        ((1, 2, 5), (2, 5), {}, "expected estimates"),
        ((2, 2, 5), (1, 2, 5), {}, "batch size and number of samples must agree"),
        ((1, 2, 5), (1, 2, 4), {}, "batch size and number of samples must agree"),
        ((1, 2, 0), (1, 2, 0), {}, "at least one sample"),
        ((1, 2, 5), (1, 3, 5), {"lengths": torch.ones(3)}, r"expected lengths of shape \(1,\), found \(3,\)"),
        ((1, 2, 5), (1, 3, 5), {"active": torch.ones(1, 2)}, r"expected active of shape \(1, 3\), found \(1, 2\)"),
    ],
)
def test_shapes_that_do_not_fit(estimates, sources, more, words):
    with pytest.raises(ValueError, match=words):
        inner_products(torch.ones(estimates), torch.ones(sources), **more)
