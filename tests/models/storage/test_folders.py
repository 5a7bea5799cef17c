"""Folders of models are found whatever holds the weights."""

from pathlib import Path

import pytest

from sepkit.models.published.names import TOOLKITS
from sepkit.models.published.pretrained import _bridge
from sepkit.models.storage.folders import find_checkpoint, is_onnx
from tests.complaint import complaint


@pytest.mark.parametrize("weights", ["model.safetensors", "model.onnx"])
def test_a_folder_is_found_by_itself_its_experiment_and_its_files(tmp_path: Path, weights: str) -> None:
    folder = tmp_path / "exp" / "model"
    folder.mkdir(parents=True)
    for name in (weights, "model.yaml"):
        (folder / name).touch()
    for path in (folder, folder.parent, folder / weights, folder / "model.yaml"):
        assert find_checkpoint(path) == folder
    (folder / "model.yaml").unlink()
    complaint(lambda: find_checkpoint(folder), r"model\.yaml is missing")


def test_exported_models_are_named_by_their_ending() -> None:
    assert is_onnx("exp/m.onnx") and is_onnx(Path("M.ONNX"))
    assert not is_onnx("asteroid:m.onnx") and not is_onnx("exp")


def test_every_other_toolkit_that_a_name_may_begin_with_has_its_bridge() -> None:
    assert all(callable(_bridge(kind)[0]) for kind in TOOLKITS)
