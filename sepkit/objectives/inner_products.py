"""Inner products between every estimate and every source: all that the pairwise costs need of the waveforms.

Products of float32 samples are accumulated in float64. A residual energy, which is a difference of such products, then
keeps ten digits at 60 dB. No pair has to be computed again, and nothing of shape (B, n, m, T) exists.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# A signal is constant if its energy without its mean is below this share (-120 dB) of its energy. The rest is rounding
# of the sums, which differs between CPUs.
_CONSTANT_SHARE = 1e-12
# float64 numbers converted at a time: small enough to stay in a CPU's cache, whole batches on an accelerator.
_CHUNK_NUMBERS_CPU = 2**19
_CHUNK_NUMBERS_ACCELERATOR = 2**24


class InnerProducts(NamedTuple):
    """float64 inner products over time, shaped to broadcast to (B, n, m).

    Args:
        cross: (B, n, m) <estimate, source>.
        estimate_energy: (B, n, 1) <estimate, estimate>; (B, n, m) where some sources may be inactive.
        source_energy: (B, 1, m) <source, source>.
        num_samples: (B, 1, 1) samples that were summed.
    """

    cross: Tensor
    estimate_energy: Tensor
    source_energy: Tensor
    num_samples: Tensor


def inner_products(
    estimates: Tensor,
    sources: Tensor,
    lengths: Tensor | None = None,
    zero_mean: bool = False,
    active: Tensor | None = None,
) -> InnerProducts:
    """Return the inner products of every estimate with every source and with itself, in float64.

    Pairs with an inactive source hold the products of two signals of energy 1 and correlation 1/2. Every cost is finite
    for them, and they pass no gradient, so 0 * inf stays out of the gradients.

    Args:
        estimates: (B, n, T).
        sources: (B, m, T).
        lengths: (B,) samples of each utterance that count; the rest is ignored. None: all T.
        zero_mean: remove the means first; a constant signal's products are exactly 0.
        active: (B, m) bool; None: all sources are active. With it, the estimates' energies have shape (B, n, m).

    Raises:
        ValueError: shapes that do not fit together, or no samples at all.
    """
    _check_shapes(estimates, sources, lengths, active)
    padding = _padding(lengths, estimates)
    num_samples = _num_samples(None if padding is None else lengths, estimates)
    cross, estimate_energy, source_energy = _AccumulateProducts.apply(
        estimates, sources, padding, num_samples, zero_mean
    )
    if active is not None:
        compared = active.to(cross.device).unsqueeze(1)
        cross = cross.where(compared, 0.5)
        estimate_energy = estimate_energy.expand_as(cross).where(compared, 1.0)
        source_energy = source_energy.where(compared, 1.0)
    return InnerProducts(cross, estimate_energy, source_energy, num_samples)


def error_energy(products: InnerProducts) -> Tensor:
    """Return |estimate - source|^2 of every pair, (B, n, m)."""
    return (products.estimate_energy - 2 * products.cross + products.source_energy).clamp_min(0)


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the dtype of costs: float64 if any input is, else float32 (half precision never is enough)."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def as_inputs(cost: Tensor, estimates: Tensor, sources: Tensor) -> Tensor:
    """Return the float64 cost in the inputs' working dtype and on their device."""
    return cost.to(working_dtype(estimates, sources)).to(estimates.device)


def float64_device(device: torch.device) -> torch.device:
    """Return the device itself, or the CPU in place of Apple's, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def _check_shapes(estimates: Tensor, sources: Tensor, lengths: Tensor | None, active: Tensor | None) -> None:
    found = f"estimates {tuple(estimates.shape)} and sources {tuple(sources.shape)}"
    if estimates.ndim != 3 or sources.ndim != 3:
        raise ValueError(f"expected estimates (B, n, T) and sources (B, m, T), found {found}")
    if estimates.shape[0] != sources.shape[0] or estimates.shape[2] != sources.shape[2]:
        raise ValueError(f"batch size and number of samples must agree, found {found}")
    if estimates.shape[2] == 0:
        raise ValueError(f"a cost needs at least one sample, found {found}")
    if lengths is not None and lengths.shape != estimates.shape[:1]:
        raise ValueError(f"expected lengths of shape ({estimates.shape[0]},), found {tuple(lengths.shape)}")
    if active is not None and active.shape != sources.shape[:2]:
        raise ValueError(f"expected active of shape {tuple(sources.shape[:2])}, found {tuple(active.shape)}")


def _padding(lengths: Tensor | None, estimates: Tensor) -> Tensor | None:
    """Return (B, 1, T) bool, True behind the end of an utterance; None if there is certainly no padding."""
    num_samples = estimates.shape[-1]
    # Asking an accelerator whether there is padding would make the host wait for it.
    if lengths is None or (lengths.device.type == "cpu" and bool((lengths >= num_samples).all())):
        return None
    lengths = lengths.to(estimates.device, non_blocking=True)
    return (torch.arange(num_samples, device=estimates.device) >= lengths[:, None])[:, None]


def _num_samples(lengths: Tensor | None, estimates: Tensor) -> Tensor:
    """(B, 1, 1) float64 samples that count."""
    device, shape = float64_device(estimates.device), (estimates.shape[0], 1, 1)
    if lengths is None:
        return torch.full(shape, estimates.shape[-1], dtype=torch.float64, device=device)
    lengths = lengths.to(device, torch.float64, non_blocking=True)
    return lengths.clamp(0, estimates.shape[-1]).view(shape)


class _AccumulateProducts(torch.autograd.Function):
    """float64 <estimate, source> (B, n, m), <estimate, estimate> (B, n, 1) and <source, source> (B, 1, m).

    Each sample is read once from memory: a chunk of all signals is converted and stays in the cache while everything
    is summed over it. The gradient 2 a estimate + C sources, less its mean over time, is one matrix product in the
    precision of the input. Its coefficients, the derivatives by energies (a) and cross products (C), are rounded once.
    """

    @staticmethod
    def forward(
        ctx: Any, estimates: Tensor, sources: Tensor, padding: Tensor | None, num_samples: Tensor, zero_mean: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        (batch_size, n, total), m = estimates.shape, sources.shape[1]
        device = float64_device(estimates.device)
        chunk = _chunk_length(batch_size * (n + m), total, device)
        buffer = torch.empty(batch_size, n + m, chunk, dtype=torch.float64, device=device)
        cross = buffer.new_zeros(batch_size, n, m)
        energies = buffer.new_zeros(batch_size * (n + m), 1, 1)
        sums = buffer.new_zeros(batch_size, n + m, 1)
        for start in range(0, total, chunk):
            length = min(chunk, total - start)
            signals, rows = buffer[..., :length], buffer.view(-1, 1, chunk)[..., :length]
            signals[:, :n] = estimates[..., start : start + length]
            signals[:, n:] = sources[..., start : start + length]
            if padding is not None:
                signals.masked_fill_(padding[..., start : start + length].to(device), 0.0)
            cross.baddbmm_(signals[:, :n], signals[:, n:].mT)
            energies.baddbmm_(rows, rows.mT)
            if zero_mean:
                sums += signals.sum(-1, keepdim=True)
        energies = energies.view_as(sums)
        means = sums / num_samples if zero_mean else None
        if means is not None:
            cross.baddbmm_(sums[:, :n], means[:, n:].mT, alpha=-1)
            limits = _CONSTANT_SHARE * energies
            energies = energies.addcmul_(sums, means, value=-1)
            constant = energies <= limits
            energies.masked_fill_(constant, 0.0)
            cross.masked_fill_(constant[:, :n] | constant[:, n:].mT, 0.0)
        ctx.save_for_backward(estimates, sources, padding, means)
        return cross, energies[:, :n].clone(), energies[:, n:].mT.contiguous()

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_cross: Tensor, grad_estimate_energy: Tensor, grad_source_energy: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        estimates, sources, padding, means = ctx.saved_tensors
        estimate_means = source_means = None
        if means is not None:
            estimate_means, source_means = means.split([estimates.shape[1], sources.shape[1]], dim=1)
        grad_estimates = grad_sources = None
        if ctx.needs_input_grad[0]:
            grad_estimates = _signal_gradient(
                estimates, estimate_means, 2 * grad_estimate_energy, sources, source_means, grad_cross, padding
            )
        if ctx.needs_input_grad[1]:
            grad_sources = _signal_gradient(
                sources, source_means, 2 * grad_source_energy.mT, estimates, estimate_means, grad_cross.mT, padding
            )
        return grad_estimates, grad_sources, None, None, None


def _chunk_length(rows: int, num_samples: int, device: torch.device) -> int:
    budget = _CHUNK_NUMBERS_CPU if device.type == "cpu" else _CHUNK_NUMBERS_ACCELERATOR
    longest = max(1024, budget // rows)
    return math.ceil(num_samples / math.ceil(num_samples / longest))


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    if torch.amp.autocast_mode.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _signal_gradient(
    signal: Tensor,
    mean: Tensor | None,
    own: Tensor,
    others: Tensor,
    other_means: Tensor | None,
    cross: Tensor,
    padding: Tensor | None,
) -> Tensor:
    """own * (signal - mean) + cross @ (others - other_means), in the dtype of `signal`, zero in the padding."""
    dtype, device = working_dtype(signal, others), signal.device
    with _without_autocast(device.type):
        if mean is not None and other_means is not None:
            constant = -(own * mean + cross @ other_means).to(dtype).to(device)
            gradient = torch.baddbmm(constant, cross.to(dtype).to(device), others.to(dtype))
        else:
            gradient = torch.bmm(cross.to(dtype).to(device), others.to(dtype))
        gradient = gradient.addcmul_(own.to(dtype).to(device), signal.to(dtype))
    if padding is not None:
        gradient = gradient.masked_fill(padding, 0.0)
    return gradient.to(signal.dtype)
