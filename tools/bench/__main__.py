"""`python -m tools.bench [SUITE ...]` runs suites and writes results/SUITE.json and README.md; default: all on the CPU.

An interrupted suite continues where it stopped. `python -m tools.bench --table` only writes README.md and its chart.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from sepkit.errors import UserError
from tools.bench.table import FOLDER, SUITES, write_page


def main(names: list[str], folder: Path = FOLDER) -> int:
    """Return the exit code: 0; 1 if a suite failed (the others ran); 2 for an unknown suite."""
    unknown = [name for name in names if name not in (*SUITES, "--table")]
    if unknown:
        print(f"{', '.join(unknown)}: unknown, expected {', '.join(SUITES)} or --table", file=sys.stderr)
        return 2
    failed = []
    # Without the GPU's, and the hours of learning.
    for name in [] if "--table" in names else names or list(SUITES)[:-2]:
        print(name, flush=True)
        path = folder / "results" / f"{name}.json"
        module = importlib.import_module(f"tools.bench.{name}")
        try:
            result = module.run(folder / "results" / "unfinished")
        except Exception as error:
            print(error, file=sys.stderr) if isinstance(error, UserError) else traceback.print_exc()
            failed.append(name)
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(path)
    print(write_page(folder))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main(sys.argv[1:]))
