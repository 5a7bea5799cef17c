"""Evaluation of a separator, or of estimates that lie in files, over manifests."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import sepkit
from sepkit.data._files import atomic_output
from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.evaluation.estimates import find_estimates, read_estimates
from sepkit.evaluation.journal import Journal
from sepkit.evaluation.scoring import COLUMNS, UtteranceScores, check_metrics, score_utterance
from sepkit.evaluation.statistics import summarise

__all__ = ["Evaluation", "Separate", "evaluate"]

Separate = Callable[[np.ndarray, int], np.ndarray]
"""(mixture (T,), sample_rate) -> estimates (n, T)"""

# Utterances that wait for their scores, for each process that scores.
_WAITING = 4


@dataclass
class Evaluation:
    """What was measured.

    Args:
        folder: holds utterances.csv and summary.json.
        summary: what summary.json holds.
    """

    folder: Path
    summary: dict[str, Any]


@dataclass
class _Utterance:
    manifest: str
    entry: MixtureEntry
    key: str


def evaluate(
    manifests: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    separate: Separate | None = None,
    estimates: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] = ("si_sdr", "sdr"),
    model: str | None = None,
    fingerprint: str = "",
    device: str = "cpu",
    processes: int = 0,
) -> Evaluation:
    """The scores over all mixtures of the manifests, written to `out/utterances.csv` and `out/summary.json`.

    Every utterance's score is the mean over its sources that are not silent; the summary is over utterances. A mixture
    that cannot be scored (a bad file, no references, too few estimates) is skipped and listed with its reason. Calling
    it again does only what is not done yet: utterances whose manifest line, files, estimates and fingerprint are the
    same are taken from `out/journal.jsonl`.

    Args:
        manifests: files.
        out: folder for the results.
        separate: the separator; or else
        estimates: folder of estimates, see `find_estimates`.
        metrics: of "si_sdr", "sdr", "stoi", "pesq".
        model: name of the separator, for the summary.
        fingerprint: changes when the separator does.
        device: where the separator computes, for the summary.
        processes: that compute metrics beside the separator; 0: none, one after the other.

    Raises:
        UserError: a bad manifest, an unknown metric, no such folder, or a folder that cannot be written to.
        ValueError: neither or both of `separate` and `estimates`.
    """
    if (separate is None) == (estimates is None):
        raise ValueError("expected either separate or estimates")
    folder = None if estimates is None else Path(estimates)
    if folder is not None and not folder.is_dir():
        raise UserError(f"{folder}: no such folder, expected one with estimates")
    fingerprint = json.dumps([fingerprint, str(folder and folder.resolve()), sorted(metrics)])
    utterances = [_Utterance(str(path), entry, "") for path in map(Path, manifests) for entry in read_manifest(path)]
    rates = sorted({utterance.entry.sample_rate for utterance in utterances})
    check_metrics(metrics, rates)
    out = Path(out)
    journal = Journal(out / "journal.jsonl")
    with journal.writing(), _executor(processes) as executor:
        job = _Job(journal, executor, separate, folder, fingerprint, tuple(metrics), _WAITING * processes)
        rows = list(tqdm(job.run(utterances), total=len(utterances), desc="evaluate", unit="mixture", disable=None))
    columns = [column for name in COLUMNS if name in metrics for column in COLUMNS[name]]
    summary = _summarise(rows, columns) | {
        "model": model,
        "estimates": None if estimates is None else str(estimates),
        "manifest": [str(path) for path in manifests],
        "sample_rate": rates[0] if len(rates) == 1 else rates,
        "real_time_factor": _real_time_factor(rows) if separate is not None else None,
        "wall_seconds": sum(row["wall_seconds"] for row in rows),
        "version": sepkit.__version__,
        "commit": _commit(),
        "hardware": _hardware(device),
    }
    _write_rows(out / "utterances.csv", [row for row in rows if "reason" not in row], columns)
    with atomic_output(out / "summary.json") as temporary:
        temporary.write_text(
            json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
    return Evaluation(out, summary)


@dataclass
class _Job:
    """Rows for utterances in order: from the journal, or computed and added to it."""

    journal: Journal
    executor: Executor | None
    separate: Separate | None
    estimates: Path | None
    fingerprint: str
    metrics: tuple[str, ...]
    max_waiting: int

    def run(self, utterances: Sequence[_Utterance]) -> Iterator[dict[str, Any]]:
        self._last = time.perf_counter()
        waiting: deque[tuple[dict[str, Any], Future[UtteranceScores] | None]] = deque()
        for utterance in utterances:
            waiting.append(self._start(utterance))
            while waiting and (len(waiting) > self.max_waiting or waiting[0][1] is None or waiting[0][1].done()):
                yield self._finish(*waiting.popleft())
        while waiting:
            yield self._finish(*waiting.popleft())

    def _start(self, utterance: _Utterance) -> tuple[dict[str, Any], Future[UtteranceScores] | None]:
        """A row without its scores, and where they will come from; None: the row is complete."""
        entry = utterance.entry
        row: dict[str, Any] = {"key": "", "manifest": utterance.manifest, "id": entry.id}
        try:
            if not entry.sources:
                raise UserError("the manifest has no references for this mixture")
            files = [] if self.estimates is None else find_estimates(self.estimates, entry)
            row["key"] = self._key(utterance, files)
            done = self.journal.rows.get(row["key"])
            if done is not None:
                return done, None
            mixed = mix_entry(entry)
            began = time.perf_counter()
            if self.separate is None:
                estimates = read_estimates(files, entry.sample_rate)
            else:
                estimates = np.asarray(self.separate(mixed.mixture, entry.sample_rate))
            row |= {
                "corpus": entry.corpus,
                "task": entry.task,
                "sample_rate": entry.sample_rate,
                "num_samples": entry.num_samples,
                "sources": len(entry.sources),
                "hypotheses": len(estimates),
                "separate_seconds": time.perf_counter() - began,
            }
            arguments = (estimates, mixed.sources, mixed.mixture, entry.sample_rate, self.metrics)
            return row, _submit(self.executor, score_utterance, *arguments)
        except _BAD_UTTERANCE as error:
            return row | {"reason": _one_line(error)}, None

    def _finish(self, row: dict[str, Any], future: Future[UtteranceScores] | None) -> dict[str, Any]:
        if future is None and "reason" not in row:
            return row
        if future is not None:
            try:
                scores = future.result()
                row |= asdict(scores) | {"silent_sources": scores.silent_sources}
            except _BAD_UTTERANCE as error:
                row["reason"] = _one_line(error)
        now = time.perf_counter()
        row["wall_seconds"], self._last = now - self._last, now
        if "reason" not in row:
            self.journal.add(row)
        return row

    def _key(self, utterance: _Utterance, files: Sequence[Path]) -> str:
        """Digest of everything that an utterance's row depends on."""
        entry = utterance.entry
        paths = [source.path for source in entry.sources] + [entry.mixture, entry.noise and entry.noise.path]
        read = [entry.resolve(path) for path in paths if path] + list(files)
        states = [(str(path), status.st_size, status.st_mtime_ns) for path in read for status in [path.stat()]]
        plain = {name: value for name, value in asdict(entry).items() if name != "folder"}
        text = json.dumps([self.fingerprint, utterance.manifest, plain, states], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# What one bad mixture may raise: its files, its lengths, and a device whose memory it exceeds. All else ends the job.
_BAD_UTTERANCE = (UserError, OSError, ValueError, RuntimeError, MemoryError)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _submit(executor: Executor | None, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    if executor is not None:
        return executor.submit(function, *arguments)
    future: Future[Any] = Future()
    try:
        future.set_result(function(*arguments))
    except _BAD_UTTERANCE as error:
        future.set_exception(error)
    return future


class _executor:
    """A pool of processes, or None for 0 of them, as a context."""

    def __init__(self, processes: int) -> None:
        # Not fork: torch's threads, and an accelerator, do not survive it.
        context = get_context("spawn")
        self._pool = ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) if processes else None

    def __enter__(self) -> Executor | None:
        return self._pool

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _summarise(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> dict[str, Any]:
    done = [row for row in rows if "reason" not in row]
    means = {column: [_scores(row).mean(column) for row in done] for column in columns}
    skipped = [{"id": row["id"], "reason": row["reason"]} for row in rows if "reason" in row]
    return {
        "n_utterances": len(done),
        "n_skipped": len(skipped),
        "skipped": skipped,
        "n_silent_sources": sum(row["silent_sources"] for row in done),
        "metrics": {column: asdict(summarise(scores)) for column, scores in means.items()},
    }


def _scores(row: dict[str, Any]) -> UtteranceScores:
    return UtteranceScores(row["assignment"], row["values"])


def _real_time_factor(rows: Sequence[dict[str, Any]]) -> float | None:
    done = [row for row in rows if "reason" not in row]
    audio_seconds = sum(row["num_samples"] / row["sample_rate"] for row in done)
    return sum(row["separate_seconds"] for row in done) / audio_seconds if done else None


def _write_rows(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """One line an utterance, in the manifests' order; an empty cell is a score that is not defined."""
    plain = (
        "manifest",
        "id",
        "corpus",
        "task",
        "sample_rate",
        "num_samples",
        "sources",
        "hypotheses",
        "silent_sources",
    )
    places = range(max((row["sources"] for row in rows), default=0))
    header = [*plain, "assignment", *columns, *(f"{column}_s{j + 1}" for column in columns for j in places)]
    with atomic_output(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            scores = _scores(row)
            per_source = (scores.values[c][j] if j < row["sources"] else np.nan for c in columns for j in places)
            numbers = [*(scores.mean(column) for column in columns), *per_source]
            cells = ["" if np.isnan(number) else repr(float(number)) for number in numbers]
            matched = " ".join(str(k + 1) if k >= 0 else "-" for k in scores.assignment)
            writer.writerow([*(row[name] for name in plain), matched, *cells])


def _commit() -> str | None:
    """The commit of the source tree that this runs from, None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _hardware(device: str) -> str:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [
            line.partition(":")[2].strip() for line in cpuinfo.read_text().split("\n") if line.startswith("model name")
        ]
        name = models[0] if models else name
    if device.startswith("cuda"):
        name = f"{torch.cuda.get_device_name(device)}, {name}"
    return f"{name}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads, torch {torch.__version__}"
