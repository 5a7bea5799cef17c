"""Name and plain parameters -> object: the only way a configuration or a checkpoint becomes a model.

A class is registered for the dataclass that configures it, and is built from that dataclass's fields. Nothing is
ever imported because a file names it; a user's own file is imported only by `--import FILE.py`, and registers itself:

    @dataclass
    class MyMaskerConfig(MaskerConfig, name="my_masker"):
        width: int = 64

    @register(MyMaskerConfig)
    class MyMasker(Masker):
        def __init__(self, encoding_dim: int, hypotheses: int, values_per_dimension: int, *, width: int) -> None: ...

`build` gives the constructor every field. sepkit's own classes have the same defaults; maskers and filterbanks make the
configuration of their arguments.
"""

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from sepkit.config import Choice
from sepkit.errors import UserError, one_line

C = TypeVar("C", bound=Callable[..., Any])

_builders: dict[type, Callable[..., Any]] = {}
_modules: dict[type, str] = {}
_imported: dict[str, ModuleType] = {}


def register(config: type) -> Callable[[C], C]:
    """Return a decorator that registers the class (or function) built for a type of configuration.

    `build` calls it with every field of the configuration as a keyword argument, after arguments that follow from the
    rest of the model. The module's example registers a masker.

    Args:
        config: Dataclass of the configuration, a subclass of a choice such as `MaskerConfig`.
    """

    def decorate(builder: C) -> C:
        _builders[config] = builder
        return builder

    return decorate


def offer(modules: Mapping[type, str]) -> None:
    """Say which module of sepkit registers a builder, so that it is imported when it is needed."""
    _modules.update(modules)


def build(config: Choice, **structure: Any) -> Any:
    """Return the object of a configuration: fields and `structure` (derived from the rest of the model) are its
    arguments."""
    builder = registered(config)
    parameters = {f.name: _built(getattr(config, f.name)) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    return builder(**structure, **parameters)


def registered(config: Choice) -> Any:
    """Return the class (or function) registered for configurations of a type; raise UserError if there is none."""
    kind = type(config)
    if kind not in _builders and kind in _modules:
        importlib.import_module(_modules[kind])
    builder = _builders.get(kind)
    if builder is None:
        raise UserError(f"{config.name}: no class registered; if the choice is your own, name its file with --import")
    return builder


def import_file(path: str) -> ModuleType:
    """Execute a user's Python file, which registers maskers or other choices of its own, and return its module."""
    file = Path(path)
    if not file.is_file():
        raise UserError(f"--import {path}: no such file, expected a Python file")
    specification = importlib.util.spec_from_file_location(file.stem, file)
    if specification is None or specification.loader is None:
        raise UserError(f"--import {path}: unsupported extension, expected a Python file (.py)")
    if _is_name_of_another(file):
        raise UserError(f"--import {path}: a module that is installed has the name {file.stem}; give the file another")
    try:
        # The module of an extension is made by the extension itself.
        module = sys.modules[file.stem] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Whatever the user's own code raises, or that it ends the program, is for the user to fix.
        sys.modules.pop(file.stem, None)
        reason = f"{type(error).__name__}: {one_line(str(error))}".rstrip(": ")
        raise UserError(f"--import {path}: cannot be executed ({reason}); fix the file") from error
    _imported[str(file.resolve())] = module
    return module


def imported_files() -> list[str]:
    """Return the absolute paths of the files that `import_file` has executed, for processes that need the same."""
    return [path for path, module in _imported.items() if sys.modules.get(module.__name__) is module]


def _is_name_of_another(file: Path) -> bool:
    """Whether other code imports another module by the name of this file, and would get this one instead."""
    known = sys.modules.get(file.stem)
    if known is not None and any(known is module for module in _imported.values()):
        return False
    try:
        found = importlib.util.find_spec(file.stem)
    except (ImportError, ValueError):
        return known is not None
    origin = found.origin if found is not None else None
    return origin is not None and not (Path(origin).is_file() and file.samefile(origin))


def _built(value: Any) -> Any:
    return build(value) if isinstance(value, Choice) else value
