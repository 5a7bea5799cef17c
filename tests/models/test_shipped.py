"""Models in the package, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sepkit.errors import UserError
from sepkit.models.shipped import encoder_folder, shipped_encoders, shipped_models


def test_names_of_encoders_are_folders_with_a_model() -> None:
    for name in [None, *shipped_encoders()]:
        assert (encoder_folder(name) / "model.yaml").is_file()


def test_a_path_is_itself(tmp_path: Path) -> None:
    assert encoder_folder(tmp_path) == tmp_path


def test_the_name_of_a_separator_is_not_that_of_an_encoder() -> None:
    name = sorted(shipped_models())[0]
    with pytest.raises(
        UserError, match=f"^{name}: found a model that separates, expected an encoder of voices: voices_8k"
    ):
        encoder_folder(name)
