"""Evaluate a separator, or estimates in files, over manifests."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from tqdm import tqdm

from sepkit.choices import check_bounds
from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError, exhausted, one_line
from sepkit.evaluation.calibration import summarize_calibration
from sepkit.evaluation.comparison import compare, write_by_depth
from sepkit.evaluation.labels import BOUNDS, PREDICTED
from sepkit.evaluation.metrics import PESQ_MODES
from sepkit.evaluation.options import EvaluationOptions
from sepkit.evaluation.results import Row, columns_of, commit, describe_mixture, hardware, summarize_rows, write_rows
from sepkit.evaluation.run_folder import Listed, find_estimates, read_estimates
from sepkit.evaluation.scoring import PACKAGES, Hypotheses, ScoringOptions, check_metrics, score_utterance
from sepkit.extras import is_installed, missing
from sepkit.files import JSON_FORMAT, journal_line, journal_rows, write_json
from sepkit.inference.loading import load_model
from sepkit.inference.selection import check_speakers
from sepkit.inference.separated import Separated
from sepkit.inference.separator import Separator
from sepkit.models.storage.folders import DESCRIPTION, GRAPH, WEIGHTS
from sepkit.owned import claim
from sepkit.owned import command as running_command
from sepkit.parallel import Pool, Task, available_processes
from sepkit.version import __version__

# Imports of the processes that score, done before they fork.
_PRELOADED = ["sepkit.evaluation.evaluate", "fast_bss_eval.numpy", "pystoi", "pesq"]
# Number of utterances that may wait for their scores, for each process that scores.
_WAITING = 4
# Fewer mixtures are scored before other processes have started.
_LEAST_FOR_PROCESSES = 100

Separate = Callable[[np.ndarray, int], "np.ndarray | Hypotheses | Separated[np.ndarray]"]
"""(mixture (T,), sample_rate) -> estimates (n, T), or a `Hypotheses` with the model's statements about them"""


@dataclass(frozen=True)
class System:
    """The system under evaluation: a separator, or a folder of estimates.

    Args:
        separate: Function that separates a mixture; None: estimates are read.
        estimates: Folder of estimates, see `find_estimates`.
        model: Name of the model, for the summary.
        fingerprint: Text that changes when the separator does.
        device: Device of the separator, for the summary.
        signal_std: Training deviation of the model.
        depth_steps: Number of steps of a model of continuous depth.
        own_steps: Default number of steps of this model.
        separator: Separator of a model; None for any other function.
    """

    separate: Separate | None = None
    estimates: Path | None = None
    model: str | None = None
    fingerprint: str = ""
    device: str = "cpu"
    signal_std: float | None = None
    depth_steps: int | None = None
    own_steps: int | None = None
    separator: Separator | None = None


Evaluated = Separator | Separate | System | str | os.PathLike[str]
"""A separator, a function that separates, or what `load_model` loads, or a folder of estimates"""


def evaluate(
    separator: Evaluated | list[System],
    manifests: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    options: EvaluationOptions | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Score all mixtures of manifests, write `out/utterances.csv` and `out/summary.json`, and return the summary.

    Every utterance's score is the mean over its sources that are not silent; the summary is over utterances. A mixture
    that cannot be scored (a bad file, no references, too few estimates) is skipped and listed with its reason. A metric
    that fails for an utterance is left out only there. Another call does only what is missing: utterances whose
    manifest line, files, estimates and fingerprint are the same are taken from `out/journal.jsonl`.

    Args:
        separator: Separator; name or path of a model; folder of estimates (ID_s1.wav or s1/ID.wav, and so on); function
            of a mixture and its sample rate that returns estimates (n, T); or systems of `load_systems`.
        manifests: Manifest, or several; the summary has the drop of each from the first.
        out: Folder of the results.
        options: Options of the evaluation; None: the defaults.
        command: Command line, for the summary.

    Returns:
        Content of summary.json.

    Raises:
        UserError: A bad manifest, an unknown metric, no such model or folder, a folder that cannot be written to, or
            calibration of a separator that predicts nothing.
    """
    check_bounds(options := options or EvaluationOptions())
    paths = [Path(path) for path in ([manifests] if isinstance(manifests, str | os.PathLike) else manifests)]
    if not paths:
        raise UserError("manifests: found none, expected at least one")
    systems = separator if isinstance(separator, list) else load_systems(separator, options)
    if len(systems) == 1:
        return _evaluate(systems[0], paths, Path(out), options, command)
    folders = {system.depth_steps or 0: Path(out) / f"steps_{system.depth_steps}" for system in systems}
    for system, folder in zip(systems, folders.values(), strict=True):
        _evaluate(system, paths, folder, options, command)
    return write_by_depth(Path(out), folders, systems[0].own_steps)


def load_systems(separator: Evaluated, options: EvaluationOptions) -> list[System]:
    """Return what `evaluate` measures: one system, or one for each number of steps.

    Raises:
        UserError: No such model, or options that it does not have.
    """
    if isinstance(separator, str | os.PathLike) and _is_of_estimates(Path(separator)):
        separator = System(estimates=Path(separator))
    if isinstance(separator, str | os.PathLike):
        return [_of_model(str(separator), steps, options) for steps in dict.fromkeys(options.depth_steps or (None,))]
    if isinstance(separator, Separator):
        separator = _of_separator(separator, options)
    elif not isinstance(separator, System):
        separator = System(separate=separator)
    of_models = ("count_speakers", "calibration") if separator.estimates else ()
    for name in ("depth_steps", "views", "whole_seconds", *of_models):
        if (value := getattr(options, name)) is not None and value is not False:
            option, found = name.replace("_", "-"), "estimates" if separator.estimates else "one that is loaded"
            raise UserError(f"--{option}: is chosen for a model that is given by its name, found {found}")
    return [separator]


def _is_of_estimates(path: Path) -> bool:
    return path.is_dir() and not any((path / name).exists() for name in ("model", DESCRIPTION, WEIGHTS, GRAPH))


def _of_model(name: str, steps: int | None, options: EvaluationOptions) -> System:
    predict = options.calibration or options.metrics is None
    separator = load_model(
        name,
        options.device,
        predict=predict,
        depth_steps=steps,
        views=options.views,
        whole_seconds=options.whole_seconds,
    )
    if options.calibration and separator.quality is None:
        raise UserError(
            f"--calibration: {name} predicts no SI-SDR; fit its predictor on dev mixtures first: "
            f"sepkit calibrate {name} --manifest dev.jsonl; or add --views 2, which predicts for any model"
        )
    return replace(_of_separator(separator, options), model=name)


def _of_separator(separator: Separator, options: EvaluationOptions) -> System:
    check_speakers("auto" if options.count_speakers else None, separator.hypotheses, separator.counts_speakers)
    separator = copy.copy(separator)
    # Where the number is known, the model's own hypotheses are measured, whether or not they look like one speaker.
    separator.sum_if_single = options.count_speakers
    # Rows from before rates and shares of alive dimensions were kept lack them, and are made again.
    parts = [separator.fingerprint(), str(separator.score_threshold)]
    parts += ["rates, alive"] * separator.runner.has_rates
    parts += [] if separator.depth_steps is None else [f"{separator.depth_steps} steps"]
    parts += [] if options.views is None else [f"{options.views} views"]
    parts += [] if options.whole_seconds is None else [f"whole to {options.whole_seconds} s"]
    return System(
        partial(separator.separate, evidence=True),
        fingerprint=" ".join(parts),
        device=str(separator.device),
        signal_std=separator.runner.signal_std,
        depth_steps=separator.depth_steps,
        own_steps=separator.runner.trained_steps,
        separator=separator,
    )


def _hypotheses_of(separated: np.ndarray | Hypotheses | Separated[np.ndarray]) -> Hypotheses:
    if isinstance(separated, Hypotheses):
        return separated
    if not isinstance(separated, Separated):
        return Hypotheses(np.asarray(separated))
    is_speaker = separated.is_speaker
    if is_speaker is None and separated.scores is not None:
        is_speaker = separated.scores > 0
    ends = (None, None) if separated.predicted_interval_db is None else separated.predicted_interval_db.T
    named = zip((PREDICTED, *BOUNDS), (separated.predicted_si_sdr_db, *ends), strict=True)
    predictions = {name: np.asarray(found, np.float64) for name, found in named if found is not None}
    return Hypotheses(separated.estimates, is_speaker, separated.weights, predictions, separated.rates or {})


def _evaluate(
    system: System, manifests: Sequence[Path], out: Path, options: EvaluationOptions, command: str | None
) -> dict[str, Any]:
    if system.estimates is not None and not system.estimates.is_dir():
        raise UserError(f"{system.estimates}: no such folder, expected one with estimates")
    entries = [(str(path), entry) for path in manifests for entry in read_manifest(path)]
    rates = sorted({entry.sample_rate for _, entry in entries})
    signal_std = system.signal_std if options.signal_std is None else options.signal_std
    scoring, left_out = _scoring_options(options, signal_std, rates)
    if options.calibration and "si_sdr" not in scoring.metrics:
        raise UserError(f"metrics: found {', '.join(scoring.metrics)}; for --calibration, add si_sdr")
    folder = system.estimates and str(system.estimates.resolve())
    fingerprint = json.dumps([__version__, system.fingerprint, folder, asdict(scoring)])
    listed: Listed = {}
    utterances = [_utterance(manifest, entry, system.estimates, fingerprint, listed) for manifest, entry in entries]
    processes = _processes(system, len(entries)) if options.processes is None else options.processes
    journal = Journal(out / "journal.jsonl")
    with journal.writing(), Pool(processes, _PRELOADED) as pool:
        job = _Job(journal, pool, system.separate, scoring, _WAITING * processes)
        for _ in tqdm(job.run(utterances), total=len(utterances), desc="evaluate", unit="mixture", disable=None):
            pass
    journal.reload()
    if any(utterance.key not in journal.rows for utterance in utterances):
        raise RuntimeError(f"{journal.path}: rows that were just written are gone; keep the folder, and run this again")
    rows: list[Row] = [
        journal.rows[utterance.key] | {"speakers": [source.speaker for source in utterance.entry.sources]}
        for utterance in utterances
    ]
    columns = columns_of(rows, scoring.metrics)
    summary = {"format": JSON_FORMAT} | summarize_rows(rows, columns)
    summary |= {
        "model": system.model,
        "estimates": None if system.estimates is None else str(system.estimates),
        "manifest": [str(path) for path in manifests],
        "sample_rate": rates[0] if len(rates) == 1 else rates,
        "signal_std": signal_std,
        "speakers": "auto" if options.count_speakers else None,
        "depth_steps": system.depth_steps,
        "metrics_left_out": left_out,
        "real_time_factor": None if system.separate is None else _real_time_factor(rows),
        "wall_seconds": sum(row["wall_seconds"] for row in rows),
        "command": command,
        "version": __version__,
        "commit": commit(),
        "hardware": hardware(system.device),
    }
    write_rows(out / "utterances.csv", rows, columns)
    if options.calibration:
        summary["calibration"] = summarize_calibration(rows)
    if options.compare is not None:
        summary["comparison"] = compare(out, options.compare, columns)
    write_json(out / "summary.json", summary)
    return summary


def _processes(system: System, mixtures: int) -> int:
    if mixtures < _LEAST_FOR_PROCESSES:
        return 0
    cpus = available_processes()
    return cpus // 2 if system.separate is not None and system.device == "cpu" else cpus


def _scoring_options(
    options: EvaluationOptions, signal_std: float | None, sample_rates: Sequence[int]
) -> tuple[ScoringOptions, dict[str, str]]:
    """Return the metrics to compute, and the reason for each usual metric that is left out."""
    left_out: dict[str, str] = {}
    metrics = options.metrics
    if metrics is None:
        for name in ("sdr", "stoi", "pesq"):
            if name == "pesq" and any(rate not in PESQ_MODES for rate in sample_rates):
                left_out[name] = f"defined at 8000 and 16000 Hz, found {', '.join(map(str, sample_rates))} Hz"
            elif not is_installed(PACKAGES[name]):
                left_out[name] = missing(PACKAGES[name], name)
        metrics = ["si_sdr", *(name for name in ("sdr", "stoi", "pesq") if name not in left_out)]
        metrics += ["blr"] * (signal_std is not None) + ["words"] * (options.asr_command is not None)
    chosen = tuple(dict.fromkeys(metrics))
    scoring = ScoringOptions(chosen, signal_std, options.asr_command, options.count_speakers)
    check_metrics(scoring, sample_rates)
    return scoring, left_out


@dataclass
class _Utterance:
    """An entry, the files of its estimates, and the digest of everything that its row depends on."""

    manifest: str
    entry: MixtureEntry
    files: list[Path]
    problem: str | None
    key: str


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


class Journal:
    """Rows by key, one JSON object with a digest per line; damaged lines do not count.

    The last row of a key counts.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reload()

    def reload(self) -> None:
        """Read the file again."""
        self.rows: dict[str, Row] = {}
        if self.path.exists():
            self.rows = {row["key"]: row for row in journal_rows(self.path)}

    @contextmanager
    def writing(self) -> Iterator[Journal]:
        """While the block runs, `add` appends; yield this journal. Raise UserError if the file cannot be written to."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            claim(self.path)
            self._file: TextIO = self.path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UserError(
                f"{self.path.parent}: cannot be written to ({error.strerror}); give an output folder that can"
            ) from error
        # A killed run may have left half a line, which must be ended first.
        self._before_next = "\n" if self._file.tell() else ""
        with self._file:
            yield self

    def add(self, row: Row) -> None:
        """Write a row, plain data with a `key`, to disk at once."""
        self.rows[row["key"]] = row
        self._file.write(self._before_next + journal_line(row))
        self._before_next = ""
        self._file.flush()
        running_command().finished = True


@dataclass
class _Job:
    """Rows for utterances in order: from the journal, or computed and added to it."""

    journal: Journal
    pool: Pool
    separate: Separate | None
    options: ScoringOptions
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
        known = self.journal.rows.get(utterance.key)
        if known is not None and "reason" not in known:
            return known, None
        row: Row = {"key": utterance.key, "manifest": utterance.manifest, "id": entry.id}
        if utterance.problem is not None:
            return row | {"reason": utterance.problem}, None
        row |= {name: getattr(entry, name) for name in ("corpus", "task", "sample_rate", "num_samples")}
        row["sources"] = len(entry.sources)
        if self.separate is None:
            return row, self.pool.submit(_score_files, entry, utterance.files, self.options)
        try:
            mixed = mix_entry(entry)
            began = time.perf_counter()
            separated = self.separate(mixed.mixture, entry.sample_rate)
            row["separate_seconds"] = time.perf_counter() - began
        except Exception as error:
            return row | {"reason": _one_line(error)}, None
        found = _hypotheses_of(separated)
        return row, self.pool.submit(_score, entry, mixed.mixture, mixed.sources, found, self.options)

    def _finish(self, row: Row, task: Task | None) -> Row:
        if task is None and "reason" not in row:
            return row
        if task is not None:
            try:
                row |= task.result()
            except Exception as error:
                row["reason"] = _one_line(error)
        now = time.perf_counter()
        row["wall_seconds"], self._last = now - self._last, now
        self.journal.add(row)
        return row


def _score_files(entry: MixtureEntry, files: list[Path], options: ScoringOptions) -> dict[str, Any]:
    mixed = mix_entry(entry)
    return _score(entry, mixed.mixture, mixed.sources, Hypotheses(read_estimates(files, entry.sample_rate)), options)


def _score(
    entry: MixtureEntry, mixture: np.ndarray, sources: np.ndarray, found: Hypotheses, options: ScoringOptions
) -> dict[str, Any]:
    """Return the part of a row that needs the signals."""
    texts = [source.extra.get("text") for source in entry.sources]
    scores = score_utterance(found, sources, mixture, entry.sample_rate, options, texts)
    return {
        "hypotheses": len(found.estimates),
        "only_speakers": options.count_speakers,
        "silent_sources": scores.silent_sources,
        "mixture": describe_mixture(entry, sources, mixture),
        "scores": asdict(scores),
    }


def _one_line(error: Exception) -> str:
    """Return why a mixture fails; raise the error if every other mixture would meet it too, such as a full disk."""
    if exhausted(error):
        raise error
    return one_line(str(error)) or type(error).__name__


def _real_time_factor(rows: Sequence[Mapping[str, Any]]) -> float | None:
    done = [row for row in rows if "reason" not in row]
    audio_seconds = sum(row["num_samples"] / row["sample_rate"] for row in done)
    return sum(row["separate_seconds"] for row in done) / audio_seconds if done else None
