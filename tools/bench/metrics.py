"""SDR and SI-SDR as `sepkit evaluate` computes them, against mir_eval and asteroid's packages."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from sepkit.evaluation.metrics import bss_eval_db, sdr_db, si_sdr_db
from tools.bench.inputs import two_voices
from tools.bench.timing import Ratio, environment, take_turns

SECONDS, LEAST_TURNS = 20.0, 5
# Largest allowed difference, in dB; tables of separation never show a third digit behind the point.
TOLERANCE_DB = 1e-3

Scores = Callable[[], Any]


def run(seconds: float = SECONDS, mixture_seconds: float = 5.0) -> dict[str, Any]:
    """Time the metrics of a mixture of two speakers and its two estimates, on one thread, by the processor's time.

    SDR, SIR and SAR of BSS Eval 3 (filters of 512 taps) are mir_eval's bss_eval_sources without its search for the
    permutation, which always computes all three; `sepkit evaluate` computes SDR alone, in float64 too. The estimates
    are the sources plus a tenth of the mixture plus noise. The line `evaluate` shows the gain of two processes.

    Args:
        seconds: for about this long each.
        mixture_seconds: of the mixture.

    Raises:
        RuntimeError: scores differ.
    """
    warnings.simplefilter("ignore")
    from mir_eval.separation import bss_eval_sources
    from pb_bss_eval.evaluation import module_si_sdr

    torch.set_num_threads(1)
    sources, kind = two_voices(mixture_seconds)
    noise = np.random.default_rng(0).standard_normal(sources.shape)
    estimates = sources + 0.1 * sources.sum(0) + 0.003 * noise

    def mir_eval(count: int) -> Scores:
        return lambda: np.stack(bss_eval_sources(sources, estimates, compute_permutation=False)[:count])

    rows = [
        _row("SDR", "mir_eval", 3.5, lambda: sdr_db(estimates, sources)[None], mir_eval(1), seconds),
        _row("SDR, SIR, SAR", "mir_eval", 1.0, lambda: np.stack(bss_eval_db(estimates, sources)), mir_eval(3), seconds),
        _row(
            "SI-SDR",
            "pb_bss_eval (asteroid's)",
            None,
            lambda: si_sdr_db(estimates, sources),
            lambda: module_si_sdr.si_sdr(sources.astype(np.float64), estimates),
            seconds,
        ),
    ]
    return {
        "rows": rows,
        "mixture_seconds": mixture_seconds,
        "input": kind,
        "environment": environment("mir_eval", "fast_bss_eval", "pb_bss_eval"),
    }


def _row(what: str, peer: str, least_ratio: float | None, ours: Scores, theirs: Scores, seconds: float) -> Any:
    difference = float(np.abs(ours() - theirs()).max())
    if not difference <= TOLERANCE_DB:
        raise RuntimeError(f"{what}: the scores differ by {difference} dB")
    times = take_turns({"ours": ours, "theirs": theirs}, seconds, LEAST_TURNS, time.process_time)
    ratio = Ratio.of(times["ours"], times["theirs"])
    asked = "" if least_ratio is None else f" (asked {least_ratio:g})"
    print(f"{what} against {peer}: {ratio}{asked}; difference {difference:.1e} dB", flush=True)
    return {
        "what": what,
        "peer": peer,
        "threads": 1,
        "least_ratio": least_ratio,
        "ratio": asdict(ratio),
        "turns": len(times["ours"]),
        "clock": "process_time",
        "median_seconds": {who: sorted(values)[len(values) // 2] for who, values in times.items()},
        "difference_db": difference,
    }
