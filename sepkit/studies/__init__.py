"""The studies: the other systems of the papers, one subpackage each, in the layer above training and reporting.

The core does not import them. `STUDIES` is its only view of a study, and names what the study offers as text,
"module:name", so that nothing of a study is imported before it is asked for. Studies import from lower layers and never
from one another: each subpackage can be read separately.

To add a study, make a folder here and one entry below. Its `config.py` (torch-free) declares the configuration of a
task (`class MyConfig(TaskConfig, name="my_task")`), its `task.py` registers the class that trains it
(`@register(MyConfig) class MyTask(Task)`), and its `commands.py` holds its commands as plain typed functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Study:
    """The contents of a study; functions are named "module:name", with modules of its subpackage.

    Args:
        commands: Command -> what it does. All of them are in the study's `commands.py`, which is like a file of
            `sepkit.cli`: it has `main`, or `COMMANDS` with subcommands.
        tasks: `task:` of a configuration, and kind of its models -> core command (evaluate, calibrate) -> function that
            runs in its place for models of this task.
        preparations: Kind of `sepkit prepare` -> its options (a dataclass), and the function that takes them.
        subcommands: Command of the core -> further subcommands of it -> their functions.
    """

    commands: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    preparations: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    subcommands: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


STUDIES: dict[str, Study] = {
    "audiogram": Study(
        commands={"audiogram": "choose the next threshold to measure, and when to stop"},
        tasks={"audiogram": {"calibrate": "commands:calibrate"}},
        preparations={"audiograms": ("config:AudiogramOptions", "data:prepare_audiograms")},
    ),
    "speaker_clustering": Study(
        commands={"voices": "measure speaker encoders on collections with known speakers"},
        tasks={"speaker_clustering": {}},
        preparations={"voices": ("config:VoicesOptions", "data:prepare_voices")},
    ),
    "cdvae": Study(
        tasks={"cdvae": {"evaluate": "evaluate:evaluate"}},
        preparations={"images": ("config:ImagesOptions", "data:prepare_images")},
    ),
    "quantization": Study(
        commands={"quantize": "compare matching rules on data with a known truth"},
        preparations={"uci": ("config:UCIOptions", "uci_sets:prepare_uci")},
    ),
    "annealed_inference": Study(
        commands={"annealed-inference": "simulate mode collapse of annealed variational inference"},
        subcommands={"plan-schedule": {"inverse-temperature": "planning:plan_inverse_temperature"}},
    ),
}
"""Subpackage -> its contents. Only these modules are imported, never one that a file names."""

COMMANDS = {name: (text, folder) for folder, study in STUDIES.items() for name, text in study.commands.items()}
"""Command -> its description and its subpackage."""


def import_configurations(task: Any = None) -> None:
    """Import the configuration of a study's task; none of them imports torch.

    Args:
        task: Name as in `task: NAME`; another name than a study's imports all of them, unless it is the core's.
    """
    from sepkit.config import TaskConfig

    if isinstance(task, str) and task in TaskConfig.choices:
        return
    known = [folder for folder, study in STUDIES.items() if isinstance(task, str) and task in study.tasks]
    for folder in known or STUDIES:
        if STUDIES[folder].tasks:
            import_module(f"{__name__}.{folder}.config")


def import_task(name: str) -> None:
    """Import the class of a task, if a study has it; other names are ignored.

    Args:
        name: Name as in `task: NAME`.
    """
    for folder, study in STUDIES.items():
        if name in study.tasks:
            import_module(f"{__name__}.{folder}.task")


def commands_of(folder: str) -> Any:
    """Return the module with the commands of a study.

    Args:
        folder: Subpackage of the study.
    """
    return import_module(f"{__name__}.{folder}.commands")


def override_of(command: str, kind: str) -> Callable[..., Any] | None:
    """Return what runs in place of a core command for models of a kind; None: the core's own.

    Args:
        command: Name of the command, such as evaluate.
        kind: Kind of the model, as in model.yaml.
    """
    for folder, study in STUDIES.items():
        if command in study.tasks.get(kind, {}):
            return _found(folder, study.tasks[kind][command])
    return None


def preparations() -> dict[str, tuple[type, str]]:
    """Return kind of `sepkit prepare` -> its options, and "module:function" that takes them."""
    return {
        kind: (_found(folder, options), f"{__name__}.{folder}.{function}")
        for folder, study in STUDIES.items()
        for kind, (options, function) in study.preparations.items()
    }


def subcommands(command: str) -> dict[str, Callable[..., Any]]:
    """Return the subcommands that studies add to a command of the core, by name.

    Args:
        command: Name of the command.
    """
    return {
        name: _found(folder, function)
        for folder, study in STUDIES.items()
        for name, function in study.subcommands.get(command, {}).items()
    }


def _found(folder: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"{__name__}.{folder}.{module}"), attribute)
