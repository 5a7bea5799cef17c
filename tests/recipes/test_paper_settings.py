"""The configurations that the recipes name after papers hold the papers' settings, typed in paper_settings.yaml."""

from functools import reduce
from pathlib import Path

import pytest
import yaml

from sepkit.choices import to_dict
from sepkit.cli._configuration import parse_config

SETTINGS = yaml.safe_load(Path(__file__).with_name("paper_settings.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("names", SETTINGS)
def test_settings_are_those_of_the_paper(names: str) -> None:
    words = [word for name in names.split() for word in ("--config", name)]
    config, _ = parse_config("train", "", [*words, "--data.train", "train.jsonl"], aliases={})
    config.check()
    for path, typed in SETTINGS[names].items():
        found = reduce(lambda tree, key: tree[key], path.split("."), to_dict(config))
        assert {key: found[key] for key in typed} == typed, path
