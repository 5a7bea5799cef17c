"""Hours of the same work: whether memory or the number of open files grows. Not part of the table of lines.

Each portion of the work is noted in a log as soon as it is done, and another call goes on until all sittings together
have worked long enough. Slopes are taken within a sitting, because a new process starts with new memory.
"""

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
from tools.bench.table import FOLDER
from tools.bench.timing import environment

RATE = 8000
SEPARATIONS, FILES, ROWS, SECONDS = 2000, 1000, 5000, 3 * 3600.0
PORTIONS = 10
"""Of each job in a round; memory is measured after each."""

LOG = FOLDER / "results" / "soak.jsonl"


def run(
    separations: int = SEPARATIONS,
    files: int = FILES,
    rows: int = ROWS,
    seconds: float = SECONDS,
    log: Path = LOG,
) -> dict[str, Any]:
    """Memory over time, with its slope, of three jobs in turn; they start over until the time is up.

    Args:
        separations: of 4 s each, of an array.
        files: of 0.5 s each, from disk to disk.
        rows: of an evaluation of estimates in files.
        seconds: for all together, in all sittings; each job runs at least once.
        log: one line for each portion; of earlier calls too. Remove it to begin anew.
    """
    torch.set_num_threads(1)
    sizes = {"separations": separations, "files": files, "rows": rows}
    before = [line for line in _read(log) if line["sizes"] == sizes]
    sitting = 1 + max((line["sitting"] for line in before), default=0)
    spent = sum(line["seconds"] for line in before)
    separator = load_model()
    lines = list(before)
    with tempfile.TemporaryDirectory() as temporary, log.open("a", encoding="utf-8") as file:
        folder = Path(temporary)
        _write_inputs(folder, files, rows)
        jobs: dict[str, Callable[[int], Any]] = {
            "separations": lambda part: _separations(separator, separations // PORTIONS),
            "files": lambda part: separate_files(
                [folder / "short" / str(part)], separator, folder / "out" / str(time.monotonic_ns())
            ),
            "rows": lambda part: evaluate(
                [folder / f"{part}.jsonl"],
                folder / "scores" / str(time.monotonic_ns()),
                estimates=folder / "estimates",
                metrics=("si_sdr",),
            ),
        }
        number = 0
        while number == 0 or spent < seconds:
            number += 1
            for name, job in jobs.items():
                for part in range(PORTIONS):
                    began = time.monotonic()
                    job(part)
                    gc.collect()
                    line = {
                        "sizes": sizes,
                        "sitting": sitting,
                        "round": number,
                        "job": name,
                        "mib": round(_resident_mib(), 2),
                        "open_files": len(os.listdir("/proc/self/fd")),
                        "seconds": round(time.monotonic() - began, 3),
                    }
                    spent += line["seconds"]
                    lines.append(line)
                    file.write(json.dumps(line) + "\n")
                    file.flush()
    return {"environment": environment(), "sizes": sizes, **summarize(lines)}


def summarize(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return slopes of memory, counts of items, and open files, from the lines of a log."""
    jobs: dict[str, Any] = {}
    for name in dict.fromkeys(line["job"] for line in lines):
        mine = [line for line in lines if line["job"] == name]
        portion = mine[0]["sizes"][name] // PORTIONS
        sittings = [[line for line in mine if line["sitting"] == one] for one in sorted({x["sitting"] for x in mine})]
        # The first portions of a process fill caches.
        kept = [[line["mib"] for line in sitting[PORTIONS // 2 :]] for sitting in sittings]
        slopes = [float(np.polyfit(np.arange(len(mib)), mib, 1)[0]) * 1000 / portion for mib in kept if len(mib) > 2]
        jobs[name] = {
            "items": portion * len(mine),
            "mib_first_last": [[mib[0], mib[-1]] for mib in kept if mib],
            "mib_for_1000_items": [round(slope, 3) for slope in slopes],
        }
    return {
        "memory": jobs,
        "open_files": {"first": lines[0]["open_files"], "most": max(line["open_files"] for line in lines)},
        "sittings": len({line["sitting"] for line in lines}),
        "rounds": len({(line["sitting"], line["round"]) for line in lines}),
        "seconds": round(sum(line["seconds"] for line in lines), 1),
    }


def _read(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a log; half a line of a killed call is left out."""
    if not log.is_file():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _separations(separator: Any, count: int) -> None:
    generator = np.random.default_rng(0)
    for _ in range(count):
        separator.separate(0.1 * generator.standard_normal(4 * RATE).astype(np.float32), RATE)


def _write_inputs(folder: Path, files: int, rows: int) -> None:
    """Short recordings; and manifests with estimates, all of the same two sounds; in portions."""
    generator = np.random.default_rng(0)
    for number in range(files):
        path = folder / "short" / str(number % PORTIONS) / f"{number}.wav"
        audio.write(path, 0.1 * generator.standard_normal(RATE // 2), RATE)
    parts = []
    for index in (1, 2):
        source = 0.1 * generator.standard_normal(RATE // 2).astype(np.float32)
        audio.write(folder / f"s{index}.wav", source, RATE)
        audio.write(folder / "estimate" / f"s{index}.wav", source + 0.01, RATE)
        parts.append({"path": f"s{index}.wav"})
    lines: list[list[str]] = [[] for _ in range(PORTIONS)]
    (folder / "estimates").mkdir()
    for number in range(rows):
        for index in (1, 2):
            os.link(folder / "estimate" / f"s{index}.wav", folder / "estimates" / f"{number}_s{index}.wav")
        entry = {"id": str(number), "sample_rate": RATE, "num_samples": RATE // 2, "sources": parts}
        lines[number % PORTIONS].append(json.dumps(entry) + "\n")
    for part, text in enumerate(lines):
        (folder / f"{part}.jsonl").write_text("".join(text))


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
