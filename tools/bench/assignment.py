"""Cost and matching of a batch, and their gradient: sepkit against asteroid, fast_bss_eval and torchmetrics."""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sepkit.objectives.assignment import PIT
from sepkit.objectives.costs import pairwise_neg_si_sdr
from sepkit.parallel import available_processes
from tools.bench.measure import apart, environment, measure_each, seconds_of, take_turns, timed

BATCH, NUM_SAMPLES, LEVEL_DB = 8, 32000, 6.0
SPEAKERS = (2, 3, 5, 8, 16)
SPEAKERS_ALL_THREADS = (2, 8)
SECONDS, LEAST_TURNS, TOO_SLOW_SECONDS = 1.5, 5, 10.0
# Largest allowed difference from the loss in float64, in dB: of ours, and of a peer's (beyond it, the loss is another).
TOLERANCE_DB, PEER_TOLERANCE_DB = 1e-4, 0.5
PEERS = ("asteroid", "fast_bss_eval", "torchmetrics")

Loss = Callable[[Tensor, Tensor], Tensor]
Row = tuple[int, str, int, bool]
"""Speakers, peer, threads, whether with the gradient."""


def run(unfinished: Path | None, speakers: Sequence[int] = SPEAKERS, seconds: float = SECONDS) -> dict[str, Any]:
    """Time PIT's loss, and loss with gradient, for a batch of 8 mixtures of 4 s at 8 kHz, n = m speakers.

    The estimates are the sources in another order plus noise. All compute minus the SI-SDR of signals less their means.

    Each pair runs in a process of its own, with the allocator's own settings, because the cost of a loss depends on
    what ran before it: once another program has made the heap grow, memory is no longer fetched from the kernel and
    returned at every call. asteroid's PITLossWrapper refuses 10 or more speakers by an assertion, so there its parts
    are called directly.

    Args:
        unfinished: folder of rows of interrupted calls; None: nothing is kept.
        speakers: the numbers of speakers.
        seconds: for about this long each.

    Raises:
        RuntimeError: a loss of ours, or far more so of a peer, differs from the one in float64.
    """
    rows: list[Row] = [(n, peer, 1, gradient) for n in speakers for peer in PEERS for gradient in (False, True)]
    if (threads := available_processes()) > 1:
        both = [n for n in speakers if n in SPEAKERS_ALL_THREADS]
        rows += [(n, peer, threads, gradient) for n in both for peer in PEERS for gradient in (False, True)]
    found = measure_each("assignment", rows, lambda row: apart(_measured, *row, seconds), unfinished)
    return {"rows": found, "environment": environment(*PEERS)}


def _measured(n: int, peer: str, threads: int, gradient: bool, seconds: float) -> dict[str, Any]:
    # asteroid makes a tensor of a list of arrays; torchmetrics imports a module that setuptools will drop.
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    sources, noise = torch.randn(2, BATCH, n, NUM_SAMPLES, generator=torch.Generator().manual_seed(n))
    estimates = (0.7 * (sources.flip(1) + 10 ** (-LEVEL_DB / 20) * noise)).requires_grad_(gradient)
    clock = time.process_time if threads == 1 else time.perf_counter

    def step(loss: Loss) -> None:
        value = loss(estimates, sources)
        if gradient:
            torch.autograd.grad(value, estimates)

    what = f"PIT, {n} speakers, loss{' and gradient' * gradient}"
    record: dict[str, Any] = {"what": what, "peer": peer, "threads": threads}
    ours, theirs = lambda e, s: PIT()(pairwise_neg_si_sdr(e, s)).mean(), _peer(peer, n)
    both = {"ours": partial(step, ours), "theirs": partial(step, theirs)}
    if (took := seconds_of(both["theirs"], clock)) > TOO_SLOW_SECONDS:
        return record | {"left_out": f"a call of the peer takes {took:.0f} s"}
    seconds_of(both["ours"], clock)
    times = take_turns(both, seconds, LEAST_TURNS, clock)
    # Checked afterwards, because large temporary tensors of float64 would make the heap grow.
    differences = [_difference(loss, estimates.detach(), sources) for loss in (ours, theirs)]
    if not (differences[0] <= TOLERANCE_DB and differences[1] <= PEER_TOLERANCE_DB):
        raise RuntimeError(f"{what}: ours and {peer} differ by {differences} dB from the loss in float64")
    return record | timed(times) | {"difference": differences[0], "unit": "dB"}


def _peer(name: str, n: int) -> Loss:
    if name == "asteroid":
        from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr

        if n < 10:
            return PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
        return lambda e, s: PITLossWrapper.find_best_perm(pairwise_neg_sisdr(e, s))[0].mean()
    if name == "fast_bss_eval":
        from fast_bss_eval.torch import si_sdr_pit_loss

        return lambda e, s: si_sdr_pit_loss(e, s, zero_mean=True).mean()
    from torchmetrics.functional.audio.pit import permutation_invariant_training as pit
    from torchmetrics.functional.audio.sdr import scale_invariant_signal_distortion_ratio as si_sdr

    return lambda e, s: -pit(e, s, si_sdr, "max", zero_mean=True)[0].mean()


def _difference(loss: Loss, estimates: Tensor, sources: Tensor) -> float:
    """Return the largest difference of an utterance's loss from the one in float64, pair by pair."""
    found = torch.stack([loss(estimates[b : b + 1], sources[b : b + 1]) for b in range(BATCH)])
    n, estimates, sources = estimates.shape[1], estimates.double(), sources.double()
    estimates, sources = (x - x.mean(-1, keepdim=True) for x in (estimates, sources))

    def pair(i: int, j: int) -> Tensor:
        estimate, source = estimates[:, i], sources[:, j]
        target = (estimate * source).sum(-1, keepdim=True) / (source.square().sum(-1, keepdim=True) + 1e-8) * source
        ratio = target.square().sum(-1) / ((estimate - target).square().sum(-1) + 1e-8)
        return -10 * torch.log10(ratio + 1e-8)

    cost = torch.stack([torch.stack([pair(i, j) for j in range(n)], 1) for i in range(n)], 1)
    expected = [matrix[linear_sum_assignment(matrix)].mean() for matrix in cost]
    return float((found.double() - torch.stack(expected)).abs().max())
