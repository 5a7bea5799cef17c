"""On an accelerator: results equal the CPU's, and the host never waits for the device."""

from contextlib import contextmanager

import pytest
import torch

from sepkit.config import AssignmentConfig, CostConfig, ObjectiveConfig
from sepkit.objectives import build_objective
from sepkit.objectives.objective import hard_si_sdr_db
from sepkit.types import Batch, Separation

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: run on a machine with one")


@contextmanager
def no_synchronization():
    """Make every wait of the host for the GPU raise."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def batch_and_estimates(n: int, device: str) -> tuple[Batch, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sources = torch.randn(3, 2, 16000, generator=generator)
    active = torch.tensor([[True, True], [True, True], [True, False]])
    estimates = torch.randn(3, n, 16000, generator=generator)
    estimates[:, :2] = sources + torch.tensor([1e-3, 0.3, 1.0])[:, None, None] * estimates[:, :2]
    batch = Batch(sources.sum(1), sources, active, torch.tensor([16000, 12000, 16000]))
    return batch.to(device), estimates.detach().to(device).requires_grad_()


PAIRS = [(cost, choice) for cost in sorted(CostConfig.choices) for choice in sorted(AssignmentConfig.choices)]
every_pair_of_choices = pytest.mark.parametrize(("cost", "assignment"), PAIRS)


@every_pair_of_choices
def test_no_decision_looks_at_data(cost, assignment):
    """Tensors without data (the meta device) go through forward and backward: nothing is read back on the way."""
    objective = build_objective(ObjectiveConfig(CostConfig.choices[cost](), AssignmentConfig.choices[assignment]()))
    batch, estimates = batch_and_estimates(3, "meta")
    loss = objective(batch, Separation(estimates, None, None)).loss
    (gradient,) = torch.autograd.grad(loss.sum(), estimates)
    assert loss.shape == (3,) and loss.device.type == "meta" and gradient.shape == estimates.shape


@on_cuda
@every_pair_of_choices
@pytest.mark.parametrize("n", [2, 4])
def test_equal_to_the_cpu_without_synchronization(cost, assignment, n):
    """Value and gradient agree; the first call on the device may wait, to load kernels and tables."""
    objective = build_objective(ObjectiveConfig(CostConfig.choices[cost](), AssignmentConfig.choices[assignment]()))
    results = {}
    for device in ("cpu", "cuda"):
        batch, estimates = batch_and_estimates(n, device)
        separation = Separation(estimates, None, None)
        loss = objective(batch, separation).loss
        (gradient,) = torch.autograd.grad(loss.sum(), estimates)
        results[device] = loss.cpu(), gradient.cpu()
    with no_synchronization():
        objective(batch, separation).loss.sum().backward()
    (loss, gradient), (expected_loss, expected_gradient) = results["cuda"], results["cpu"]
    torch.testing.assert_close(loss, expected_loss, atol=1e-5, rtol=1e-6)
    assert (gradient - expected_gradient).norm() <= 1e-3 * expected_gradient.norm()


@on_cuda
def test_autocast():
    """Half precision estimates under autocast: computed as from the same numbers in float32."""
    batch, estimates = batch_and_estimates(2, "cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = hard_si_sdr_db(estimates.bfloat16(), batch.sources, batch.active, batch.lengths)
    expected = hard_si_sdr_db(estimates.bfloat16().float(), batch.sources, batch.active, batch.lengths)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
