"""Evaluate a separator, or estimates in files, over manifests."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tqdm import tqdm

from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError, exhausted, one_line
from sepkit.evaluation.calibration import write_calibration
from sepkit.evaluation.comparison import compare
from sepkit.evaluation.estimates import Listed, find_estimates, read_estimates
from sepkit.evaluation.groups import describe_mixture
from sepkit.evaluation.journal import Journal
from sepkit.evaluation.labels import BOUNDS, PREDICTED
from sepkit.evaluation.metrics import PESQ_MODES
from sepkit.evaluation.results import Row, columns_of, commit, hardware, summarize_rows, write_rows
from sepkit.evaluation.scoring import PACKAGES, ScoringOptions, check_metrics, score_utterance
from sepkit.extras import is_installed, missing
from sepkit.files import JSON_FORMAT, write_json
from sepkit.parallel import Pool, Task
from sepkit.version import __version__

# Imports of the processes that score, done before they fork.
_PRELOADED = ["sepkit.evaluation.evaluate", "fast_bss_eval.numpy", "pystoi", "pesq"]
# Number of utterances that may wait for their scores, for each process that scores.
_WAITING = 4


class SeparatedLike(Protocol):
    """(n, T) estimates, and the (n,) log-odds that each is a speaker, None if the model gives none.

    Optional attributes, which may be None: `is_speaker` (n,) bool, which estimates the model keeps (else those with
    log-odds above 0); `rates`, nats by the names in `labels.FROM_LATENTS`; `predicted_si_sdr_db` (n,),
    with `predicted_interval_db` (n, 2), NaN where the model predicts nothing.
    """

    estimates: Any
    scores: Any


Separate = Callable[[np.ndarray, int], "np.ndarray | SeparatedLike"]
"""(mixture (T,), sample_rate) -> estimates (n, T), with scores or without"""


@dataclass
class Evaluation:
    """A finished evaluation.

    Args:
        folder: holds utterances.csv and summary.json.
        summary: content of summary.json.
    """

    folder: Path
    summary: dict[str, Any]


@dataclass
class _OfModel:
    """What a separator says of its own estimates, see `SeparatedLike`."""

    is_speaker: np.ndarray | None = None
    predictions: dict[str, np.ndarray] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    weights: np.ndarray | None = None


@dataclass
class _Utterance:
    """An entry, the files of its estimates, and the digest of everything that its row depends on."""

    manifest: str
    entry: MixtureEntry
    files: list[Path]
    problem: str | None
    key: str


def evaluate(
    manifests: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    separate: Separate | None = None,
    estimates: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] | None = None,
    signal_std: float | None = None,
    asr_command: str | None = None,
    model: str | None = None,
    fingerprint: str = "",
    device: str = "cpu",
    processes: int = 0,
    rank: int = 0,
    world_size: int = 1,
    compare_with: str | os.PathLike[str] | None = None,
    count_speakers: bool = False,
    calibration: bool = False,
    command: str | None = None,
    depth_steps: int | None = None,
) -> Evaluation | None:
    """Score all mixtures of the manifests, and write `out/utterances.csv` and `out/summary.json`.

    Every utterance's score is the mean over its sources that are not silent; the summary is over utterances. A mixture
    that cannot be scored (a bad file, no references, too few estimates) is skipped and listed with its reason. A metric
    that fails for an utterance is left out only there. Another call does only what is missing: utterances whose
    manifest line, files, estimates and fingerprint are the same are taken from `out/journal*.jsonl`.

    Each rank takes every `world_size`-th mixture; the one that finishes last writes the results.

    Args:
        manifests: files; the summary has the drop of each from the first.
        out: folder for the results.
        separate: the separator; or else
        estimates: folder of estimates, see `find_estimates`.
        metrics: names in `scoring.COLUMNS`. None: SI-SDR, SDR, STOI, PESQ at 8 and 16 kHz, BLR with a deviation, and
            words with a command.
        signal_std: the model's training deviation, for BLR.
        asr_command: prints the transcript of `{wav}`.
        model: name of the separator, for the summary.
        fingerprint: changes when the separator does.
        device: where the separator computes, for the summary.
        processes: that compute metrics beside the separator; 0: none, one after the other.
        rank: of this process.
        world_size: number of processes that share the work.
        compare_with: folder of another evaluation of the same mixtures, for paired differences.
        count_speakers: the number of speakers counts as unknown. Only hypotheses that the model says are speakers are
            matched, and missed and surplus ones are counted, see `score_utterance`.
        calibration: whether to measure how well the separator predicts its own SI-SDR: "calibration" of the summary,
            `out/calibration.csv` and `out/risk_coverage.csv`, see `write_calibration`.
        command: command line, for the summary.
        depth_steps: of a separator of continuous depth, for the summary.

    Returns:
        None while other ranks still work on their share.

    Raises:
        UserError: a bad manifest, an unknown metric, no such folder, a folder that cannot be written to, or calibration
            of a separator that predicts nothing.
        ValueError: neither or both of `separate` and `estimates`, or `count_speakers` without `separate`.
    """
    if count_speakers and separate is None:
        raise ValueError("count_speakers: estimates in files have no scores; expected separate")
    if (separate is None) == (estimates is None):
        raise ValueError("expected either separate or estimates")
    folder = None if estimates is None else Path(estimates)
    if folder is not None and not folder.is_dir():
        raise UserError(f"{folder}: no such folder, expected one with estimates")
    entries = [(str(path), entry) for path in map(Path, manifests) for entry in read_manifest(path)]
    rates = sorted({entry.sample_rate for _, entry in entries})
    options, left_out = _options(metrics, signal_std, asr_command, rates, count_speakers)
    if calibration and "si_sdr" not in options.metrics:
        raise UserError(f"metrics: found {', '.join(options.metrics)}; for --calibration, add si_sdr")
    fingerprint = json.dumps([__version__, fingerprint, str(folder and folder.resolve()), asdict(options)])
    listed: Listed = {}
    utterances = [_utterance(manifest, entry, folder, fingerprint, listed) for manifest, entry in entries]
    out = Path(out)
    journal = Journal(out, rank if world_size > 1 else None)
    with journal.writing(), Pool(processes, _PRELOADED) as pool:
        share = utterances[rank::world_size]
        job = _Job(journal, pool, separate, options, rank, _WAITING * processes)
        for _ in tqdm(job.run(share), total=len(share), desc="evaluate", unit="mixture", disable=None):
            pass
    journal.reload()
    if any(utterance.key not in journal.rows for utterance in share):
        raise RuntimeError(f"{journal.path}: rows that were just written are gone; keep the folder, and run this again")
    if any(utterance.key not in journal.rows for utterance in utterances):
        return None
    rows: list[Row] = [
        journal.rows[utterance.key] | {"speakers": [source.speaker for source in utterance.entry.sources]}
        for utterance in utterances
    ]
    columns = columns_of(rows, options.metrics)
    summary = {"format": JSON_FORMAT} | summarize_rows(rows, columns)
    summary |= {
        "model": model,
        "estimates": None if estimates is None else str(estimates),
        "manifest": [str(path) for path in manifests],
        "sample_rate": rates[0] if len(rates) == 1 else rates,
        "signal_std": signal_std,
        "speakers": "auto" if count_speakers else None,
        "depth_steps": depth_steps,
        "metrics_left_out": left_out,
        "real_time_factor": _real_time_factor(rows) if separate is not None else None,
        "wall_seconds": max(sum(r["wall_seconds"] for r in rows if r["rank"] == k) for k in {r["rank"] for r in rows}),
        "command": command,
        "version": __version__,
        "commit": commit(),
        "hardware": hardware(device),
    }
    write_rows(out / "utterances.csv", rows, columns)
    if calibration:
        summary["calibration"] = write_calibration(out, rows)
    if compare_with is not None:
        summary["comparison"] = compare(out, compare_with, columns)
    write_json(out / "summary.json", summary)
    return Evaluation(out, summary)


def _options(
    metrics: Sequence[str] | None,
    signal_std: float | None,
    asr_command: str | None,
    sample_rates: Sequence[int],
    count_speakers: bool,
) -> tuple[ScoringOptions, dict[str, str]]:
    """Return what is measured, and why each usual metric that is left out cannot be."""
    left_out: dict[str, str] = {}
    if metrics is None:
        metrics = ["si_sdr"]
        for name in ("sdr", "stoi"):
            if is_installed(PACKAGES[name]):
                metrics.append(name)
            else:
                left_out[name] = missing(PACKAGES[name], name)
        if any(rate not in PESQ_MODES for rate in sample_rates):
            left_out["pesq"] = f"defined at 8000 and 16000 Hz, found {', '.join(map(str, sample_rates))} Hz"
        elif not is_installed("pesq"):
            left_out["pesq"] = missing("pesq", "pesq")
        else:
            metrics.append("pesq")
        metrics += ["blr"] * (signal_std is not None) + ["words"] * (asr_command is not None)
    options = ScoringOptions(tuple(dict.fromkeys(metrics)), signal_std, asr_command, count_speakers)
    check_metrics(options, sample_rates)
    return options, left_out


def _utterance(
    manifest: str, entry: MixtureEntry, estimates: Path | None, fingerprint: str, listed: Listed
) -> _Utterance:
    files: list[Path] = []
    problem = None if entry.sources else "the manifest has no references for this mixture"
    if problem is None and estimates is not None:
        try:
            files = find_estimates(estimates, entry, listed)
        except UserError as error:
            problem = _one_line(error)
    paths = [source.path for source in entry.sources] + [entry.mixture, entry.noise and entry.noise.path]
    read = [entry.resolve(path) for path in paths if path] + files
    plain = {name: value for name, value in asdict(entry).items() if name != "folder"}
    text = json.dumps([fingerprint, manifest, plain, [_state(path) for path in read]], sort_keys=True)
    return _Utterance(manifest, entry, files, problem, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def _state(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:
        return str(path), -1, 0
    return str(path), status.st_size, status.st_mtime_ns


@dataclass
class _Job:
    """Rows for utterances in order: from the journal, or computed and added to it."""

    journal: Journal
    pool: Pool
    separate: Separate | None
    options: ScoringOptions
    rank: int
    max_waiting: int

    def run(self, utterances: Sequence[_Utterance]) -> Iterator[Row]:
        self._last = time.perf_counter()
        waiting: deque[tuple[Row, Task | None]] = deque()
        for utterance in utterances:
            waiting.append(self._start(utterance))
            while waiting and (len(waiting) > self.max_waiting or waiting[0][1] is None or waiting[0][1].done()):
                yield self._finish(*waiting.popleft())
        while waiting:
            yield self._finish(*waiting.popleft())

    def _start(self, utterance: _Utterance) -> tuple[Row, Task | None]:
        """Return a row without its scores, and the task that computes them (None: the row is complete)."""
        entry = utterance.entry
        row: Row = {"key": utterance.key, "manifest": utterance.manifest, "id": entry.id, "rank": self.rank}
        known = self.journal.rows.get(utterance.key)
        if known is not None and "reason" not in known:
            return known, None
        if utterance.problem is not None:
            return row | {"reason": utterance.problem}, None
        row |= {
            "corpus": entry.corpus,
            "task": entry.task,
            "sample_rate": entry.sample_rate,
            "num_samples": entry.num_samples,
            "sources": len(entry.sources),
        }
        if self.separate is None:
            return row, self.pool.submit(_score_files, entry, utterance.files, self.options)
        try:
            mixed = mix_entry(entry)
            began = time.perf_counter()
            separated = self.separate(mixed.mixture, entry.sample_rate)
            estimates = np.asarray(getattr(separated, "estimates", separated))
            row["separate_seconds"] = time.perf_counter() - began
        except Exception as error:
            _raise_if_exhausted(error)
            return row | {"reason": _one_line(error)}, None
        rates, weights = getattr(separated, "rates", None) or {}, getattr(separated, "weights", None)
        of_model = _OfModel(_is_speaker(separated), _predictions(separated), rates, weights)
        task = self.pool.submit(_score, entry, mixed.mixture, mixed.sources, estimates, of_model, self.options)
        return row, task

    def _finish(self, row: Row, task: Task | None) -> Row:
        if task is None and "reason" not in row:
            return row
        if task is not None:
            try:
                row |= task.result()
            except Exception as error:
                _raise_if_exhausted(error)
                row["reason"] = _one_line(error)
        now = time.perf_counter()
        row["wall_seconds"], self._last = now - self._last, now
        self.journal.add(row)
        return row


def _score_files(entry: MixtureEntry, files: list[Path], options: ScoringOptions) -> dict[str, Any]:
    mixed = mix_entry(entry)
    return _score(entry, mixed.mixture, mixed.sources, read_estimates(files, entry.sample_rate), _OfModel(), options)


def _score(
    entry: MixtureEntry,
    mixture: np.ndarray,
    sources: np.ndarray,
    estimates: np.ndarray,
    of_model: _OfModel,
    options: ScoringOptions,
) -> dict[str, Any]:
    """Return the part of a row that needs the signals."""
    texts = [source.extra.get("text") for source in entry.sources]
    scores = score_utterance(
        estimates,
        sources,
        mixture,
        entry.sample_rate,
        options,
        texts,
        of_model.is_speaker,
        of_model.predictions,
        of_model.weights,
    )
    scores.rates |= of_model.rates
    return {
        "hypotheses": len(estimates),
        "only_speakers": options.count_speakers,
        "silent_sources": scores.silent_sources,
        "mixture": describe_mixture(entry, sources, mixture),
        "scores": asdict(scores),
    }


def _is_speaker(separated: Any) -> np.ndarray | None:
    is_speaker, scores = getattr(separated, "is_speaker", None), getattr(separated, "scores", None)
    if is_speaker is not None:
        return np.asarray(is_speaker)
    return None if scores is None else np.asarray(scores) > 0


def _predictions(separated: Any) -> dict[str, np.ndarray]:
    """Return (n,) of what the separator predicts, by the names in `PREDICTED` and `BOUNDS`."""
    predicted = getattr(separated, PREDICTED, None)
    found = {} if predicted is None else {PREDICTED: np.asarray(predicted, np.float64)}
    interval = getattr(separated, "predicted_interval_db", None)
    if interval is not None:
        found |= zip(BOUNDS, np.asarray(interval, np.float64).T, strict=True)
    return found


def _raise_if_exhausted(error: Exception) -> None:
    """Raise an error that every other mixture would meet too, such as a full disk."""
    if exhausted(error):
        raise error


def _one_line(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__


def _real_time_factor(rows: Sequence[Row]) -> float | None:
    done = [row for row in rows if "reason" not in row]
    audio_seconds = sum(row["num_samples"] / row["sample_rate"] for row in done)
    return sum(row["separate_seconds"] for row in done) / audio_seconds if done else None
