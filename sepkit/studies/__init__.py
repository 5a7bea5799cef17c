"""The other systems of the papers: one room each, on the floor above training, evaluation and reporting.

The core does not know them. `STUDIES` is all that it sees of a room, and names what the room offers as text,
"module:name", so that nothing of a study is imported before it is asked for. Rooms import from the floors below and
never from one another: whoever has read one room knows all of that system.

To add a study, make a folder here and one entry below. Its `config.py` (torch-free) declares the configuration of a
task (`class MyConfig(TaskConfig, name="my_task")`), its `task.py` registers the class that trains it
(`@register(MyConfig) class MyTask(Task)`), and its `commands.py` holds its commands as plain typed functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class StudyTask:
    """A task that a study adds to `sepkit train`.

    Args:
        instead: core command (evaluate, calibrate) -> function that runs in its place for models of this task.
    """

    instead: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """What a room offers; functions are named "module:name", with modules of the room.

    Args:
        commands: command -> what it does. All of them are in the room's `commands.py`, which is like a file of
            `sepkit.cli`: it has `main`, or `COMMANDS` with subcommands.
        tasks: `task:` of a configuration, and kind of its models -> the rest about it.
        preparations: kind of `sepkit prepare` -> its options (a dataclass), and the function that takes them.
        leaves: command of the core -> further subcommands of it -> their functions.
    """

    commands: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, StudyTask] = field(default_factory=dict)
    preparations: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    leaves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


STUDIES: dict[str, Study] = {
    "audiogram": Study(
        commands={"audiogram": "which threshold to measure next, and when to stop"},
        tasks={"audiogram": StudyTask({"calibrate": "commands:calibrate"})},
        preparations={"audiograms": ("config:AudiogramOptions", "data:prepare_audiograms")},
    ),
    "speaker_clustering": Study(
        commands={"voices": "measure speaker encoders on collections with known speakers"},
        tasks={"speaker_clustering": StudyTask()},
        preparations={"voices": ("config:VoicesOptions", "collections:prepare_voices")},
    ),
    "cdvae": Study(
        tasks={"cdvae": StudyTask({"evaluate": "commands:evaluate"})},
        preparations={"images": ("config:ImagesOptions", "data:prepare_images")},
    ),
    "quantization": Study(
        commands={"quantize": "what matching does where the truth is known"},
        preparations={"uci": ("config:UCIOptions", "uci:prepare_uci")},
    ),
    "annealed_inference": Study(
        commands={"annealed-inference": "mode collapse of annealed variational inference"},
        leaves={
            "plan-schedule": {"inverse-temperature": "planning:inverse_temperature", "kl-warmup": "planning:kl_warmup"}
        },
    ),
}
"""Room -> what it offers. Only these modules are imported, never one that a file names."""

COMMANDS = {name: (text, room) for room, study in STUDIES.items() for name, text in study.commands.items()}
"""Command -> what it does, and the room that has it."""


def import_configurations(task: Any = None) -> None:
    """Import the configuration of a study's task; none of them imports torch.

    Args:
        task: as in `task: NAME`; another name than a study's imports all of them, unless it is the core's.
    """
    from sepkit.config import TaskConfig

    if isinstance(task, str) and task in TaskConfig.choices:
        return
    known = [room for room, study in STUDIES.items() if isinstance(task, str) and task in study.tasks]
    for room in known or STUDIES:
        if STUDIES[room].tasks:
            import_module(f"{__name__}.{room}.config")


def import_task(name: str) -> None:
    """Import the class of a task, if a room has it; other names are ignored."""
    for room, study in STUDIES.items():
        if name in study.tasks:
            import_module(f"{__name__}.{room}.task")


def commands_of(room: str) -> Any:
    """Return the module of a room's commands."""
    return import_module(f"{__name__}.{room}.commands")


def override_of(command: str, kind: str) -> Callable[..., Any] | None:
    """Return what runs in place of "evaluate" or "calibrate" for models of a kind; None: the core's own."""
    for room, study in STUDIES.items():
        for name, task in study.tasks.items():
            if kind == name and command in task.instead:
                return _found(room, task.instead[command])
    return None


def preparations() -> dict[str, tuple[type, str]]:
    """Return kind of `sepkit prepare` -> its options, and "module:function" that takes them."""
    return {
        kind: (_found(room, options), f"{__name__}.{room}.{function}")
        for room, study in STUDIES.items()
        for kind, (options, function) in study.preparations.items()
    }


def subcommands(command: str) -> dict[str, Callable[..., Any]]:
    """Return the subcommands that studies add to a command of the core."""
    return {
        leaf: _found(room, function)
        for room, study in STUDIES.items()
        for leaf, function in study.leaves.get(command, {}).items()
    }


def _found(room: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"{__name__}.{room}.{module}"), attribute)
