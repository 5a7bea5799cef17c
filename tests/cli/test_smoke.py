"""`sepkit smoke` on the command line, and on every configuration that ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from sepkit.cli.main import main

CONFIGURATIONS = sorted((Path(__file__).resolve().parents[2] / "conf").rglob("*.yaml"))

TINY = [
    "--model.filterbank.num_filters=8",
    "--model.masker.name=recurrent",
    "--model.masker.hidden_size=4",
    "--model.masker.num_layers=1",
    "--data.segment_seconds=0.1",
    "--trainer.accelerator=cpu",
]

LARGE = (
    "sepreformer_base",
    "sepreformer_tiny",
    "sr_corrnet",
    "sr_corrnet_counting",
    "tf_locoformer_medium",
    "tf_locoformer_small",
    "tiger",
)
"""Configurations that take a minute of a processor for a second of sound."""


def test_says_what_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", *TINY]) == 0
    assert capsys.readouterr().out == "passed: 2 steps, a validation, a save, a resume and a load (recurrent)\n"


def test_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", *TINY, "--trainer.learning_rate=0"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "sepkit smoke: trainer.learning_rate: found 0.0, expected more than 0, at most 1000000\n"


@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_shipped_configuration_passes(configuration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = ["--data.segment_seconds=0.1"] if configuration.stem in LARGE else []
    assert main(["smoke", "--config", str(configuration), *cut]) == 0, capsys.readouterr().err
