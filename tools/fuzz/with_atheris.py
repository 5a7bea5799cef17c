"""`python -m tools.fuzz.with_atheris KIND FOLDER`: coverage-guided fuzzing of one kind, where Atheris is installed.

FOLDER holds inputs to start from, and takes those that reach new code. The first file of the kind is what is fuzzed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Fuzz until a case falls."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["sepkit", "yaml", "json"]):
        from tools.fuzz.kinds import KINDS
        from tools.fuzz.oracle import run_here

    name = sys.argv.pop(1)
    kind = KINDS[name]()
    fuzzed = next(iter(kind.files))

    def one_input(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            falls = run_here(name, kind.files | {fuzzed: data}, Path(temporary)).falls
        if falls:
            raise RuntimeError("; ".join(falls))

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
