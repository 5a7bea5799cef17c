"""Runs a case in a process of its own, and says what is wrong with how the command took it."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sepkit.cli.main import main
from sepkit.limits import MESSAGE_CHARACTERS
from tools.fuzz.kinds import KINDS, Files

SECONDS = 20.0
"""Of the processor, for a case."""

WALL_SECONDS = 300.0
"""For a case on a busy machine; after it the case counts as one that never ends."""

MOST_BYTES = 2 << 30
"""More memory than before the case."""

_ADDRESSES = 16 << 30


class Outcome(NamedTuple):
    """How a case ended."""

    code: int
    """Exit code of the command that reads the files; -1: none."""

    falls: list[str]
    """What should not have been."""

    peak_bytes: int = 0
    """Most memory that the process has taken so far, imports included."""


def run_cases(kind: str, cases: Sequence[Files]) -> Iterator[Outcome]:
    """Yield how each case ends.

    Expected: exit code 0, 1 or 2; lines of bounded length and no traceback; no `failed:`, which is for defects;
    nothing written outside of the folder of the outputs; less than `SECONDS` of the processor and `MOST_BYTES` more;
    and no crash. Commands run in a fork, which is ended where a case takes too long; another one does the rest.
    """
    _import_all(kind)
    done = 0
    while done < len(cases):
        status = None
        for result in _in_fork(kind, cases[done:]):
            if isinstance(result, Outcome):
                yield result
                done += 1
            else:
                status = result
        if done < len(cases):
            ends = {-signal.SIGXCPU: f"more than {SECONDS:.0f} s of the processor", -signal.SIGKILL: "did not end"}
            yield Outcome(-1, [ends.get(status or 0, f"ended with {status}, as a crash does")])
            done += 1


def run_case(kind: str, files: Files) -> Outcome:
    """Return what `run_cases` yields for a single case."""
    return next(run_cases(kind, [files]))


@functools.cache
def _import_all(kind: str) -> None:
    """Run the valid input here, once, so that forks need not import what it imports."""
    with tempfile.TemporaryDirectory(prefix="sepkit-fuzz-") as temporary:
        run_here(kind, KINDS[kind]().files, Path(temporary))


def _in_fork(kind: str, cases: Sequence[Files]) -> Iterator[Outcome | int]:
    """Yield the result of each case until one ends the process, then the status that the process ended with."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for files in cases:
                with tempfile.TemporaryDirectory(prefix="sepkit-fuzz-") as temporary:
                    # The system ends a process that takes far too much.
                    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + SECONDS) + 3, -1))
                    told = json.dumps(run_here(kind, files, Path(temporary)))
                os.write(writing, told.encode("ascii", "backslashreplace") + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    before = b""
    with open(reading, "rb", buffering=0) as answers:
        while True:
            if not select.select([answers], [], [], WALL_SECONDS)[0]:
                os.kill(child, signal.SIGKILL)
            read = answers.read(1 << 16)
            if not read:
                break
            *lines, before = (before + read).split(b"\n")
            for line in lines:
                yield Outcome(*json.loads(line))
    yield os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_here(kind: str, files: Files, temporary: Path) -> Outcome:
    """Return what `run_cases` yields for a case that runs in this process; `temporary` is an empty folder."""
    falls: list[str] = []
    folder = temporary / "case"
    (folder / "in").mkdir(parents=True)
    for name, data in files.items():
        (folder / "in" / name).write_bytes(data)
    where = os.getcwd()
    os.chdir(folder)
    try:
        command = [str(word) for word in KINDS[kind]().command(folder)]
        before, error = _outside(folder), io.StringIO()
        memory, began = _peak_bytes(), time.process_time()
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
                code = main(command)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            code = -1
            falls.append(f"raised: {traceback.format_exc()[-800:]}")
        seconds = time.process_time() - began
    finally:
        os.chdir(where)
    said = error.getvalue()
    falls += [f"exit code {code}"] if code not in (0, 1, 2) and not falls else []
    falls += [f"a line of {len(line)} characters" for line in said.split("\n") if len(line) > MESSAGE_CHARACTERS]
    falls += [f"a failure: {said[-600:]}"] if "failed: " in said or "Traceback" in said else []
    falls += [f"nothing said, exit code {code}"] if code not in (0, -1) and not said.strip() else []
    falls += [f"{seconds:.0f} s of the processor"] if seconds > SECONDS else []
    peak = _peak_bytes()
    falls += [f"{(peak - memory) >> 20} MiB more memory"] if peak - memory > MOST_BYTES else []
    falls += ["wrote outside of its outputs"] if _outside(folder) != before else []
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(code, falls, peak)


def _outside(folder: Path) -> dict[str, bytes]:
    """What stands beside the outputs."""
    paths = [path for path in folder.parent.rglob("*") if path.is_file() and not path.is_relative_to(folder / "out")]
    return {str(path): path.read_bytes() for path in paths}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
