"""Command lines from signatures and docstrings."""

import argparse
import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import itertools
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import docstring_parser

from sepkit.choices import bounds_of, convert, did_you_mean, field_types
from sepkit.cli._outputs import WITHOUT_RECORD, outputs_of
from sepkit.errors import Bounds, UserError
from sepkit.limits import SEED
from sepkit.owned import writing
from sepkit.registry import import_file

DEVICE = "auto"
"""Default of `--device`, for every command."""

MODEL_LINE = "MODEL is a folder that `sepkit train` wrote, or a name: `sepkit models` lists what it can be."
"""Last line of the help of every command that takes a MODEL."""

SHORT = {"--out": "-o", "--model": "-m"}
"""Option -> its short form, in every command that has it."""

Groups = Mapping[str, Sequence[str]]
"""Title -> names of the parameters below it, in the order of the help."""

SHARED_HELP = {
    "device": "device: cpu, cuda, cuda:1 ..., or auto: an accelerator if there is one",
    "json": "print the numbers as JSON, nothing else",
    "import_": "Python file that registers choices of your own; it is executed; can be repeated",
}
"""Help of parameters that mean the same in several commands, unless the command says more."""

_LONGEST_LIST = 24
_WRITTEN = frozenset({"out", "summary", "cache"})
_PATHS = "collection compare config data dev estimates hypothesis import_ manifest out reference runtime summary train"
_METAVARS = {"enroll": "NAME=FILE", "groups": "NAME=PATTERN", "measured": "EAR_HZ=DB", "reference_set": "SEEN=UNSEEN"}
_METAVARS |= {"asr_command": "COMMAND", "mirror": "URL", "model": "MODEL", "init_from": "MODEL", "separated": "MODEL"}
_METAVARS |= {"regex": "PATTERN", "speaker_weights": "PATTERN=WEIGHT", "repo": "OWNER/NAME"}


class Parser(argparse.ArgumentParser):
    """Parses a command line; a mistake is raised as UserError, in one line. The help starts with the description in
    `docstring` and ends with its example; with `takes_model` it states what MODEL is."""

    def __init__(self, program: str, usage: str, docstring: str, takes_model: bool = False) -> None:
        text = docstring_parser.parse(docstring)
        description = " ".join(f"{text.short_description or ''} {text.long_description or ''}".split())
        epilog = "\n".join([MODEL_LINE] * takes_model + [f"Example: {one.description}" for one in text.examples])
        usage = textwrap.fill(usage, _columns() - 8, subsequent_indent="  ", break_on_hyphens=False)
        super().__init__(
            program, usage, description, epilog, formatter_class=_Formatter, allow_abbrev=False, add_help=False
        )
        self._options: list[str] = []
        self._groups: dict[str, Any] = {}

    def add(self, name: str, *, title: str = "Options", help: str = "", default: Any = None, **settings: Any) -> None:
        """Add an argument to the group with this title; its help states the default, without an article or capital."""
        help = re.sub(r"^(?:The|An?) |(?<![.])[.]$", "", help)
        help = re.sub(r"^(?!Python |Kaldi )[A-Z](?=[a-z])", lambda first: first[0].lower(), help)
        if title not in self._groups:
            self._groups[title] = self.add_argument_group(title)
        if default not in (None, "", [], ()) and "(default" not in help and "action" not in settings:
            shown = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
            shown = shown.lower() if isinstance(default, bool) else shown
            help = f"{help} (default: {shown})".lstrip()
        names = [SHORT[name], name] if name in SHORT else [name]
        if name.startswith("--") and settings.get("nargs") == "+":
            settings["action"] = _Collect
        self._groups[title].add_argument(*names, help=help.replace("%", "%%"), default=default, **settings)
        self._options += names if name.startswith("--") else []

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the value of every argument, by name."""
        last = self._groups[next(reversed(self._groups))] if self._groups else self
        last.add_argument("-h", "--help", action="help", help="show this help and exit")
        known = [*self._options, "-h", "--help"]
        for argument in itertools.takewhile("--".__ne__, arguments):
            name = argument.partition("=")[0]
            # -out is no -o with the value "ut".
            if re.match("--|-[a-z]", name) and name not in known:
                raise UserError(f"{name}: unknown option{_option_meant(name, known)}; see {self.prog} --help")
        return vars(self.parse_args(arguments))

    def value_of(self, name: str, arguments: Sequence[str]) -> Any:
        """Return the value of one argument, whatever else the command line has; None: the line cannot be parsed."""
        with contextlib.suppress(UserError):
            return getattr(self.parse_known_args(arguments)[0], name)
        return None

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse would not mind a full disk."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as UserError."""
        raise UserError(f"{' '.join(message.removeprefix('argument ').split())}; see {self.prog} --help")


class _Collect(argparse.Action):
    """Keeps the values of every occurrence of an option: `--enroll a=a.wav --enroll b=b.wav` names two."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if given is self.default else given), *values])


def _columns() -> int:
    return max(40, min(100, shutil.get_terminal_size((80, 24)).columns))


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=_columns() - 1)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # A long example is continued with backslashes, to be copied.
        lines = [textwrap.fill(one, width - 2, break_on_hyphens=False) for one in text.splitlines()]
        return "\n".join(one.replace("\n", " \\\n  ") if one[:8] == "Example:" else one for one in lines)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return `-o, --out DIR`, as Python 3.13 and later do it, instead of `-o DIR, --out DIR`."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        values = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {values}"


def _option_meant(name: str, known: Sequence[str]) -> str:
    """Return `did_you_mean` among the options of the part of the configuration that `name` names, or among all."""
    prefix = name.rpartition(".")[0]
    fields = {option.rpartition(".")[2]: option for option in known if option.rpartition(".")[0] == prefix}
    if not prefix or not fields:
        return did_you_mean(name, known)
    close = difflib.get_close_matches(name.rpartition(".")[2], fields, n=1, cutoff=0.75)
    return f" (did you mean {fields[close[0]]}?)" if close else f" (known here: {', '.join(fields)})"


# ---------------------------------------------------------------------------------------------------------- functions


@dataclasses.dataclass
class _Parameter:
    """An argument of a command: a parameter of its function, or a field of a dataclass of options."""

    name: str
    hint: Any
    default: Any
    help: str
    is_positional: bool = False
    bounds: Bounds | None = None

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def item(self) -> Any:
        """Type of the items of a list or tuple; None: neither."""
        inner = without_none(self.hint)
        return typing.get_args(inner)[0] if typing.get_origin(inner) in (list, tuple, Sequence) else None

    @property
    def option(self) -> str:
        return "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def word(self) -> str:
        """How messages name it."""
        return self.metavar if self.is_positional else self.option

    @property
    def metavar(self) -> str:
        if self.is_positional:
            return self.name.rstrip("s").upper()
        return metavar_of(self.name, self.item or self.hint, self.help)

    @property
    def usage(self) -> str:
        word = self.metavar + (" ..." if self.item else "")
        if self.is_positional and not self.is_required and not self.item:
            return f"[{word}]"
        return word if self.is_positional else f"{self.option} {word}"

    def add_to(self, parser: Parser, title: str) -> None:
        inner = without_none(self.hint)
        settings: dict[str, Any] = {"metavar": self.metavar, "title": title, "help": with_words(self.help, self.hint)}
        settings["default"] = None if self.is_required else self.default
        if self.name == "import_":
            settings |= {"action": "append"}
        elif self.item:
            nargs: str | int = "+" if self.is_required or not self.is_positional else "*"
            nargs = len(typing.get_args(inner)) if typing.get_origin(inner) is tuple else nargs
            settings |= {"nargs": nargs, "type": reader(self.item, self.word)}
        elif inner is bool:
            del settings["metavar"]
            settings |= {"action": argparse.BooleanOptionalAction if self.default else "store_true"}
        else:
            settings |= {"type": reader(self.hint, self.word, may_be_empty=self.default == "")}
            settings |= {"nargs": "?"} if self.is_positional and not self.is_required else {}
        if self.is_positional:
            parser.add(self.name, **settings)
        else:
            parser.add(self.option, dest=self.name, required=self.is_required, **settings)


class OptionsCommand:
    """A command for `call` whose options are the fields of a dataclass.

    Args:
        options: a dataclass with keyword-only fields; its docstring, with those of its bases, is the help.
    """

    def __init__(self, options: type, function: str) -> None:
        self.options = options
        self.__doc__ = options.__doc__
        self._function = function

    def __call__(self, **values: Any) -> Any:
        module, _, name = self._function.partition(":")
        return getattr(importlib.import_module(module), name)(self.options(**values))


def call(
    function: Callable[..., Any],
    program: str,
    arguments: list[str],
    groups: Groups | None = None,
    override: Callable[[str], Callable[..., Any] | None] | None = None,
) -> Any:
    """Return what `function` returns for a command line made from its signature.

    Parameters before `*` are positional arguments. Keyword-only ones are options (`speaker_from` is `--speaker-from`);
    one whose type is a dataclass stands for an option per field. The docstrings are the help. If that says MODEL,
    `--import FILE` executes a user's own file first.

    Args:
        groups: of the options, for the help; options that it does not name come last.
        override: Function that takes the MODEL of the command line, and returns the function to call in place of
            `function` for that model; None: `function`.
    """
    described = function.options if isinstance(function, OptionsCommand) else function
    parameters = list(_parameters(described))
    takes_model = any("MODEL" in parameter.help for parameter in parameters)
    if takes_model and not any(parameter.name == "import_" for parameter in parameters):
        parameters.append(_Parameter("import_", list[str], [], SHARED_HELP["import_"]))
    # Required arguments come first in the help.
    parameters.sort(key=lambda parameter: not (parameter.is_required or parameter.is_positional))
    required = [parameter.usage for parameter in parameters if parameter.is_required or parameter.is_positional]
    parser = Parser(program, " ".join([program, *required, "[options]"]), function.__doc__ or "", takes_model)
    titles = {name: title for title, names in (groups or {}).items() for name in names}
    order = [*titles, *(p.name for p in parameters if p.name not in titles)]
    for parameter in sorted(parameters, key=lambda parameter: order.index(parameter.name)):
        parameter.add_to(parser, titles.get(parameter.name, "Other" if groups else "Options"))
    if override is not None and (model := parser.value_of("model", arguments)) and (other := override(model)):
        return call(other, program, arguments)
    values = parser.parse(arguments)
    for parameter in parameters:
        if parameter.bounds is not None:
            parameter.bounds.check(parameter.word, values[parameter.name])
    for file in values.get("import_") or []:
        import_file(file)
    command = program.removeprefix("sepkit ")
    out, names = outputs_of(command, values)
    with writing(out, _inputs(values), names, keeps_record=command not in WITHOUT_RECORD):
        try:
            return _call(function, described, values)
        except UserError as error:
            words = {parameter.name: parameter.word for parameter in parameters}
            raise UserError(with_options(str(error), words)) from error


def with_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message with options in place of parameters: `views=2` and, in a message about one, its bare name.

    >>> with_options("overlap_seconds: found 4, expected half of chunk_seconds", {
    ...     "overlap_seconds": "--overlap-seconds", "chunk_seconds": "--chunk-seconds"})
    '--overlap-seconds: found 4, expected half of --chunk-seconds'

    Args:
        message: Message of a function of Python, which names its parameters.
        options: Name of each parameter -> option.
    """
    names = "|".join(map(re.escape, options))
    message = re.sub(rf"(?<![\w./-])({names})=(?=\w)", lambda found: f"{options[found[1]]} ", message)
    begun = re.match(rf"({names})(?=: )", message)
    if not begun and not message.startswith(tuple(options.values())):
        return message
    message = f"{options[begun[1]]}{message[begun.end() :]}" if begun else message
    return re.sub(r"(?<![\w./-])[a-z]+(_[a-z]+)+\b(?![./])", lambda word: options.get(word[0], word[0]), message)


def _inputs(values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what may be a path of an input; of NAME=FILE both the whole and FILE."""
    for name, value in values.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            if name not in _WRITTEN:
                yield from (item, item.partition("=")[2]) if isinstance(item, str) else (item,)


def _parameters(described: Any) -> Iterator[_Parameter]:
    help_of, hints = SHARED_HELP | documented(described), typing.get_type_hints(described)
    full_hints = typing.get_type_hints(described, include_extras=True)
    fields = {f.name: f for f in getattr(described, "__dataclass_fields__", {}).values()}
    for name, parameter in inspect.signature(described).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            yield from _parameters(hints[name])
            continue
        default, is_positional = parameter.default, parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        if fields:
            is_positional = bool(fields[name].metadata.get("positional"))
            if fields[name].default_factory is not dataclasses.MISSING:
                default = fields[name].default_factory()
        yield _Parameter(name, hints[name], default, help_of.get(name, ""), is_positional, bounds_of(full_hints[name]))


@functools.cache
def documented(described: Any) -> dict[str, str]:
    """Return argument or field -> its description, in one line; a class has those of its bases too."""
    parts = reversed(described.__mro__[:-1]) if isinstance(described, type) else [described]
    parameters = []
    for part in parts:
        found = docstring_parser.parse(part.__doc__ or "")
        # Strings below the fields, which users may have, are looked for in the source: that takes twenty times as long.
        parameters += found.params or docstring_parser.parse_from_object(part).params
    return {p.arg_name: " ".join((p.description or "").split()) for p in parameters}


def _call(function: Callable[..., Any], described: Any, values: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(described)
    positional, named = [], {}
    for name, parameter in inspect.signature(described).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            named[name] = hints[name](**{field: values[field] for field in field_types(hints[name])})  # type: ignore[arg-type, operator]
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY or described is not function:
            named[name] = values[name]
        else:
            positional.append(values[name])
    return function(*positional, **named)


def reader(hint: Any, option: str, *, may_be_empty: bool = False) -> Callable[[str], Any]:
    """Return the function that makes a value of this type of a text; raises UserError.

    Args:
        may_be_empty: whether text may be empty. Else it is refused: mostly a variable of a shell that is not set, and
            as a path it would name the working folder.
    """
    inner = without_none(hint)

    def read(text: str) -> Any:
        if inner is not hint and text in ("null", "None"):
            return None
        if inner in (str, Path):
            if not text and not may_be_empty:
                raise UserError(f"{option}: found nothing, expected a name or a value")
            return inner(text)
        value: Any = text
        if inner in (int, float):
            with contextlib.suppress(ValueError):
                value = inner(text)
                if inner is int and option.endswith(("seed", "seeds")):
                    Bounds(ge=0, le=SEED).check(option, value)
                return value
        elif typing.get_origin(inner) is Literal:
            value = next((known for known in typing.get_args(inner) if str(known) == text), text)
        else:
            from sepkit.files import parse_yaml

            with contextlib.suppress(UserError):
                value = parse_yaml(text, option)
        return convert(inner, value, option)

    return read


def metavar_of(name: str, hint: Any, help_text: str) -> str:
    """Return the word that stands for the value of an option in the help: a unit, N, DIR, FILE, MODEL or NAME.

    Args:
        name: Name of the parameter, or key of the configuration.
        hint: Type of the value, or of the items of a list.
        help_text: Description of the option. A path is a DIR if its first clause contains "folder", else a FILE.
    """
    inner, name = without_none(hint), name.rpartition(".")[2]
    if inner is bool or typing.get_origin(inner) is Literal:
        words = "true,false" if inner is bool else ",".join(map(str, typing.get_args(inner)))
        return f"{{{words}}}" if len(words) <= _LONGEST_LIST else "NAME"
    if inner is Path or (inner is str and (name in _PATHS.split() or help_text.startswith("Folder"))):
        return "DIR" if "folder" in help_text.partition(",")[0].lower() else "FILE"
    if inner is not int and (unit := re.search("(?:^|_)(seconds|db|hz)$", name)):
        return unit[1].upper()
    return _METAVARS.get(name) or ("NAME" if "str" in str(inner) else "N")


def with_words(help_text: str, hint: Any) -> str:
    """Return the help of an option, which lists the words it takes if they are many."""
    words = [str(word) for word in typing.get_args(without_none(hint))]
    if typing.get_origin(without_none(hint)) is not Literal or len(",".join(words)) <= _LONGEST_LIST:
        return help_text
    listed = all(word in help_text for word in words)
    return help_text if listed else f"{help_text.rstrip('.')}: {', '.join(words)}".lstrip(": ")


def without_none(hint: Any) -> Any:
    """Return X for the type `X | None`, and any other type as it is."""
    inner = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    return inner[0] if len(inner) == 1 and type(None) in typing.get_args(hint) else hint
