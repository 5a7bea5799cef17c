"""Choices picked by name, and conversion of typed dataclasses to plain data and back.

`from_dict` refuses unknown or wrongly typed keys, and never imports anything that the data names.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

from sepkit.errors import Bounds, UserError, shown

__all__ = [
    "Choice", "bounds_of", "check_bounds", "convert", "did_you_mean", "field_types", "from_dict", "pick", "to_dict"
]  # fmt: skip

T = TypeVar("T")

# Comparing takes time with the square of the length.
_LONGEST_WORD = 100

_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Choice:
    """Base of dataclasses picked by name. A direct subclass is a kind; all classes below it are the kind's choices.

    A kind may pick by another key than `name`, and have a default for plain data without that key:

        class TaskConfig(Choice, key="task", default="separation"): ...
    """

    kind: ClassVar[type]
    name: ClassVar[str]
    choices: ClassVar[dict[str, type]]
    key: ClassVar[str]
    default: ClassVar[str | None]

    def __init_subclass__(
        cls, name: str | None = None, key: str = "name", default: str | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if name is None:
            cls.kind, cls.choices, cls.key, cls.default = cls, {}, key, default
        else:
            cls.name = name
            cls.choices[name] = cls


def to_dict(config: Any) -> Any:
    """Return plain data (mappings, lists, numbers, text) that `from_dict` turns back into a configuration.

    Args:
        config: Dataclass of a configuration, or a value in it.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        head = {config.key: config.name} if isinstance(config, Choice) else {}
        return head | {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return [to_dict(value) for value in config] if isinstance(config, list | tuple) else config


def from_dict(cls: type[T], data: Any, where: str = "") -> T:
    """Return a dataclass, or the choice of a kind that the data name, filled from plain data; absent keys keep their
    defaults."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where or cls.__name__}: found {shown(data)}, expected a mapping of its fields")
    data = dict(data)
    concrete = pick(cls, data.pop(cls.key, None), where) if issubclass(cls, Choice) else cls
    hints = field_types(concrete)
    for key in data:
        if key not in hints:
            raise UserError(
                f"{_join(where, key)}: unknown field{did_you_mean(_word(key), hints)}; known here: {', '.join(hints)}"
            )
    for field in dataclasses.fields(concrete):  # type: ignore[arg-type]
        if field.name not in data and field.default is field.default_factory is dataclasses.MISSING:
            raise UserError(f"{_join(where, field.name)}: nothing given, expected a value")
    values = {key: convert(hints[key], value, _join(where, key)) for key, value in data.items()}
    for key, bounds in _field_bounds(concrete).items():
        bounds.check(_join(where, key), values.get(key))
    return concrete(**values)  # type: ignore[return-value]


def pick(kind: type, name: Any, where: str = "") -> type:
    """Return the dataclass that a name stands for among the choices of a kind; None stands for the default one."""
    if kind in getattr(kind, "choices", {}).values() and name in (None, kind.name):  # type: ignore[attr-defined]
        return kind
    choices: dict[str, type] = kind.choices  # type: ignore[attr-defined]
    key: str = kind.key  # type: ignore[attr-defined]
    name = kind.default if name is None else name  # type: ignore[attr-defined]
    if not isinstance(name, str) or name not in choices:
        found = "no name" if name is None else f"unknown choice {shown(name)}"
        place = (where or kind.__name__) if key == "name" else _join(where, key)
        known = ", ".join(sorted(choices))
        raise UserError(f"{place}: {found}{did_you_mean(_word(name), choices)}; expected one of {known}")
    return choices[name]


@cache
def field_types(cls: type) -> Mapping[str, Any]:
    """Return field name -> type of a dataclass, with annotations resolved."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


@cache
def _field_bounds(cls: type) -> Mapping[str, Bounds]:
    """Return field name -> bounds, of the fields of a dataclass that have any."""
    hints = typing.get_type_hints(cls, include_extras=True)
    bounds = {f.name: bounds_of(hints[f.name]) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return {name: own for name, own in bounds.items() if own is not None}


def bounds_of(hint: Any) -> Bounds | None:
    """Return the bounds in a type: of `Annotated[int, bounds]`, or of it as an item of a list, a tuple or a union."""
    notes = (*getattr(hint, "__metadata__", ()), *map(bounds_of, typing.get_args(hint)))
    return next((note for note in notes if isinstance(note, Bounds)), None)


def check_bounds(config: Any, where: str = "") -> None:
    """Raise UserError for a number of a dataclass, or of one inside it, that is outside the bounds in its field's type.

    Args:
        config: Dataclass, such as a configuration or the options of a command.
        where: Key of the configuration that the dataclass stands for; empty: it is the top.
    """
    for name, bounds in _field_bounds(type(config)).items():
        bounds.check(_join(where, name), getattr(config, name))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_bounds(value, _join(where, field.name))


def _join(where: str, key: Any) -> str:
    return f"{where}.{_word(key)}" if where else _word(key)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean X?)" for the known word that is most like the one found; empty if none is alike.

    Case, hyphens, underscores and spaces do not count. Of a word with folders, the last part is compared too.
    """
    plain = {_plain(form): name for name in known for form in (name.rpartition("/")[2], name)}
    close = difflib.get_close_matches(_plain(word[:_LONGEST_WORD]), plain, n=1)
    return f" (did you mean {plain[close[0]]}?)" if close else ""


def _plain(word: str) -> str:
    return word.casefold().translate(dict.fromkeys(map(ord, "-_ ")))


def convert(hint: Any, value: Any, where: str) -> Any:
    """Return plain data as a value of a type; raise UserError if they are none."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        kinds = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        errors = []
        for kind in kinds:
            try:
                return convert(kind, value, where)
            except UserError as error:
                errors.append(str(error))
        expected = " or ".join(error.rpartition("expected ")[2].removeprefix("one of ") for error in errors)
        raise UserError(errors[0] if len(errors) == 1 else f"{where}: found {shown(value)}, expected {expected}")
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, Choice)):
        return value if isinstance(value, hint) else from_dict(hint, value, where)
    if origin is Literal:
        known = typing.get_args(hint)
        if value not in known:
            words = [str(word) for word in known]
            raise UserError(
                f"{where}: found {shown(value)}{did_you_mean(_word(value), words)}, expected one of {', '.join(words)}"
            )
        return value
    if origin in (tuple, list):
        inner = [a for a in typing.get_args(hint) if a is not Ellipsis]
        if not isinstance(value, list | tuple) or (origin is tuple and len(value) != len(inner)):
            raise UserError(
                f"{where}: found {shown(value)}, expected a list" + (f" of {len(inner)}" if origin is tuple else "")
            )
        kinds = inner if origin is tuple else inner * len(value)
        return origin(convert(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{where}: found {shown(value)}, expected names with their values")
        kind = typing.get_args(hint)[1]
        return {key: convert(kind, own, _join(where, key)) for key, own in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{where}: found {shown(value)}, expected a number that a float can hold") from None
    if hint is float and isinstance(value, str):
        # YAML 1.1 reads 1e-3 (no dot) as text.
        try:
            return float(value)
        except ValueError:
            pass
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise UserError(f"{where}: found {shown(value)}, expected {_TYPES.get(hint, hint.__name__)}")
    return value
