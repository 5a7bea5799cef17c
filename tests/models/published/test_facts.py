"""Numbers for comparing models, against closed forms."""

import hashlib
import json

import pytest
import torch
from torch import nn

from sepkit.cli.main import main
from sepkit.config import DeterministicConfig as Points
from sepkit.config import GatedRecurrenceConfig, ModelConfig, RecurrentConfig, STFTFilterbankConfig
from sepkit.models import build_model, load_pretrained, save_model
from sepkit.models.export.graph_file import Graph
from sepkit.models.published.card import card_scores
from sepkit.models.published.facts import model_facts, multiply_adds
from sepkit.models.published.shipped import DEFAULT_CAUSAL_MODEL, shipped_models
from sepkit.models.streaming import ModelStream
from tools.default_model import LARGEST_BYTES

CARD = """---
license: mit
model-index:
- name: some
  results:
  - task: {type: audio-to-audio}
    dataset: {name: data test, type: data-test}
    metrics:
    - {type: si_sdr_db, value: 1.0}
    - {type: si_sdri_db, value: 5.06}
---

# some
"""


def test_multiply_adds():
    with torch.inference_mode():
        lstm, x = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True), torch.randn(3, 10, 8)
        # Four gates, from the input and from the state; the second layer sees both directions.
        assert multiply_adds(lambda: lstm(x)) == 30 * (2 * 4 * 16 * ((8 + 16) + (32 + 16)))
        depthwise = nn.Conv1d(8, 8, 3, groups=8)
        assert multiply_adds(lambda: depthwise(torch.randn(2, 8, 12))) == 2 * 10 * 8 * 3
        linear = nn.Linear(5, 7)
        assert multiply_adds(lambda: linear(torch.randn(4, 5)).relu()) == 4 * 5 * 7
        gru = nn.GRU(8, 16, batch_first=True)
        assert multiply_adds(lambda: gru(x)) == 30 * 3 * 16 * (8 + 16)
        heads = torch.randn(3, 4, 10, 16)
        attention = nn.functional.scaled_dot_product_attention
        # Ten scores of each position, and as many values.
        assert multiply_adds(lambda: attention(heads, heads, heads)) == 12 * 10 * 2 * 10 * 16


def model(bidirectional: bool):
    masker = GatedRecurrenceConfig(model_dim=8, hidden_size=6, feedforward_dim=10, bidirectional=bidirectional)
    bank = STFTFilterbankConfig(64, 32, complex_masks=True)
    return build_model(ModelConfig(filterbank=bank, masker=masker, masks=Points(activation="linear"))).eval()


def test_a_causal_model_has_a_latency_and_another_has_none():
    causal, other = model_facts(model(False)), model_facts(model(True))
    assert causal.latency_ms == pytest.approx(1000 * 63 / 8000)
    assert other.latency_ms is None
    assert (causal.sample_rate, causal.estimates, causal.scores) == (8000, 2, {})


def test_the_causal_model_that_ships_is_32_ms_behind_and_small():
    folder = shipped_models()[DEFAULT_CAUSAL_MODEL]
    stream = ModelStream(load_pretrained(DEFAULT_CAUSAL_MODEL).eval())
    assert (1 + stream.lookahead_samples) / 8000 == Graph(folder / "model.onnx").kernel_size / 8000 == 0.032
    assert (folder / "model.onnx").stat().st_size < LARGEST_BYTES


def test_costs_are_those_of_a_second_of_audio():
    bank, masker = STFTFilterbankConfig(64, 32), RecurrentConfig(rnn="gru", hidden_size=7, num_layers=1)
    facts = model_facts(build_model(ModelConfig(filterbank=bank, masker=masker)).eval())
    # 250 frames of 33 bins: two directions of three gates, and the output layer.
    assert facts.giga_multiply_adds_per_second == pytest.approx(250 * (2 * 3 * 7 * (33 + 7) + 14 * 66) / 1e9, rel=0.01)


def test_scores_are_those_of_the_card(tmp_path):
    assert card_scores(tmp_path) == {}
    (tmp_path / "README.md").write_text(CARD)
    assert card_scores(tmp_path) == {"data test": 5.06}
    (tmp_path / "README.md").write_text("no front matter")
    assert card_scores(tmp_path) == {}


def test_models_that_ship_are_listed_with_their_numbers(printed):
    (line,) = [line for line in printed(["models"]).splitlines() if line.startswith("  boxed_8k (default)")]
    assert "whole recording" in line and " 8000 " in line and "(data test_librispeech)" in line


def test_machine_readable_index_agrees_with_the_files(tmp_path, printed, capsys):
    folder = save_model(model(bidirectional=False), tmp_path / "mine", {})
    (folder / "README.md").write_text(CARD)
    (told,) = json.loads(printed(["models", "--json", "--model", folder]))
    weights = (folder / "model.safetensors").read_bytes()
    assert told["sha256"] == hashlib.sha256(weights).hexdigest() and told["bytes"] == len(weights)
    assert (told["license"], told["si_sdri_db"], told["default"]) == ("mit", {"data test": 5.06}, False)
    assert told["parameters"] == sum(weight.numel() for weight in model(bidirectional=False).parameters())
    assert told["sample_rate"] == 8000 and told["estimates"] == 2 and told["latency_ms"] > 0
    assert [row["name"] for row in json.loads(printed(["models", "--json"])) if row["default"]] == ["boxed_8k"]
    (tmp_path / "graph.onnx").touch()
    assert main(["models", "--json", "--model", str(tmp_path / "graph.onnx")]) == 2
    assert "is no folder of a model" in capsys.readouterr().err
