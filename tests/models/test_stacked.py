"""Stacks of networks: linear layers, and RealNVP against automatic differentiation and torch's batch norm."""

import numpy as np
import pytest
import torch

from sepkit.models.stacked import RealNVP, StackedBatchNorm, StackedLinear


def _generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_each_layer_is_a_linear_layer() -> None:
    stack = StackedLinear(3, 5, _generators(1, 2, 3, 4))
    values = torch.randn(4, 7, 3)
    shared = torch.randn(1, 7, 3)
    for place in range(4):
        layer = torch.nn.Linear(3, 5)
        layer.weight.data, layer.bias.data = stack.weight[place].T, stack.bias[place, 0]
        torch.testing.assert_close(stack(values)[place], layer(values[place]))
        torch.testing.assert_close(stack(shared)[place], layer(shared[0]))


def test_weights_follow_from_each_seed_alone_and_are_as_large_as_those_of_torch() -> None:
    stack = StackedLinear(64, 256, _generators(5, 6))
    alone = StackedLinear(64, 256, _generators(6))
    assert torch.equal(stack.weight[1:], alone.weight) and not torch.equal(stack.weight[:1], alone.weight)
    together = StackedLinear(64, 256, 2)
    assert not torch.equal(together.weight[0], together.weight[1])
    torch.testing.assert_close(together.weight.std(), alone.weight.std(), rtol=0.02, atol=0)
    reference = torch.nn.Linear(64, 256)
    assert stack.weight.abs().max() <= 1 / 8
    assert stack.weight.std().item() == pytest.approx(reference.weight.std().item(), rel=0.05)


def test_adam_treats_a_network_of_a_stack_as_if_it_were_alone() -> None:
    stack, alone = StackedLinear(3, 2, _generators(1, 2)), StackedLinear(3, 2, _generators(2))
    values = torch.randn(2, 9, 3)
    for model, inputs in ((stack, values), (alone, values[1:])):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(inputs).square().mean((1, 2)).sum().backward()
            optimizer.step()
    torch.testing.assert_close(stack.weight[1], alone.weight[0])


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


def test_log_determinant_is_that_of_the_jacobian(trained):
    """Each replica's agrees with automatic differentiation."""
    z = torch.randn(3, 4, 5)
    found = trained(z)[1].detach()
    for place in np.ndindex(3, 4):

        def image(v, place=place):
            full = z.clone()
            full[place] = v
            return trained(full)[0][place]

        jacobian = torch.autograd.functional.jacobian(image, z[place])
        assert torch.linalg.slogdet(jacobian)[1].item() == pytest.approx(found[place].item(), abs=1e-4)


def test_densities_of_samples_are_those_of_the_noise_over_the_change_of_volume(trained):
    x, log_density = trained.sample(100, torch.Generator().manual_seed(0))
    z = torch.randn(3, 100, 5, generator=torch.Generator().manual_seed(0))
    image, log_determinant = trained(z)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1) - log_determinant
    assert torch.equal(x, image) and torch.allclose(log_density, expected, atol=1e-4)


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
    for is_training in (True, True, True, False):
        x = torch.randn(2, 20, 3) * 3 - 1
        for norm in (own, *theirs):
            norm.train(is_training)
        expected = torch.stack([norm(part) for norm, part in zip(theirs, x, strict=True)])
        assert torch.allclose(own(x), expected, atol=1e-5)
