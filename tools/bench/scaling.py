"""Growth of time and memory with duration, files, sources, hypotheses and batch: slopes on logarithmic axes."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sepkit.config import ConvTasNetConfig, FreeFilterbankConfig, ModelConfig
from sepkit.data import audio
from sepkit.models import build_model, save_model
from sepkit.objectives.assignment import MCL, PIT
from sepkit.objectives.costs import pairwise_neg_si_sdr
from tools.bench.inputs import SAMPLE_RATE, two_voices
from tools.bench.processes import Contestant
from tools.bench.timing import environment, take_turns

DURATIONS_SECONDS = (4.0, 15.0, 60.0, 240.0, 960.0, 3600.0)
# Shorter recordings are separated as a whole, and each of their samples once, not twice.
FIRST_IN_CHUNKS_SECONDS = 60.0
FILES = (8, 32, 128, 512)
COUNTS = (2, 3, 4, 6, 8, 12, 16, 20)
BATCHES = (1, 2, 4, 8, 16)
BATCH, NUM_SAMPLES = 8, 32000
LEAST_TURNS = 5
# Allowance above the intended exponent for a fit to noisy times.
SLACK = 0.1
_THREE_CALLS_BELOW_SECONDS = 5.0

Call = Callable[[], Any]


def run(
    durations_seconds: Sequence[float] = DURATIONS_SECONDS,
    counts: Sequence[int] = COUNTS,
    batches: Sequence[int] = BATCHES,
    seconds: float = 10.0,
    files: Sequence[int] = FILES,
) -> dict[str, Any]:
    """Measure times on one thread, by the processor's time, and the exponents of power laws fitted to them.

    By duration: `sepkit separate` from disk to disk in a process for each duration, with a Conv-TasNet of 0.1 million
    weights, and its peak memory above that after `import torch`. The exponents are of recordings in chunks alone, for
    which time should be linear and memory constant. By files: one call on that many
    recordings of 4 s, after the model is loaded. By sources, n: cost and optimal matching of n estimates and n
    sources, which are n^2 pairs, and the model with n masks. By hypotheses: MCL of n estimates and two sources. By
    batch: the model on that many mixtures. An exponent below the target means that some of the work does not grow.

    Args:
        durations_seconds: of recordings.
        counts: of sources and of hypotheses.
        batches: numbers of mixtures.
        seconds: for about this long each row that is no duration.
        files: numbers of recordings.
    """
    torch.set_num_threads(1)
    rows = [*_by_duration(durations_seconds), _by_files(files)]
    for what, axis, exponent, values, calls in _in_memory(counts, batches):
        rows.append(_row(what, axis, values, _medians(calls, seconds), exponent))
    return {"rows": rows, "batch": BATCH, "num_samples": NUM_SAMPLES, "environment": environment()}


def fit_exponent(values: Sequence[float], measured: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the logarithms of at least two positive values."""
    return float(np.polyfit(np.log(values), np.log(measured), 1)[0])


def _row(
    what: str, axis: str, values: Sequence[float], measured: Sequence[float], exponent: float, unit: str = "seconds"
) -> dict[str, Any]:
    """Return a record; `exponent` is the intended one."""
    found, most = fit_exponent(values, measured), exponent + SLACK
    print(f"{what} by {axis}: exponent {found:.2f} (at most {most:.1f} asked)", flush=True)
    return {
        "what": what,
        "by": axis,
        "values": list(values),
        unit: list(measured),
        "exponent": found,
        "most_exponent": most,
        "met": found <= most,
    }


# --------------------------------------------------------------------------------------------------------- durations


def separates(folder: Path) -> Call:
    """Make a call that separates all of folder/mixtures as the command does, with its allocator."""
    from sepkit.cli._allocator import raise_thresholds
    from sepkit.inference import load_model, separate_files

    raise_thresholds()
    separator, mixtures = load_model(folder / "model", predict=False), sorted((folder / "mixtures").iterdir())

    def call() -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        report = separate_files(mixtures, separator, folder / "out")
        if report.failed or report.separated != len(mixtures):
            raise RuntimeError(str(report))

    return call


def _with_recordings(folder: Path, seconds: float, count: int = 1) -> Path:
    """Write a model and `count` equal recordings, which replace earlier ones; return the folder."""
    shutil.rmtree(folder / "mixtures", ignore_errors=True)
    (folder / "mixtures").mkdir()
    save_model(_model(2), folder / "model", {})
    for number in range(count):
        audio.write(folder / "mixtures" / f"{number:04}.wav", two_voices(seconds)[0].sum(0), SAMPLE_RATE)
    return folder


def _by_files(counts: Sequence[int]) -> dict[str, Any]:
    seconds = []
    with tempfile.TemporaryDirectory(prefix="sepkit-bench-") as name:
        for count in counts:
            with Contestant("tools.bench.scaling:separates", _with_recordings(Path(name), 4.0, count)) as process:
                process.seconds()
                seconds.append(statistics.median(process.seconds("process_time") for _ in range(3)))
    return _row("time of separation, disk to disk", "number of files", counts, seconds, 1.0)


def _by_duration(durations_seconds: Sequence[float]) -> list[dict[str, Any]]:
    seconds, memory = [], []
    with tempfile.TemporaryDirectory(prefix="sepkit-bench-") as name:
        for duration in durations_seconds:
            folder = _with_recordings(Path(name), duration)
            with Contestant("tools.bench.scaling:separates", folder) as process:
                calls = 3 if process.seconds() < _THREE_CALLS_BELOW_SECONDS else 1
                seconds.append(statistics.median(process.seconds("process_time") for _ in range(calls)))
                memory.append(process.memory().peak)
            print(f"{duration:g} s from disk to disk: {seconds[-1]:.2f} s, {memory[-1]:.0f} MB", flush=True)
    first = next((k for k, duration in enumerate(durations_seconds) if duration >= FIRST_IN_CHUNKS_SECONDS), 0)
    chunked = durations_seconds[first:] if len(durations_seconds[first:]) > 1 else durations_seconds
    first = len(durations_seconds) - len(chunked)
    what, axis = "separation in chunks, disk to disk", "duration in seconds"
    every = {"all_values": list(durations_seconds), "all_seconds": seconds, "all_peak_memory_mb": memory}
    return [
        _row(f"time of {what}", axis, chunked, seconds[first:], 1.0) | every,
        _row(f"peak memory of {what}", axis, chunked, memory[first:], 0.0, "peak_memory_mb"),
    ]


def _model(hypotheses: int) -> Any:
    torch.manual_seed(0)
    config = ModelConfig(
        hypotheses=hypotheses,
        filterbank=FreeFilterbankConfig(num_filters=64, kernel_size=16, stride=8),
        masker=ConvTasNetConfig(bottleneck_channels=32, hidden_channels=64, skip_channels=32, blocks=6, repeats=2),
    )
    return build_model(config).eval()


# --------------------------------------------------------------------------------------------------------- in memory


def _in_memory(
    counts: Sequence[int], batches: Sequence[int]
) -> list[tuple[str, str, float, Sequence[int], Mapping[int, Call]]]:
    """Return what is measured, by what, the intended exponent, values, and a call for each."""
    signals = torch.randn(BATCH, max(counts), NUM_SAMPLES, generator=torch.Generator().manual_seed(0))
    estimates = signals.flip(1) + 0.5 * torch.randn(signals.shape, generator=torch.Generator().manual_seed(1))
    mixtures = torch.from_numpy(two_voices(NUM_SAMPLES / SAMPLE_RATE)[0].sum(0)).repeat(max(batches), 1)
    model = _model(2)

    def matching(n: int) -> Call:
        # The last n of both are each other's partners, in another order.
        pairs = estimates[:, :n].contiguous(), signals[:, -n:].contiguous()
        return lambda: PIT()(pairwise_neg_si_sdr(*pairs))

    def winners(n: int) -> Call:
        pairs = estimates[:, :n].contiguous(), signals[:, -2:].contiguous()
        return lambda: MCL()(pairwise_neg_si_sdr(*pairs))

    def forward(model: Any, batch: int) -> Call:
        def call() -> None:
            with torch.inference_mode():
                model(mixtures[:batch])

        return call

    return [
        ("cost and matching", "sources", 2.0, counts, {n: matching(n) for n in counts}),
        ("model", "sources", 1.0, counts, {n: forward(_model(n), 1) for n in counts}),
        ("cost and winners", "hypotheses", 1.0, counts, {n: winners(n) for n in counts}),
        ("model", "batch", 1.0, batches, {batch: forward(model, batch) for batch in batches}),
    ]


def _medians(calls: Mapping[int, Call], seconds: float) -> list[float]:
    for call in calls.values():
        call()
    named = {str(value): call for value, call in calls.items()}
    times = take_turns(named, seconds, LEAST_TURNS, time.process_time)
    return [statistics.median(values) for values in times.values()]
