"""egs/uci, egs/quantization and egs/cclvq: stages at a tiny size, and what their configurations say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sepkit.studies.quantization.config import (
    DigitsConfig,
    FlowsConfig,
    FreeConfig,
    GaussiansConfig,
    GeneratorsConfig,
    SinesConfig,
    UCIConfig,
    read_section,
)

EGS = Path(__file__).resolve().parents[2] / "egs"


def _write_set(data: Path) -> None:
    generator = np.random.default_rng(0)
    data.mkdir(parents=True)
    np.savetxt(data / "data.txt", generator.standard_normal((30, 3)))
    for name, text in (("features", "0\n1\n"), ("target", "2\n")):
        (data / f"index_{name}.txt").write_text(text)
    (data / "n_splits.txt").write_text("1\n")
    np.savetxt(data / "index_test_0.txt", np.arange(6), fmt="%d")
    np.savetxt(data / "index_train_0.txt", np.arange(6, 30), fmt="%d")


def test_uci(tmp_path: Path, run) -> None:
    """Checks and a table."""
    _write_set(tmp_path / "sets" / "yacht" / "data")
    conf = tmp_path / "tiny.yaml"
    conf.write_text("{hypotheses: 2, hidden: 4, epochs: 4, check_every: 2}\n")
    options = ["--uci", str(tmp_path / "sets"), "--conf", str(conf), "--sets", "yacht", "--exp", str(tmp_path / "exp")]
    printed = run(["bash", str(EGS / "uci" / "run.sh"), *options, "--methods", "mcl", "--select", "last held_out"])
    assert "yacht: 30 rows" in printed
    assert len(json.loads((tmp_path / "exp" / "table.json").read_text())) == 2


@pytest.mark.parametrize("name", ["cpu", "paper"])
def test_uci_configurations(name: str) -> None:
    """Both have the paper's setting, which is the default."""
    assert read_section(UCIConfig, EGS / "uci" / "conf" / f"{name}.yaml") == UCIConfig()


def test_free_hypotheses(tmp_path: Path, run) -> None:
    """Stage 1 of egs/quantization; tests/studies runs the other experiment."""
    conf = tmp_path / "tiny.yaml"
    conf.write_text(
        "free: {hypotheses: 2, points: 50, temperatures: [1.3], split_seeds: 1, linear: [], exponential: []}"
    )
    options = ["--conf", str(conf), "--exp", str(tmp_path / "exp"), "--stop-stage", "1"]
    assert str(tmp_path / "exp" / "free.json") in run(["bash", str(EGS / "quantization" / "run.sh"), *options])


@pytest.mark.parametrize("name", ["cpu", "paper"])
def test_quantization_configurations(name: str) -> None:
    """Both have the paper's setting; one has its batch."""
    path = EGS / "quantization" / "conf" / f"{name}.yaml"
    assert read_section(FreeConfig, path, "free") == FreeConfig()
    found = read_section(GaussiansConfig, path, "gaussians")
    assert found == GaussiansConfig(batch_size=512 if name == "cpu" else 65_536)


def test_sines(tmp_path: Path, run) -> None:
    """Stage 1 of egs/cclvq."""
    conf = tmp_path / "tiny.yaml"
    conf.write_text("sines: {kinds: [plain], targets: [raw], seeds: 1, examples: 60, test_examples: 20, steps: 2}")
    options = ["--conf", str(conf), "--exp", str(tmp_path / "exp"), "--stop-stage", "1"]
    assert str(tmp_path / "exp" / "sines.json") in run(["bash", str(EGS / "cclvq" / "run.sh"), *options])


def test_digits_and_generators(tmp_path: Path, run) -> None:
    """Stage 3 of egs/cclvq without and stage 4 with images; tests/studies runs both commands."""
    images = np.zeros((8, 98), np.uint8)
    np.savez(tmp_path / "digits.npz", train=images, valid=images, test=images)
    conf = tmp_path / "tiny.yaml"
    conf.write_text(
        "generators: {targets: [digits], generators: [1], independent: 0, seeds: 1, channels: [4, 4], steps: 1,"
        " samples: 64, manifold_samples: 8, batch_size: 4}"
    )
    options = ["--conf", str(conf), "--exp", str(tmp_path / "exp")]
    assert "left out" in run(["bash", str(EGS / "cclvq" / "run.sh"), *options, "--stage", "3", "--stop-stage", "3"])
    found = run(
        ["bash", str(EGS / "cclvq" / "run.sh"), *options, "--stage", "4", "--mnist", str(tmp_path / "digits.npz")]
    )
    assert str(tmp_path / "exp" / "generators.json") in found


@pytest.mark.parametrize("name", ["cpu", "paper"])
def test_cclvq_configurations(name: str) -> None:
    """Ten seeds of all ways of training, and up to 16 flows."""
    path = EGS / "cclvq" / "conf" / f"{name}.yaml"
    assert read_section(SinesConfig, path, "sines").seeds == 10
    assert read_section(FlowsConfig, path, "flows").experts == [1, 2, 4, 8, 16]
    assert (
        read_section(FlowsConfig, path, "flows").seeds == read_section(GeneratorsConfig, path, "generators").seeds == 5
    )
    assert read_section(DigitsConfig, path, "digits").experts[:3] == [1, 2, 4]


def test_generators_of_images_take_an_accelerator() -> None:
    """What the CPU configurations leave out."""
    path = EGS / "cclvq" / "conf" / "gpu.yaml"
    found = read_section(GeneratorsConfig, path, "generators")
    assert found.targets == ["digits"] and found.device == "cuda"
    assert read_section(DigitsConfig, path, "digits").channels == [32, 64]
