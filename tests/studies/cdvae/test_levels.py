"""Sample paths and path rates against closed forms, in float64; refined paths; torchsde as an oracle."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from sepkit.errors import UserError
from sepkit.models.maskers.continuous_depth import depth_grid
from sepkit.studies.cdvae.levels import BrownianPath, DiffusionBlock, LearnedDiffusion

SIGMA = 0.8


class Function(nn.Module):
    """A drift or a diffusion as a plain function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: object) -> Tensor:
        return self.function(*inputs)


def block(prior: Callable[..., Tensor], posterior: Callable[..., Tensor], sigma: float = SIGMA) -> DiffusionBlock:
    diffusion = Function(lambda state, depth: state.new_tensor(sigma))
    return DiffusionBlock(Function(prior), Function(lambda state, depth, context: posterior(state, depth)), diffusion)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def motion(like: Tensor, seed: int = 0) -> BrownianPath:
    return BrownianPath(like, torch.Generator().manual_seed(seed))


def test_constant_drifts_have_an_exact_rate_at_every_step() -> None:
    start = zeros(3, 4)
    drifts = block(lambda z, s: torch.full_like(z, -0.3), lambda z, s: torch.full_like(z, 1.1))
    for steps in (1, 7, 40):
        path = drifts(start, noise=motion(start), steps=steps)
        torch.testing.assert_close(path.rate, torch.full_like(start, 1.4**2 / (2 * SIGMA**2)), rtol=1e-12, atol=0)


def test_without_drift_the_variance_grows_by_that_of_the_noise_and_the_rate_is_zero() -> None:
    start = torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    path = block(lambda z, s: 0 * z, lambda z, s: 0 * z)(start, steps=5, noise=motion(start))
    assert path.value.var() == pytest.approx(float(start.var()) + SIGMA**2, rel=0.04)
    assert not path.rate.any()


def test_ornstein_uhlenbeck_converges_in_proportion_to_the_step() -> None:
    """Prior drift -theta z, posterior drift -theta (z - m): u is constant, means and variances have closed forms."""
    theta, m, begin = 1.5, 0.7, 2.0
    start = torch.full((1,), begin, dtype=torch.float64)
    drifts = block(lambda z, s: -theta * z, lambda z, s: -theta * (z - m))
    mean = m + (begin - m) * math.exp(-theta)
    errors = []
    for steps in (10, 20, 40):
        path = drifts(start, steps=steps, noise=None)
        errors.append(abs(float(path.value) - mean))
        assert float(path.rate) == pytest.approx((theta * m) ** 2 / (2 * SIGMA**2), rel=1e-12)
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.15) and errors[1] / errors[2] == pytest.approx(2, abs=0.08)
    # The variance at 40 steps has a closed form of its own, whose limit is that of the process.
    many = torch.full((20_000,), begin, dtype=torch.float64)
    found = drifts(many, steps=40, noise=motion(many)).value
    factor = (1 - theta / 40) ** 2
    variance = SIGMA**2 / 40 * (1 - factor**40) / (1 - factor)
    assert found.var() == pytest.approx(variance, rel=0.04)
    assert variance == pytest.approx(SIGMA**2 * (1 - math.exp(-2 * theta)) / (2 * theta), rel=0.05)
    assert found.mean() == pytest.approx(mean, abs=0.03)


def test_the_bound_of_a_linear_gaussian_model_is_tight_at_the_exact_posterior_and_never_above() -> None:
    """Prior: Brownian motion from 0. x = z(1) + N(0, r^2), so log p(x) = log N(x; 0, sigma^2 + r^2)."""
    r, x, paths = 0.5, 1.3, 20_000
    start = zeros(paths)

    def log_normal(value: Tensor | float, variance: float) -> Tensor:
        return -0.5 * (torch.as_tensor(value) ** 2 / variance + math.log(2 * math.pi * variance))

    evidence = float(log_normal(x, SIGMA**2 + r**2))
    assert evidence == pytest.approx(-1.810, abs=1e-3)

    def bounds(scale: float, steps: int) -> tuple[Tensor, Tensor]:
        gain = scale * SIGMA**2
        drifts = block(lambda z, s: 0 * z, lambda z, s: gain * (x - z) / (r**2 + SIGMA**2 * (1 - s)))
        path = drifts(start, steps=steps, noise=motion(start))
        likelihood = log_normal(x - path.value, r**2)
        return likelihood - path.rate, likelihood - path.log_ratio

    found = {steps: bounds(1.0, steps) for steps in (5, 10, 50)}
    for steps, expected in ((5, -1.915), (10, -1.855), (50, -1.818 - 0.007)):
        assert float(found[steps][0].mean()) == pytest.approx(expected, abs=0.02)
        assert float(found[steps][0].mean()) < evidence + 0.02
    # With the stochastic integral each path tells log p(x) by itself, up to the step; without, it scatters by 1.4 nats.
    assert float(found[50][1].std()) < 0.25 < 1.0 < float(found[50][0].std())
    assert float(torch.logsumexp(found[10][1], 0) - math.log(paths)) == pytest.approx(evidence, abs=0.02)
    assert float(bounds(0.5, 50)[0].mean()) < float(found[50][0].mean()) - 0.05


def test_equal_drifts_have_no_rate_and_give_the_samples_of_the_prior() -> None:
    start = torch.ones(5, dtype=torch.float64)
    drifts = block(lambda z, s: z.sin() + s, lambda z, s: z.sin() + s)
    posterior = drifts(start, steps=6, noise=motion(start))
    prior = drifts(start, steps=6, noise=motion(start), follow_prior=True)
    assert torch.equal(posterior.value, prior.value) and not posterior.rate.any() and not prior.rate.any()


def test_a_path_is_refined_and_the_strong_error_falls() -> None:
    start = torch.ones(2000, dtype=torch.float64)
    path = motion(start)
    coarse = path.increments(depth_grid(4))
    fine = path.increments(depth_grid(8))
    for step, increment in enumerate(coarse):
        torch.testing.assert_close(fine[2 * step] + fine[2 * step + 1], increment, rtol=0, atol=1e-12)
        assert increment.var() == pytest.approx(0.25, rel=0.15)
        assert fine[2 * step].var() == pytest.approx(0.125, rel=0.15)
    assert torch.corrcoef(torch.stack(fine))[0, 1].abs() < 0.1
    drifts = block(lambda z, s: -3 * z.sin(), lambda z, s: -3 * z.sin())
    ends = [drifts(start, steps=steps, noise=path).value for steps in (4, 8, 16, 128)]
    errors = [float((end - ends[-1]).abs().mean()) for end in ends[:-1]]
    assert errors[0] > 1.6 * errors[1] > 1.6**2 * errors[2]


class Augmented(nn.Module):
    """A block as torchsde takes it: the state, and the rate of each datum as one more value without noise."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self, drifts: DiffusionBlock) -> None:
        super().__init__()
        self.block = drifts

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        state, depth = y[:, :-1], float(t)
        toward = self.block.posterior_drift(state, depth, None)
        control = (toward - self.block.prior_drift(state, depth)) / SIGMA
        return torch.cat([toward, 0.5 * control.square().sum(1, keepdim=True)], dim=1)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.full_like(y, SIGMA) * torch.tensor([1.0, 1, 1, 1, 0], dtype=y.dtype)


def test_torchsde_agrees() -> None:
    """Euler's steps of the same equation on the same path."""
    torchsde = pytest.importorskip("torchsde")
    drifts = block(lambda z, s: (2 * z).sin() + s, lambda z, s: z.cos() * z.roll(1, -1) - s)
    start = torch.linspace(0, 1, 12, dtype=torch.float64).view(3, 4)
    interval = torchsde.BrownianInterval(0.0, 1.0, size=(3, 5), dtype=start.dtype, entropy=5)

    class SamePath(BrownianPath):
        def increments(self, grid):
            return [interval(a, b)[:, :-1] for a, b in pairwise(grid)]

    initial = torch.cat([start, zeros(3, 1)], dim=1)
    ends = torchsde.sdeint(Augmented(drifts), initial, torch.tensor([0.0, 1.0]), bm=interval, dt=0.125, method="euler")
    ours = drifts(start, steps=8, noise=SamePath(start))
    torch.testing.assert_close(ours.value, ends[-1, :, :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.rate.sum(1), ends[-1, :, -1], rtol=0, atol=1e-12)


def test_noise_follows_from_the_generator() -> None:
    start = zeros(2, 3)
    first, again, other = (motion(start, seed).increments(depth_grid(3)) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again)) and not torch.equal(first[0], other[0])


def test_a_diffusion_at_its_bound_says_so() -> None:
    diffusion = LearnedDiffusion(0.5)
    assert not diffusion.clamped and diffusion(zeros(1), 0.0).item() == pytest.approx(0.5)
    with torch.no_grad():
        diffusion.raw.fill_(-20.0)
    assert diffusion.clamped and diffusion(zeros(1), 0.0).item() == pytest.approx(1e-3)
    with pytest.raises(UserError, match=r"^initial_diffusion: found 0\.0, expected more than 0\.001, less than 10$"):
        LearnedDiffusion(0.0)
