"""egs/speaker_clustering: all stages at a tiny size, and what its configurations say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.data import audio
from sepkit.models import build_model, save_model

RECIPE = Path(__file__).resolve().parents[2] / "egs" / "speaker_clustering" / "run.sh"
TINY = "{task: speaker_clustering, model: {channels: 8, pooled: 8, dimensions: 8}, data: {batch_size: 2, workers: 0}, "
TINY += "trainer: {max_epochs: 1, optimizer: sgd, learning_rate: 0.05, accelerator: cpu}}\n"


def test_all_stages(speech: Path, tmp_path: Path, run, files) -> None:
    conf = tmp_path / "tiny.yaml"
    conf.write_text(TINY)
    command = ["bash", str(RECIPE), "--speech", str(speech), "--conf", str(conf), "--encoder-conf", str(conf)]
    command += ["--regex", ".", "--dev-regex", ".", "--others-regex", "^a", "--speakers", "3", "--seeds", "0"]
    command += ["--temperatures", "0.3", "--ablations", "uniform_gate_one_head"]
    command += ["--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
    output = run(command)
    assert re.findall(r"^stage (\d)", output, re.MULTILINE) == list("1234567")
    table = (tmp_path / "exp" / "tables" / "noisy.md").read_text()
    rows = ("mean_mfcc | embedding", "moco | embedding", "mice | posterior", "mice_from_moco | gate")
    assert all(row in table for row in (*rows, "uniform_gate_one_head"))
    before = files(tmp_path / "exp" / "scores")
    run([*command, "--stop-stage", "4"])
    assert files(tmp_path / "exp" / "scores") == before


@pytest.mark.slow
def test_separated_speech(speech: Path, tmp_path: Path, run) -> None:
    conf, model = tmp_path / "tiny.yaml", tmp_path / "separator"
    conf.write_text(TINY)
    filterbank = FreeFilterbankConfig(num_filters=16, kernel_size=16, stride=8)
    save_model(
        build_model(ModelConfig(filterbank=filterbank, masker=RecurrentConfig(hidden_size=8, num_layers=1))), model
    )
    # Long enough for two segments of 1.5 s of speech, between which a projection learns what does not matter.
    for path in speech.rglob("*.*"):
        waveform, rate = audio.read(path), audio.info(path).sample_rate
        audio.write(tmp_path / "speech" / path.relative_to(speech), np.tile(waveform, 4), rate, "PCM_16")
    command = ["bash", str(RECIPE), "--speech", str(tmp_path / "speech")]
    command += ["--encoder-conf", str(conf), "--second-conf", str(conf)]
    command += [
        "--separator",
        str(model),
        *["--regex", ".", "--dev-regex", ".", "--others-regex", "^a", "--speakers", "3"],
    ]
    command += ["--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
    command += ["--hour-minutes", "0.2", "--hour-speakers", "2"]
    for stage in ("1", "7", "8", "9", "10"):
        run([*command, "--stage", stage, "--stop-stage", stage])
    scores = json.loads((tmp_path / "exp" / "scores" / "separated" / "encoder_separated" / "0.json").read_text())
    assert scores["speakers"] == 3 and 0 <= scores["rules"]["embedding"]["nmi"] <= 100
    assert json.loads((tmp_path / "exp" / "hour" / "given" / "summary.json").read_text())["n_speakers"] == 2
    assert json.loads((tmp_path / "data" / "hour" / "linked_2" / "mixture.json").read_text())["linked"]["speakers"] == 2
    scored = json.loads((tmp_path / "exp" / "hour" / "linked_2" / "summary.json").read_text())
    assert scored["missing"] == scored["not_in_reference"] == [] and scored["der"] >= 0
