"""The table of studies: what it names exists, and the core finds it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from sepkit import studies
from sepkit.cli._configuration import parse_config
from sepkit.cli.main import COMMANDS, main
from sepkit.files import write_text

ALL_TASKS = {name: task for study in studies.STUDIES.values() for name, task in study.tasks.items()}


@pytest.mark.parametrize("room", studies.STUDIES)
def test_what_the_table_names_exists(room: str) -> None:
    study = studies.STUDIES[room]
    functions = [*(f for options in study.preparations.values() for f in options), study.report_sections]
    functions += [f for task in study.tasks.values() for f in task.instead.values()]
    functions += [f for leaves in study.leaves.values() for f in leaves.values()]
    for module, _, name in (function.partition(":") for function in functions if function):
        assert callable(getattr(import_module(f"sepkit.studies.{room}.{module}"), name))
    if study.commands:
        commands = studies.commands_of(room)
        assert hasattr(commands, "main") or commands.COMMANDS
    assert not study.commands.keys() & COMMANDS.keys()
    assert {command for task in study.tasks.values() for command in task.instead} <= {"evaluate", "calibrate"}


@pytest.mark.parametrize(("task", "older"), [(n, older) for n, task in ALL_TASKS.items() for older in task.older_names])
def test_older_names_of_tasks_are_accepted_in_every_file(task: str, older: str, tmp_path: Path) -> None:
    first = write_text(tmp_path / "first.yaml", f"task: {older}\ntrainer: {{max_epochs: 7}}\n")
    second = write_text(tmp_path / "second.yaml", f"task: {older}\ntrainer: {{seed: 3}}\n")
    config, _ = parse_config("t", "", ["--config", str(first), "--config", str(second)], aliases={})
    assert config.name == task and config.trainer.max_epochs == 7 and config.trainer.seed == 3


def test_a_model_of_a_study_is_evaluated_by_its_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "exp" / "model" / "model.yaml", "format: 1\nkind: image_vae\nmodel: {}\n")
    for model in (["--model", str(tmp_path / "exp")], [f"--model={tmp_path / 'exp' / 'model'}"]):
        assert main(["evaluate", *model, "--out", str(tmp_path), "--calibration"]) == 2
        assert "--calibration: unknown option" in capsys.readouterr().err
