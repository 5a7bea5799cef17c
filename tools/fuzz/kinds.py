"""The kinds of input: for each a valid one to start from, and the command that reads it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import yaml

from tools.fuzz import corpora, models, runs
from tools.fuzz.kind import Files, Kind, model_files, sound, write_files

__all__ = ["KINDS", "Files", "Kind"]


def _whole_model(folder: Path) -> str:
    return str(write_files(folder / "whole", model_files()))


def _sounds() -> Kind:
    files = {"a.wav": sound(".wav"), "b.wav": sound(".wav", "PCM_16"), "c.flac": sound(".flac", "PCM_16")}

    def command(folder: Path) -> list[str]:
        places = ["--model", _whole_model(folder), "--out", str(folder / "out")]
        return ["separate", str(folder / "in"), *places, "--device", "cpu"]

    return Kind(files, command, tested=200)


def _manifests() -> Kind:
    source = {"path": "a.wav", "speaker": "1", "sex": "F", "start": 0, "gain": 0.5, "offset": 0}
    line = {
        "id": "m", "sample_rate": 8000, "num_samples": 300, "mode": "min", "mixture": None, "resampler": "soxr_hq",
        "corpus": "c", "task": "sep_clean", "sources": [source, source | {"path": "b.wav", "offset": 7}],
        "noise": {"path": "a.wav", "start": 0, "gain": 0.2, "extend": None},
    }  # fmt: skip
    manifest = "".join(f"{json.dumps(line | {'id': name})}\n" for name in "mn").encode()
    whole = {
        "a.wav": sound(".wav"),
        "b.wav": sound(".wav", "PCM_16"),
        "m_s1.wav": sound(".wav"),
        "m_s2.wav": sound(".wav"),
    }

    def command(folder: Path) -> list[str]:
        for name, data in whole.items():
            (folder / "in" / name).write_bytes(data)
        places = ["--estimates", str(folder / "in"), "--out", str(folder / "out")]
        return ["evaluate", "--manifest", str(folder / "in" / "test.jsonl"), *places, "--metrics", "si_sdr"]

    # One of the two mixtures has no estimates.
    return Kind({"test.jsonl": manifest}, command, ["test.jsonl"], passes=1, tested=200)


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
    # A configuration names a manifest that is not there: nothing is trained here.
    return Kind(
        files,
        lambda f: ["train", "--config", str(f / "in" / "config.yaml"), "--out", str(f / "out")],
        ["config.yaml"],
        passes=2,
        tested=200,
    )


KINDS: dict[str, Callable[[], Kind]] = {
    name: functools.cache(make)
    for name, make in {
        "audio": _sounds,
        "manifests": _manifests,
        "configurations": _configurations,
        **models.KINDS,
        **corpora.KINDS,
        **runs.KINDS,
    }.items()
}
"""Name -> what makes the kind."""
