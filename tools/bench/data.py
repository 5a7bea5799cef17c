"""Preparation and the data path: two processes against one, and seconds of mixture per second of one core."""

from __future__ import annotations

import csv
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.config import DynamicMixingConfig
from sepkit.corpora.librimix import prepare_librimix
from sepkit.corpora.options import LibriMixOptions
from sepkit.data import audio
from sepkit.data.dataset import MixtureDataset
from tools.bench.timing import compare, environment

SOURCE_RATE, SAMPLE_RATE = 16000, 8000
SEGMENT_SECONDS = 4.0
UTTERANCE_SECONDS = (10.0, 15.0)
NUM_UTTERANCES, NUM_NOISES = 100, 20
TURNS = 3
TARGETS = {
    "prepare_two_processes_over_one": 1.5,
    "on_the_fly_times_real_time": 300.0,
    "reverberated_times_real_time": 30.0,
    "seek_over_whole_file": 2.0,
}
# A step of PCM16, by which written and described mixtures may differ.
_STEP = 1 / 32768


def run(num_mixtures: int = 1000, num_items: int = 300) -> dict[str, Any]:
    """Measure a corpus in LibriMix's layout, made of speech_mini: 16 kHz FLAC of 10 to 15 s.

    Times real time is seconds of mixture for each second of the core's time; `wall` beside it includes the time of
    other programs on the core.

    Args:
        num_mixtures: number of mixtures written.
        num_items: of the dataset, each turn.

    Raises:
        RuntimeError: results that ought to be equal differ.
        FileNotFoundError: no recordings; SEPKIT_DATA names the folder that holds speech_mini and noise_mini.
    """
    with tempfile.TemporaryDirectory(prefix="sepkit-bench-") as name:
        folder = Path(name)
        _make_corpus(folder, num_mixtures)
        preparation = _preparation(folder)
        prepare_librimix(_options(folder, folder / "described", processes=1))
        on_the_fly = _on_the_fly(folder, num_items)
        reverberated = _reverberated(folder, num_items)
        seek = _seek(folder)
    reached = {
        "prepare_two_processes_over_one": preparation["ratio"],
        "on_the_fly_times_real_time": on_the_fly["times_real_time"],
        "reverberated_times_real_time": reverberated["times_real_time"],
        "seek_over_whole_file": seek["ratio"],
    }
    for what, value in reached.items():
        print(f"{what}: {value:.2f} (target {TARGETS[what]})", flush=True)
    return {
        "num_mixtures": num_mixtures,
        "segment_seconds": SEGMENT_SECONDS,
        "reached": reached,
        "targets": TARGETS,
        "preparation": preparation,
        "on_the_fly": on_the_fly,
        "reverberated": reverberated,
        "seek": seek,
        "environment": environment("soundfile", "scipy", "soxr", "pyroomacoustics"),
    }


# ------------------------------------------------------------------------------------------------------- the fixtures


def _make_corpus(folder: Path, num_mixtures: int) -> None:
    """Write LibriSpeech/train-clean-100, wham_noise/tr and metadata/ with a table of two-speaker mixtures."""
    data = Path(os.environ.get("SEPKIT_DATA", "data"))
    generator = np.random.default_rng(0)
    utterances: list[tuple[str, str]] = []
    speech = _by_speaker(data / "speech_mini" / "wav16k")
    for number in range(NUM_UTTERANCES):
        speaker = sorted(speech)[number % len(speech)]
        name = f"train-clean-100/{speaker}/1/{speaker}-1-{number:04d}.flac"
        _write_long(folder / "LibriSpeech" / name, speech[speaker], generator)
        utterances.append((speaker, name))
    noises = sorted((data / "noise_mini" / "wav16k").rglob("*.flac"))
    for number in range(NUM_NOISES):
        _write_long(folder / "wham_noise" / "tr" / f"{number:02d}.wav", [noises[number % len(noises)]], generator)
    rows = []
    while len(rows) < num_mixtures:
        (first, a), (second, b) = (utterances[i] for i in generator.choice(len(utterances), 2, replace=False))
        if first != second:
            gains = [repr(float(gain)) for gain in generator.uniform(0.3, 1.2, 3)]
            noise = f"tr/{generator.integers(NUM_NOISES):02d}.wav"
            rows.append([f"{Path(a).stem}_{Path(b).stem}_{len(rows)}", a, gains[0], b, gains[1], noise, gains[2]])
    path = folder / "metadata" / "libri2mix_train-clean-100.csv"
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        sources = [f"source_{k}_{what}" for k in (1, 2) for what in ("path", "gain")]
        table.writerow(["mixture_ID", *sources, "noise_path", "noise_gain"])
        table.writerows(rows)


def _by_speaker(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.flac")):
        found.setdefault(path.parts[-3], []).append(path)
    if len(found) < 2:
        raise FileNotFoundError(f"{folder}: no recordings of two speakers; set SEPKIT_DATA")
    return found


def _write_long(path: Path, parts: Sequence[Path], generator: np.random.Generator) -> None:
    """Write a recording as long as those of LibriSpeech by repeating the parts."""
    samples = np.concatenate([audio.read(part, sample_rate=SOURCE_RATE) for part in parts])
    count = round(generator.uniform(*UTTERANCE_SECONDS) * SOURCE_RATE)
    audio.write(path, np.resize(samples, count), SOURCE_RATE, subtype="PCM_16")


def _options(folder: Path, out: Path, **more: Any) -> LibriMixOptions:
    speech, noise, metadata = folder / "LibriSpeech", folder / "wham_noise", folder / "metadata"
    return LibriMixOptions(librispeech=speech, wham_noise=noise, metadata=metadata, out=out, **more)


# -------------------------------------------------------------------------------------------------------- the figures


def _preparation(folder: Path) -> dict[str, Any]:
    """Write the official tree (float32, six wavs per mixture) with two processes and with one."""
    seconds: dict[int, list[float]] = {2: [], 1: []}
    digests = set()
    for turn in range(2):
        for processes, times in seconds.items():
            out = folder / f"written{processes}_{turn}"
            began = time.perf_counter()
            prepare_librimix(_options(folder, out, write=True, processes=processes))
            times.append(time.perf_counter() - began)
            digests.add(_digest(out / "Libri2Mix"))
    if len(digests) > 1:
        raise RuntimeError("one process writes other files than two")
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    return {"ratio": statistics.median(ratios), "ratios": ratios, "seconds": {str(k): v for k, v in seconds.items()}}


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    wavs = sorted(folder.rglob("*.wav"))
    for path in wavs:
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    if not wavs:
        raise RuntimeError(f"{folder}: nothing was written")
    return digest.hexdigest()


def _on_the_fly(folder: Path, num_items: int) -> dict[str, Any]:
    """Read crops of 4 s at 8 kHz of mixtures described by 16 kHz FLAC."""
    manifest = folder / "described" / "train.jsonl"
    whole = MixtureDataset(manifest)
    written = {path.stem: path for path in (folder / "written1_0").rglob("mix_clean/*.wav")}
    for index in range(0, len(whole), max(1, len(whole) // 20)):
        example = whole[index]
        described = example.mixture.numpy().clip(-1, 1 - _STEP)  # written ones saturate
        difference = np.abs(described - audio.read(written[example.id])).max()
        if not difference <= _STEP * (1 + 1e-3):
            raise RuntimeError(f"{example.id}: described and written mixture differ by {difference / _STEP:.2f} steps")
    return _throughput(MixtureDataset(manifest, segment_seconds=SEGMENT_SECONDS), num_items)


def _reverberated(folder: Path, num_items: int) -> dict[str, Any]:
    """Make new mixtures, each in a simulated room whose impulse responses are in the cache."""
    num_items = min(num_items, 100)  # each needs a room, which takes long to simulate
    config = DynamicMixingConfig(enabled=True, reverberation_probability=1.0, reverberation_cache=str(folder / "rooms"))
    dataset = MixtureDataset(
        folder / "described" / "train.jsonl", segment_seconds=SEGMENT_SECONDS, dynamic_mixing=config
    )
    simulated = [dataset[index].mixture.numpy() for index in range(min(num_items, len(dataset)))]
    for index, mixture in enumerate(simulated):
        if not np.array_equal(mixture, dataset[index].mixture.numpy()):
            raise RuntimeError(f"item {index}: the cached room sounds unlike the simulated one")
    return _throughput(dataset, num_items)


def _seek(folder: Path) -> dict[str, Any]:
    """Read crops of 4 s of FLAC files, by seeking and by reading each file whole."""
    generator = np.random.default_rng(0)
    paths = sorted((folder / "LibriSpeech").rglob("*.flac"))[:30]
    count = round(SEGMENT_SECONDS * SOURCE_RATE)
    crops = [(path, int(generator.integers(audio.info(path).num_samples - count + 1))) for path in paths]

    def by_seeking() -> list[np.ndarray]:
        return [audio.read(path, start, count) for path, start in crops]

    def by_reading_all() -> list[np.ndarray]:
        return [audio.read(path)[start : start + count] for path, start in crops]

    for crop, expected in zip(by_seeking(), by_reading_all(), strict=True):
        if not np.array_equal(crop, expected):
            raise RuntimeError("a crop by seeking is another than that of the whole file")
    return asdict(compare(by_seeking, by_reading_all))


def _throughput(dataset: MixtureDataset, num_items: int) -> dict[str, Any]:
    """Return seconds of mixture per second of this process's time, and of wall time: medians over turns."""
    keys = [index % len(dataset) for index in range(num_items)]
    of_core, of_wall = [], []
    dataset[keys[0]]
    for _ in range(TURNS):
        wall, core = time.perf_counter(), time.process_time()
        seconds = sum(len(dataset[key].mixture) for key in keys) / SAMPLE_RATE
        of_core.append(seconds / (time.process_time() - core))
        of_wall.append(seconds / (time.perf_counter() - wall))
    return {
        "times_real_time": statistics.median(of_core),
        "times_real_time_turns": of_core,
        "wall_times_real_time": statistics.median(of_wall),
        "num_items": num_items,
    }
