"""Generators under one discriminator: who learns from which latent, when training ends, and what is measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.cli.main import main
from sepkit.studies.quantization.config import GeneratorsConfig
from sepkit.studies.quantization.data import FLOOR_OFF_MODES, mode_centers, mode_coverage, sample_modes
from sepkit.studies.quantization.generators import GeneratorRuns, train_generators
from sepkit.studies.quantization.measures import precision_recall

TINY = GeneratorsConfig(seeds=2, hidden=[6], steps=3, batch_size=8, samples=60, manifold_samples=40)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_only_the_generator_that_is_believed_most_learns() -> None:
    """Of the latents that it makes the most believed samples of, each teaches it alone."""
    runs = GeneratorRuns(TINY, "ring", 3, [1, 2])
    latents, everybody = drawn(2, 8, 2), torch.ones(2, dtype=torch.bool)
    runs.judge(latents, drawn(2, 8, 2, seed=1), everybody)
    with torch.no_grad():
        believed = runs.discriminators(runs.make(latents).flatten(1, 2)).view(2, 3, 8)
    winners = believed.argmax(1)
    before = [value.clone() for value in runs.generators.values]
    runs.learn(latents, everybody)
    wins = torch.stack([torch.bincount(row, minlength=3) for row in winners])
    assert torch.equal(runs.learned, wins.float())
    moved = torch.stack([(v != b).flatten(1).any(1) for v, b in zip(runs.generators.values, before, strict=True)]).any(
        0
    )
    assert torch.equal(moved, wins.flatten() > 0) and int(moved.sum()) > 0
    # A run that is over stays as it is.
    before = [value[:3].clone() for value in runs.generators.values]
    runs.learn(latents, torch.tensor([False, True]))
    assert all(torch.equal(v[:3], b) for v, b in zip(runs.generators.values, before, strict=True))


def test_the_discriminator_sees_the_hinge_loss_of_all_generators() -> None:
    runs = GeneratorRuns(TINY, "ring", 2, [1])
    latents, real = drawn(1, 8, 2), drawn(1, 8, 2, seed=1)
    network = runs.discriminators
    with torch.no_grad():
        made = runs.make(latents)
    believed = [network(part)[0, :, 0] for part in (real, made[:, 0], made[:, 1])]
    loss = (1 - believed[0]).relu().mean() + ((1 + believed[1]).relu().mean() + (1 + believed[2]).relu().mean()) / 2
    expected = torch.autograd.grad(loss, list(network.parameters()))
    runs.judge(latents, real, torch.ones(1, dtype=torch.bool))
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient)


def test_training_ends_when_each_generator_has_had_its_batches() -> None:
    """A run alone takes the same steps as beside others."""
    one = train_generators(TINY, "ring", 1)
    assert one["steps"] == [[3], [3]] and one["updates"] == [[3.0], [3.0]] and one["entropy"] == [1.0, 1.0]
    several = train_generators(TINY, "ring", 2)
    for updates, (steps,) in zip(several["updates"], several["steps"], strict=True):
        assert sum(updates) == steps and (min(updates) >= 3 or steps == 9)
    alone = train_generators(replace(TINY, seeds=1), "ring", 2)
    assert alone["updates"] == several["updates"][:1] and alone["steps"] == several["steps"][:1]
    apart = train_generators(TINY, "ring", 1, independent=2)
    assert apart["entropy"] == [1.0, 1.0] and np.shape(apart["updates"]) == (2, 2)


def test_precision_and_recall_against_the_definition() -> None:
    """Of equal sets 1, of sets far apart 0, and else what a loop over points counts."""
    real, generated = drawn(30, 2), 0.5 * drawn(25, 2, seed=1) + 0.5

    def share(samples: torch.Tensor, reference: torch.Tensor) -> float:
        within = 0
        for sample in samples:
            reach = [(reference - point).norm(dim=1).sort().values[3] for point in reference]
            within += any((sample - point).norm() <= r for point, r in zip(reference, reach, strict=True))
        return within / len(samples)

    precision, recall = precision_recall(real, generated)
    assert precision == pytest.approx(share(generated, real)) and recall == pytest.approx(share(real, generated))
    assert recall < precision
    assert precision_recall(real, real) == (1, 1) and precision_recall(real, real + 100) == (0, 0)


def test_coverage_of_modes() -> None:
    """True samples are off every mode as often as they should be; a mode that is left out is not hit."""
    centers, generator = mode_centers("grid"), torch.Generator().manual_seed(0)
    off, hit = mode_coverage(sample_modes(centers, 0.3, 20_000, generator), centers, 0.3)
    assert off == pytest.approx(FLOOR_OFF_MODES, abs=0.003) and hit == 25
    assert mode_coverage(sample_modes(centers[:-4], 0.3, 5000, generator), centers, 0.3)[1] == 21
    assert mode_coverage(torch.full((10, 2), 50.0), centers, 0.3) == (1, 0)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Modes in the plane and digits; digits need images."""
    bits = np.packbits((drawn(20, 784) > 1).byte().numpy(), axis=1)
    np.savez(tmp_path / "digits.npz", train=bits, valid=bits[:4], test=bits[:6])
    (tmp_path / "tiny.yaml").write_text(
        "generators: {targets: [grid, digits], generators: [2], independent: 2, seeds: 1, hidden: [4],"
        " channels: [4, 4], steps: 1, batch_size: 4, samples: 64, manifold_samples: 16, discriminator_steps: 1}"
    )
    command = ["quantize", "generators", "--config", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "--images: nothing given" in capsys.readouterr().err
    assert main([*command, "--images", str(tmp_path / "digits.npz")]) == 0
    rows = json.loads((tmp_path / "out" / "generators.json").read_text())["rows"]
    assert [row["target"] for row in rows] == ["grid", "grid", "digits", "digits"]
    assert "modes_hit" in rows[0] and len(rows[2]["examples"][0]) == 64 and len(rows[2]["examples"][0][0]) == 784
    assert all(0 <= row[name][0] <= 1 for row in rows for name in ("precision", "recall", "entropy"))
    for section, message in (
        ("{targets: [cubes]}", "targets: found 'cubes', expected ring or grid"),
        ("{device: tpu}", "device: found 'tpu' (did you mean cpu?), expected one of cpu, cuda"),
        ("{steps: 0}", "generators.steps: found 0, expected 1 or more"),
    ):
        (tmp_path / "tiny.yaml").write_text(f"generators: {section}")
        assert main(command) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
