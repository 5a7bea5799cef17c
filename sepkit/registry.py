"""Name and plain parameters -> object: the only way a configuration or a checkpoint becomes a model.

A class is registered for the dataclass that configures it, and is built from that dataclass's fields. Nothing is
ever imported because a file names it; a user's own file is imported only by `--import FILE.py`, and registers itself:

    @dataclass
    class MyMaskerConfig(MaskerConfig, name="my_masker"):
        width: int = 64

    @register(MyMaskerConfig)
    class MyMasker(Masker): ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from sepkit.config import Choice
from sepkit.errors import UserError

C = TypeVar("C", bound=Callable[..., Any])

_builders: dict[type, Callable[..., Any]] = {}


def register(config: type) -> Callable[[C], C]:
    """Decorator: the class (or function) that `build` calls for configurations of this type."""

    def decorate(builder: C) -> C:
        _builders[config] = builder
        return builder

    return decorate


def build(config: Choice, **structure: Any) -> Any:
    """The object that `config` describes.

    Args:
        config: a choice; its fields become keyword arguments, nested choices built first.
        structure: arguments that follow from the rest of the model (encoding dimensions, hypotheses ...).

    Raises:
        UserError: nothing is registered for this configuration.
    """
    builder = _builders.get(type(config))
    if builder is None:
        raise UserError(
            f"{config.name}: no class is registered for this choice; if it is your own, name its file with --import"
        )
    parameters = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    parameters = {k: build(v) if isinstance(v, Choice) else v for k, v in parameters.items()}
    return builder(**structure, **parameters)
