"""Command lines from signatures, and configurations from YAML plus `--key.sub value`; jsonargparse does the parsing.

A configuration has choices (`model.masker: {name: ...}`), so its options are known only once the choices are:
files and `--*.name` options are read first, then the parser is built for exactly that configuration. That is why
`sepkit train --config NAME --help` shows the options of the masker that NAME picks.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import docstring_parser
from jsonargparse import ArgumentError, ArgumentParser

from sepkit import studies
from sepkit.config import Choice, TaskConfig, field_types, from_dict, pick, to_dict
from sepkit.errors import UserError

MODEL_SENTENCE = (
    "MODEL is a folder or file that `sepkit train` wrote (EXP, EXP/model), the name of a model that ships with sepkit, "
    "asteroid:FILE, speechbrain:FOLDER, either with OWNER/NAME on the Hugging Face hub instead, hf:OWNER/NAME for one "
    "of sepkit's there, or, to separate and evaluate only, FILE.onnx that `sepkit export` wrote; `sepkit models` lists "
    "them."
)
"""What every command says that takes a MODEL."""


def new_parser(program: str, description: str, usage: str | None = None, takes_model: bool = False) -> ArgumentParser:
    """An empty parser whose mistakes are raised, so that `parse` can say them in one line.

    Args:
        program: for the usage line.
        description: above the options.
        usage: the usage line; None: made from the options.
        takes_model: whether the help says at its end what MODEL means.
    """
    epilog = MODEL_SENTENCE if takes_model else None
    return ArgumentParser(prog=program, usage=usage, description=description, epilog=epilog, exit_on_error=False)


def parse(parser: ArgumentParser, arguments: list[str]) -> Any:
    """The namespace of `arguments`.

    Raises:
        UserError: an unknown option, or a value of the wrong type.
    """
    try:
        return parser.parse_args(arguments)
    except ArgumentError as error:
        raise UserError(" ".join(str(error).split())) from None


def call(function: Callable[..., Any], program: str, arguments: list[str]) -> Any:
    """What `function` returns for a command line made from its signature.

    Parameters before `*` are positional arguments, keyword-only ones options (`speaker_from` is `--speaker-from`),
    and the docstring is the help. Where that says MODEL, the help ends with what it means.
    """
    documentation = docstring_parser.parse(function.__doc__ or "")
    help_of = {p.arg_name: " ".join((p.description or "").split()) for p in documentation.params}
    takes_model = any("MODEL" in text for text in help_of.values())
    parser = new_parser(program, documentation.short_description or "", takes_model=takes_model)
    hints = typing.get_type_hints(function)
    signature = inspect.signature(function)
    for name, parameter in signature.parameters.items():
        _add(parser, parameter, hints[name], help_of.get(name, ""))
    numbers = {_option(name) for name, hint in hints.items() if _without_none(hint) is float}
    values = parse(parser, _with_infinity(arguments, numbers))
    positional, named = [], {}
    for name, parameter in signature.parameters.items():
        value = getattr(values, name)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    return function(*positional, **named)


def _add(parser: ArgumentParser, parameter: inspect.Parameter, hint: Any, help_text: str) -> None:
    is_list = typing.get_origin(_without_none(hint)) is list
    many: dict[str, Any] = (
        {"nargs": "+", "type": typing.get_args(_without_none(hint))[0]} if is_list else {"type": hint}
    )
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        if is_list and parameter.default is not inspect.Parameter.empty:
            many["nargs"] = "*"
        parser.add_argument(parameter.name, help=help_text, **many)
        return
    option = _option(parameter.name)
    if hint is bool and parameter.default is False:
        parser.add_argument(option, dest=parameter.name, action="store_true", help=help_text)
    elif parameter.default is inspect.Parameter.empty:
        parser.add_argument(option, dest=parameter.name, required=True, help=help_text, **many)
    else:
        parser.add_argument(option, dest=parameter.name, default=parameter.default, help=help_text, **many)


def _option(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")


def _with_infinity(arguments: list[str], options: set[str]) -> list[str]:
    """`--option inf` as jsonargparse reads it, which is as YAML writes it."""
    written = list(arguments)
    for position, argument in enumerate(written):
        option, _, value = argument.partition("=")
        if option in options and value == "inf":
            written[position] = f"{option}=.inf"
        elif argument == "inf" and position and written[position - 1] in options:
            written[position] = ".inf"
    return written


def _without_none(hint: Any) -> Any:
    inner = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    return inner[0] if len(inner) == 1 and type(None) in typing.get_args(hint) else hint


# --------------------------------------------------------------------------------------------------- configurations


def conf_folder() -> Path:
    """Folder of the configurations that ship with sepkit: inside the wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside, beside = package / "conf", package.parent / "conf"
    return inside if inside.is_dir() else beside


def find_config(name: str) -> Path:
    """The YAML file that `--config name` means: a path, or a name under conf/ with or without its folder.

    Raises:
        UserError: no such file, or several of that name.
    """
    if Path(name).is_file():
        return Path(name)
    folder = conf_folder()
    exact = folder / f"{name}.yaml"
    found = [exact] if exact.is_file() else sorted(folder.rglob(f"{Path(name).name}.yaml")) if "/" not in name else []
    if len(found) == 1:
        return found[0]
    known = ", ".join(str(p.relative_to(folder).with_suffix("")) for p in sorted(folder.rglob("*.yaml")))
    reason = f"stands for several: {', '.join(map(str, found))}" if found else "is neither a file nor a shipped name"
    raise UserError(f"--config {name}: {reason}; shipped names: {known}")


def read_yaml(path: Path) -> Any:
    """Plain data of a YAML file; an empty file is an empty mapping.

    Raises:
        UserError: unreadable, or not YAML.
    """
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def parse_config(
    program: str,
    description: str,
    arguments: list[str],
    *,
    aliases: Mapping[str, str],
    add_options: Callable[[Any], None],
) -> tuple[Any, Any]:
    """The configuration that a command line describes, and the namespace of its other options.

    Args:
        program: for the usage line.
        description: for the help.
        arguments: the command line; `--config FILE` may stand several times, later files win, options win over files.
        aliases: short option -> configuration key (`--devices` -> `trainer.devices`).
        add_options: adds the command's own options to the parser.

    Raises:
        UserError: a bad file, key or value.
    """
    studies.import_configurations()
    arguments = [_expand(argument, aliases) for argument in arguments]
    tree = to_dict(from_dict(TaskConfig, {}))
    for path in (find_config(name) for name in _values(arguments, "--config")):
        data = read_yaml(path)
        try:
            tree = merge(TaskConfig, tree, data)
            from_dict(TaskConfig, tree)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    for name in _values(arguments, f"--{TaskConfig.key}"):
        tree = merge(TaskConfig, tree, {TaskConfig.key: name})
    # Outer choices first: `assignment.name` decides whether there is an `assignment.temperature.name`.
    for key, name in sorted(_names(arguments), key=lambda pair: pair[0].count(".")):
        tree = merge(TaskConfig, tree, _nest(key, {"name": name}))
    for argument in arguments:
        tree = _with_parts(TaskConfig, tree, argument.partition("=")[0].removeprefix("--").split("."))
    config = from_dict(TaskConfig, tree)
    usage = f"{program} [--config FILE ...] [--key.sub value ...] [options]"
    parser = new_parser(program, description, usage, takes_model=True)
    parser.add_argument(
        "--config", action="append", type=str, help="YAML file, or a name under conf/; may be repeated, later ones win"
    )
    add_options(parser)
    keys = list(_add_fields(parser, config, ""))
    values = parse(parser, arguments)
    for key in keys:
        tree = merge(TaskConfig, tree, _nest(key, to_dict(values[key])))
    return from_dict(TaskConfig, tree), values


def merge(cls: type, tree: Any, data: Any, where: str = "") -> Any:
    """`tree` with the entries of `data` laid over it; a choice with another name starts from that choice's defaults.

    Raises:
        UserError: an unknown key or choice, or no mapping where one is expected.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"{where or 'configuration'}: found {data!r}, expected a mapping of its fields")
    if issubclass(cls, Choice):
        concrete = pick(cls, data.get(cls.key, tree[cls.key]), where)
        tree = tree if tree[cls.key] == concrete.name else to_dict(concrete())  # type: ignore[attr-defined]
        cls = concrete
    merged, hints = copy.copy(tree), field_types(cls)
    for key, value in data.items():
        hint = _without_none(hints.get(key))
        name = f"{where}.{key}" if where else str(key)
        if not _is_nested(hint) or (value is None and hint is not hints[key]):
            merged[key] = value
        else:
            merged[key] = merge(hint, _started(hint, tree[key]), value, name)
    return merged


def _is_nested(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, Choice))


def _started(cls: type, tree: Any) -> Any:
    """`tree`, or the defaults of `cls` where it is None; a kind of choice has none before it is picked."""
    if tree is not None:
        return tree
    return {cls.key: None} if issubclass(cls, Choice) else to_dict(cls())


def _with_parts(cls: type, tree: Any, path: list[str]) -> Any:
    """`tree` where a part that is off (`model.scoring: null`) is on, at its defaults, if `path` names a field of it."""
    if issubclass(cls, Choice):
        cls = pick(cls, tree[cls.key])
    hint = field_types(cls).get(path[0])
    inner = _without_none(hint)
    if len(path) < 2 or not _is_nested(inner):
        return tree
    return tree | {path[0]: _with_parts(inner, _started(inner, tree[path[0]]), path[1:])}


def _expand(argument: str, aliases: Mapping[str, str]) -> str:
    """`--devices=2` -> `--trainer.devices=2`; dashes in dotted keys become underscores."""
    option, equals, value = argument.partition("=")
    if option in aliases:
        return f"--{aliases[option]}{equals}{value}"
    if option.startswith("--") and "." in option:
        return "--" + option[2:].replace("-", "_") + equals + value
    return argument


def _values(arguments: list[str], option: str) -> Iterator[str]:
    for position, argument in enumerate(arguments):
        if argument == option and position + 1 < len(arguments):
            yield arguments[position + 1]
        elif argument.startswith(option + "="):
            yield argument.partition("=")[2]


def _names(arguments: list[str]) -> Iterator[tuple[str, str]]:
    for position, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option.startswith("--") and option.endswith(".name"):
            if not equals and position + 1 < len(arguments):
                value = arguments[position + 1]
            yield option[2 : -len(".name")], value


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _add_fields(parser: ArgumentParser, config: Any, prefix: str) -> Iterator[str]:
    """Add one option per leaf of `config`; yields their keys."""
    documentation = {p.arg_name: p.description or "" for p in docstring_parser.parse_from_object(type(config)).params}
    if isinstance(config, Choice):
        kind = next(base for base in type(config).__mro__[1:] if base is not Choice and issubclass(base, Choice))
        parser.add_argument(
            f"--{prefix}{config.key}",
            type=Literal[tuple(sorted(kind.choices))],
            default=config.name,
            help=(kind.__doc__ or "").split("\n")[0],
        )
    for name, hint in field_types(type(config)).items():
        value, inner = getattr(config, name), _without_none(hint)
        if dataclasses.is_dataclass(value):
            yield from _add_fields(parser, value, f"{prefix}{name}.")
        elif value is None and _is_nested(inner) and not issubclass(inner, Choice):
            # For the help alone: an option that names a field of this part has switched it on before.
            for _ in _add_fields(parser, inner(), f"{prefix}{name}."):
                pass
        else:
            parser.add_argument(
                f"--{prefix}{name}", type=hint, default=value, help=" ".join(documentation.get(name, "").split())
            )
            yield f"{prefix}{name}"
