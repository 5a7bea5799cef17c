"""What models need of separation: kept beside their weights, and checked where files are read."""

import pytest

from sepkit.config import ModelConfig, RecurrentConfig
from sepkit.inference.options import SeparatorOptions
from sepkit.models import build_model, load_checkpoint, save_model
from sepkit.models.needs import chunks_for, needs_of
from tests.complaint import complaint

NEEDS = {"whole_seconds": 8, "levels": "mixture", "mixture_consistency": False}


def test_they_are_kept_beside_the_weights(tmp_path):
    model = build_model(ModelConfig(masker=RecurrentConfig(hidden_size=4, num_layers=1)))
    save_model(model, tmp_path, {"epoch": 3, "needs": NEEDS})
    assert needs_of(load_checkpoint(tmp_path).info, "model") == NEEDS
    assert needs_of({}, "model") == {}
    description = (tmp_path / "model.yaml").read_text()
    (tmp_path / "model.yaml").write_text(description.replace("whole_seconds: 8", "whole_seconds: .nan"))
    line = complaint(lambda: load_checkpoint(tmp_path))
    assert line.startswith(f"{tmp_path / 'model.yaml'}: info.needs has {{'whole_seconds': nan}}, which no model needs")


@pytest.mark.parametrize(
    "needs",
    [
        *({"whole_seconds": seconds} for seconds in ("long", True)),
        *({"chunk_seconds": seconds} for seconds in (0, float("inf"))),
        *({"levels": levels} for levels in ("loud", ["mixture"])),
        *({"mixture_consistency": 1}, {"speakers": "auto"}, {"device": "cuda"}, {3: 4}, [1]),
    ],
)
def test_others_are_refused(needs):
    assert complaint(lambda: needs_of({"needs": needs}, "model.yaml")).startswith("model.yaml: info.needs ")


@pytest.mark.parametrize("seconds", [3.0, 4.0])
def test_chunks_are_options_of_a_separator(seconds):
    options = SeparatorOptions(**chunks_for(seconds))
    assert options.whole_seconds == options.chunk_seconds == 2 * options.overlap_seconds == 4 * seconds
