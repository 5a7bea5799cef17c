"""Runs a case in this process, and says what is wrong with how the command took it."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import tempfile
import time
import traceback
from pathlib import Path

from sepkit.cli.main import main
from sepkit.limits import MESSAGE_CHARACTERS
from tools.fuzz.kinds import KINDS, Files

SECONDS = 20.0
MOST_BYTES = 2 << 30


def run_case(kind: str, files: Files) -> tuple[int, list[str]]:
    """Return the exit code of the command that reads the files, and what should not have been.

    Expected: exit code 0, 1 or 2; lines of bounded length and no traceback; no `failed:`, which is for defects;
    nothing written outside of the folder of the outputs; less than `SECONDS` of the processor and `MOST_BYTES` more.
    """
    falls: list[str] = []
    with tempfile.TemporaryDirectory(prefix="sepkit-fuzz-") as temporary:
        folder = Path(temporary) / "case"
        (folder / "in").mkdir(parents=True)
        for name, data in files.items():
            (folder / "in" / name).write_bytes(data)
        command = [str(word) for word in KINDS[kind]().command(folder)]
        before, error = _outside(folder), io.StringIO()
        memory, began, where = _peak_bytes(), time.process_time(), os.getcwd()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
                code = main(command)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            code = -1
            falls.append(f"raised: {traceback.format_exc()[-800:]}")
        finally:
            os.chdir(where)
        seconds = time.process_time() - began
        said = error.getvalue()
        falls += [f"exit code {code}"] if code not in (0, 1, 2) and not falls else []
        falls += [f"a line of {len(line)} characters" for line in said.split("\n") if len(line) > MESSAGE_CHARACTERS]
        falls += [f"a failure: {said[-600:]}"] if "failed: " in said or "Traceback" in said else []
        falls += [f"nothing said, exit code {code}"] if code not in (0, -1) and not said.strip() else []
        falls += [f"{seconds:.0f} s of the processor"] if seconds > SECONDS else []
        grown = _peak_bytes() - memory
        falls += [f"{grown >> 20} MiB more memory"] if grown > MOST_BYTES else []
        falls += ["wrote outside of its outputs"] if _outside(folder) != before else []
        shutil.rmtree(folder, ignore_errors=True)
    return code, falls


def _outside(folder: Path) -> dict[str, bytes]:
    """What stands beside the outputs."""
    paths = [path for path in folder.parent.rglob("*") if path.is_file() and not path.is_relative_to(folder / "out")]
    return {str(path): path.read_bytes() for path in paths}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
