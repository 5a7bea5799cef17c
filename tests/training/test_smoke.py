"""`smoke` passes what can be trained with and says what is wrong with the rest."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sepkit.config import ConvTasNetConfig, TrainConfig
from sepkit.data.manifest import read_manifest
from sepkit.training.run import smoke
from sepkit.training.separation import write_synthetic_set
from sepkit.training.task_definition import TaskDefinition


def test_passes_with_the_users_own_set(config: TrainConfig, capfd: pytest.CaptureFixture[str]) -> None:
    """With a masker that every processor can compute in bfloat16."""
    masker = ConvTasNetConfig(bottleneck_channels=4, hidden_channels=6, skip_channels=4, blocks=2, repeats=1)
    config = replace(config, model=replace(config.model, masker=masker))
    smoke(replace(config, trainer=replace(config.trainer, accumulate_batches=2, precision="bf16-mixed", devices=4)))
    assert "precision bf16-mixed" in capfd.readouterr().err


def test_synthetic_set_is_the_same_every_time(tmp_path: Path) -> None:
    for name in "ab":
        write_synthetic_set(tmp_path / name, sample_rate=16000, sources=3, mixtures=2)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    assert len(files) == 7
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    manifest = read_manifest(tmp_path / "a" / "train.jsonl")
    # Dynamic mixing and scores by sex rely on these names: all six speakers differ.
    assert len({source.speaker for entry in manifest for source in entry.sources} - {""}) == 6
    found = [(entry.num_samples, {source.sex for source in entry.sources}) for entry in manifest]
    assert found == [(16000, {"F"}), (16000, {"M"})]


@pytest.mark.parametrize(("given", "tried"), [(1, 1), (2, 2), (6, 2)])
def test_a_trial_takes_two_examples_at_most(given: int, tried: int, tmp_path: Path) -> None:
    config = SimpleNamespace(data=SimpleNamespace(batch_size=given))
    assert TaskDefinition.shrink(config, tmp_path).data.batch_size == tried
