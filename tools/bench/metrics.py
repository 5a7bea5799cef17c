"""SDR and SI-SDR as `sepkit evaluate` computes them, against mir_eval and asteroid's packages."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.measure import environment, line_of, take_turns, timed, two_voices

SECONDS, LEAST_TURNS = 20.0, 5
# Largest allowed difference, in dB; tables of separation never show a third digit behind the point.
TOLERANCE_DB = 1e-3


def run(unfinished: Path | None, seconds: float = SECONDS, mixture_seconds: float = 5.0) -> dict[str, Any]:
    """Time the metrics of a mixture of two speakers and its two estimates, on one thread, by the processor's time.

    SDR, SIR and SAR of BSS Eval 3 (filters of 512 taps) are mir_eval's bss_eval_sources without its search for the
    permutation, which always computes all three; `sepkit evaluate` computes SDR alone, in float64 too. The estimates
    are the sources plus a tenth of the mixture plus noise.

    Args:
        unfinished: not needed; the suite takes a minute.
        seconds: for about this long each.
        mixture_seconds: of the mixture.

    Raises:
        RuntimeError: scores differ.
    """
    import torch

    warnings.simplefilter("ignore")
    from mir_eval.separation import bss_eval_sources
    from pb_bss_eval.evaluation import module_si_sdr

    from sepkit.evaluation.metrics import bss_eval_db, sdr_db, si_sdr_db

    torch.set_num_threads(1)
    sources = two_voices(mixture_seconds)
    estimates = sources + 0.1 * sources.sum(0) + 0.003 * np.random.default_rng(0).standard_normal(sources.shape)

    def mir_eval(count: int) -> np.ndarray:
        return np.stack(bss_eval_sources(sources, estimates, compute_permutation=False)[:count])

    pairs: dict[tuple[str, str], tuple[Callable[[], Any], Callable[[], Any]]] = {
        ("SDR", "mir_eval"): (lambda: sdr_db(estimates, sources)[None], lambda: mir_eval(1)),
        ("SDR, SIR, SAR", "mir_eval"): (lambda: np.stack(bss_eval_db(estimates, sources)), lambda: mir_eval(3)),
        ("SI-SDR", "pb_bss_eval (asteroid's)"): (
            lambda: si_sdr_db(estimates, sources),
            lambda: module_si_sdr.si_sdr(sources.astype(np.float64), estimates),
        ),
    }
    rows = []
    for (what, peer), (ours, theirs) in pairs.items():
        difference = float(np.abs(ours() - theirs()).max())
        if not difference <= TOLERANCE_DB:
            raise RuntimeError(f"{what}: the scores differ by {difference} dB")
        times = take_turns({"ours": ours, "theirs": theirs}, seconds, LEAST_TURNS, time.process_time)
        row = {"what": what, "peer": peer, "threads": 1} | timed(times) | {"difference": difference, "unit": "dB"}
        print(line_of(row), flush=True)
        rows.append(row)
    return {"rows": rows, "environment": environment("mir_eval", "fast_bss_eval", "pb_bss_eval")}
