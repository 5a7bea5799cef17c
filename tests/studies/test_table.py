"""The table of studies: what it names exists, and the core finds it."""

from importlib import import_module
from pathlib import Path

import pytest

from sepkit import studies
from sepkit.cli.main import COMMANDS
from sepkit.files import write_text


@pytest.mark.parametrize("room", studies.STUDIES)
def test_what_the_table_names_exists(room: str) -> None:
    study = studies.STUDIES[room]
    functions = [f for options in study.preparations.values() for f in options]
    functions += [f for task in study.tasks.values() for f in task.values()]
    functions += [f for names in study.subcommands.values() for f in names.values()]
    for module, _, name in (function.partition(":") for function in functions):
        assert callable(getattr(import_module(f"sepkit.studies.{room}.{module}"), name))
    if study.commands:
        commands = studies.commands_of(room)
        assert hasattr(commands, "main") or commands.COMMANDS
    assert not study.commands.keys() & COMMANDS.keys()
    assert {command for task in study.tasks.values() for command in task} <= {"evaluate", "calibrate", "train"}


def test_a_model_of_a_study_is_evaluated_by_its_study(tmp_path: Path, refused) -> None:
    write_text(tmp_path / "exp" / "model" / "model.yaml", "format: 1\nkind: cdvae\nmodel: {}\n")
    write_text(tmp_path / "exp" / "model" / "model.safetensors", "")
    for model in (["--model", str(tmp_path / "exp")], [f"--model={tmp_path / 'exp' / 'model'}"]):
        assert "--calibration: unknown option" in refused(["evaluate", *model, "--out", tmp_path, "--calibration"])
