"""The four commands that write much, on inputs of a second; and processes that end badly.

Tests of full and failing disks, of limits and of kills share this.
"""

import builtins
import errno
import io
import json
import os
import re
import resource
import signal
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from sepkit.choices import to_dict
from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.models import build_model, save_model
from tests.tiny_models import RECURRENT

Command = Callable[[Path, Path], list[str]]
"""Of the folder of the inputs and that of the outputs -> a command line."""


def write_inputs(folder: Path) -> Path:
    """Recordings, a model, a manifest with estimates, recordings of speakers, and a configuration of a training."""
    generator = np.random.default_rng(0)
    lines = []
    for number in range(2):
        sources = 0.1 * generator.standard_normal((2, 2000)).astype(np.float32)
        audio.write(folder / "mix" / f"{number}.wav", sources.sum(0), 8000)
        for index, source in enumerate(sources, start=1):
            audio.write(folder / "estimates" / f"{number}_s{index}.wav", source + 0.1 * sources.sum(0), 8000)
            for split in ("train", "dev", "test"):
                audio.write(folder / "speech" / split / f"{split}{index}" / f"{number}.wav", source, 8000)
        parts = [{"path": f"speech/train/train{index}/{number}.wav"} for index in (1, 2)]
        lines.append(json.dumps({"id": str(number), "sample_rate": 8000, "num_samples": 2000, "sources": parts}))
    manifest = folder / "test.jsonl"
    manifest.write_text("\n".join(lines) + "\n")
    torch.manual_seed(0)
    save_model(build_model(RECURRENT), folder / "model")
    training = {
        "model": to_dict(RECURRENT),
        "data": {"train": str(manifest), "dev": str(manifest), "segment_seconds": 0.1, "batch_size": 1, "workers": 0},
        "trainer": {"max_epochs": 2, "accelerator": "cpu", "checkpoint_every_steps": 1},
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(training))
    return folder


def _separate(inputs: Path, out: Path) -> list[str]:
    return ["separate", str(inputs / "mix"), "--model", str(inputs / "model"), "--device", "cpu", "--out", str(out)]


def _evaluate(inputs: Path, out: Path) -> list[str]:
    places = ["--manifest", str(inputs / "test.jsonl"), "--estimates", str(inputs / "estimates"), "--out", str(out)]
    return ["evaluate", *places, "--metrics", "si_sdr", "--processes", "0"]


def _prepare(inputs: Path, out: Path) -> list[str]:
    sizes = ["--train-mixtures", "3", "--dev-mixtures", "2", "--test-mixtures", "2", "--segment-seconds", "0.2"]
    return ["prepare", "folder", "--speech", str(inputs / "speech"), "--out", str(out), *sizes]


def _train(inputs: Path, out: Path) -> list[str]:
    return ["train", "--config", str(inputs / "train.yaml"), "--out", str(out)]


COMMANDS: dict[str, Command] = {"separate": _separate, "evaluate": _evaluate, "prepare": _prepare, "train": _train}

# What says when and how fast a command ran.
_TIMES = re.compile(r'"(wall_seconds|separate_seconds|real_time_factor|seconds|mixtures_per_second|command)": [^,\n}]*')


def tree(folder: Path) -> dict[str, Any]:
    """The bytes of all files of a folder, but for times, and logs and states that hold times."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or path.name.startswith((".", "journal", "events.")) or name.startswith("resume/"):
            continue
        data = path.read_bytes()
        found[name] = _TIMES.sub("", data.decode()) if path.suffix in (".json", ".jsonl") else data
    return found


class Disk:
    """Counts what is written below a folder, and fails at the n-th time: a write, a sync, or a rename.

    Args:
        monkeypatch: of the test.
        folder: writes elsewhere do not count.
        fails_at: which one fails; 0: none.
        number: of the error; 0: the process is killed there.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, fails_at: int, number: int) -> None:
        self.count, self.fails_at, self.number = 0, fails_at, number
        disk, real_open, real_sync, real_replace = self, builtins.open, os.fsync, os.replace

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                disk.touch(self.name)
                return super().write(data)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **options: Any) -> Any:
            if not isinstance(file, str | Path) or not set("wax+") & set(mode) or not _below(file, folder):
                return real_open(file, mode, buffering, *arguments, **options)
            raw = File(str(file), mode.replace("b", "").replace("t", ""))
            buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            options |= dict(zip(("encoding", "errors", "newline"), arguments, strict=False))
            return buffer if "b" in mode else io.TextIOWrapper(buffer, **options)

        def sync(descriptor: int) -> None:
            disk.touch("fsync")
            real_sync(descriptor)

        def renamed(source: Any, target: Any) -> None:
            if _below(target, folder):
                disk.touch(target)
            real_replace(source, target)

        for module, name, function in ((builtins, "open", opened), (io, "open", opened), (os, "fsync", sync)):
            monkeypatch.setattr(module, name, function)
        monkeypatch.setattr(os, "replace", renamed)

    def touch(self, name: Any) -> None:
        self.count += 1
        # A full disk stays full.
        fails = self.count >= self.fails_at if self.number == errno.ENOSPC else self.count == self.fails_at
        if self.fails_at and fails:
            if self.number == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(self.number, os.strerror(self.number), str(name))


def _below(path: Any, folder: Path) -> bool:
    return Path(os.path.abspath(path)).is_relative_to(folder)


def exit_code(command: list[str]) -> int:
    """Run a command here."""
    try:
        return main(command)
    except SystemExit as end:
        return int(end.code or 0)


def in_fork(command: list[str], prepare: Callable[[], None] = lambda: None) -> tuple[int, str]:
    """Run a command in a fork of this process, which has everything imported; return its exit code and what it said.

    Args:
        command: the command line.
        prepare: called in the fork before, to lower limits or to wait for a moment to die.

    Returns:
        The exit code, or minus the signal that ended the process; standard error.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(writing, 2)
            # What the tests' process holds open must not count.
            os.closerange(3, 1024)
            with (
                open(os.devnull, "w") as nowhere,
                open(2, "w", buffering=1, errors="backslashreplace", closefd=False) as said,
                redirect_stdout(nowhere),
                redirect_stderr(said),
            ):
                prepare()
                code = exit_code(command)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def lower(kind: int, value: int) -> Callable[[], None]:
    """A `prepare` that lowers a limit of the process, such as `resource.RLIMIT_FSIZE`."""

    def set_limit() -> None:
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

    return set_limit


def killed_at(folder: Path, n: int) -> Callable[[], None]:
    """A `prepare` that lets the process be killed at the n-th write below a folder."""

    def patch() -> None:
        Disk(pytest.MonkeyPatch(), folder, n, 0)

    return patch
