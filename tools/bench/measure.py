"""Functions timed in turns, in one process or in one each; the voices they work on; rows that are kept as they come.

A row of a suite is a mapping: `what`, `peer`, `threads`, `ratio` (see `timed`), `seconds` (medians of "ours" and
"theirs"), `turns`, `difference` of both outputs with its `unit`, and where they were measured `real_time_factor` and
`memory_mb`. A row that this machine cannot measure has `left_out`, the reason. Nothing heavy is imported here before it
is needed: memory is counted from `import torch` on.
"""

import importlib
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.parallel import available_processes

SAMPLE_RATE = 8000
WHO = ("ours", "theirs")
# Calls shorter than this are first made once untimed, because the other side had the caches.
_SHORT_SECONDS = 2.0

Call = Callable[[], Any]


def timed(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the entries of a row that follow from the seconds of "ours" and "theirs" in each turn.

    The ratio is theirs / ours, so above 1 ours is faster: its median over turns, and the least and largest of a turn.
    """
    ratios = [theirs / ours for ours, theirs in zip(*(times[who] for who in WHO), strict=True)]
    return {
        "ratio": {"median": statistics.median(ratios), "range": (min(ratios), max(ratios))},
        "seconds": {who: statistics.median(times[who]) for who in WHO},
        "turns": len(ratios),
    }


def line_of(row: Mapping[str, Any]) -> str:
    """Return a row as it is printed."""
    head = f"{row['what']}, threads {row['threads']}"
    if "left_out" in row:
        return f"{head}: left out, {row['left_out']}"
    ratio = row["ratio"]
    found = f"{ratio['median']:.2f} x {row['peer']} [{ratio['range'][0]:.2f}, {ratio['range'][1]:.2f}]"
    return f"{head}: {found}; difference {row['difference']:.3g} {row['unit']}"


# ------------------------------------------------------------------------------------------------- in this process


def take_turns(
    functions: Mapping[str, Call], seconds: float, least_turns: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of every call of every function, called A B C A B C ...; warm them up before.

    An untimed call precedes each timed one. Memory that one function frees decides whether the next one gets its memory
    from the kernel, page by page; this cost should fall on the function that causes it.

    Args:
        functions: without arguments, by name.
        seconds: continue for about this long.
        least_turns: and for at least this many turns.
        clock: `time.process_time` leaves out the time of other programs; for one thread.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    began, turns = clock(), 0
    while turns < least_turns or clock() - began < seconds:
        for name, function in functions.items():
            function()
            times[name].append(seconds_of(function, clock))
        turns += 1
    return times


def seconds_of(function: Call, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of one call."""
    began = clock()
    function()
    return clock() - began


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function in a new process, with the allocator's own settings."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_mb() -> float:
    """The most resident memory that this process has had, in MB."""
    try:
        # What getrusage tells includes the process that started this one.
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


# -------------------------------------------------------------------------------------------- in a process for each


class Contestant(ProcessPoolExecutor):
    """A function in its own process, which waits between calls.

    Args:
        maker: "module:function"; called there, it returns the function without arguments that is timed.
        arguments: of the maker.
        threads: of torch.
    """

    def __init__(self, maker: str, *arguments: Any, threads: int = 1) -> None:
        super().__init__(1, mp_context=multiprocessing.get_context("spawn"))
        self.ask(_begin, maker, arguments, threads)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what one of the functions below returns there."""
        return self.submit(function, *arguments).result()


def compare_apart(
    sides: Sequence[tuple[Any, ...]], threads: int, turns: int, audio_seconds: float
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the entries of a row, and what each side returns; each has a process, and they are called in turns.

    Args:
        sides: maker, as in `Contestant`, and its arguments: of ours and of theirs.
        threads: of torch; with one, times are the processor's, else the wall clock's.
        turns: after one call each to warm up, unless there is a single turn.
        audio_seconds: of the audio that a call separates.
    """
    clock = "process_time" if threads == 1 else "perf_counter"
    with ExitStack() as stack:
        both = {
            who: stack.enter_context(Contestant(maker, *arguments, threads=threads))
            for who, (maker, *arguments) in zip(WHO, sides, strict=True)
        }
        warm_up = {who: side.ask(call_seconds) if turns > 1 else _SHORT_SECONDS for who, side in both.items()}
        times: dict[str, list[float]] = {who: [] for who in WHO}
        for _ in range(turns):
            for who, side in both.items():
                if warm_up[who] < _SHORT_SECONDS:
                    side.ask(call_seconds)
                times[who].append(side.ask(call_seconds, clock))
        memory = {who: side.ask(memory_mb) for who, side in both.items()}
        found = {who: side.ask(call_result) for who, side in both.items()}
    record = timed(times) | {"memory_mb": memory}
    return record | {"real_time_factor": {who: t / audio_seconds for who, t in record["seconds"].items()}}, found


def bound(function: str, *arguments: Any) -> Call:
    """Bind "module:function" to its arguments."""
    module, name = function.split(":")
    return lambda: getattr(importlib.import_module(module), name)(*arguments)


_STATE: dict[str, Any] = {}


def _begin(maker: str, arguments: tuple[Any, ...], threads: int) -> None:
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    after_torch = peak_mb()
    _STATE.update(function=bound(maker, *arguments)(), after_torch=after_torch)


def call_seconds(clock: str = "perf_counter") -> float:
    """Return the time of one call.

    Args:
        clock: a function of `time`; process_time leaves out the time in which other programs had the processor.
    """
    return seconds_of(_STATE["function"], getattr(time, clock))


def call_result() -> np.ndarray:
    """Call once more, and return the result, a tensor, as an array."""
    return _STATE["function"]().detach().numpy()


def memory_mb() -> float:
    """Return the resident memory at the peak of all calls so far, in MB above that after `import torch`."""
    return peak_mb() - _STATE["after_torch"]


def relative_gap(expected: np.ndarray, found: np.ndarray) -> float:
    """Return max |a - b| / max |b| for the expected b."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# ------------------------------------------------------------------------------------------------------ the voices


def two_voices(seconds: float) -> np.ndarray:
    """Return two sources, (2, T) float32 at 8 kHz: utterances of two speakers laid end to end, or noise.

    Real speech is the test split of `$SEPKIT_DATA/speech_mini`; without it, two amplitude-modulated noises stand in.
    """
    from sepkit.data import audio

    num_samples = round(seconds * SAMPLE_RATE)
    folder = Path(os.environ.get("SEPKIT_DATA", "data")) / "speech_mini" / "wav8k" / "test"
    by_speaker: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.flac")):
        by_speaker.setdefault(path.parts[-3], []).append(path)
    if len(by_speaker) < 2:
        level = 0.55 + 0.45 * np.sin(np.outer((3, 4), 2 * np.pi / SAMPLE_RATE * np.arange(num_samples)))
        return (0.05 * level * np.random.default_rng(0).standard_normal(level.shape)).astype(np.float32)
    chosen = sorted(by_speaker, key=lambda speaker: -len(by_speaker[speaker]))[:2]
    voices = []
    for speaker in chosen:
        # Several speakers after each other would be more than two, so the recordings of one are repeated.
        parts = [audio.read(path, sample_rate=SAMPLE_RATE) for path in by_speaker[speaker]]
        voices.append(np.resize(np.concatenate([part - part.mean() for part in parts]), num_samples))
    return np.stack([(0.05 * voice / voice.std()).astype(np.float32) for voice in voices])


# --------------------------------------------------------------------------------------------------- rows that stay


def measure_each(
    suite: str, rows: Sequence[Any], measure: Callable[[Any], dict[str, Any]], folder: Path | None
) -> list[dict[str, Any]]:
    """Return the record of every row, and print it; one that an interrupted call measured is not measured again.

    Records count if they are of this commit and of such a machine. They are forgotten once all rows are measured.

    Args:
        suite: its name.
        rows: told apart by how they print.
        measure: returns the record of a row.
        folder: of unfinished suites; None: nothing is kept.
    """
    from sepkit.files import write_json

    path = None if folder is None else folder / f"{suite}.json"
    here = machine_and_commit()
    known = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
    records: dict[str, dict[str, Any]] = known["records"] if known.get("of") == here else {}
    for row in rows:
        if (name := repr(row)) not in records:
            records[name] = measure(row)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, {"of": here, "records": records})
        print(line_of(records[name]), flush=True)
    if path is not None:
        path.unlink(missing_ok=True)
    return [records[repr(row)] for row in rows]


def machine_and_commit() -> dict[str, Any]:
    """Return what must be equal for unfinished records to count."""
    return {name: value for name, value in environment().items() if name in ("machine", "commit")}


def environment(*packages: str) -> dict[str, Any]:
    """Return what the figures depend on: machine, versions, date, commit."""
    from sepkit.evaluation.results import commit

    return {
        "machine": _processor(),
        "processors": available_processes(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in ("sepkit", "torch", *packages)},
        "measured_on": time.strftime("%Y-%m-%d"),
        "commit": commit(),
    }


def _processor() -> str:
    """Return the processor's name, and the wide instructions that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict([part.strip() for part in line.split(":", 1)] for line in lines if ":" in line)
    flags = set(fields.get("flags", "").split())
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return ", ".join([fields.get("model name", platform.machine()), *wide])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
