"""RealNVP against its own inverse, automatic differentiation and torch's batch norm."""

from __future__ import annotations

import pytest
import torch

from sepkit.models.coupling import RealNVP, StackedBatchNorm


@pytest.fixture(scope="module")
def trained() -> RealNVP:
    """Three replicas whose running statistics have seen some batches, in evaluation."""
    torch.manual_seed(0)
    flow = RealNVP(5, couplings=4, hidden=16, replicas=3)
    for _ in range(30):
        flow(torch.randn(3, 64, 5) * 2 + 1)
    return flow.eval()


def test_size_is_that_of_the_reference():
    """There are 10,517,504 numbers at the size of the paper: parameters, and masks, which the reference counts too."""
    flow = RealNVP(128, couplings=8, hidden=512)
    masks = sum(coupling.mask.numel() for coupling in flow.couplings)
    assert sum(p.numel() for p in flow.parameters()) + masks == 10_517_504


def test_inverse(trained):
    """z -> x -> z is exact to 1e-4, with opposite log-determinants."""
    z = torch.randn(3, 200, 5)
    x, forward = trained(z)
    back, backward = trained.inverse(x)
    assert torch.allclose(back, z, atol=1e-4)
    assert torch.allclose(backward, -forward, atol=1e-4)
    assert (x - z).abs().max() > 0.1


def test_log_determinant_is_that_of_the_jacobian(trained):
    """Each replica's agrees with automatic differentiation."""
    z = torch.randn(3, 4, 5)
    found = trained(z)[1].detach()
    for replica in range(3):
        for row in range(4):

            def image(v, replica=replica, row=row):
                full = z.clone()
                full[replica, row] = v
                return trained(full)[0][replica, row]

            jacobian = torch.autograd.functional.jacobian(image, z[replica, row])
            assert float(torch.linalg.slogdet(jacobian.detach())[1]) == pytest.approx(
                float(found[replica, row]), abs=1e-4
            )


def test_density_integrates_to_one():
    """A flow in two dimensions over a grid; the density of samples is the density at them."""
    torch.manual_seed(1)
    flow = RealNVP(2, couplings=2, hidden=8).eval()
    axis = torch.linspace(-12, 12, 241)
    grid = torch.cartesian_prod(axis, axis)[None]
    with torch.no_grad():
        assert float(flow.log_prob(grid).exp().sum()) * 0.1**2 == pytest.approx(1, abs=1e-3)
        x, log_q = flow.sample(100, torch.Generator().manual_seed(0))
        assert torch.allclose(flow.log_prob(x), log_q, atol=1e-4)


def test_replicas_are_strangers(trained):
    """The input of one replica changes nothing of the others, also in training."""
    z = torch.randn(3, 16, 5)
    changed = z.clone()
    changed[1] += 1
    for mode in (True, False):
        trained.train(mode)
        one, other = trained(z)[0], trained(changed)[0]
        assert torch.equal(one[[0, 2]], other[[0, 2]]) and not torch.equal(one[1], other[1])
    trained.eval()


def test_batch_norm_is_torch_s():
    """Output and running statistics of each replica, in training and evaluation."""
    own, theirs = StackedBatchNorm(2, 3), [torch.nn.BatchNorm1d(3) for _ in range(2)]
    for _ in range(3):
        x = torch.randn(2, 20, 3) * 3 - 1
        expected = torch.stack([norm(part) for norm, part in zip(theirs, x, strict=True)])
        assert torch.allclose(own(x), expected, atol=1e-5)
    own.eval()
    for norm in theirs:
        norm.eval()
    expected = torch.stack([norm(part) for norm, part in zip(theirs, x, strict=True)])
    assert torch.allclose(own(x), expected, atol=1e-5)
