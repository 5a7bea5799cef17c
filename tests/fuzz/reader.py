"""What a reader of files from elsewhere is, and small files to start from."""

import contextlib
import csv
import functools
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.models import build_model, save_model
from tests.tiny_models import RECURRENT

Files = dict[str, bytes]
"""Name -> content."""
STDIN = "stdin"
"""The name of the file that a command gets as its standard input."""


def named(*readers: Callable[[], "Reader"]) -> dict[str, Callable[[], "Reader"]]:
    """Name -> what makes the reader."""
    return {reader.__name__.removeprefix("_"): reader for reader in readers}


@dataclass
class Reader:
    """What reads files.

    Args:
        files: valid ones; what is changed.
        command: of a folder that holds the files in its folder `in` -> the command line that reads them. It may write
            further files, which are not changed.
        program: what takes the command line, and returns an exit code.
        plain: of these files the plain data (JSON, YAML) is changed, too.
        passes: the exit code that the valid files give.
        examples: how many changes `make test` tries.
    """

    files: Files
    command: Callable[[Path], Sequence[str]]
    plain: Sequence[str] = ()
    passes: int = 0
    examples: int = 10
    program: Callable[[list[str]], int] = main


@functools.cache
def model_files() -> Files:
    """The two files of a tiny model."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_model(build_model(RECURRENT), folder, {"epoch": 1})
        return {name: Path(folder, name).read_bytes() for name in ("model.yaml", "model.safetensors")}


@functools.cache
def sound(suffix: str, subtype: Any = "FLOAT", rate: int = 8000, samples: int = 400) -> bytes:
    """A recording of noise."""
    noise = 0.1 * np.random.default_rng(0).standard_normal(samples).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        return audio.write(Path(folder, f"x{suffix}"), noise, rate, subtype=subtype).read_bytes()


def write_files(folder: Path, files: Files) -> Path:
    """Write files that are not changed; return their folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_corpus(folder: Path) -> Path:
    """Write two mixtures with their recordings and estimates; return the manifest."""
    write_files(folder, {"a.wav": sound(".wav"), "b.wav": sound(".wav", "PCM_16")})
    parts = [{"path": "a.wav", "speaker": "1", "sex": "F"}, {"path": "b.wav", "speaker": "2", "sex": "M", "offset": 7}]
    line = {"sample_rate": 8000, "num_samples": 400, "sources": parts}
    lines = "".join(json.dumps({"id": name} | line) + "\n" for name in "mn")
    estimates = {f"estimates/{name}_s{k}.wav": sound(".wav") for name in "mn" for k in (1, 2)}
    return write_files(folder, {"test.jsonl": lines.encode()} | estimates) / "test.jsonl"


def make(*command: object) -> None:
    """Run a command whose outputs are an input to start from."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        if main([str(word) for word in command]):
            raise RuntimeError(f"{command}: {said.getvalue()}")


def text_of(lines: Sequence[Sequence[object]]) -> bytes:
    """The bytes of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue().encode()


def separate_command(source: Path, model: object, folder: Path) -> list[str]:
    """Return the command that separates a recording with a model into OUT."""
    places = ["--model", str(model), "--out", str(folder / "out"), "--device", "cpu"]
    return ["separate", str(source), *places]


def with_model(model: Callable[[Path], object]) -> Callable[[Path], list[str]]:
    """Return the command that separates a recording with the model that is made of the folder of the files."""

    def command(folder: Path) -> list[str]:
        write_files(folder, {"x.wav": sound(".wav")})
        return separate_command(folder / "x.wav", model(folder / "in"), folder)

    return command
