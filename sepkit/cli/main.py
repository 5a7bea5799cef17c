"""`sepkit COMMAND ...`: finds the command, runs it, and turns exceptions into exit codes.

0 done, 1 a failure, 2 the user's mistake, 130, 143 or 129 a signal. SEPKIT_TRACEBACK=1 shows where a failure happened,
and OMP_WAIT_POLICY=ACTIVE lets waiting threads spin (see `sepkit.cli._threads`).
"""

import contextlib
import importlib
import os
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sepkit import studies
from sepkit.choices import did_you_mean
from sepkit.cli._threads import use_passive_waiting, use_short_waiting
from sepkit.errors import UserError, exhausted, failure, one_line, out_of_memory, out_of_reach
from sepkit.extras import EXTRAS, missing, require
from sepkit.interrupts import on_stop, received, stop
from sepkit.owned import command
from sepkit.streams import open_streams
from sepkit.version import __version__

GROUPS = {
    "use": {
        "separate": "separate audio files",
        "stream": "separate standard input, wav or raw PCM, while it comes in",
        "cluster": "find who spoke when in recordings (diarization)",
        "models": "list the models that can be named",
    },
    "train": {
        "prepare": "make manifests: mini, folder, mixed, librimix ...",
        "download": "fetch corpora that may be downloaded: resumed and checked",
        "smoke": "run two training steps and a save on your own configuration",
        "train": "train a model; the same command again resumes",
        "calibrate": "fit a predictor of the SI-SDR of a model's estimates",
        "find-temperature": "find where hypotheses split, and an annealing schedule",
        "plan-schedule": "plan an annealing schedule from theory instead of a search",
    },
    "measure": {
        "evaluate": "measure a model, or a folder of estimates, on manifests",
        "summarize": "write a table and figures of several evaluations or seeds",
        "report": "write one HTML page about runs: scores, figures, sound",
    },
    "share": {
        "export": "write a model as an ONNX file, and compare it with torch",
        "web": "write a web page that separates with your model",
        "upload": "upload a model and its card to the Hugging Face hub",
    },
}
"""Heading -> command -> what it does."""

COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}

EVERY_COMMAND = COMMANDS | {name: text for name, (text, _) in studies.COMMANDS.items()}
"""Command -> what it does, with those of the studies."""

SEPARATING = frozenset({"separate", "stream", "evaluate", "calibrate", "report"})
"""Commands that separate, and so may share a laptop with other work; see `sepkit.cli._threads`."""

NEEDS = {
    "train": ("lightning", "torch"),
    "smoke": ("lightning", "torch"),
    "calibrate": ("scipy",),
    "prepare librimix": ("scipy",),
    "prepare mini": ("scipy",),
    "prepare pulses": ("scipy",),
    "prepare vctk-2mix": ("scipy",),
    "prepare wsj0-mix": ("scipy",),
}
"""Command, alone or with its subcommand -> what it would miss only after some work, or by another extra's name."""

OF_MODELS = frozenset({"evaluate", "calibrate"})
"""Commands for which a study may have a function of its own for its models."""

USAGE = """usage: sepkit [-h] [--version] COMMAND ...

Separate overlapping speakers.

{groups}
`sepkit COMMAND --help` lists its options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code: 0, 1 for a failure, 2 for a user's mistake, or 128 and a signal."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        # Only if the process is the command: other callers decide about their streams, signals and threads.
        open_streams()
        on_stop(stop)
        warnings.filterwarnings("ignore", ".*monitor support")  # of progress bars, where no thread can be started
    program, has_compiler_cache = ["sepkit", *arguments[:1]], "TORCHINDUCTOR_CACHE_DIR" in os.environ
    try:
        try:
            if not arguments or arguments[0] in ("-h", "--help"):
                print(USAGE.format(groups="\n".join(_listed(title, group) for title, group in groups().items())))
                return 0 if arguments else 2
            if arguments[0] == "--version":
                print(__version__)
                return 0
            if argv is None:
                (use_passive_waiting if arguments[0] in SEPARATING else use_short_waiting)()
            result = _run(program, arguments[1:])
            if result is not None:
                print(result)
        finally:
            if argv is None and not has_compiler_cache:
                # torch's compiler makes a folder for what it may compile, and nothing here does.
                with contextlib.suppress(OSError):
                    os.rmdir(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
            sys.stdout.flush()  # help, too: nothing else would say that a full disk took it
    except BaseException as error:
        number = received() or isinstance(error, KeyboardInterrupt) * signal.SIGINT
        if isinstance(error, SystemExit) and (not number or error.code == 128 + number):
            raise  # the command has said why
        # Whatever fails after a signal fails because of it: a process that it ended, a library's own error.
        kept = "; the same command again continues" if command().finished else ""
        line, code = (f"interrupted{kept}", 128 + number) if number else _end(error)
        print(one_line(f"{' '.join(program)}: {line}"), file=sys.stderr)
        return code
    return 0


def _end(error: BaseException) -> tuple[str, int]:
    """Return the line and the exit code of an error."""
    if isinstance(error, UserError):
        return exhausted(error) or str(error), 2
    if os.environ.get("SEPKIT_TRACEBACK"):
        raise error
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module in EXTRAS:
        return missing(module, "this"), 2
    if line := exhausted(error) or out_of_reach(error) or out_of_memory(error):
        return line, 2
    return f"failed: {failure(error)} (SEPKIT_TRACEBACK=1 shows where)", 1


def groups() -> dict[str, dict[str, str]]:
    """Return heading -> command -> what it does, those of the studies last."""
    of_studies = {name: text for name, text in EVERY_COMMAND.items() if name not in COMMANDS}
    return GROUPS | {"studies, the other systems of the papers": of_studies}


def _listed(title: str, group: Mapping[str, str]) -> str:
    return "".join([f"{title}:\n", *(f"  {name:<19}{text}\n" for name, text in group.items())])


def _run(program: list[str], arguments: list[str]) -> Any:
    """Run a command, and return its result; a subcommand is added to `program`, the command as messages name it."""
    command = program[1]
    if command not in EVERY_COMMAND:
        raise UserError(f"unknown command{did_you_mean(command, EVERY_COMMAND)}; `sepkit --help` lists them all")
    if not {"-h", "--help"} & set(arguments):
        require(*NEEDS.get(command, ()), *NEEDS.get(" ".join([command, *arguments[:1]]), ()))
    if command in COMMANDS:
        module = importlib.import_module(f"sepkit.cli.{command.replace('-', '_')}")
    else:
        module = studies.commands_of(studies.COMMANDS[command][1])
    if hasattr(module, "run"):  # commands whose options depend on the configuration parse for themselves
        return module.run(arguments)
    function: Callable[..., Any] | None = getattr(module, "main", None)
    if function is None:
        function = _pick(module.COMMANDS | studies.subcommands(command), f"sepkit {command}", arguments)
        program.append(arguments.pop(0))
    from sepkit.cli._parser import call

    override = partial(_of_study, command) if command in OF_MODELS else None
    return call(function, " ".join(program), arguments, getattr(module, "GROUPS", None), override)


def _of_study(command: str, model: str) -> Callable[..., Any] | None:
    """Return the function of the study whose model this is; None: it is of none, or cannot be read."""
    from sepkit.models.storage.folders import read_description

    # Whatever is wrong with a model is reported by the command that reads it.
    with contextlib.suppress(UserError, OSError, ValueError):
        return studies.override_of(command, read_description(model).get("kind", ""))
    return None


def _pick(kinds: dict[str, Callable[..., Any]], program: str, arguments: list[str]) -> Callable[..., Any]:
    if arguments and arguments[0] in kinds:
        return kinds[arguments[0]]
    width = max(10, *map(len, kinds)) + 3
    about = {name: (function.__doc__ or "").strip().splitlines()[0] for name, function in kinds.items()}
    lines = [
        textwrap.fill(text, 79, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
        for name, text in about.items()
    ]
    text = "\n".join([f"usage: {program} KIND ...\n", *lines, f"\n`{program} KIND --help` lists its options."])
    if arguments and arguments[0] in ("-h", "--help"):
        print(text)
        raise SystemExit(0)
    found = repr(arguments[0]) if arguments else "nothing"
    hint = did_you_mean(arguments[0], kinds) if arguments else ""
    raise UserError(f"found {found}{hint}, expected one of {', '.join(kinds)}")


if __name__ == "__main__":
    sys.exit(main())
