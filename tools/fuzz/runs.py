"""Kinds of input that runs leave: configurations that are trained with, states, results, descriptions of estimates."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from sepkit.cli.main import main
from tools.fuzz.kind import Kind, model_files, sound, write_files


def _corpus(folder: Path) -> Path:
    """Write two mixtures with their recordings and estimates; return the manifest."""
    write_files(folder, {"a.wav": sound(".wav"), "b.wav": sound(".wav", "PCM_16")})
    parts = [{"path": "a.wav", "speaker": "1", "sex": "F"}, {"path": "b.wav", "speaker": "2", "sex": "M", "offset": 7}]
    line = {"sample_rate": 8000, "num_samples": 400, "sources": parts}
    manifest = folder / "test.jsonl"
    manifest.write_text("".join(json.dumps({"id": name} | line) + "\n" for name in "mn"))
    write_files(folder / "estimates", {f"{name}_s{k}.wav": sound(".wav") for name in "mn" for k in (1, 2)})
    return manifest


def _made(command: list[str]) -> None:
    """Run a command whose outputs are an input to start from."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        if main(command):
            raise RuntimeError(f"{command}: {said.getvalue()}")


def _configuration(manifest: str) -> dict[str, object]:
    return {
        "model": {
            "filterbank": {"name": "free", "num_filters": 8},
            "masker": {"name": "recurrent", "hidden_size": 4, "num_layers": 1},
            "encoding": {"name": "gaussian"},
        },
        "objective": {
            "assignment": {"name": "amcl", "temperature": {"name": "truncated_linear", "initial": 1.0, "end": 2.0}},
            "rates": {"encoding": {"weight": {"name": "constant", "value": 0.1}}},
        },
        "data": {
            "train": manifest, "dev": manifest, "segment_seconds": 0.05, "batch_size": 2, "workers": 0,
            "dynamic_mixing": {"enabled": True, "speed_range": 0.05},
        },
        "trainer": {
            "max_epochs": 1, "learning_rate": 0.001, "seed": 3, "accelerator": "cpu", "max_minutes": 0.05, "ema": 0.9,
            "warmup_steps": 1, "gradient_clip_norm": 5.0, "weight_decay": 0.0, "accumulate_batches": 1,
        },
    }  # fmt: skip


def _trainings() -> Kind:
    """Configurations that are trained with, on manifests that are there."""
    files = {"config.yaml": yaml.safe_dump(_configuration("../data/test.jsonl")).encode()}

    def command(folder: Path) -> list[str]:
        manifest = str(_corpus(folder / "data"))
        places = ["--data.train", manifest, "--data.dev", manifest]
        # In smoke no mutation makes a run of hours.
        return ["smoke", "--config", str(folder / "in" / "config.yaml"), *places]

    return Kind(files, command, ["config.yaml"], tested=8, share=0.1)


def _states() -> Kind:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = _corpus(folder / "data")
        (folder / "config.yaml").write_text(yaml.safe_dump(_configuration("test.jsonl")))
        places = ["--data.train", str(manifest), "--data.dev", str(manifest)]
        line = ["train", "--config", str(folder / "config.yaml"), "--out", str(folder / "exp")]
        _made([*line, *places])
        names = ("config.yaml", "resume/last.ckpt", "metrics.jsonl")
        before = str(manifest.parent).encode()
        files = {Path(name).name: (folder / "exp" / name).read_bytes() for name in names}
        configuration = (folder / "config.yaml").read_bytes()
        models = {
            str(path.relative_to(folder / "exp")): path.read_bytes() for path in (folder / "exp").glob("*model/*")
        }

    def command(folder: Path) -> list[str]:
        manifest = _corpus(folder / "data")
        out = folder / "out" / "exp"
        for name in ("resume", "model", "last_model"):
            (out / name).mkdir(parents=True)
        write_files(out, models)
        shutil.copy(folder / "in" / "last.ckpt", out / "resume" / "last.ckpt")
        shutil.copy(folder / "in" / "metrics.jsonl", out / "metrics.jsonl")
        # The digests at its end are those of the manifest, whose folder is another here.
        text = (folder / "in" / "config.yaml").read_bytes().replace(before, str(manifest.parent).encode())
        (out / "config.yaml").write_bytes(text)
        write_files(folder, {"whole.yaml": configuration})
        places = ["--data.train", str(manifest), "--data.dev", str(manifest), "--trainer.max_epochs", "2"]
        return ["train", "--config", str(folder / "whole.yaml"), "--out", str(out), *places]

    return Kind(files, command, ["config.yaml", "metrics.jsonl"], share=0.1)


def _results() -> Kind:
    """What `evaluate` writes, which `leaderboard` reads."""
    files = _evaluated()

    def command(folder: Path) -> list[str]:
        whole = str(write_files(folder / "whole", files))
        return ["leaderboard", str(folder / "in"), whole, "--out", str(folder / "out" / "table.md")]

    return Kind(files, command, ["summary.json"])


def _reports() -> Kind:
    """A run, of which a page is made."""
    log = [
        {"kind": "epoch", "epoch": n, "step": n, "train_loss": -n, "dev_loss": -n, "temperature": 1 / n}
        for n in (1, 2, 3)
    ]
    files = _evaluated() | {
        "config.yaml": yaml.safe_dump(_configuration("test.jsonl")).encode(),
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in log).encode(),
    }

    def command(folder: Path) -> list[str]:
        run = folder / "run"
        of_evaluation = ("utterances.csv", "summary.json")
        read = {name: (folder / "in" / name).read_bytes() for name in files}
        write_files(run, {name: data for name, data in read.items() if name not in of_evaluation})
        write_files(run / "evaluation", {name: read[name] for name in of_evaluation})
        return ["report", str(run), "--out", str(folder / "out" / "page.html")]

    return Kind(files, command, ["summary.json", "config.yaml", "metrics.jsonl"], tested=8, share=0.1)


def _evaluated() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = _corpus(folder)
        places = ["--manifest", str(manifest), "--estimates", str(folder / "estimates"), "--out", str(folder / "out")]
        _made(["evaluate", *places, "--metrics", "si_sdr"])
        return {name: (folder / "out" / name).read_bytes() for name in ("utterances.csv", "summary.json")}


def _journals() -> Kind:
    """What an evaluation that was interrupted leaves."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = _corpus(folder)
        places = ["--manifest", str(manifest), "--estimates", str(folder / "estimates"), "--out", str(folder / "out")]
        _made(["evaluate", *places, "--metrics", "si_sdr"])
        files = {"journal.jsonl": (folder / "out" / "journal.jsonl").read_bytes()}

    def command(folder: Path) -> list[str]:
        manifest = _corpus(folder / "data")
        (folder / "out").mkdir()
        shutil.copy(folder / "in" / "journal.jsonl", folder / "out")
        places = ["--manifest", str(manifest), "--estimates", str(folder / "data" / "estimates")]
        return ["evaluate", *places, "--out", str(folder / "out"), "--metrics", "si_sdr"]

    return Kind(files, command, ["journal.jsonl"])


def _descriptions() -> Kind:
    """What `separate` wrote beside estimates, when it runs again."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _made(_separation(folder))
        files = {name: (folder / "out" / name).read_bytes() for name in ("x.json", "x_s1.wav")}

    def command(folder: Path) -> list[str]:
        write_files(folder / "out", {name: (folder / "in" / name).read_bytes() for name in files})
        return [*_separation(folder), "--verify"]

    return Kind(files, command, ["x.json"])


def _turns() -> Kind:
    """Who speaks when, as found and as known."""
    head = "path,start_seconds,duration_seconds,speaker,confidence\n"
    found = f"{head}a.wav,0.0,1.0,1,0.9\na.wav,1.0,2.0,2,0.8\nb.wav,0,1,1,\n"
    turns = [("a", 0.0, 1.1, "anna"), ("a", 1.1, 1.9, "bob"), ("b", 0.0, 1.0, "anna")]
    rttm = "".join(f"SPEAKER {name} 1 {at} {length} <NA> <NA> {who} <NA> <NA>\n" for name, at, length, who in turns)
    known = "path,speaker,start_seconds,duration_seconds\n" + "".join(f"{n}.wav,{w},{a},{d}\n" for n, a, d, w in turns)
    files = {"segments.csv": found.encode(), "reference.rttm": rttm.encode(), "reference.csv": known.encode()}

    def command(folder: Path) -> list[str]:
        is_table = (folder / "in" / "reference.csv").read_bytes() != files["reference.csv"]
        reference = folder / "in" / f"reference.{'csv' if is_table else 'rttm'}"
        places = ["--clusters", str(folder / "in" / "segments.csv"), "--reference", str(reference)]
        return ["evaluate", *places, "--out", str(folder / "out")]

    return Kind(files, command)


def _separation(folder: Path) -> list[str]:
    write_files(folder, {"x.wav": sound(".wav")})
    model = str(write_files(folder / "model", model_files()))
    return ["separate", str(folder / "x.wav"), "--model", model, "--out", str(folder / "out"), "--device", "cpu"]


KINDS: dict[str, Callable[[], Kind]] = {
    "trainings": _trainings,
    "states": _states,
    "results": _results,
    "reports": _reports,
    "journals": _journals,
    "descriptions": _descriptions,
    "turns": _turns,
}
