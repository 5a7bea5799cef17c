"""Files of TIGER: what is read, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from sepkit.config import TIGERConfig
from sepkit.models import load_pretrained
from sepkit.models.bridges import from_tiger
from tests.complaint import complaint
from tests.published import tiger_arguments, tiger_weights


def write(folder, weights: dict[str, torch.Tensor], description):
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(description))
    return folder


def test_sizes_are_those_of_the_description(tmp_path):
    write(tmp_path, tiger_weights(), tiger_arguments())
    for source in (tmp_path, tmp_path / "model.safetensors"):
        model = load_pretrained(f"tiger:{source}")
        assert model.config is not None and (model.sample_rate, model.input_norm) == (16000, "training")
        assert model.config.masker == TIGERConfig(16000, 8, 6, 2, 3, 2, 3, edge_frames=0)
        assert model.info == {"needs": {"levels": "model"}}
        assert (model.filterbank.kernel_size, model.filterbank.stride) == (640, 320)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"win": 320, "stride": 80}, "sample_rate: found 16000 with 161 bins, which bands of 25 to 500 Hz"),
        ({"win": 320, "stride": 80, "sample_rate": 8000}, "sample_rate: found 8000 with 161 bins"),
        ({"stride": 200}, "win is 640, expected a multiple of twice the stride, 400"),
        ({"sample_rate": 11025}, "sample_rate: found 11025 with 321 bins"),
        ({"num_sources": 3}, "model.masker.channels: found 8, expected a multiple of the hypotheses, 3"),
        ({"att_n_head": 3}, "model.masker.channels: found 8, expected a multiple of num_heads, 3"),
        ({"upsampling_depth": 2}, "model.masker.scales: found 2, expected 3 to 100000"),
        ({"upsampling_depth": 4}, "is missing"),
        ({"in_channels": 5}, "has shape (6, 8, 1), expected (5, 8, 1)"),
        ({"out_channels": 65537}, "out_channels is 65537, expected a whole number from 1 to 65536"),
        ({"num_blocks": 1001}, "num_blocks is 1001, expected a whole number from 1 to 1000"),
        ({"upsampling_depth": 17}, "upsampling_depth is 17, expected a whole number from 1 to 16"),
        ({"sample_rate": 1000001}, "sample_rate is 1000001, expected a whole number from 1 to 1000000"),
        ({"num_blocks": "many"}, "num_blocks is 'many', expected a whole number"),
        ({"dec_layers": 2}, "'dec_layers' is no argument of TIGER"),
    ],
)
def test_other_descriptions(changes, message, tmp_path):
    write(tmp_path, tiger_weights(), tiger_arguments() | changes)
    assert message in complaint(lambda: from_tiger(tmp_path))


def test_other_files(tmp_path):
    words = "model.safetensors: no such file; expected a folder"
    assert words in complaint(lambda: load_pretrained(f"tiger:{tmp_path}"))
    weights = tiger_weights()
    less = {name: tensor for name, tensor in weights.items() if name != "BN.3.1.bias"}
    for content, message in [
        (less, "BN.3.1.bias is missing; the weights are of another model"),
        (weights | {"more": torch.zeros(1)}, "more is unexpected; the weights are of another model"),
        (weights | {"BN.3.1.bias": torch.full((8,), torch.nan)}, "BN.3.1.bias contains values that are not finite"),
    ]:
        write(tmp_path, content, tiger_arguments())
        assert message in complaint(lambda: from_tiger(tmp_path))
    write(tmp_path, weights, [3])
    assert "found no mapping" in complaint(lambda: from_tiger(tmp_path))
    write(tmp_path, weights, tiger_arguments())
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    assert "this is a Git LFS pointer" in complaint(lambda: from_tiger(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    assert "damaged or another kind of file" in complaint(lambda: from_tiger(tmp_path))
    (tmp_path / "config.json").unlink()
    assert "config.json: no such file" in complaint(lambda: from_tiger(tmp_path))


def test_from_the_hub(tmp_path, hub):
    asked = hub(write(tmp_path, tiger_weights(), tiger_arguments()))
    assert load_pretrained("tiger:JusperLee/TIGER-speech").hypotheses == 2
    assert asked["name"] == "JusperLee/TIGER-speech"
    assert asked["allow_patterns"] == ["model.safetensors", "config.json"]
