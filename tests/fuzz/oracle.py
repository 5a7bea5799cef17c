"""Runs a command on changed files, and says what is wrong with how it took them.

Expected: exit code 0, 1 or 2; lines of bounded length and no traceback; no `failed:`, which is for defects; nothing
written outside of the folder of the outputs; less than `SECONDS` of the processor and `MOST_BYTES` more; no crash.
"""

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
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from sepkit.limits import MESSAGE_CHARACTERS
from tests.fuzz.reader import STDIN, Files, Reader

SECONDS = 20.0
"""Of the processor."""
WALL_SECONDS = 300.0
"""On a busy machine; after it a command counts as one that never ends."""
MOST_BYTES = 3 << 29
_ADDRESSES = 16 << 30


def falls_of(reader: Reader, files: Files) -> list[str]:
    """Return what should not have been, of a command in a process of its own; nothing if all is well."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # The system ends a process that takes far too much.
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + SECONDS) + 3, -1))
            _, falls = run_here(reader, files)
            os.write(writing, json.dumps([fall[:2000] for fall in falls]).encode("ascii", "backslashreplace"))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb", buffering=0) as answers:
        ended = bool(select.select([answers], [], [], WALL_SECONDS)[0])
        if not ended:
            os.kill(child, signal.SIGKILL)
        told = answers.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if told:
        return json.loads(told)
    ends = {-signal.SIGXCPU: f"more than {SECONDS:.0f} s of the processor", -signal.SIGKILL: "did not end"}
    return [ends.get(status, f"ended with {status}, as a crash does")]


def run_here(reader: Reader, files: Files) -> tuple[int, list[str]]:
    """Return the exit code of the command in this process, and what should not have been."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="sepkit-fuzz-") as temporary:
        try:
            return _run(reader, files, Path(temporary) / "case")
        finally:
            os.chdir(before)


def _run(reader: Reader, files: Files, folder: Path) -> tuple[int, list[str]]:
    falls: list[str] = []
    (folder / "in").mkdir(parents=True)
    for name, data in files.items():
        (folder / "in" / name).write_bytes(data)
    os.chdir(folder)
    command = [str(word) for word in reader.command(folder)]
    before, memory, began = _outside(folder), _peak_bytes(), time.process_time()
    # Files, as a command has: what asks for the descriptor of a stream that has none can leave its error to others.
    text = functools.partial(tempfile.TemporaryFile, "w+", encoding="utf-8", errors="backslashreplace")
    with text() as written, text() as errors, tempfile.TemporaryFile() as given:
        given.write(files.get(STDIN, b""))
        given.seek(0)
        try:
            with mock.patch("sys.stdin", io.TextIOWrapper(given)), redirect_stdout(written), redirect_stderr(errors):
                code = reader.program(command)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            code = -1
            falls.append(f"raised: {traceback.format_exc()[-1500:]}")
        errors.seek(0)
        said = errors.read()
    seconds, more = time.process_time() - began, _peak_bytes() - memory
    lines = said.split("\n")
    falls += [f"exit code {code}"] if code not in (0, 1, 2) and not falls else []
    falls += [f"a line of {len(line)} characters" for line in lines if len(line) > MESSAGE_CHARACTERS]
    falls += [f"a failure: {line[:600]}" for line in lines if "failed: " in line or "Traceback" in line]
    falls += [f"nothing said, exit code {code}"] if code not in (0, -1) and not said.strip() else []
    falls += [f"{seconds:.0f} s of the processor"] if seconds > SECONDS else []
    falls += [f"{more >> 20} MiB more memory"] if more > MOST_BYTES else []
    falls += ["wrote outside of its outputs"] if _outside(folder) != before else []
    shutil.rmtree(folder, ignore_errors=True)
    return code, falls


def _outside(folder: Path) -> dict[str, bytes]:
    """What stands beside the outputs."""
    paths = [path for path in folder.parent.rglob("*") if path.is_file() and not path.is_relative_to(folder / "out")]
    return {str(path): path.read_bytes() for path in paths}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
