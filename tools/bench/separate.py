"""Separation: sepkit against asteroid (SepFormer: speechbrain) on the same weights and the same mixture."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sepkit.errors import UserError
from sepkit.models.published.facts import multiply_adds
from tools.bench import contestants
from tools.bench.contestants import SEPFORMER
from tools.bench.inputs import two_voices
from tools.bench.peaks import bytes_moved, measure_peaks
from tools.bench.processes import Contestant, Memory, take_turns_apart
from tools.bench.timing import Ratio, environment
from tools.bench.unfinished import FOLDER, measure_each

TURNS = 5
# Largest difference of comparable outputs from those of the peer's module in float64.
TOLERANCE = 1e-5
CHUNK_SECONDS = 10.0
# Largest memory above that after `import torch`, for a recording of any length in chunks.
MOST_MEMORY_MB = 250.0
# Of estimates in bfloat16 above the difference.
LEAST_SNR_DB = {"DPRNN": 50.0, "Conv-TasNet": 40.0}
MOST_LOSS_DB = 0.1
QUALITY_SECONDS = 60.0
# A longer one's whole-file estimates would take gigabytes.
LONGESTWHOLE_SECONDS = 60.0

WHO = ("ours", "theirs")
_MAKERS = "tools.bench.contestants"


@dataclass(frozen=True)
class Row:
    """A pair that is timed.

    Args:
        model: a name of `contestants`.
        seconds: of the mixture.
        threads: of torch; 0: all there are.
        way: "whole": the module on a tensor; "chunked": from disk to disk in chunks, as `sepkit separate` and
            asteroid's file_separate do; "bfloat16": as whole, ours with that precision; "allocator": as whole, ours
            with the thresholds that the command raises, against ours without.
        least_ratio: target for times faster than the peer.
        sizes: arguments of the peer's class that differ from its own.
        turns: number of turns.
    """

    model: str
    seconds: float
    threads: int
    way: str = "whole"
    least_ratio: float | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    turns: int = TURNS

    @property
    def peer(self) -> str:
        """Name of the other side."""
        if self.way == "allocator":
            return "sepkit, allocator as it comes"
        return "speechbrain" if self.model == SEPFORMER else "asteroid"

    @property
    def what(self) -> str:
        """Description of the row."""
        length = f"{self.seconds:g} s" if self.seconds < 120 else f"{self.seconds / 60:g} min"
        ways = {
            "whole": "whole file",
            "chunked": "in chunks, disk to disk",
            "bfloat16": "whole file, bfloat16",
            "allocator": "whole file, thresholds raised",
        }
        return f"{self.model}, {length}, {ways[self.way]}"


# The literature's network of 2.6 million weights; asteroid's own default has 128 channels between paths.
DPRNN_SIZES = {"bn_chan": 64}

ROWS = (
    *(Row("Conv-TasNet", 4, threads, least_ratio=1.7) for threads in (1, 0)),
    *(Row("Conv-TasNet", 4, threads, "bfloat16", least_ratio=2.6) for threads in (1, 0)),
    *(Row("DPRNN", 4, threads, least_ratio=1.05, sizes=DPRNN_SIZES) for threads in (1, 0)),
    *(Row("DPRNN", 4, threads, "bfloat16", least_ratio=1.8, sizes=DPRNN_SIZES) for threads in (1, 0)),
    *(Row("SuDoRM-RF improved", 4, threads, least_ratio=1.3) for threads in (1, 0)),
    *(Row("SuDoRM-RF", 4, threads, least_ratio=1.0) for threads in (1, 0)),
    Row(SEPFORMER, 4, 1, least_ratio=1.0),
    Row("Conv-TasNet", 60, 0, least_ratio=3.0),
    Row("DPRNN", 60, 0, least_ratio=1.0, sizes=DPRNN_SIZES),
    Row("Conv-TasNet", 60, 0, "allocator"),
    Row("Conv-TasNet", 60, 0, "chunked", least_ratio=1.7),
    # A turn takes six minutes.
    Row("Conv-TasNet", 600, 0, "chunked", least_ratio=1.7, turns=1),
)


def run(
    rows: Sequence[Row] = ROWS,
    peak_seconds: float = 2.0,
    quality_seconds: float = QUALITY_SECONDS,
    unfinished: Path | None = FOLDER,
) -> Any:
    """Measure times, real-time factors, peak memory and differences of pairs, and the cost of chunks in SI-SDR.

    Each side has its own process, and they are called in turns. Both run in evaluation mode without gradients. On one
    thread times are the processor's, else the wall clock's. Peak memory is that of all calls, imports and weights,
    above that after `import torch`. `difference` is the largest of an estimate's samples from the peer's module in
    float64, relative to the largest of those.

    In chunks both go from a wav file to wav files, with windows of 10 s that begin every 5 s. asteroid's overlap-add
    puts a window of silence before and after the recording, so it has four chunks more. `likeness_db` is the SI-SDR of
    the joined estimates to the whole-file estimates of the module in float64. With untrained weights it only shows how
    much the windows matter to such a network.

    The loss of SI-SDR improvement by chunks needs a trained model: the one that the variable SEPKIT_BENCH_MODEL names,
    or else the one that ships with sepkit.

    `share_of_peak` is the part of the sgemm rate of as many threads that a side reaches, counting the multiply-adds of
    the model as its authors wrote it. `share_of_bandwidth` is the bytes that its operations read and write each second,
    over the memory bandwidth; caches can make it larger than 1.

    Args:
        rows: the pairs.
        peak_seconds: duration of the measurement of peak rates.
        quality_seconds: length of the mixture for a trained model.
        unfinished: folder of rows of interrupted calls, which are not measured again; None: nothing is kept.

    Raises:
        RuntimeError: outputs that ought to be equal differ.
    """
    # asteroid and its imports give deprecation warnings.
    warnings.simplefilter("ignore")
    threads = _all_threads()
    peaks = {
        str(count): asdict(measure_peaks(count, peak_seconds)) for count in {row.threads or threads for row in rows}
    }
    for count, peak in peaks.items():
        print(f"threads {count}: {peak['gflops']:.0f} GFLOP/s, {peak['gigabytes_per_second']:.1f} GB/s", flush=True)
    return {
        "rows": measure_each("separate", rows, lambda row: _row(row, row.threads or threads, peaks), unfinished),
        "quality": _quality(quality_seconds),
        "peaks": peaks,
        "chunk_seconds": CHUNK_SECONDS,
        "environment": environment("asteroid", "speechbrain"),
    }


def _all_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _row(row: Row, threads: int, peaks: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "what": row.what,
        "model": row.model,
        "way": row.way,
        "seconds": row.seconds,
        "peer": row.peer,
        "threads": threads,
        "least_ratio": row.least_ratio,
    }
    clock = "process_time" if threads == 1 else "perf_counter"
    with tempfile.TemporaryDirectory(prefix="sepkit-bench-") as name:
        folder = Path(name)
        torch.set_num_threads(threads)
        record["input"] = contestants.prepare(folder, row.model, row.sizes, row.seconds)
        with ExitStack() as stack:
            try:
                ours, theirs = (
                    stack.enter_context(Contestant(f"{_MAKERS}:{maker}", *arguments, threads=threads))
                    for maker, arguments in _sides(row, folder)
                )
            except UserError as error:
                print(f"{row.what}: left out, {error}", flush=True)
                return record | {"left_out": str(error)}
            times = take_turns_apart({"ours": ours, "theirs": theirs}, row.turns, clock)
            memory = {"ours": ours.memory(), "theirs": theirs.memory()}
            if row.way != "chunked":
                ours.save(folder / "ours.npy")
                theirs.save(folder / "theirs.npy")
        record |= _times(row, times, memory, clock) | _checked(row, folder, threads)
        if row.way == "whole":
            record |= _attained(row, folder, record["median_seconds"], peaks[str(threads)])
    print(_line(record), flush=True)
    return record


def _sides(row: Row, folder: Path) -> list[tuple[str, tuple[Any, ...]]]:
    """Return maker and arguments of ours and theirs."""
    if row.way == "chunked":
        chunk = CHUNK_SECONDS if row.seconds > CHUNK_SECONDS else row.seconds / 3
        return [
            ("ours_on_disk", (folder, row.model, chunk, 0.0)),
            ("theirs_on_disk", (folder, row.model, row.sizes, chunk)),
        ]
    if row.way == "allocator":
        return [("ours", (folder, row.model, False, True)), ("ours", (folder, row.model))]
    return [("ours", (folder, row.model, row.way == "bfloat16")), ("theirs", (folder, row.model, row.sizes))]


def _times(row: Row, times: dict[str, list[float]], memory: dict[str, Memory], clock: str) -> dict[str, Any]:
    medians = {who: statistics.median(values) for who, values in times.items()}
    return {
        "ratio": asdict(Ratio.of(times["ours"], times["theirs"])),
        "turns": row.turns,
        "clock": clock,
        "median_seconds": medians,
        "real_time_factor": {who: median / row.seconds for who, median in medians.items()},
        "peak_memory_mb": {who: found.peak for who, found in memory.items()},
        "peak_memory_before_mb": {who: found.before for who, found in memory.items()},
        "most_peak_memory_mb": MOST_MEMORY_MB if row.way == "chunked" else None,
    }


def _checked(row: Row, folder: Path, threads: int) -> dict[str, Any]:
    """Return the differences of both sides from the peer's module in float64.

    Raises:
        RuntimeError: a difference is too large.
    """
    if row.way == "chunked" and row.seconds > LONGESTWHOLE_SECONDS:
        return {}
    reference = contestants.theirs(folder, row.model, row.sizes, double=True)().numpy()
    if row.way == "chunked":
        return {"likeness_db": {who: contestants.likeness_db(reference, folder / who) for who in WHO}}
    estimates = {who: np.load(folder / f"{who}.npy") for who in WHO}
    found = {who: contestants.largest_difference(reference, estimates[who]) for who in WHO}
    checked: dict[str, Any] = {"difference": found}
    if row.way == "bfloat16":
        checked |= {"snr_db": contestants.snr_db(reference, estimates["ours"]), "least_snr_db": LEAST_SNR_DB[row.model]}
    elif not found["ours"] <= TOLERANCE:
        raise RuntimeError(f"{row.what}: the estimates differ by {found['ours']:.2g} from those in float64")
    return checked


def _attained(
    row: Row, folder: Path, medians: Mapping[str, float], peak: Mapping[str, float]
) -> dict[str, dict[str, float] | float]:
    calls = {
        "ours": contestants.ours(folder, row.model),
        "theirs": contestants.theirs(folder, row.model, row.sizes),
    }
    count = multiply_adds(calls["theirs"])
    gflops = {who: 2e-9 * count / medians[who] for who in WHO}
    moved = {who: 1e-9 * bytes_moved(calls[who]) / medians[who] for who in WHO}
    return {
        "giga_multiply_adds_per_second_of_audio": 1e-9 * count / row.seconds,
        "gflops": gflops,
        "share_of_peak": {who: value / peak["gflops"] for who, value in gflops.items()},
        "share_of_bandwidth": {who: value / peak["gigabytes_per_second"] for who, value in moved.items()},
    }


def _quality(seconds: float) -> dict[str, Any]:
    """Return the cost of chunks for a trained model."""
    from sepkit.models.published.shipped import DEFAULT_MODEL, shipped_models

    model = os.environ.get("SEPKIT_BENCH_MODEL") or (DEFAULT_MODEL if DEFAULT_MODEL in shipped_models() else None)
    record: dict[str, Any] = {
        "what": f"loss of SI-SDR improvement by chunks, {seconds:g} s",
        "most_loss_db": MOST_LOSS_DB,
    }
    if model is None:
        reason = "no trained model: none ships with this version and SEPKIT_BENCH_MODEL names none"
        print(f"{record['what']}: left out, {reason}", flush=True)
        return record | {"left_out": reason}
    voices, kind = two_voices(seconds)
    whole, chunked = (contestants.improvements_db(model, voices, limit) for limit in (math.inf, 0.0))
    loss = max(whole[order] - chunked[order] for order in whole)
    print(
        f"{record['what']}, {_architecture(model)}: {loss:.2f} dB; as a whole {whole}, in chunks {chunked}", flush=True
    )
    return record | {
        "model": _architecture(model),
        "input": kind,
        "whole_si_sdri_db": whole,
        "chunked_si_sdri_db": chunked,
        "loss_db": loss,
    }


def _architecture(model: str) -> str:
    """Return the name of a model's folder and its masker."""
    from sepkit.inference import load_model

    masker = type(load_model(model, predict=False).model.masker).__name__
    names = [part for part in Path(model).resolve().parts[-2:] if part != "model"]
    return f"{names[-1]} ({masker})"


def _line(record: Mapping[str, Any]) -> str:
    ratio, asked = record["ratio"], record["least_ratio"]
    words = [
        f"{ratio['median']:.2f} x {record['peer']} [{ratio['range'][0]:.2f}, {ratio['range'][1]:.2f}]"
        + (f" (asked {asked:g})" if asked is not None else ""),
        "real-time factor " + " against ".join(f"{record['real_time_factor'][who]:.3f}" for who in WHO),
        "memory " + " against ".join(f"{record['peak_memory_mb'][who]:.0f} MB" for who in WHO),
    ]
    if "difference" in record:
        words.append("difference " + " against ".join(f"{record['difference'][who]:.1e}" for who in WHO))
    if "snr_db" in record:
        words.append(f"{record['snr_db']:.1f} dB SNR")
    if "likeness_db" in record:
        words.append("like the whole file " + " against ".join(f"{record['likeness_db'][who]:.1f} dB" for who in WHO))
    if "share_of_peak" in record:
        words.append("share of sgemm " + " against ".join(f"{record['share_of_peak'][who]:.2f}" for who in WHO))
    return f"{record['what']}, threads {record['threads']}: " + "; ".join(words)
