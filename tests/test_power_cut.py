"""A disk that fills up or fails at the n-th write, for every n, and kills: the next run ends as an undisturbed one."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sepkit.cli.main import main
from sepkit.config import TrainConfig
from sepkit.data import audio
from sepkit.models import build_model, save_model

Command = Callable[[Path, Path], list[str]]
"""Of the folder of the inputs and that of the outputs -> a command line."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Recordings, a model, a manifest with estimates, and recordings of speakers."""
    from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig

    folder = tmp_path_factory.mktemp("inputs")
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
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n")
    torch.manual_seed(0)
    config = ModelConfig(
        filterbank=FreeFilterbankConfig(num_filters=8), masker=RecurrentConfig(hidden_size=4, num_layers=1)
    )
    save_model(build_model(config), folder / "model")
    return folder


def _separate(inputs: Path, out: Path) -> list[str]:
    return ["separate", str(inputs / "mix"), "--model", str(inputs / "model"), "--device", "cpu", "--out", str(out)]


def _evaluate(inputs: Path, out: Path) -> list[str]:
    places = ["--manifest", str(inputs / "test.jsonl"), "--estimates", str(inputs / "estimates"), "--out", str(out)]
    return ["evaluate", *places, "--metrics", "si_sdr", "--processes", "0"]


def _prepare(inputs: Path, out: Path) -> list[str]:
    sizes = ["--train-mixtures", "3", "--dev-mixtures", "2", "--test-mixtures", "2", "--segment-seconds", "0.2"]
    return ["prepare", "folder", "--speech", str(inputs / "speech"), "--out", str(out), *sizes]


COMMANDS: dict[str, Command] = {"separate": _separate, "evaluate": _evaluate, "prepare": _prepare}

# What says when and how fast a command ran.
_TIMES = re.compile(r'"(wall_seconds|separate_seconds|real_time_factor|seconds|command)": [^\n]*')


def tree(folder: Path) -> dict[str, Any]:
    """The bytes of all files of a folder, but for logs and times."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith((".", "journal", "metrics.jsonl", "events.")):
            data = path.read_bytes()
            found[str(path.relative_to(folder))] = _TIMES.sub("", data.decode()) if path.suffix == ".json" else data
    return found


class Disk:
    """Counts what is written below a folder, and fails at the n-th time: a write, a sync, or a rename.

    Args:
        monkeypatch: of the test.
        folder: writes elsewhere do not count.
        fails_at: which one fails; 0: none.
        number: of the error.
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
            names = ("encoding", "errors", "newline")
            return (
                buffer
                if "b" in mode
                else io.TextIOWrapper(buffer, **dict(zip(names, arguments, strict=False)), **options)
            )

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
        if (
            self.fails_at
            and self.count >= self.fails_at
            and (self.number == errno.ENOSPC or self.count == self.fails_at)
        ):
            raise OSError(self.number, os.strerror(self.number), str(name))


def _below(path: Any, folder: Path) -> bool:
    return Path(os.path.abspath(path)).is_relative_to(folder)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_fails_at_the_nth_write(name, number, inputs, tmp_path, capsys):
    command = COMMANDS[name]
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, tmp_path / "undisturbed", 0, number)
        assert main(command(inputs, tmp_path / "undisturbed")) == 0
    expected, times = tree(tmp_path / "undisturbed"), disk.count
    assert times >= 4
    capsys.readouterr()
    for n in range(1, times + 1):
        out = tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, out, n, number)
            code = _exit_code(command(inputs, out))
        said = capsys.readouterr().err
        assert code in (1, 2) and "Traceback" not in said, (n, code, said)
        assert code == 2 or number == errno.EIO, (n, said)
        assert max(map(len, said.splitlines())) <= 2000
        assert _exit_code(command(inputs, out)) == 0, n
        assert tree(out) == expected, n
        _remove(out)


def _exit_code(command: list[str]) -> int:
    try:
        return main(command)
    except SystemExit as end:
        return int(end.code or 0)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)


def test_training_on_a_disk_that_fails(tiny_train_config, inputs, tmp_path, monkeypatch, capsys):
    _train_on_failing_disks(tiny_train_config, inputs, tmp_path, step=9)


@pytest.mark.slow
def test_training_on_a_disk_that_fails_at_any_write(tiny_train_config, inputs, tmp_path, capsys):
    _train_on_failing_disks(tiny_train_config, inputs, tmp_path, step=1)


def _train_on_failing_disks(config: TrainConfig, inputs: Path, tmp_path: Path, step: int) -> None:
    from sepkit.errors import UserError
    from sepkit.training.run import train

    data = replace(config.data, train=str(inputs / "test.jsonl"), dev=str(inputs / "test.jsonl"), segment_seconds=0.1)
    config = replace(config, data=data, trainer=replace(config.trainer, checkpoint_every_steps=1))
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, tmp_path / "undisturbed", 0, errno.ENOSPC)
        train(config, tmp_path / "undisturbed")
    names = ("model/model.safetensors", "last_model/model.safetensors")
    expected = {name: (tmp_path / "undisturbed" / name).read_bytes() for name in names}
    assert disk.count > 20
    for n in range(1, disk.count + 1, step):
        out = tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, out, n, errno.ENOSPC)
            with pytest.raises((OSError, UserError)):
                train(config, out)
        train(config, out)
        assert {name: (out / name).read_bytes() for name in names} == expected, n
        _remove(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_three_kills(name, inputs, tmp_path):
    def start(out: Path) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "sepkit", *COMMANDS[name](inputs, out)]
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    began = time.monotonic()
    assert start(tmp_path / "undisturbed").wait() == 0
    seconds = time.monotonic() - began
    for share in (0.7, 0.85, 0.95):
        process = start(tmp_path / "out")
        time.sleep(share * seconds)
        process.kill()
        process.wait()
    assert start(tmp_path / "out").wait() == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "undisturbed")
