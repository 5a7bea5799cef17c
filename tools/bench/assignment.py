"""Permutation invariant training with SI-SDR: sepkit's PIT against asteroid's PITLossWrapper, on one CPU thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from sepkit.objectives.assignment import PIT
from sepkit.objectives.costs import pairwise_neg_si_sdr
from tools.bench.timing import compare, environment

BATCH, NUM_SAMPLES = 8, 32000
SPEAKERS = (2, 3, 5, 8)

Loss = Callable[[Tensor, Tensor], Tensor]


def run() -> dict[str, Any]:
    """Times of the loss, and of loss and gradient, for a batch of 8 mixtures of 4 s at 8 kHz.

    Raises:
        RuntimeError: the two losses differ.
    """
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr

    # asteroid makes a tensor of a list of arrays.
    warnings.filterwarnings("ignore", "Creating a tensor from a list", UserWarning)
    torch.set_num_threads(1)
    head = PIT()

    def ours(estimates: Tensor, sources: Tensor) -> Tensor:
        return head(pairwise_neg_si_sdr(estimates, sources)).mean()

    theirs = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    rows = [_row(ours, theirs, speakers, backward) for speakers in SPEAKERS for backward in (False, True)]
    return {"batch": BATCH, "num_samples": NUM_SAMPLES, "rows": rows, "environment": environment("asteroid")}


def _row(ours: Loss, theirs: Loss, speakers: int, backward: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(speakers)
    sources, noise = torch.randn(2, BATCH, speakers, NUM_SAMPLES, generator=generator)
    estimates = (sources.flip(1) + 0.5 * noise).requires_grad_(backward)
    difference_db = abs(ours(estimates, sources) - theirs(estimates, sources)).item()
    if difference_db > 1e-3:
        raise RuntimeError(f"{speakers} speakers: the losses differ by {difference_db} dB")

    def step(loss: Loss) -> None:
        value = loss(estimates, sources)
        if backward:
            value.backward()

    times = compare(lambda: step(ours), lambda: step(theirs))
    what = "loss and gradient" if backward else "loss"
    print(
        f"n = {speakers}, {what}: {1e3 * times.ours_seconds:.1f} ms, asteroid {1e3 * times.theirs_seconds:.1f} ms, "
        f"{times.ratio:.1f} x [{times.ratio_range[0]:.1f}, {times.ratio_range[1]:.1f}]",
        flush=True,
    )
    return {"speakers": speakers, "measured": what, "difference_db": difference_db, **asdict(times)}
