"""`sepkit evaluate` with two processes against one, and against asteroid's get_metrics loop, on the same files."""

from __future__ import annotations

import csv
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from tools.bench.timing import environment

SAMPLE_RATE, SECONDS = 8000, 4
METRICS = ("si_sdr", "sdr", "stoi", "pesq")
COLUMNS = {"si_sdr": "si_sdr_db", "sdr": "sdr_db", "stoi": "stoi", "pesq": "pesq"}
# Largest allowed difference, in the metric's unit.
TOLERANCES = {"si_sdr": 1e-3, "sdr": 1e-3, "stoi": 1e-4, "pesq": 1e-4}
TURNS = 2


def run(num_mixtures: int = 200) -> dict[str, Any]:
    """Return wall times of SI-SDR, SDR, STOI and PESQ for mixtures of 4 s of two speakers of speech_mini.

    Both read the same wavs. asteroid's get_metrics always scores the mixture too, as the input; sepkit does so for
    SI-SDR and SDR, whose improvements it reports. `asteroid_estimates_only` is therefore timed as well: the metrics
    behind get_metrics without those of the mixture.

    `sepkit_first_call` includes the start and the imports of the processes; all others are warm.

    Raises:
        RuntimeError: the scores differ.
        FileNotFoundError: no recordings; SEPKIT_DATA names the folder that holds speech_mini.
    """
    processes = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="sepkit-bench-") as folder:
        corpus = Path(folder)
        entries = _write_corpus(corpus, num_mixtures)
        runs: dict[str, Callable[[list[MixtureEntry], int], Any]] = {
            "sepkit": lambda some, turn: _ours(corpus, some, corpus / f"many{turn}", processes),
            "sepkit_one_process": lambda some, turn: _ours(corpus, some, corpus / f"one{turn}", 0),
        }
        seconds: dict[str, list[float]] = {name: [] for name in (*runs, "asteroid", "asteroid_estimates_only")}
        first_call, _ = _timed(lambda: _ours(corpus, entries, corpus / "first", processes))
        for entry in entries[:2]:
            _theirs(corpus, entry)
        theirs: list[dict[str, Any]] = []
        for turn in range(TURNS):
            for name, function in runs.items():
                seconds[name].append(_timed(lambda f=function, t=turn: f(entries, t))[0])
            # The slow ones take only a share of the mixtures each turn.
            share = entries[turn::TURNS]
            took, rows = _timed(lambda s=share: [_theirs(corpus, entry) for entry in s])
            seconds["asteroid"].append(took * len(entries) / len(share))
            theirs += rows
            took, _ = _timed(lambda s=share: [_theirs(corpus, entry, estimates_only=True) for entry in s])
            seconds["asteroid_estimates_only"].append(took * len(entries) / len(share))
        differences = _differences(corpus / "many0" / "utterances.csv", theirs)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratios = {name: medians[name] / medians["sepkit"] for name in medians if name != "sepkit"}
    print(f"sepkit, first call: {first_call:.1f} s")
    for name, median in medians.items():
        print(f"{name}: {median:.1f} s" + (f", {ratios[name]:.2f} x sepkit's" if name in ratios else ""), flush=True)
    return {
        "num_mixtures": num_mixtures,
        "seconds_each": SECONDS,
        "processes": processes,
        "metrics": list(METRICS),
        "seconds": {"sepkit_first_call": first_call, **medians},
        "turns": seconds,
        "ratios": ratios,
        "largest_differences": differences,
        "environment": environment("asteroid", "mir_eval", "fast_bss_eval", "pystoi", "pesq"),
    }


def _write_corpus(folder: Path, count: int) -> list[MixtureEntry]:
    """Write mixtures with two estimates each: the source, a tenth of the mixture, and noise."""
    generator = np.random.default_rng(0)
    entries = []
    for number, pair in enumerate(_pairs(count)):
        sources = np.stack([audio.read(path, 0, SECONDS * SAMPLE_RATE) for path in pair])
        sources -= sources.mean(1, keepdims=True)
        sources *= 0.1 / sources.std(1, keepdims=True)
        mixture = sources.sum(0)
        estimates = sources + 0.1 * mixture + 0.003 * generator.standard_normal(sources.shape)
        estimates -= estimates.mean(1, keepdims=True)
        name = f"{number:03d}"
        files = {f"s{k + 1}/{name}.wav": row for k, row in enumerate(sources)} | {f"mix/{name}.wav": mixture}
        files |= {f"estimates/{name}_s{k + 1}.wav": row for k, row in enumerate(estimates)}
        for path, waveform in files.items():
            audio.write(folder / path, waveform.astype(np.float32), SAMPLE_RATE)
        parts = [SourceEntry(path=f"s{k}/{name}.wav", speaker=path.parts[-3]) for k, path in enumerate(pair, start=1)]
        entry = MixtureEntry(name, SAMPLE_RATE, SECONDS * SAMPLE_RATE, parts, mixture=f"mix/{name}.wav")
        entries.append(entry)
    return entries


def _pairs(count: int) -> list[tuple[Path, Path]]:
    """Return recordings of at least 4 s of two different speakers, the same pairs every time."""
    folder = Path(os.environ.get("SEPKIT_DATA", "data")) / "speech_mini" / "wav8k" / "test"
    by_speaker: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.flac")):
        if audio.info(path).num_samples >= SECONDS * SAMPLE_RATE:
            by_speaker.setdefault(path.parts[-3], []).append(path)
    if len(by_speaker) < 2:
        raise FileNotFoundError(f"{folder}: no recordings of two speakers; set SEPKIT_DATA")
    generator = np.random.default_rng(0)
    speakers = sorted(by_speaker)
    chosen = [generator.choice(len(speakers), size=2, replace=False) for _ in range(count)]
    paths = [[by_speaker[speakers[k]][generator.integers(len(by_speaker[speakers[k]]))] for k in two] for two in chosen]
    return [(first, second) for first, second in paths]


def _ours(corpus: Path, entries: list[MixtureEntry], out: Path, processes: int) -> None:
    from sepkit.evaluation.evaluate import evaluate

    manifest = write_manifest(corpus / "test.jsonl", entries)
    evaluate([manifest], out, estimates=corpus / "estimates", metrics=METRICS, processes=processes)


def _theirs(corpus: Path, entry: MixtureEntry, estimates_only: bool = False) -> dict[str, Any]:
    import soundfile

    def read(path: str) -> np.ndarray:
        return soundfile.read(corpus / path, dtype="float32")[0]

    mixture = read(f"mix/{entry.id}.wav")
    sources = np.stack([read(f"s{k}/{entry.id}.wav") for k in (1, 2)])
    estimates = np.stack([read(f"estimates/{entry.id}_s{k}.wav") for k in (1, 2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if estimates_only:
            from pb_bss_eval import OutputMetrics

            scores = OutputMetrics(estimates, sources, None, None, SAMPLE_RATE, True, False)
            return {name: scores[name] for name in METRICS}
        from asteroid.metrics import get_metrics

        options = {"sample_rate": SAMPLE_RATE, "metrics_list": list(METRICS), "average": False}
        return {"id": entry.id, **get_metrics(mixture, sources, estimates, **options)}


def _differences(path: Path, theirs: list[dict[str, Any]]) -> dict[str, float]:
    """Return metric -> the largest difference over all sources.

    Raises:
        RuntimeError: one is beyond its tolerance.
    """
    with path.open(newline="") as file:
        ours = {row["id"]: row for row in csv.DictReader(file)}
    found = {
        name: max(
            abs(float(ours[row["id"]][f"{column}_s{k + 1}"]) - float(row[name][k])) for row in theirs for k in (0, 1)
        )
        for name, column in COLUMNS.items()
    }
    for name, difference in found.items():
        if not difference <= TOLERANCES[name]:
            raise RuntimeError(f"{name}: the scores differ by {difference}")
    return found


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result
