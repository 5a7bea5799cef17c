"""Files of the studies, and the commands that read them."""

import functools
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.models import save_model
from sepkit.studies.audiogram.config import AudiogramOptions, PartialVAEConfig
from sepkit.studies.audiogram.data import synthetic_audiograms
from sepkit.studies.audiogram.task import PartialVAE
from tests.fuzz.reader import Files, Reader, make, named, text_of, write_files


@functools.cache
def _audiogram_files() -> Files:
    """A tiny model of audiograms with its rule of stopping, and files of audiograms."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make("prepare", "audiograms", "--examples", 40, "--out", folder)
        drawn = synthetic_audiograms(AudiogramOptions(out=Path(), examples=40, seed=0))[0]
        model = PartialVAE(PartialVAEConfig(latent=2, embedding=3, features=6, hidden=[8]), [5])
        model.set_statistics(drawn.values.mean(0), drawn.values.std(0))
        save_model(model, folder / "model")
        make("calibrate", folder / "model", "--manifest", folder / "dev.csv")
        of_model = ["model/model.yaml", "model/model.safetensors", "model/stopping.yaml"]
        paths = [*of_model, "train.csv", "test.csv", "test_truth.csv"]
        return {Path(path).name: (folder / path).read_bytes() for path in paths}


def _audiogram_models() -> Reader:
    files = {name: _audiogram_files()[name] for name in ("model.yaml", "model.safetensors", "stopping.yaml")}
    measured = ["--measured", "right_1000=35", "left_4000=60", "--age", "70"]
    command = lambda f: ["audiogram", "next", "--model", str(f / "in"), *measured]  # noqa: E731
    return Reader(files, command, ["model.yaml", "stopping.yaml"])


def _audiogram_tables() -> Reader:
    """Audiograms and their noise-free values, with which sessions are played."""

    def command(folder: Path) -> list[str]:
        names = ("model.yaml", "model.safetensors")
        model = write_files(folder / "model", {name: _audiogram_files()[name] for name in names})
        places = ["--model", str(model), "--manifest", str(folder / "in" / "test.csv"), "--out", str(folder / "out")]
        return ["audiogram", "simulate", *places, "--samples", "4", "--strategies", "largest_variance"]

    return Reader({name: _audiogram_files()[name] for name in ("test.csv", "test_truth.csv")}, command, examples=8)


def _own_audiograms() -> Reader:
    # Without the column of splits, all of whose rows would be train.
    lines = [line.rpartition(b",")[0] for line in _audiogram_files()["train.csv"].splitlines()]
    files = {"own.csv": b"\n".join(lines) + b"\n"}
    places = lambda f: ["--csv", str(f / "in" / "own.csv"), "--out", str(f / "out")]  # noqa: E731
    return Reader(files, lambda f: ["prepare", "audiograms", *places(f)])


def _simulations() -> Reader:
    """What simulations leave, of which tables are made."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        given = _audiogram_files()
        model = write_files(folder / "model", {name: given[name] for name in ("model.yaml", "model.safetensors")})
        write_files(folder, {"test.csv": given["test.csv"], "dev.csv": given["test.csv"]})
        places = ["--manifest", folder / "test.csv", "--dev", folder / "dev.csv", "--out", folder / "out"]
        make("audiogram", "simulate", "--model", model, *places, "--samples", "4")
        files = {"simulation.json": (folder / "out" / "simulation.json").read_bytes()}

    def command(folder: Path) -> list[str]:
        return ["audiogram", "tables", str(folder / "in"), "--out", str(folder / "out" / "tables.md")]

    return Reader(files, command, ["simulation.json"], examples=12)


def _packed(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _images() -> Reader:
    """Binary images as others publish them."""
    bits = np.random.default_rng(0).integers(0, 2, (3, 4, 28 * 28)).astype(np.uint8)
    parts = zip(("train", "valid", "test"), bits, strict=True)
    files = {"images.npz": _packed(**{name: np.packbits(part, axis=1) for name, part in parts})}
    places = lambda f: ["--source", str(f / "in" / "images.npz"), "--out", str(f / "out")]  # noqa: E731
    return Reader(files, lambda f: ["prepare", "images", "--kind", "mnist", *places(f)], examples=30)


def _image_sets() -> Reader:
    """Images as they are trained with."""
    tiny = ["--model.width", "4", "--model.drift_width", "4", "--model.latent_channels", "2", "--model.size", "8"]
    tiny += ["--model.levels", "2", "--model.depth_steps", "4", "--trainer.max_epochs", "1", "--data.batch_size", "8"]
    with tempfile.TemporaryDirectory() as temporary:
        make("prepare", "images", "--kind", "poisson", "--images", 40, "--size", 8, "--out", temporary)
        files = {"train.npz": (Path(temporary) / "train.npz").read_bytes()}

    def command(folder: Path) -> list[str]:
        places = ["--data.train", str(folder / "in" / "train.npz"), "--out", str(folder / "out"), *tiny]
        return ["train", "--config", "cdvae", *places]

    return Reader(files, command, examples=8)


def _uci() -> Reader:
    """A set with two splits."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((20, 2))
    rows = np.column_stack([features, features.sum(1)]).round(3).tolist()
    names = {"data.txt": rows, "index_features.txt": [[0], [1]], "index_target.txt": [[2]], "n_splits.txt": [[2]]}
    for number in range(2):
        order = generator.permutation(20)
        names[f"index_test_{number}.txt"] = [[int(row)] for row in order[:4]]
        names[f"index_train_{number}.txt"] = [[int(row)] for row in order[4:]]
    files = {name: text_of(lines).replace(b",", b" ") for name, lines in names.items()}

    def command(folder: Path) -> list[str]:
        write_files(folder / "sets" / "yacht" / "data", {name: (folder / "in" / name).read_bytes() for name in files})
        tiny = "uci: {hypotheses: 2, hidden: 3, epochs: 1, batch_size: 64, check_every: 1}\n"
        config = write_files(folder, {"tiny.yaml": tiny.encode()}) / "tiny.yaml"
        places = ["--data", str(folder / "sets"), "--config", str(config), "--out", str(folder / "out")]
        return ["quantize", "uci", *places, "--methods", "mcl", "--select", "last"]

    return Reader(files, command)


READERS = named(_audiogram_models, _audiogram_tables, _own_audiograms, _simulations, _images, _image_sets, _uci)
"""Name -> what makes the reader."""
