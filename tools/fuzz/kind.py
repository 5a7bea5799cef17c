"""What a kind of fuzzed input is, and what several kinds start from."""

from __future__ import annotations

import functools
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.data import audio
from sepkit.models import build_model, save_model
from tools.fuzz.mutators import mutate_bytes, mutate_tree

Files = dict[str, bytes]
"""Name -> content."""


class Kind:
    """A kind of input.

    Args:
        files: the valid input; what is mutated.
        command: of a folder that holds the files in its folder `in` -> the command line that reads them. It may write
            further files, which are not mutated.
        tree: of these files the plain data is mutated, more than half of the time.
        passes: the exit code that the valid input gives.
        tested: how many cases `make test` tries.
        share: of the cases of `make fuzz`, relative to other kinds.
    """

    def __init__(
        self,
        files: Files,
        command: Callable[[Path], Sequence[str]],
        tree: Sequence[str] = (),
        *,
        passes: int = 0,
        tested: int = 20,
        share: float = 1.0,
    ) -> None:
        self.files, self.command, self.tree = files, command, tree
        self.passes, self.tested, self.share = passes, tested, share

    def case(self, seed: int) -> Files:
        """Return the files of a case: one of them is mutated."""
        draw = random.Random(seed)
        name = draw.choice(list(self.files))
        data = self.files[name]
        if name in self.tree and draw.random() < 0.6:
            return self.files | {name: _write(name, mutate_tree(_read(name, data), draw))}
        return self.files | {name: mutate_bytes(data, draw)}


def _read(name: str, data: bytes) -> Any:
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in data.splitlines()]
    return yaml.safe_load(data)  # YAML holds JSON


def _write(name: str, tree: Any) -> bytes:
    # Numbers of more digits than Python writes come as JSON would hold them.
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        if not name.endswith(".jsonl"):
            return json.dumps(tree).encode()
        lines = tree if isinstance(tree, list) else [tree]
        return "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    finally:
        sys.set_int_max_str_digits(before)


@functools.cache
def model_files() -> Files:
    """The two files of a tiny model."""
    torch.manual_seed(0)
    config = ModelConfig(
        filterbank=FreeFilterbankConfig(num_filters=8), masker=RecurrentConfig(hidden_size=4, num_layers=1)
    )
    with tempfile.TemporaryDirectory() as folder:
        save_model(build_model(config), folder, {"epoch": 1})
        files = {name: Path(folder, name).read_bytes() for name in ("model.yaml", "model.safetensors")}
    # Without the digest, which would refuse every change of the weights before anything else looks at them.
    lines = files["model.yaml"].decode().splitlines(keepends=True)
    return files | {"model.yaml": "".join(line for line in lines if "sha256" not in line).encode()}


@functools.cache
def sound(suffix: str, subtype: Any = "FLOAT", rate: int = 8000) -> bytes:
    """A recording of 400 samples."""
    samples = 0.1 * np.random.default_rng(0).standard_normal(400).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        return audio.write(Path(folder, f"x{suffix}"), samples, rate, subtype=subtype).read_bytes()


def write_files(folder: Path, files: Files) -> Path:
    """Write files that are not mutated; return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
