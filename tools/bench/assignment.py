"""Cost and matching of a batch, and their gradient: sepkit against asteroid, fast_bss_eval and torchmetrics."""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sepkit.files import write_json
from sepkit.objectives.assignment import MCL, PIT, AnnealedMCL, Assignment
from sepkit.objectives.costs import pairwise_neg_si_sdr
from tools.bench.table import FOLDER, VERSIONS
from tools.bench.timing import Ratio, environment, seconds_of, take_turns

BATCH, NUM_SAMPLES = 8, 32000
SPEAKERS = (2, 3, 5, 8, 10, 16, 20)
LEVELS_DB = (6.0, 40.0)
# With all threads only these numbers of speakers are timed, at the first level.
SPEAKERS_ALL_THREADS = (2, 8)
TEMPERATURE_DB = 1.0
GROWN_AT = 2
"""Number of speakers that is also timed in a process whose heap has grown."""
SECONDS, LEAST_TURNS = 1.5, 5
VERSION = VERSIONS["assignment"]
RESULTS = FOLDER / "results" / "assignment.json"
TOO_SLOW_SECONDS = 10.0
# Largest allowed difference from the loss in float64, in dB: of ours, and of a peer's (beyond it, the loss is another).
TOLERANCE_DB, PEER_TOLERANCE_DB = 1e-4, 0.5
OURS = ("pit", "mcl", "amcl")
PEERS = ("asteroid", "fast_bss_eval", "torchmetrics")
# Targets: (speakers, with gradient) -> times faster than asteroid; never slower than fast_bss_eval.
TARGETS = {(2, False): 8.0, (2, True): 4.0, (8, False): 25.0, (8, True): 20.0}

Loss = Callable[[Tensor, Tensor], Tensor]


def run(
    speakers: Sequence[int] = SPEAKERS,
    levels_db: Sequence[float] = LEVELS_DB,
    seconds: float = SECONDS,
    path: Path | None = RESULTS,
) -> dict[str, Any]:
    """Time the loss, and loss with gradient, for a batch of 8 mixtures of 4 s at 8 kHz, n = m speakers.

    The estimates are the sources in another order plus noise at the given level. All compute minus the SI-SDR of
    signals less their means. PIT is compared with each peer; MCL and annealed MCL (at 1 dB) are timed beside it. Each
    row also has the largest difference of an utterance's loss from one computed pair by pair in float64, and that of
    the gradient, relative to its norm. At 40 dB peers that work in float32 show their rounding there.

    Each peer and ours run in a process of their own, with the allocator's own settings, because the cost of a loss
    depends on what ran before it. Once another program has made the heap grow, memory is no longer fetched from the
    kernel and returned at every call. A peer with many temporary tensors is then several times faster (asteroid at two
    speakers: 12 ms alone, 2.3 ms after torchmetrics).

    One thread is timed by the processor's time, which other programs disturb less; more threads by the wall clock.
    asteroid's PITLossWrapper refuses 10 or more speakers by an assertion, so there its parts are called directly.

    Two speakers on one thread are therefore timed both in a fresh process and in one whose heap has grown.

    Rows are kept as they are measured; the same command again measures only those that are missing.

    Args:
        speakers: the numbers of speakers.
        levels_db: SI-SDR of the estimates.
        seconds: for about this long each.
        path: of the results; None: nothing is kept.

    Raises:
        RuntimeError: a loss of ours, or far more so of a peer, differs from the one in float64.
    """
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = environment("asteroid", "fast_bss_eval", "torchmetrics")
    rows = _known_rows(path, here["machine"])
    measured = {_case(row) for row in rows}
    cases: list[tuple[int, str, int, str, Sequence[float]]] = []
    for n in speakers:
        cases += [(n, peer, 1, "fresh", levels_db) for peer in PEERS]
        cases += [(n, peer, 1, "grown", levels_db[:1]) for peer in PEERS if n == GROWN_AT]
    if threads > 1:
        both = sorted(set(speakers) & set(SPEAKERS_ALL_THREADS))
        cases += [(n, peer, threads, "fresh", levels_db[:1]) for n in both for peer in PEERS]
    order = {case[:4]: place for place, case in enumerate(cases)}
    result: dict[str, Any] = {"version": VERSION, "batch": BATCH, "num_samples": NUM_SAMPLES, "environment": here}
    for n, peer, count, heap, levels in cases:
        if (n, peer, count, heap) not in measured:
            rows += _in_a_process_of_its_own(n, peer, levels, seconds, count, heap)
            rows.sort(
                key=lambda row: order.get((row["speakers"], row["peer"], row["threads"], row["heap"]), len(order))
            )
            if path is not None:
                left = len(cases) - len({_case(row) for row in rows} & set(order))
                write_json(path, result | {"rows": rows, "missed_targets": _missed_targets(rows), "cases_left": left})
    missed = _missed_targets(rows)
    print("\n".join(missed) if missed else "all targets met", flush=True)
    return result | {"rows": rows, "missed_targets": missed}


def _case(row: dict[str, Any]) -> tuple[int, str, int, str]:
    return row["speakers"], row["peer"], row["threads"], row["heap"]


def _known_rows(path: Path | None, machine: str) -> list[dict[str, Any]]:
    """Rows of an earlier call of this version on such a machine."""
    if path is None or not path.is_file():
        return []
    known = json.loads(path.read_text(encoding="utf-8"))
    same = known.get("version") == VERSION and known.get("environment", {}).get("machine") == machine
    return known["rows"] if same else []


def _in_a_process_of_its_own(
    n: int, peer: str, levels_db: Sequence[float], seconds: float, threads: int, heap: str
) -> list[Any]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_rows, n, peer, levels_db, seconds, threads, heap).result()


def _rows(
    n: int, peer: str, levels_db: Sequence[float], seconds: float, threads: int, heap: str
) -> list[dict[str, Any]]:
    # asteroid makes a tensor of a list of arrays; torchmetrics imports a module that setuptools will drop.
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    if heap == "grown":
        # Freeing a block as large as this raises glibc's thresholds; then the kernel gets no memory back.
        for _ in range(4):
            torch.ones(31 * 2**18)
    timed = [_row(n, peer, level_db, gradient, seconds) for gradient in (False, True) for level_db in levels_db]
    # Checked afterwards, because large temporary tensors of float64 would make the heap grow.
    return [check() | {"heap": heap} for check in timed]


def _contestants(n: int) -> dict[str, Loss]:
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
    from fast_bss_eval.torch import si_sdr_pit_loss
    from torchmetrics.functional.audio.pit import permutation_invariant_training
    from torchmetrics.functional.audio.sdr import scale_invariant_signal_distortion_ratio

    def ours(head: Assignment) -> Loss:
        return lambda estimates, sources: head(pairwise_neg_si_sdr(estimates, sources)).mean()

    def without_assertion(estimates: Tensor, sources: Tensor) -> Tensor:
        return PITLossWrapper.find_best_perm(pairwise_neg_sisdr(estimates, sources))[0].mean()

    def torchmetrics(estimates: Tensor, sources: Tensor) -> Tensor:
        metric = scale_invariant_signal_distortion_ratio
        return -permutation_invariant_training(estimates, sources, metric, "max", zero_mean=True)[0].mean()

    return {
        "pit": ours(PIT()),
        "mcl": ours(MCL()),
        "amcl": ours(AnnealedMCL(TEMPERATURE_DB)),
        "asteroid": PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx") if n < 10 else without_assertion,
        "fast_bss_eval": lambda estimates, sources: si_sdr_pit_loss(estimates, sources, zero_mean=True).mean(),
        "torchmetrics": torchmetrics,
    }


def _row(n: int, peer: str, level_db: float, gradient: bool, seconds: float) -> Callable[[], dict[str, Any]]:
    """Time a row; return a function that checks it, prints it and makes its record."""
    generator = torch.Generator().manual_seed(n)
    sources, noise = torch.randn(2, BATCH, n, NUM_SAMPLES, generator=generator)
    estimates = (0.7 * (sources.flip(1) + 10 ** (-level_db / 20) * noise)).requires_grad_(gradient)

    def step(loss: Loss) -> None:
        value = loss(estimates, sources)
        if gradient:
            torch.autograd.grad(value, estimates)

    what = "loss and gradient" if gradient else "loss"
    title = f"n = {n}, {level_db:g} dB, {torch.get_num_threads()} thread(s), {what}"
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    everyone, left_out = _contestants(n), {}
    contestants = {name: loss for name, loss in everyone.items() if name in (*OURS, peer)}
    for name, loss in list(contestants.items()):
        warm_up_seconds = seconds_of(lambda loss=loss: step(loss), clock)
        if warm_up_seconds > TOO_SLOW_SECONDS:
            left_out[name] = f"a call takes {warm_up_seconds:.0f} s"
            del contestants[name]
    steps = {name: lambda loss=loss: step(loss) for name, loss in contestants.items()}
    times = take_turns(steps, seconds, LEAST_TURNS, clock)
    ratios = {head: {name: Ratio.of(times[head], times[name]) for name in times if name not in OURS} for head in OURS}
    milliseconds = {name: f"{1e3 * statistics.median(values):.2f} ms" for name, values in times.items()}

    def check() -> dict[str, Any]:
        differences = _differences(contestants, estimates.detach(), sources, gradient, title)
        print(title)
        print("  " + ", ".join(f"{name} {milliseconds[name]}" for name in OURS))
        for name, ratio in ratios["pit"].items():
            print(f"  {name} {milliseconds[name]}: {ratio}, {differences[name]['loss_db']:.1e} dB from float64")
        for name, reason in left_out.items():
            print(f"  {name} left out: {reason}")
        sys.stdout.flush()
        return {
            "speakers": n,
            "peer": peer,
            "level_db": level_db,
            "threads": torch.get_num_threads(),
            "clock": clock.__name__,
            "measured": what,
            "turns": len(times["pit"]),
            "seconds": {name: statistics.median(values) for name, values in times.items()},
            "ratios": {head: {name: asdict(ratio) for name, ratio in of.items()} for head, of in ratios.items()},
            "differences": differences,
            "left_out": left_out,
            "least_ratios": {}
            if level_db != LEVELS_DB[0]
            else {name: _asked(n, gradient, name) for name in ratios["pit"]},
        }

    return check


def _differences(
    contestants: dict[str, Loss], estimates: Tensor, sources: Tensor, gradient: bool, title: str
) -> dict[str, dict[str, float]]:
    """Return name -> {"loss_db": largest over utterances, "gradient": largest, relative to its norm (if asked for)}."""
    expected = _in_float64(estimates, sources)
    found: dict[str, dict[str, float]] = {}
    for name, loss in contestants.items():
        losses, gradients = [], []
        expected_losses, expected_gradients = expected[name if name in OURS else "pit"]
        for b in range(BATCH):
            estimate = estimates[b : b + 1].clone().requires_grad_(gradient)
            value = loss(estimate, sources[b : b + 1])
            losses.append(abs(value.item() - expected_losses[b].item()))
            if gradient:
                (slope,) = torch.autograd.grad(value, estimate)
                gradients.append(((slope[0] - expected_gradients[b]).norm() / expected_gradients[b].norm()).item())
        found[name] = {"loss_db": max(losses)} | ({"gradient": max(gradients)} if gradient else {})
        if not max(losses) <= (TOLERANCE_DB if name in OURS else PEER_TOLERANCE_DB):
            raise RuntimeError(f"{title}: {name} differs by {max(losses)} dB from the loss in float64")
    return found


def _in_float64(estimates: Tensor, sources: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return head -> losses (B,) and their gradients (B, n, T), pair by pair from the definitions."""
    n = estimates.shape[1]
    estimates, sources = estimates.double().requires_grad_(), sources.double()
    references = sources - sources.mean(-1, keepdim=True)

    def pair(i: int, j: int) -> Tensor:
        estimate, source = estimates[:, i] - estimates[:, i].mean(-1, keepdim=True), references[:, j]
        target = (estimate * source).sum(-1, keepdim=True) / (source.square().sum(-1, keepdim=True) + 1e-8) * source
        ratio = target.square().sum(-1) / ((estimate - target).square().sum(-1) + 1e-8)
        return -10 * torch.log10(ratio + 1e-8)

    with torch.no_grad():
        cost = torch.stack([torch.stack([pair(i, j) for j in range(n)], 1) for i in range(n)], 1)
    matched = torch.zeros_like(cost)
    for b in range(BATCH):
        matched[(b, *linear_sum_assignment(cost[b].numpy()))] = 1
    winners = torch.zeros_like(cost).scatter_(1, cost.argmin(1, keepdim=True), 1.0)
    weights = {"pit": matched, "mcl": winners, "amcl": (-cost / TEMPERATURE_DB).softmax(1)}
    found = {}
    for name, weight in weights.items():
        gradient = torch.zeros_like(estimates)
        # Pairs without weight contribute nothing. Taken one at a time, the others need little memory.
        for i, j in (weight.amax(0) > 1e-12).nonzero().tolist():
            value = (weight[:, i, j] * pair(i, j)).sum() / n
            gradient += torch.autograd.grad(value, estimates)[0]
        found[name] = ((weight * cost).sum((1, 2)) / n, gradient)
    return found


def _asked(speakers: int, gradient: bool, peer: str) -> float | None:
    """Return the target for times faster than a peer, or None."""
    return {"asteroid": TARGETS.get((speakers, gradient), 1.0), "fast_bss_eval": 1.0}.get(peer)


def _missed_targets(rows: list[dict[str, Any]]) -> list[str]:
    """Return one line for each ratio at the first level that misses its target."""
    missed = []
    for row in rows:
        if row["level_db"] != LEVELS_DB[0] or row["heap"] != "fresh":
            continue
        key = (row["speakers"], row["measured"] != "loss")
        for head, ratios in row["ratios"].items():
            for name, ratio in ratios.items():
                least = _asked(*key, name)
                if least is not None and ratio["median"] < least:
                    found = f"{ratio['median']:.2f} x {name}, {least:g} asked for"
                    missed.append(f"{head}, n = {key[0]}, {row['threads']} thread(s), {row['measured']}: {found}")
    return missed
