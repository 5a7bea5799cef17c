"""A training step: sepkit against asteroid on the same weights and batch, and variational models against their twin."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import (
    BLRConfig,
    ConvTasNetConfig,
    GaussianConfig,
    LogNormalConfig,
    ModelConfig,
    ObjectiveConfig,
    RatesConfig,
    SteeringConfig,
)
from sepkit.models import build_model
from sepkit.objectives import build_objective
from sepkit.types import Batch
from tools.bench.timing import Ratio, environment, take_turns
from tools.bench.unfinished import FOLDER, measure_each

BATCH, NUM_SAMPLES, SAMPLE_RATE = 4, 24000, 8000
SECONDS, LEAST_TURNS = 60.0, 5
# Largest allowed difference of the losses before the first step, and after it.
TOLERANCE_DB = 1e-4


@dataclass(frozen=True)
class Row:
    """A pair that is timed.

    Args:
        name: of the model.
        ours: builds a step of ours.
        theirs: builds a step of the peer.
        peer: its name.
        least_ratio: target for times faster than the peer; below 1, ours may be slower.
        same_loss: whether both minimize the same function of the same weights.
        most_memory_ratio: target for the share of the peer's peak memory; None: no target.
    """

    name: str
    ours: Callable[[], Step]
    theirs: Callable[[], Step]
    peer: str
    least_ratio: float
    same_loss: bool = True
    most_memory_ratio: float | None = None


class Step:
    """One step on one batch: forward, loss, gradients, clipping, Adam. Calling it takes the step and returns the loss.

    Args:
        model: in training mode.
        loss: (mixture, sources) -> scalar, with gradient.
        fused: whether Adam is one kernel.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], fused: bool) -> None:
        self.model = model.train()
        self.loss = loss
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
        generator = torch.Generator().manual_seed(1)
        self.sources = torch.randn(BATCH, 2, NUM_SAMPLES, generator=generator)
        self.mixture = self.sources.sum(1)

    def __call__(self) -> float:
        """Take the step; return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(self.mixture, self.sources)
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        return float(value.detach())


def run(seconds: float = SECONDS, unfinished: Path | None = FOLDER) -> dict[str, Any]:
    """Measure step times and peak memory of a batch of 4 x 3 s at 8 kHz, float32, on one thread and on all.

    A peer of another toolkit has the same weights, batch, clipping and learning rate, and asteroid's own loss and Adam
    as in its recipes. A variational model is compared with our deterministic one of the same sizes. Times are the
    processor's on one thread, else the wall clock's. Peak memory is that of a process that only takes three steps,
    above that after its imports.

    Args:
        seconds: for about this long each row.
        unfinished: folder of rows of interrupted calls, which are not measured again; None: nothing is kept.

    Raises:
        RuntimeError: losses of the same weights differ, before the first step or after it.
    """
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pairs = [(name, count) for name in ROWS for count in sorted({1, threads})]
    rows = measure_each("train", pairs, lambda pair: _measured(*pair, seconds), unfinished)
    for row in rows:
        memory = row["peak_memory_mb"]
        print(
            f"{row['model']} against {row['peer']}, threads {row['threads']}: {row['ratio']['median']:.2f} x "
            f"[{row['ratio']['range'][0]:.2f}, {row['ratio']['range'][1]:.2f}] (asked {row['least_ratio']}), memory "
            f"{memory['ours'] / memory['theirs']:.2f} of {memory['theirs']:.0f} MB",
            flush=True,
        )
    return {"batch": BATCH, "num_samples": NUM_SAMPLES, "rows": rows, "environment": environment("asteroid")}


def _measured(name: str, threads: int, seconds: float) -> dict[str, Any]:
    memory = {who: _apart(_peak, name, who) for who in WHO}
    return _apart(_timed, name, threads, seconds) | {"peak_memory_mb": memory}


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function in a new process, with the allocator's own settings."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _timed(name: str, threads: int, seconds: float) -> dict[str, Any]:
    import time

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    row = ROWS[name]
    ours, theirs = row.ours(), row.theirs()
    losses = {"ours": [ours(), ours()], "theirs": [theirs(), theirs()]}
    differences = [abs(a - b) for a, b in zip(losses["ours"], losses["theirs"], strict=True)]
    if row.same_loss and max(differences) > TOLERANCE_DB:
        raise RuntimeError(f"{name}: the losses differ by {max(differences):.2g} dB: {losses}")
    clock = time.process_time if threads == 1 else time.perf_counter
    times = take_turns({"ours": ours, "theirs": theirs}, seconds, LEAST_TURNS, clock)
    return {
        "model": name,
        "peer": row.peer,
        "threads": threads,
        "least_ratio": row.least_ratio,
        "most_memory_ratio": row.most_memory_ratio,
        "ratio": asdict(Ratio.of(times["ours"], times["theirs"])),
        "step_seconds": {who: sorted(values)[len(values) // 2] for who, values in times.items()},
        "losses_db": losses if row.same_loss else None,
        "turns": len(times["ours"]),
    }


def _peak(name: str, who: str) -> float:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import asteroid.losses  # noqa: F401  # so that both begin with the same imports

    before = _peak_mb()
    step = ROWS[name].ours() if who == "ours" else ROWS[name].theirs()
    for _ in range(3):
        step()
    return _peak_mb() - before


def _peak_mb() -> float:
    of_unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / of_unit


# ----------------------------------------------------------------------------------------------------------- the pairs


def _ours(config: ModelConfig, objective: ObjectiveConfig, weights: dict[str, Tensor] | None = None) -> Step:
    torch.manual_seed(0)
    model = build_model(config)
    if weights is not None:
        model.load_state_dict(weights, strict=False)
    terms = build_objective(objective, model.traits())
    active = torch.ones(BATCH, 2, dtype=torch.bool)
    lengths = torch.full((BATCH,), NUM_SAMPLES)

    def loss(mixture: Tensor, sources: Tensor) -> Tensor:
        batch = Batch(mixture, sources, active, lengths, [""] * BATCH)
        return terms(batch, model(mixture, **terms.inputs(batch))).loss.mean()

    return Step(model, loss, fused=True)


def _asteroid(name: str) -> nn.Module:
    from asteroid import models

    torch.manual_seed(0)
    return getattr(models, name)(2)


def _theirs(name: str) -> Step:
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr

    model = _asteroid(name)
    loss = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    return Step(model, lambda mixture, sources: loss(model(mixture.unsqueeze(1)), sources), fused=False)


def _same_weights(name: str) -> Step:
    from sepkit.models.bridges import from_asteroid

    model = from_asteroid(_asteroid(name))
    assert model.config is not None
    return _ours(model.config, ObjectiveConfig(), model.state_dict())


def _tas_net() -> Step:
    return _ours(ModelConfig(masker=ConvTasNetConfig(), pad="asteroid"), ObjectiveConfig())


def _vi_tas_net() -> Step:
    config = ModelConfig(masker=ConvTasNetConfig(), encoding=GaussianConfig(), masks=LogNormalConfig(), pad="asteroid")
    steering = SteeringConfig(total=256.0, initial_weight=1e-9, change=1e-4)
    return _ours(config, ObjectiveConfig(cost=BLRConfig(), rates=RatesConfig(steering=steering)))


WHO = ("ours", "theirs")
ROWS = {
    row.name: row
    for row in (
        Row(
            "Conv-TasNet",
            lambda: _same_weights("ConvTasNet"),
            lambda: _theirs("ConvTasNet"),
            "asteroid",
            least_ratio=1.1,
            most_memory_ratio=0.8,
        ),
        Row(
            "DPRNN",
            lambda: _same_weights("DPRNNTasNet"),
            lambda: _theirs("DPRNNTasNet"),
            "asteroid",
            least_ratio=1.05,
        ),
        Row("VI-TasNet", _vi_tas_net, _tas_net, "our deterministic TasNet", least_ratio=1 / 1.35, same_loss=False),
    )
}
