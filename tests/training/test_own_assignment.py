"""A user's own one-to-one assignment is trained, validated and scored as one, through `--import`."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sepkit.cli.main import main
from sepkit.config import ScoringConfig, TrainConfig, to_dict
from sepkit.models.storage.folders import read_description
from sepkit.objectives.assignment import PIT
from sepkit.objectives.scoring import ScoringTerm
from sepkit.training.separation import SeparationTask
from tests.training.runs import records

FILE = str(Path(__file__).with_name("own_pit.py"))


pytestmark = pytest.mark.usefixtures("own_choices_forgotten")


def command(config: TrainConfig, folder: Path, assignment: str) -> list[str]:
    tree = to_dict(config) | {"objective": {"assignment": {"name": assignment}}}
    file = folder / f"{assignment}.yaml"
    file.write_text(yaml.safe_dump(tree))
    return ["train", "--config", str(file), "--import", FILE, "--out", str(folder / assignment)]


def test_it_is_trained_and_scored_as_pit(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three scored hypotheses for two sources, where MCL and PIT part ways."""
    config = replace(config, model=replace(config.model, hypotheses=3, scoring=ScoringConfig(hidden_size=4)))
    config.trainer.max_epochs = 1
    matchings: list[object] = []
    start = SeparationTask.on_train_start

    def remember(self: SeparationTask) -> None:
        start(self)
        term = self.objective.terms["scoring"]
        assert isinstance(term, ScoringTerm)
        matchings.append(term.matching)

    monkeypatch.setattr(SeparationTask, "on_train_start", remember)
    for assignment in ("my_pit", "pit"):
        assert main(command(config, tmp_path, assignment)) == 0
    assert all(type(matching) is PIT for matching in matchings) and len(matchings) == 2
    own, pit = (read_description(tmp_path / name / "model")["info"] for name in ("my_pit", "pit"))
    assert own == pit and own["monitor"] == "dev_si_sdr_db"
    assert records(tmp_path / "my_pit")[-1]["train_scoring"] == records(tmp_path / "pit")[-1]["train_scoring"]
