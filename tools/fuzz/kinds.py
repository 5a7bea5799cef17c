"""What is fuzzed: for every kind of input, a valid one to start from and the command that reads it."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import random
import sys
import tarfile
import tempfile
import zipfile
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
        command: of a folder that holds the files -> the command line that reads them.
        tree: of these files the plain data is mutated, half of the time.
    """

    def __init__(self, files: Files, command: Callable[[Path], Sequence[str]], tree: Sequence[str] = ()) -> None:
        self.files, self.command, self.tree = files, command, tree

    def case(self, seed: int) -> Files:
        """Return the files of a case: one of them is mutated."""
        draw = random.Random(seed)
        name = draw.choice(list(self.files))
        data = self.files[name]
        if name in self.tree and draw.random() < 0.6:
            return self.files | {name: _write(name, mutate_tree(_read(name, data), draw))}
        return self.files | {name: mutate_bytes(data, draw)}


def _read(name: str, data: bytes) -> Any:
    return yaml.safe_load(data) if name.endswith(".yaml") else [json.loads(line) for line in data.splitlines()]


def _write(name: str, tree: Any) -> bytes:
    # Numbers of more digits than Python writes come as JSON would hold them.
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        if name.endswith(".yaml"):
            return json.dumps(tree).encode()  # YAML holds JSON
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


def _sound(suffix: str, subtype: Any = "FLOAT") -> bytes:
    samples = 0.1 * np.random.default_rng(0).standard_normal(400).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        return audio.write(Path(folder, f"x{suffix}"), samples, 8000, subtype=subtype).read_bytes()


def _whole_model(folder: Path) -> str:
    for name, data in model_files().items():
        (folder / "whole").mkdir(exist_ok=True)
        (folder / "whole" / name).write_bytes(data)
    return str(folder / "whole")


def _sounds() -> Kind:
    files = {"a.wav": _sound(".wav"), "b.wav": _sound(".wav", "PCM_16"), "c.flac": _sound(".flac", "PCM_16")}
    line = ["--device", "cpu", "--out"]
    return Kind(files, lambda f: ["separate", str(f / "in"), "--model", _whole_model(f), *line, str(f / "out")])


def _manifests() -> Kind:
    source = {"path": "a.wav", "speaker": "1", "sex": "F", "start": 0, "gain": 0.5, "offset": 0}
    line = {
        "id": "m", "sample_rate": 8000, "num_samples": 300, "mode": "min", "mixture": None, "resampler": "soxr_hq",
        "corpus": "c", "task": "sep_clean", "sources": [source, source | {"path": "b.wav", "offset": 7}],
        "noise": {"path": "a.wav", "start": 0, "gain": 0.2, "extend": None},
    }  # fmt: skip
    manifest = "".join(f"{json.dumps(line | {'id': name})}\n" for name in "mn").encode()
    whole = {
        "a.wav": _sound(".wav"),
        "b.wav": _sound(".wav", "PCM_16"),
        "m_s1.wav": _sound(".wav"),
        "m_s2.wav": _sound(".wav"),
    }

    def command(folder: Path) -> list[str]:
        for name, data in whole.items():
            (folder / "in" / name).write_bytes(data)
        places = ["--estimates", str(folder / "in"), "--out", str(folder / "out")]
        return ["evaluate", "--manifest", str(folder / "in" / "test.jsonl"), *places, "--metrics", "si_sdr"]

    return Kind({"test.jsonl": manifest}, command, ["test.jsonl"])


def _configurations() -> Kind:
    config = {
        "model": {
            "hypotheses": 2,
            "filterbank": {"name": "stft", "kernel_size": 64, "stride": 32},
            "masker": {"name": "recurrent", "hidden_size": 8, "num_layers": 1},
            "encoding": {"name": "gaussian"},
        },
        "objective": {
            "cost": {"name": "neg_si_sdr"},
            "assignment": {"name": "amcl", "temperature": {"name": "constant", "value": 1.0}},
        },
        "data": {"train": "absent.jsonl", "segment_seconds": 1.0, "batch_size": 2, "workers": 0},
        "trainer": {"max_epochs": 1, "learning_rate": 0.001, "seed": 3, "accelerator": "cpu", "betas": [0.9, 0.99]},
    }
    files = {"config.yaml": yaml.safe_dump(config).encode()}
    return Kind(
        files, lambda f: ["train", "--config", str(f / "in" / "config.yaml"), "--out", str(f / "out")], ["config.yaml"]
    )


def _models() -> Kind:
    def command(folder: Path) -> list[str]:
        (folder / "x.wav").write_bytes(_sound(".wav"))
        places = ["--model", str(folder / "in"), "--out", str(folder / "out")]
        return ["separate", str(folder / "x.wav"), *places, "--device", "cpu"]

    return Kind(model_files(), command, ["model.yaml"])


def _archives() -> Kind:
    content = {"LibriSpeech/dev-clean/1/2/1-2-0.flac": b"x" * 900, "LibriSpeech/SPEAKERS.TXT": b"1 | F\n"}
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("wham_noise/tr/a.wav", b"x" * 900)

    def command(folder: Path) -> list[str]:
        # What a case leaves as it was need not be tried.
        changed = next((n for n, d in files.items() if (folder / "in" / n).read_bytes() != d), "wham_noise.zip")
        names = {"dev-clean.tar.gz": ["librispeech", "--parts", "dev-clean"], "wham_noise.zip": ["wham-noise"]}
        digest = hashlib.sha256((folder / "in" / changed).read_bytes()).hexdigest()
        (folder / "sums.txt").write_text(f"{digest}  {changed}\n")
        places = ["--mirror", (folder / "in").as_uri(), "--cache", str(folder / "out")]
        return ["download", *names[changed], *places, "--checksums", str(folder / "sums.txt")]

    files = {"dev-clean.tar.gz": tar.getvalue(), "wham_noise.zip": packed.getvalue()}
    return Kind(files, command)


KINDS: dict[str, Callable[[], Kind]] = {
    "audio": functools.cache(_sounds),
    "manifests": functools.cache(_manifests),
    "configurations": functools.cache(_configurations),
    "models": functools.cache(_models),
    "archives": functools.cache(_archives),
}
"""Name -> what makes the kind."""
