"""Hours of the same work: whether memory or the number of open files grows. Not part of the table of lines."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sepkit.data import audio
from sepkit.evaluation.evaluate import evaluate
from sepkit.inference import load_model, separate_files
from tools.bench.timing import environment

RATE = 8000
SEPARATIONS, FILES, ROWS, SECONDS = 2000, 1000, 5000, 3 * 3600.0


def run(
    separations: int = SEPARATIONS, files: int = FILES, rows: int = ROWS, seconds: float = SECONDS
) -> dict[str, Any]:
    """Memory over time, with its slope, of three jobs in turn; they start over until the time is up.

    Args:
        separations: of 4 s each, of an array.
        files: of 0.5 s each, from disk to disk.
        rows: of an evaluation of estimates in files.
        seconds: for all together; each job runs at least once.
    """
    torch.set_num_threads(1)
    began, rounds, found = time.monotonic(), 0, {}
    separator = load_model()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = _inputs(folder, files, rows)
        jobs: dict[str, Callable[[], Any]] = {
            "separations": lambda: _separations(separator, separations),
            "files": lambda: separate_files([folder / "short"], separator, folder / f"out{rounds}"),
            "rows": lambda: evaluate(
                [manifest], folder / f"scores{rounds}", estimates=folder / "estimates", metrics=("si_sdr",)
            ),
        }
        samples: dict[str, list[float]] = {name: [] for name in jobs}
        while rounds == 0 or time.monotonic() - began < seconds:
            for name, job in jobs.items():
                job()
                gc.collect()
                samples[name].append(_resident_mib())
            rounds += 1
    for name, values in samples.items():
        # The first round fills caches.
        kept = values[1:] if len(values) > 2 else values
        slope = float(np.polyfit(np.arange(len(kept)), kept, 1)[0]) if len(kept) > 1 else 0.0
        found[name] = {"mib_after_each_round": [round(v, 1) for v in values], "mib_a_round": round(slope, 3)}
    sizes = {"separations": separations, "files": files, "rows": rows, "rounds": rounds}
    return {
        "environment": environment(),
        "sizes": sizes,
        "memory": found,
        "open_files": len(os.listdir("/proc/self/fd")),
        "seconds": round(time.monotonic() - began, 1),
    }


def _separations(separator: Any, count: int) -> None:
    generator = np.random.default_rng(0)
    for _ in range(count):
        separator.separate(0.1 * generator.standard_normal(4 * RATE).astype(np.float32), RATE)


def _inputs(folder: Path, files: int, rows: int) -> Path:
    """Short recordings; and a manifest with estimates, all of the same two sounds."""
    generator = np.random.default_rng(0)
    for number in range(files):
        audio.write(folder / "short" / f"{number}.wav", 0.1 * generator.standard_normal(RATE // 2), RATE)
    parts = []
    for index in (1, 2):
        source = 0.1 * generator.standard_normal(RATE // 2).astype(np.float32)
        audio.write(folder / f"s{index}.wav", source, RATE)
        audio.write(folder / "estimate" / f"s{index}.wav", source + 0.01, RATE)
        parts.append({"path": f"s{index}.wav"})
    lines = []
    (folder / "estimates").mkdir()
    for number in range(rows):
        for index in (1, 2):
            os.link(folder / "estimate" / f"s{index}.wav", folder / "estimates" / f"{number}_s{index}.wav")
        lines.append(
            json.dumps({"id": str(number), "sample_rate": RATE, "num_samples": RATE // 2, "sources": parts}) + "\n"
        )
    manifest = folder / "test.jsonl"
    manifest.write_text("".join(lines))
    return manifest


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
