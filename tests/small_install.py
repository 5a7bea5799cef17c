"""Processes that find what a small install has, and nothing else: no torch, no scipy, no extra."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 reads TOML with tomli: pip install tomli")

REPOSITORY = Path(__file__).resolve().parent.parent
# Python runs a module of this name at the start of every process, and so in those that a process starts, too.
HIDING = """
import sys
from importlib.machinery import PathFinder

FOUND = {found!r}


class SmallInstall(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        own = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        return super().find_spec(name, path, target) if own or top in FOUND else None


sys.meta_path[sys.meta_path.index(PathFinder)] = SmallInstall
"""


def modules_of_small_install() -> set[str]:
    """Return the top-level modules of the packages that pyproject.toml names without extras, and of those they need."""
    # Of the tree, for the metadata of an editable install may be older.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting, wanted = [*project["dependencies"]], set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = requirement.name.replace("_", "-").lower()
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and name not in wanted:
            wanted.add(name)
            waiting += metadata.requires(name) or []
    modules = metadata.packages_distributions().items()
    return {module for module, names in modules if {name.replace("_", "-").lower() for name in names} & wanted}


def run(folder: Path, *command: str | Path, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python ...` in a folder, with a small install.

    Args:
        folder: made if absent; also keeps what hides the other packages.
        command: after the name of the interpreter.
        without: a module that is not found either.
    """
    site = folder / "small_install"
    site.mkdir(parents=True, exist_ok=True)
    found = sorted((modules_of_small_install() | {"sepkit", "tools"}) - {without})
    (site / "sitecustomize.py").write_text(HIDING.format(found=found))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)])}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment)
