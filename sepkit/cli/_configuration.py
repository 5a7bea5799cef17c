"""Configurations from YAML plus `--key.sub value`.

A configuration has choices (`model.masker: {name: ...}`), so its options are known only once the choices are:
files and `--*.name` options are read first, then the parser is built for exactly that configuration. That is why
`sepkit train --config NAME --help` shows the options of the masker that NAME picks.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from sepkit import studies
from sepkit.choices import did_you_mean
from sepkit.cli._parser import SHARED_HELP, Parser, documented, metavar_of, reader, with_words, without_none
from sepkit.config import Choice, TaskConfig, field_types, from_dict, pick, to_dict
from sepkit.errors import UserError, shown
from sepkit.files import read_yaml
from sepkit.registry import import_file


def conf_folder() -> Path:
    """Return the folder of the configurations that ship with sepkit: in the wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside, beside = package / "conf", package.parent / "conf"
    return inside if inside.is_dir() else beside


def find_config(name: str) -> Path:
    """Find the YAML file that `--config name` means: a path, or a name under conf/ with or without its folder."""
    if Path(name).is_file():
        return Path(name)
    folder = conf_folder()
    exact = folder / f"{name}.yaml"
    found = [exact] if exact.is_file() else sorted(folder.rglob(f"{Path(name).name}.yaml")) if "/" not in name else []
    if len(found) == 1:
        return found[0]
    names = [p.relative_to(folder).with_suffix("").as_posix() for p in sorted(folder.rglob("*.yaml"))]
    if found:
        several = [own for own in names if own.rpartition("/")[2] == name]
        raise UserError(f"--config {name}: names several configurations; expected one of {', '.join(several)}")
    remedy = did_you_mean(name, names) or f"; expected a YAML file or one of {', '.join(names)}"
    raise UserError(f"--config {name}: no such file or shipped configuration{remedy}")


def parse_config(
    program: str,
    description: str,
    arguments: list[str],
    *,
    aliases: Mapping[str, str],
    add_options: Callable[[Parser], None] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return the configuration that a command line describes, and its other options by name; executes `--import` files.

    Args:
        arguments: `--config FILE` may stand several times; later files win, options win over files.
    """
    if "--help" in arguments or "-h" in arguments:
        studies.import_configurations()
    arguments = [_expand(argument, aliases) for argument in arguments]
    given = list(_pairs(arguments))
    for file in _values(given, "import"):
        import_file(file)
    tree = to_dict(from_dict(TaskConfig, {}))
    for path in map(find_config, _values(given, "config")):
        data = read_yaml(path, "see conf/ for examples") or {}
        if isinstance(data, Mapping) and TaskConfig.key in data:
            studies.import_configurations(data[TaskConfig.key])
        try:
            tree = merge(TaskConfig, tree, data)
            from_dict(TaskConfig, tree)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    for name in _values(given, TaskConfig.key):
        studies.import_configurations(name)
        tree = merge(TaskConfig, tree, {TaskConfig.key: name})
    # Outer choices first: `assignment.name` decides whether there is an `assignment.temperature.name`.
    names = [(key.removesuffix(".name"), name) for key, name in given if key.endswith(".name")]
    for key, name in sorted(names, key=lambda pair: pair[0].count(".")):
        tree = merge(TaskConfig, tree, _nest(key, {"name": name}))
    for key, _ in given:
        tree = _with_parts(TaskConfig, tree, key.split("."))
    config = from_dict(TaskConfig, tree)
    usage = f"{program} [--config FILE ...] [--key.sub value ...] [options]"
    parser = Parser(program, usage, description, takes_model=True)
    text = "YAML file, or a name under conf/; can be repeated, later ones win"
    parser.add("--config", action="append", metavar="FILE", help=text)
    parser.add("--import", dest="import_", action="append", default=[], metavar="FILE", help=SHARED_HELP["import_"])
    if add_options is not None:
        add_options(parser)
    keys = list(_add_fields(parser, config, ""))
    values = parser.parse(arguments)
    for key in keys:
        tree = merge(TaskConfig, tree, _nest(key, to_dict(values[key])))
    return from_dict(TaskConfig, tree), values


def merge(cls: type, tree: Any, data: Any, where: str = "") -> Any:
    """Return `tree` with the entries of `data` merged in; a choice with another name starts from its own defaults."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where or 'configuration'}: found {shown(data)}, expected a mapping of its fields")
    if issubclass(cls, Choice):
        concrete = pick(cls, data.get(cls.key, tree[cls.key]), where)
        tree = tree if tree[cls.key] == concrete.name else to_dict(concrete())  # type: ignore[attr-defined]
        # Not an older name, which would look like another choice to what is merged next.
        data = {**data, cls.key: concrete.name}  # type: ignore[attr-defined]
        cls = concrete
    merged, hints = copy.copy(tree), field_types(cls)
    for key, value in data.items():
        hint = without_none(hints.get(key))
        name = f"{where}.{key}" if where else str(key)
        if not _is_nested(hint) or (value is None and hint is not hints[key]):
            merged[key] = value
        else:
            merged[key] = merge(hint, _started(hint, tree[key]), value, name)
    return merged


def _is_nested(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, Choice))


def _started(cls: type, tree: Any) -> Any:
    if tree is not None:
        return tree
    return {cls.key: None} if issubclass(cls, Choice) else to_dict(cls())


def _with_parts(cls: type, tree: Any, path: list[str]) -> Any:
    """Return `tree`; turn on a part (`model.scoring: null`) with defaults if `path` names a field of it."""
    if issubclass(cls, Choice):
        cls = pick(cls, tree[cls.key])
    hint = field_types(cls).get(path[0])
    inner = without_none(hint)
    if len(path) < 2 or not _is_nested(inner):
        return tree
    return tree | {path[0]: _with_parts(inner, _started(inner, tree[path[0]]), path[1:])}


def _expand(argument: str, aliases: Mapping[str, str]) -> str:
    """Expand `--devices=2` to `--trainer.devices=2`; dashes in dotted keys become underscores."""
    option, equals, value = argument.partition("=")
    if option in aliases:
        return f"--{aliases[option]}{equals}{value}"
    if option.startswith("--") and "." in option:
        return "--" + option[2:].replace("-", "_") + equals + value
    return argument


def _pairs(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a command line without their dashes, each with its value; "": it has none."""
    for argument, following in pairwise([*arguments, ""]):
        option, equals, value = argument.partition("=")
        if option.startswith("--"):
            yield option[2:], value if equals else following


def _values(given: list[tuple[str, str]], option: str) -> list[str]:
    return [value for key, value in given if key == option]


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _add_fields(parser: Parser, config: Any, prefix: str) -> Iterator[str]:
    help_of, title = documented(type(config)), prefix.rstrip(".") or "Options"
    if isinstance(config, Choice):
        title = f"{title} ({config.name})"
        hint, text = Literal[tuple(sorted(config.choices))], (config.kind.__doc__ or "").split("\n")[0]
        _add(parser, title, f"{prefix}{config.key}", hint, config.name, text)
    for name, hint in field_types(type(config)).items():
        value, inner = getattr(config, name), without_none(hint)
        if dataclasses.is_dataclass(value):
            yield from _add_fields(parser, value, f"{prefix}{name}.")
        elif value is None and _is_nested(inner) and not issubclass(inner, Choice):
            # Only for the help: an option that names a field of this part has turned it on before.
            for _ in _add_fields(parser, inner(), f"{prefix}{name}."):
                pass
        else:
            _add(parser, title, f"{prefix}{name}", hint, value, help_of.get(name, ""))
            yield f"{prefix}{name}"


def _add(parser: Parser, title: str, key: str, hint: Any, default: Any, help_text: str) -> None:
    read = reader(hint, f"--{key}", may_be_empty=True)
    settings = {"type": read, "metavar": metavar_of(key, hint, help_text), "help": with_words(help_text, hint)}
    parser.add(f"--{key}", title=title, default=default, **settings)
