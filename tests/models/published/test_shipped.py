"""Models in the package, by name."""

import pytest

from sepkit.errors import UserError
from sepkit.inference import load_model
from sepkit.inference.quality.voices import prediction_encoder
from sepkit.models.published.shipped import encoder_folder, shipped_encoders, shipped_models


def test_names_of_encoders_are_folders_with_a_model():
    assert shipped_models() and shipped_encoders()
    for name in [None, *shipped_encoders()]:
        assert (encoder_folder(name) / "model.yaml").is_file()


def test_models_in_the_box_know_the_encoder_of_voices_that_ships():
    known = prediction_encoder().fingerprint()
    predictors = {name: load_model(name).quality for name in shipped_models()}
    assert all(predictors.values())
    encoders = {name: one.single_speaker.encoder for name, one in predictors.items() if one.single_speaker}
    told = "after a change of the encoder, run `sepkit calibrate` on the models again"
    # Of a causal model, speakers are not counted.
    assert encoders == {"boxed_8k": known}, told


def test_a_path_is_itself(tmp_path):
    assert encoder_folder(tmp_path) == tmp_path


def test_what_is_no_encoder(tmp_path):
    name, turns = sorted(shipped_models())[0], tmp_path / "r.rttm"
    turns.touch()
    given = {name: "a model that separates", turns: "another file", "none": "no such file or folder"}
    for model, found in given.items():
        with pytest.raises(
            UserError, match=f"^{model}: found {found}, expected a speaker encoder: campplus_8k, meetings_8k, FILE"
        ):
            encoder_folder(model)
