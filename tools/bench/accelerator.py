"""Training steps on a GPU: sepkit against asteroid and speechbrain, by precision, compiled or not.

It needs torch and sepkit's models; rows of a peer that is not installed say so.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tools.bench.measure import environment, measure_each, take_turns, timed
from tools.bench.train import MODELS, TWIN, Sizes, steps

FULL = Sizes(seconds=5.0, least_turns=7, device="cuda")
TOLERANCE_DB = {"fp32": 1e-2, "tf32": 0.1, "bf16": 0.5}
"""Largest difference of the losses of the first step."""
OTHER_WEIGHTS = ("SepFormer",)
"""Models whose pairs differ in their weights; they have no such difference."""

Row = tuple[str, str, bool]
"""Model, precision, whether compiled."""


def missing() -> str | None:
    """Return what this machine lacks for the suite, or None."""
    return None if torch.cuda.is_available() else "there is no CUDA device here"


def run(unfinished: Path | None, sizes: Sizes = FULL, names: Sequence[str] = tuple(MODELS)) -> dict[str, Any]:
    """Return rows of models in all precisions, eager and compiled.

    Times are those of whole steps (forward, loss, backward, clipping, fused Adam) in turns with the peer's, which uses
    Adam as its recipes do.

    Args:
        unfinished: folder of rows of interrupted calls; None: nothing is kept.
        sizes: of the batch.
        names: of `MODELS`.

    Raises:
        RuntimeError: losses of the same weights differ.
    """
    warnings.simplefilter("ignore")
    rows = [(name, precision, compiled) for name in names for precision in TOLERANCE_DB for compiled in (False, True)]
    found = measure_each("accelerator", rows, lambda row: _measured(row, sizes), unfinished)
    device = torch.cuda.get_device_name() if sizes.device == "cuda" else "no accelerator: a rehearsal"
    return {"rows": found, "environment": environment("asteroid", "speechbrain") | {"device": device}}


def _measured(row: Row, sizes: Sizes) -> dict[str, Any]:
    name, precision, compiled = row
    peer = MODELS[name][1]
    record: dict[str, Any] = {"what": f"{name}, {precision}{', compiled' * compiled}", "peer": peer, "threads": 1}
    # Otherwise code compiled for other rows counts as recompilation.
    torch.compiler.reset()
    with _products(precision):
        try:
            ours, theirs = steps(name, sizes, precision=precision, compiled=compiled)
            losses, memory = zip(*(_first_steps(step) for step in (ours, theirs)), strict=True)
        except Exception as error:
            # Some peers are not installed everywhere, and some do not compile.
            if not compiled and not isinstance(error, ImportError):
                raise
            return record | {"left_out": " ".join(str(error).split())[:200]}
        difference, same = abs(losses[0] - losses[1]), peer != TWIN and name not in OTHER_WEIGHTS
        if same and not difference <= TOLERANCE_DB[precision]:
            raise RuntimeError(f"{record['what']}: the losses differ by {difference:.2g} dB")
        times = take_turns({"ours": ours, "theirs": theirs}, sizes.seconds, sizes.least_turns)
    checked = {"difference": difference, "unit": "dB" if same else "(other losses)"}
    used = {"memory_mb": dict(zip(("ours", "theirs"), memory, strict=True))} if sizes.device == "cuda" else {}
    return record | timed(times) | checked | used


def _first_steps(step: Any) -> tuple[float, float]:
    """Compile and warm up; return the first loss, and the peak MB allocated on the device."""
    if on_device := step.mixture.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    first, *_ = (step() for _ in range(3))
    return first, torch.cuda.max_memory_allocated() / 2**20 if on_device else 0.0


@contextlib.contextmanager
def _products(precision: str) -> Iterator[None]:
    """Use TF32 in all products for tf32, and in none for other precisions."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
