"""PIT equals asteroid's PITLossWrapper: loss, permutation and gradient."""

import pytest
import torch

from sepkit.objectives import costs
from sepkit.objectives.assignment import PIT
from tests.published import peer

losses = peer("asteroid.losses")


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("noise", [0.01, 0.5, 10.0])
def test_pit(n, noise):
    """Shuffled noisy copies of the sources come back in order, at the same loss."""
    generator = torch.Generator().manual_seed(n)
    sources = torch.randn(6, n, 8000, generator=generator)
    shuffles = torch.stack([torch.randperm(n, generator=generator) for _ in range(6)])
    estimates = sources.gather(1, shuffles[..., None].expand_as(sources))
    estimates = estimates + noise * torch.randn(sources.shape, generator=generator)
    ours, theirs = estimates.clone().requires_grad_(), estimates.clone().requires_grad_()

    cost = costs.pairwise_neg_si_sdr(ours, sources)
    loss = PIT()(cost).mean()
    wrapper = losses.PITLossWrapper(losses.pairwise_neg_sisdr, pit_from="pw_mtx")
    reference, reordered = wrapper(theirs, sources, return_est=True)

    torch.testing.assert_close(loss, reference, atol=1e-4, rtol=0)
    assert torch.equal(estimates.gather(1, PIT().matches(cost)[..., None].expand_as(estimates)), reordered)
    loss.backward()
    reference.backward()
    assert (ours.grad - theirs.grad).norm() <= 1e-4 * theirs.grad.norm()
