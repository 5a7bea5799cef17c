"""The other systems of the papers, one room each, on the floor above training, evaluation and reporting.

A room holds what it needs of `config.py` (torch-free), `data.py`, `model.py`, `task.py` and `measures.py`. Rooms
import from the floors below and never from one another, so that whoever has read one room knows all of that system.

A room with a task names it in `TASKS`. Its `config.py` declares the configuration (`class MyTaskConfig(TaskConfig,
name="my_task")`), and its `task.py` registers the class (`@register(MyTaskConfig) class MyTask(Task)`).
"""

from importlib import import_module

TASKS: dict[str, str] = {"partial_vae": "acquisition", "image_vae": "continuous_depth", "contrastive": "clustering"}
"""`task:` -> room. Only these modules are imported, never one that a file names."""


def import_configurations() -> None:
    """Import the configurations of all tasks; none of them imports torch."""
    for room in dict.fromkeys(TASKS.values()):
        import_module(f"sepkit.studies.{room}.config")


def import_task(name: str) -> None:
    """Import the class of a task, if a room has it.

    Args:
        name: of the task, as in `task: NAME`; other names are ignored.
    """
    if name in TASKS:
        import_module(f"sepkit.studies.{TASKS[name]}.task")
