"""`python -m tools.fuzz [--seconds S] [READER ...]`: fuzzing guided by coverage, by Atheris; `make fuzz` installs it.

Each reader runs in a process of its own, for S seconds. What falls is written to tests/fuzz/cases/READER, where `make
test` tries it from then on, and the exit code is 1.
"""

import argparse
import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).resolve().parent.parent / "tests"
CASES = TESTS / "fuzz" / "cases"
# Packages that other projects install as `tests` would come first.
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [str(TESTS)]


def main() -> int:
    """Return 1 if something fell, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each reader (default: 60)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        _fuzz(options.readers[0], options.seconds)
    from tests.fuzz.readers import READERS

    if unknown := set(options.readers) - READERS.keys():
        parser.error(f"{', '.join(sorted(unknown))}: unknown, expected some of {', '.join(READERS)}")
    fell = []
    for name in options.readers or READERS:
        print(f"{name}:", flush=True)
        command = [sys.executable, "-m", "tools.fuzz", name, "--seconds", str(options.seconds), "--here"]
        if subprocess.run(command, check=False).returncode:
            fell.append(name)
    print(f"fell: {', '.join(fell) or 'nothing'}")
    return bool(fell)


def _fuzz(name: str, seconds: int) -> None:
    """Fuzz until a case falls or the time is over. Atheris ends the process."""
    atheris: Any = importlib.import_module("atheris")

    with atheris.instrument_imports(include=["sepkit", "yaml", "json", "csv"]):
        from tests.fuzz.oracle import run_here
        from tests.fuzz.readers import READERS

        reader = READERS[name]()
        # Commands import what they need when they run.
        run_here(reader, reader.files)
    names = list(reader.files)

    def one_input(data: bytes) -> None:
        # The first byte says which file is changed.
        changed = names[data[0] % len(names)] if data else names[0]
        falls = run_here(reader, reader.files | {changed: data[1:]})[1]
        if falls:
            folder = CASES / name / hashlib.sha256(data).hexdigest()[:8]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / changed).write_bytes(data[1:])
            print(f"{name}: {'; '.join(falls)}: {folder}", file=sys.stderr)
            # Atheris counts a process that ends as one that crashes.
            os._exit(1)

    with tempfile.TemporaryDirectory(prefix="sepkit-corpus-") as corpus:
        for place, file in enumerate(names):
            (Path(corpus) / file).write_bytes(bytes([place]) + reader.files[file])
        options = [f"-max_total_time={seconds}", "-timeout=300", "-rss_limit_mb=8192", "-max_len=262144"]
        options += ["-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *options, corpus], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
