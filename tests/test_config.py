"""Configurations survive conversion to plain data and back; wrong data is refused with the field's name."""

import math

import pytest
import yaml

from sepkit import config as c
from sepkit.choices import did_you_mean
from tests.complaint import complaint


@pytest.mark.parametrize(
    "kind", [c.FilterbankConfig, c.LatentConfig, c.MaskerConfig, c.ScheduleConfig, c.CostConfig, c.AssignmentConfig]
)
def test_every_choice_survives_yaml(kind):
    assert kind.choices
    for choice in kind.choices.values():
        assert c.from_dict(kind, yaml.safe_load(yaml.safe_dump(c.to_dict(choice())))) == choice()


def test_whole_configuration_survives_yaml():
    config = c.TrainConfig(
        model=c.ModelConfig(masker=c.RecurrentConfig(rnn="lstm"), filterbank=c.STFTFilterbankConfig()),
        objective=c.ObjectiveConfig(assignment=c.AnnealedMCLConfig(temperature=c.TruncatedExponentialConfig(3.0))),
        data=c.DataConfig(train="a.jsonl", dynamic_mixing=c.DynamicMixingConfig(noise_snr_db=(-5.0, 5.0))),
    )
    assert c.from_dict(c.TrainConfig, yaml.safe_load(yaml.safe_dump(c.to_dict(config)))) == config


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"model": {"maskr": {}}}, ["model.maskr", "did you mean masker"]),
        ({"model": {"masker": {"name": "conv_tasnt"}}}, ["model.masker", "conv_tasnt", "did you mean conv_tasnet"]),
        ({"model": {"masker": {"bottleneck_channels": 3}}}, ["model.masker", "no name"]),
        (
            {"model": {"masker": {"name": "recurrent", "hidden_size": "wide"}}},
            ["model.masker.hidden_size", "'wide'", "a whole number"],
        ),
        ({"model": {"masker": {"name": "recurrent", "rnn": "gur"}}}, ["model.masker.rnn", "lstm, gru"]),
        ({"model": {"hypotheses": True}}, ["model.hypotheses", "True", "a whole number"]),
        ({"model": 3}, ["model", "3", "mapping"]),
        ({"data": {"dynamic_mixing": {"noise_snr_db": [1]}}}, ["noise_snr_db", "list of 2"]),
        ({"data": {"dynamic_mixing": {"noise_snr_db": [1, 2, 3]}}}, ["noise_snr_db", "list of 2"]),
        ({"data": {"dynamic_mixing": {"noise_snr_db": [1, "x"]}}}, ["noise_snr_db[1]: found 'x', expected a number"]),
        ({"data": {"train": 5}}, ["data.train", "5", "text"]),
        ({"data": {"segment_seconds": True}}, ["data.segment_seconds: found True, expected a number"]),
        ({"trainer": {"learning_rate": 10**400}}, ["trainer.learning_rate", "expected a number that a float can hold"]),
        ({5: {}}, ["5: unknown field; known here: model"]),
    ],
)
def test_bad_data_names_the_field_in_one_line(data, words):
    message = complaint(lambda: c.from_dict(c.TrainConfig, data))
    assert not [word for word in words if word not in message]


def test_numbers_as_yaml_writes_them():
    text = "{learning_rate: 1e-3, gradient_clip_norm: 5, max_minutes: null}"
    built = c.from_dict(c.TrainerConfig, yaml.safe_load(text))
    assert built == c.TrainerConfig(learning_rate=1e-3, gradient_clip_norm=5.0, max_minutes=None)
    assert c.from_dict(c.ScheduleConfig, yaml.safe_load("{name: truncated_exponential, end: .inf}")).end == math.inf


def test_the_name_most_like_a_word_is_meant():
    """Case, hyphens and folders do not count; only the first hundred characters of a word are compared."""
    known = ["model/conv_tasnet", "model/sepformer", "a" * 100]
    meant = {"Conv-Tasnet": 0, "model/convtasnett": 0, "sep_former": 1, "a" * 100 + "b" * 1000: 2}
    for word, place in meant.items():
        assert did_you_mean(word, known) == f" (did you mean {known[place]}?)"
    assert did_you_mean("xyz", known) == did_you_mean("", known) == ""


def test_defaults_are_not_shared():
    c.TrainConfig().model.masker.blocks = 1  # type: ignore[attr-defined]
    assert c.TrainConfig().model.masker.blocks == 8  # type: ignore[attr-defined]


def test_a_choice_made_of_another_is_of_the_same_kind():
    assert c.ImprovedSuDoRMRFConfig.kind is c.SuDoRMRFConfig.kind is c.MaskerConfig
    improved = c.from_dict(c.MaskerConfig, {"name": "improved_sudormrf", "blocks": 3})
    assert type(improved) is c.ImprovedSuDoRMRFConfig and improved.blocks == 3
