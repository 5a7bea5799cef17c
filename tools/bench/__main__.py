"""`python -m tools.bench [LINE ...]` runs the lines named, or all; writes tools/bench/results/LINE.json and README.md.

`python -m tools.bench soak` works for three hours, and tells whether memory grows; it runs only if it is named.
`python -m tools.bench --table` writes README.md alone, from the results that are there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tools.bench.table import FOLDER, write_table

LINES = ("accelerator", "assignment", "data", "evaluate", "metrics", "scaling", "separate", "train", "weak_scaling")
LONG = ("soak",)
"""Lines of hours, which run only if they are named, and have no rows in the table."""


def main(names: list[str], folder: Path = FOLDER) -> int:
    """Exit code: 0; 1 where a line failed, which is in its results, while the others went on; 2 for an unknown line.

    Args:
        names: of lines, or --table.
        folder: of README.md and results/.
    """
    unknown = [name for name in names if name not in (*LINES, *LONG, "--table")]
    if unknown:
        print(f"{', '.join(unknown)}: unknown, expected {', '.join((*LINES, *LONG))} or --table", file=sys.stderr)
        return 2
    results = folder / "results"
    results.mkdir(exist_ok=True)
    failed = []
    for name in [] if "--table" in names else names or LINES:
        print(name, flush=True)
        path = results / f"{name}.json"
        result = _run(name, path)
        if result is None:
            continue
        if "failed" in result:
            failed.append(name)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(path)
        write_table(LINES, results, folder / "README.md")
    print(write_table(LINES, results, folder / "README.md"))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _run(name: str, path: Path) -> dict[str, Any] | None:
    """The results of a line, or why there are none; None where those of another machine stay as they are."""
    try:
        module = importlib.import_module(f"tools.bench.{name}")
        # A line that needs what not every machine has says what is missing.
        missing = module.missing() if hasattr(module, "missing") else None
        if missing is None:
            return module.run()
    except Exception as error:
        traceback.print_exc()
        # The page goes to others: no folder of this machine's stands in it.
        reason = " ".join(str(error).replace(os.environ.get("SEPKIT_DATA") or "\0", "$SEPKIT_DATA").split())
        return {"failed": f"{type(error).__name__}: {reason}"}
    print(f"{name}: left out, {missing}", flush=True)
    return None if path.exists() else {"left_out": missing}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
