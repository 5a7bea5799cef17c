"""Waiting threads sleep, at once or soon, in a process that is the command, and in no other."""

import os
import subprocess
import sys

import pytest

from sepkit.cli._threads import _CHOSEN_BY_USER, VARIABLE

TOLD = f"import os\nprint(os.environ.get({VARIABLE!r}))\n"


def told(script: str, **variables: str) -> list[str]:
    """What a script prints, run with none of the variables about waiting but those given."""
    environment = {name: value for name, value in os.environ.items() if name not in _CHOSEN_BY_USER} | variables
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def of_command(*arguments: str) -> str:
    """A script that is the command with these arguments, and says at its end what is set."""
    return (
        f"import atexit, os, sys\nnames = {VARIABLE!r}, 'GOMP_SPINCOUNT'\n"
        f"atexit.register(lambda: print(*map(os.environ.get, names), 'torch' in sys.modules))\n"
        f"from sepkit.cli.main import main\nsys.argv = ['sepkit', *{arguments!r}]\nmain()\n"
    )


SEPARATING = of_command("separate", "--help")


def test_the_command_sets_it_before_torch_is_imported() -> None:
    assert told(SEPARATING)[-3:] == ["PASSIVE", "None", "False"]


def test_in_training_they_spin_for_a_moment() -> None:
    assert told(of_command("train", "--help"))[-3:] == ["None", "10000", "False"]
    assert told(of_command("train", "--help"), OMP_WAIT_POLICY="ACTIVE")[-3:] == ["ACTIVE", "None", "False"]


@pytest.mark.parametrize("name", _CHOSEN_BY_USER)
def test_what_the_user_has_chosen_stays(name: str) -> None:
    assert told(SEPARATING, **{name: "ACTIVE"})[-3] == ("ACTIVE" if name == VARIABLE else "None")


SEPARATE = """
import sys
import torch
from sepkit.cli import _threads
from sepkit.config import ConvTasNetConfig, FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.inference import Separator
from sepkit.models import build_model

torch.set_num_threads(2)
_threads.use_passive_waiting()
for masker in (ConvTasNetConfig(8, 8, 8, blocks=1, repeats=1), RecurrentConfig(hidden_size=4, num_layers=1)):
    model = build_model(ModelConfig(filterbank=FreeFilterbankConfig(num_filters=8), masker=masker))
    _threads.limit_small_models_to_one_thread(Separator(model))
    print(torch.get_num_threads())
"""


def test_small_steps_run_on_one_thread_where_threads_sleep() -> None:
    assert told(SEPARATE) == ["2", "1"]
    assert told(SEPARATE, GOMP_SPINCOUNT="1000") == ["2", "2"]


def test_importing_the_commands_or_calling_them_changes_nothing() -> None:
    assert told("from sepkit.cli.main import main\nmain(['no such command'])\n" + TOLD) == ["None"]
