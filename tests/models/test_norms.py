"""Norms against their formulas in float64, and against their distinguishing properties."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepkit.models.norms import BatchNorm, ChannelLayerNorm, CumulativeLayerNorm, GlobalLayerNorm

LAYER_NORMS = [GlobalLayerNorm, CumulativeLayerNorm, ChannelLayerNorm]


def with_random_affine(norm: torch.nn.Module) -> torch.nn.Module:
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    return norm


def formula(x: torch.Tensor, dims: tuple[int, ...], gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    mean = x.mean(dims, keepdim=True)
    variance = (x - mean).square().mean(dims, keepdim=True)
    shape = (1, -1) + (1,) * (x.dim() - 2)
    return gamma.view(shape) * (x - mean) / (variance + 1e-8).sqrt() + beta.view(shape)


@pytest.mark.parametrize("shape", [(2, 5, 7), (1, 1, 1), (3, 4, 1), (2, 3, 4, 5)])
@pytest.mark.parametrize(("norm_class", "over_rest"), [(GlobalLayerNorm, True), (ChannelLayerNorm, False)])
def test_equals_the_formula(norm_class, over_rest, shape):
    norm = with_random_affine(norm_class(shape[1])).double()
    x = 3 + 2 * torch.randn(shape, dtype=torch.float64)
    dims = tuple(range(1, len(shape))) if over_rest else (1,)
    torch.testing.assert_close(norm(x), formula(x, dims, norm.gamma, norm.beta), rtol=1e-7, atol=1e-7)


@given(frames=st.integers(1, 12), channels=st.integers(1, 6), seed=st.integers(0, 2**16))
@settings(max_examples=25, deadline=None)
def test_cumulative_norm_is_the_global_norm_of_every_prefix(frames, channels, seed):
    torch.manual_seed(seed)
    cumulative = with_random_affine(CumulativeLayerNorm(channels)).double()
    glob = GlobalLayerNorm(channels).double()
    glob.load_state_dict(cumulative.state_dict())
    x = torch.randn(2, channels, frames, dtype=torch.float64) + 1
    prefixes = [glob(x[..., : frame + 1])[..., -1] for frame in range(frames)]
    torch.testing.assert_close(cumulative(x), torch.stack(prefixes, -1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm_class", [GlobalLayerNorm, CumulativeLayerNorm])
def test_float32_keeps_its_digits_over_20_s(norm_class):
    x = torch.randn(1, 64, 20_000) + 10
    exact = norm_class(64).double()(x.double())
    assert (norm_class(64)(x).double() - exact).norm() / exact.norm() < 2e-6


@pytest.mark.parametrize("norm_class", LAYER_NORMS)
def test_silence_comes_out_as_beta_with_a_finite_gradient(norm_class):
    norm = with_random_affine(norm_class(4))
    x = torch.zeros(2, 4, 9, requires_grad=True)
    y = norm(x)
    torch.testing.assert_close(y, norm.beta[None, :, None].expand_as(y))
    y.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("norm_class", LAYER_NORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_silence_and_loud_input_stay_finite(norm_class, dtype):
    norm = norm_class(4).to(dtype)
    assert norm(torch.zeros(1, 4, 9, dtype=dtype)).isfinite().all()
    # The sum of squares, 4e6 * 36, is beyond float16.
    assert norm(2000 * torch.randn(1, 4, 9).sign().to(dtype)).isfinite().all()


def test_batch_norm_takes_three_and_four_dimensions_alike():
    x = torch.randn(4, 3, 10)
    norm, grid = BatchNorm(3), BatchNorm(3)
    torch.testing.assert_close(norm(x).unsqueeze(-1), grid(x.unsqueeze(-1)))
    torch.testing.assert_close(norm(x), torch.nn.BatchNorm1d(3)(x))
    torch.testing.assert_close(norm.eval()(x), torch.nn.functional.batch_norm(x, norm.running_mean, norm.running_var))
    with pytest.raises(ValueError, match="expected 3 or 4"):
        norm(x[0])


def test_cumulative_norm_refuses_a_grid():
    with pytest.raises(ValueError, match="expected \\(batch, channels, frames\\)"):
        CumulativeLayerNorm(3)(torch.randn(1, 3, 4, 5))
