"""What a small install does and takes: run by the Python of an environment that has the wheel and nothing else.

    PYTHON -m tools.small_install [--seconds 4] [--out FOLDER]

It separates, streams, clusters, links, evaluates and makes a web page of synthetic pulses, each in a process of its
own, checks what is written, and prints the packages, their megabytes, and for each command its seconds and its peak of
memory.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import soundfile

RATE = 8000
_ABSENT = ("torch", "scipy", "safetensors", "lightning", "onnx")


def main() -> None:
    """Run the commands; the exit code is 1 if one fails or does not write what it should."""
    parser = argparse.ArgumentParser(prog="python -m tools.small_install", description=str(__doc__).splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="length of the recording")
    parser.add_argument("--out", type=Path, help="keep what is written here")
    arguments = parser.parse_args()
    found = [module for module in _ABSENT if importlib.util.find_spec(module)]
    if found:
        sys.exit(f"small_install: {', '.join(found)} can be imported; run it where the wheel is alone")
    count, megabytes = installed()
    print(f"{count} packages, {megabytes:.0f} MB")
    with tempfile.TemporaryDirectory() as temporary:
        for name, taken in commands(arguments.out or Path(temporary), arguments.seconds):
            print(f"{name}: {taken}", flush=True)


def installed() -> tuple[int, float]:
    """Return how many packages there are, and the megabytes of their folder."""
    folder = Path(sysconfig.get_paths()["purelib"])
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return len({distribution.metadata["Name"] for distribution in metadata.distributions()}), size / 1e6


def commands(folder: Path, seconds: float) -> Iterator[tuple[str, str]]:
    """Yield the name of each command with what it took."""
    folder.mkdir(parents=True, exist_ok=True)
    talk, manifest = recordings(folder, seconds)
    runtime = folder / "runtime"
    runtime.mkdir(exist_ok=True)
    # The page is not opened here, so that its runtime need not be fetched.
    for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
        (runtime / name).touch()
    yield "sepkit --help", sepkit(folder, "--help")
    yield "separate", sepkit(folder, "separate", talk, "--speakers", "2", "--out", "out", "--device", "cpu")
    estimates = [soundfile.read(folder / "out" / f"talk_s{k}.wav")[0] for k in (1, 2)]
    frames = soundfile.info(talk).frames
    if any(estimate.shape != (frames,) or not np.isfinite(estimate).all() for estimate in estimates):
        sys.exit(f"small_install: estimates of {talk} are not of its length")
    told = json.loads((folder / "out" / "talk.json").read_text(encoding="utf-8"))
    if not all(np.isfinite(told["predicted_si_sdr_db"])):
        sys.exit("small_install: no SI-SDR is predicted")
    yield "stream", sepkit(folder, "stream", "-", source=talk, kept=folder / "live.wav")
    if (folder / "live.wav").stat().st_size < 2 * 4 * frames:
        sys.exit("small_install: the stream ended early")
    yield "cluster", sepkit(folder, "cluster", talk, "--out", "clusters")
    yield (
        "separate --link-speakers auto",
        sepkit(folder, "separate", talk, "--out", "linked", "--link-speakers", "auto", "--device", "cpu"),
    )
    measured = ("--manifest", manifest, "--out", "scores", "--metrics", "si_sdr", "--device", "cpu")
    yield "evaluate --metrics si_sdr", sepkit(folder, "evaluate", *measured)
    if json.loads((folder / "scores" / "summary.json").read_text(encoding="utf-8"))["n_utterances"] != 1:
        sys.exit("small_install: evaluate has skipped the mixture")
    yield "web", sepkit(folder, "web", "boxed_8k", "--out", "page", "--runtime", runtime)
    yield "models", sepkit(folder, "models")


def recordings(folder: Path, seconds: float) -> tuple[Path, Path]:
    """Write a mixture of two pulse trains of varying pitch in syllables, and a manifest of it; return their paths."""
    generator = np.random.default_rng(0)
    times = np.arange(round(seconds * RATE)) / RATE
    sources = []
    for k, pitch_hz in enumerate((120, 190)):
        pulses = np.diff(np.floor(np.cumsum(pitch_hz * (1 + 0.1 * np.sin(8 * times))) / RATE), prepend=0)
        noise = 1e-3 * generator.standard_normal(len(times))
        sources.append(0.4 * pulses * (0.55 + 0.45 * np.sin(2 * np.pi * (3 + k) * times)) + noise)
        soundfile.write(folder / f"source_{k + 1}.wav", sources[k], RATE, subtype="FLOAT")
    talk, manifest = folder / "talk.wav", folder / "test.jsonl"
    soundfile.write(talk, np.sum(sources, axis=0), RATE, subtype="FLOAT")
    entry = {"id": "noises", "sample_rate": RATE, "num_samples": len(times), "mixture": None}
    entry["sources"] = [{"path": f"source_{k}.wav", "speaker": f"noise {k}"} for k in (1, 2)]
    manifest.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    return talk, manifest


def sepkit(folder: Path, *words: str | Path, source: Path | None = None, kept: Path | None = None) -> str:
    """Run a command in a folder; return its seconds and, except on Windows, its peak of resident memory.

    Args:
        source: becomes its standard input.
        kept: file for its standard output.
    """
    began, command = time.perf_counter(), [sys.executable, "-m", "sepkit", *map(str, words)]
    with (
        open(source or os.devnull, "rb") as given,
        open(kept or folder / "printed.txt", "wb") as printed,
        open(folder / "errors.txt", "w+b") as errors,
    ):
        process, memory = subprocess.Popen(command, cwd=folder, stdin=given, stdout=printed, stderr=errors), ""
        if sys.platform != "win32":
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            memory = f", {usage.ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10):.0f} MiB"
        if (code := process.wait()) != 0:
            errors.seek(0)
            sys.exit(f"small_install: sepkit {words[0]} ended with {code}: {errors.read().decode(errors='replace')}")
    return f"{time.perf_counter() - began:.2f} s{memory}"


if __name__ == "__main__":
    main()
