"""Inner products between every estimate and every source: all that the pairwise costs need of the waveforms.

Products of float32 samples are accumulated in float64. A residual energy that is a difference of such products then
keeps ten digits at 60 dB, so no pair ever has to be looked at again and nothing of shape (B, n, m, T) exists.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["InnerProducts", "as_inputs", "error_energy", "float64_device", "inner_products", "working_dtype"]

# float64 numbers converted at a time: small enough to stay in a processor's cache, whole batches on an accelerator.
_CHUNK_NUMBERS_CPU = 2**19
_CHUNK_NUMBERS_ACCELERATOR = 2**24


class InnerProducts(NamedTuple):
    """float64 inner products over time, shaped to broadcast to (B, n, m).

    Args:
        cross: (B, n, m) <estimate, source>.
        estimate_energy: (B, n, 1) <estimate, estimate>.
        source_energy: (B, 1, m) <source, source>.
        num_samples: (B, 1, 1) samples that were summed.
    """

    cross: Tensor
    estimate_energy: Tensor
    source_energy: Tensor
    num_samples: Tensor


def inner_products(
    estimates: Tensor, sources: Tensor, lengths: Tensor | None = None, zero_mean: bool = False
) -> InnerProducts:
    """The inner products of every estimate with every source and with itself, in float64.

    Args:
        estimates: (B, n, T).
        sources: (B, m, T).
        lengths: (B,) samples of each utterance that count; the rest, whatever it holds, is left out. None: all T.
        zero_mean: products of the signals less their means.

    Raises:
        ValueError: shapes that do not fit together, or no samples at all.
    """
    _check_shapes(estimates, sources, lengths)
    padding = _padding(lengths, estimates)
    products, estimate_energy, source_energy = _AccumulateProducts.apply(estimates, sources, padding)
    cross, estimate_sum = products[:, :-1, 1:], products[:, :-1, :1]
    source_sum, num_samples = products[:, -1:, 1:], products[:, -1:, :1]
    estimate_energy, source_energy = estimate_energy.unsqueeze(2), source_energy.unsqueeze(1)
    if zero_mean:
        cross = cross - estimate_sum * source_sum / num_samples
        estimate_energy = (estimate_energy - estimate_sum.square() / num_samples).clamp_min(0)
        source_energy = (source_energy - source_sum.square() / num_samples).clamp_min(0)
    return InnerProducts(cross, estimate_energy, source_energy, num_samples)


def error_energy(products: InnerProducts) -> Tensor:
    """|estimate - source|^2 of every pair, (B, n, m)."""
    return (products.estimate_energy - 2 * products.cross + products.source_energy).clamp_min(0)


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype that costs are returned in: float64 if any input is, else float32 (half precision never is enough)."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def as_inputs(cost: Tensor, estimates: Tensor, sources: Tensor) -> Tensor:
    """The float64 cost in the inputs' working dtype and on their device."""
    return cost.to(working_dtype(estimates, sources)).to(estimates.device)


def float64_device(device: torch.device) -> torch.device:
    """The device itself, or the CPU for Apple's, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def _check_shapes(estimates: Tensor, sources: Tensor, lengths: Tensor | None) -> None:
    found = f"estimates {tuple(estimates.shape)} and sources {tuple(sources.shape)}"
    if estimates.ndim != 3 or sources.ndim != 3:
        raise ValueError(f"expected estimates (B, n, T) and sources (B, m, T), found {found}")
    if estimates.shape[0] != sources.shape[0] or estimates.shape[2] != sources.shape[2]:
        raise ValueError(f"batch size and number of samples must agree, found {found}")
    if estimates.shape[2] == 0:
        raise ValueError(f"a cost needs at least one sample, found {found}")
    if lengths is not None and lengths.shape != estimates.shape[:1]:
        raise ValueError(f"expected lengths of shape ({estimates.shape[0]},), found {tuple(lengths.shape)}")


def _padding(lengths: Tensor | None, estimates: Tensor) -> Tensor | None:
    """(B, 1, T) bool, True behind the end of an utterance; None where it is known that there is none."""
    num_samples = estimates.shape[-1]
    # Asking an accelerator whether there is padding would make the host wait for it.
    if lengths is None or (lengths.device.type == "cpu" and bool((lengths >= num_samples).all())):
        return None
    lengths = lengths.to(estimates.device, non_blocking=True)
    return (torch.arange(num_samples, device=estimates.device) >= lengths[:, None])[:, None]


class _AccumulateProducts(torch.autograd.Function):
    """float64 products of [estimates; 1] with [1; sources] (B, n+1, 1+m), and the energies (B, n), (B, m).

    The row of ones yields the sums and the number of samples in the same matrix product. The gradient is one matrix
    product in the precision of the input, whose coefficients are rounded once.
    """

    @staticmethod
    def forward(ctx: Any, estimates: Tensor, sources: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(estimates, sources, padding)
        (batch_size, n, num_samples), m = estimates.shape, sources.shape[1]
        device = float64_device(estimates.device)
        chunk = _chunk_length(batch_size * (n + 1 + m), num_samples, device)
        signals = torch.ones(batch_size, n + 1 + m, chunk, dtype=torch.float64, device=device)
        rows = signals.view(-1, 1, chunk)
        products = signals.new_zeros(batch_size, n + 1, 1 + m)
        energies = signals.new_zeros(batch_size * (n + 1 + m), 1, 1)
        estimates, sources = estimates.to(device), sources.to(device)
        for start in range(0, num_samples, chunk):
            stop = min(start + chunk, num_samples)
            signals[:, :n, : stop - start] = estimates[..., start:stop]
            signals[:, n + 1 :, : stop - start] = sources[..., start:stop]
            if padding is not None:
                signals[:, n] = 1.0
                signals[..., : stop - start].masked_fill_(padding[..., start:stop].to(device), 0.0)
            signals[..., stop - start :] = 0.0
            products.baddbmm_(signals[:, : n + 1], signals[:, n:].mT)
            energies.baddbmm_(rows, rows.mT)
        energies = energies.view(batch_size, -1)
        return products, energies[:, :n], energies[:, n + 1 :]

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad_products: Tensor, grad_estimate_energy: Tensor, grad_source_energy: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        estimates, sources, padding = ctx.saved_tensors
        grad_estimates = grad_sources = None
        if ctx.needs_input_grad[0]:
            grad_estimates = _signal_gradient(
                estimates,
                2 * grad_estimate_energy,
                sources,
                grad_products[:, :-1, 1:],
                grad_products[:, :-1, :1],
                padding,
            )
        if ctx.needs_input_grad[1]:
            transposed = grad_products.mT
            grad_sources = _signal_gradient(
                sources, 2 * grad_source_energy, estimates, transposed[:, 1:, :-1], transposed[:, 1:, -1:], padding
            )
        return grad_estimates, grad_sources, None


def _chunk_length(rows: int, num_samples: int, device: torch.device) -> int:
    budget = _CHUNK_NUMBERS_CPU if device.type == "cpu" else _CHUNK_NUMBERS_ACCELERATOR
    longest = max(1024, budget // rows)
    return math.ceil(num_samples / math.ceil(num_samples / longest))


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    if torch.amp.autocast_mode.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _signal_gradient(
    signal: Tensor, own: Tensor, others: Tensor, cross: Tensor, constant: Tensor, padding: Tensor | None
) -> Tensor:
    """own * signal + cross @ others + constant, in the dtype of `signal`, zero in the padding."""
    dtype = working_dtype(signal, others)
    own, cross, constant = (gradient.to(dtype).to(signal.device) for gradient in (own, cross, constant))
    with _without_autocast(signal.device.type):
        gradient = torch.baddbmm(constant, cross, others.to(dtype))
        gradient = gradient.addcmul_(own.unsqueeze(-1), signal.to(dtype))
    if padding is not None:
        gradient = gradient.masked_fill(padding, 0.0)
    return gradient.to(signal.dtype)
