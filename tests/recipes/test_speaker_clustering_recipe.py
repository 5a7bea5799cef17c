"""egs/speaker_clustering: all stages at a tiny size, and what its configurations say."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.models import build_model, save_model
from sepkit.models.export.graph_file import Session

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
    assert re.findall(r"^stage (\d)", run(command), re.MULTILINE) == list("1234567")
    table = (tmp_path / "exp" / "tables" / "noisy.md").read_text()
    rows = ("mean_mfcc | embedding", "moco | embedding", "mice | posterior", "mice_from_moco | gate")
    assert all(row in table for row in (*rows, "uniform_gate_one_head"))
    before = files(tmp_path / "exp" / "scores")
    run([*command, "--stop-stage", "4"])
    assert files(tmp_path / "exp" / "scores") == before


def mel_teacher(path: Path) -> Path:
    """Write an encoder whose embedding is the mean mel spectrum."""
    node = helper.make_node("ReduceMean", ["in"], ["mean"], axes=[1], keepdims=0)
    heard = helper.make_tensor_value_info("in", TensorProto.FLOAT, [None, None, 40])
    embedding = helper.make_tensor_value_info("mean", TensorProto.FLOAT, [None, 40])
    graph = helper.make_graph([node], "encoder", [heard], [embedding])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.slow
def test_meetings(speech: Path, tmp_path: Path, run) -> None:
    """An encoder of known speakers and speech activity are trained, and an hour is clustered and linked."""
    conf, model = tmp_path / "tiny.yaml", tmp_path / "separator"
    conf.write_text(TINY.replace("{task", "{loss: speakers, task"))
    filterbank = FreeFilterbankConfig(num_filters=16, kernel_size=16, stride=8)
    masker = RecurrentConfig(hidden_size=8, num_layers=1)
    save_model(build_model(ModelConfig(filterbank=filterbank, masker=masker)), model)
    command = ["bash", str(RECIPE), "--speech", str(speech), "--meetings-conf", str(conf), "--separator", str(model)]
    command += ["--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
    command += ["--noise", str(speech), "--teacher", str(mel_teacher(tmp_path / "teacher.onnx"))]
    command += ["--hour-minutes", "0.2", "--hour-speakers", "2", "--encoder", str(tmp_path / "exp" / "meetings")]
    command += ["--conversations", "2", "--conversation-minutes", "0.3", "--activity-minutes", "0.02"]
    for stage in ("9", "8", "10"):
        run([*command, "--stage", stage, "--stop-stage", stage])
    assert json.loads((tmp_path / "exp" / "hour" / "given" / "summary.json").read_text())["n_speakers"] == 2
    assert json.loads((tmp_path / "data" / "hour" / "linked_2" / "mixture.json").read_text())["linked"]["speakers"] == 2
    path = tmp_path / "exp" / "activity" / "activity.onnx"
    session = Session(path, path.read_bytes())
    for k in (1, 2, 3):
        features = np.random.default_rng(k).normal(7.0, 1.0, (k + 1, 300, 40)).astype(np.float32)
        (active,) = session.run({"features": features}, ["active"], 48000, 8000)
        assert active.shape == (k, 300) and 0 < active.min() < active.max() < 1
    scored = json.loads((tmp_path / "exp" / "hour" / "linked_2" / "summary.json").read_text())
    assert scored["missing"] == scored["not_in_reference"] == [] and scored["der"] >= 0
