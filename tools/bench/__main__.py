"""`python -m tools.bench [LINE ...]` runs these lines, or all; it writes tools/bench/results/LINE.json and README.md.

`python -m tools.bench soak` works for three hours and tells whether memory grows; it runs only if it is named.
`python -m tools.bench --table` only writes README.md, from the existing results.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tools.bench.table import FOLDER, keep_history, write_table

LINES = (
    "accelerator",
    "assignment",
    "data",
    "evaluate",
    "metrics",
    "scaling",
    "separate",
    "shipped",
    "steps",
    "train",
    "weak_scaling",
)
LONG = ("soak",)
"""Lines of hours, which run only if they are named, and have no rows in the table."""


def main(names: list[str], folder: Path = FOLDER) -> int:
    """Return the exit code: 0; 1 if a line failed (its results say so, and the others ran); 2 for an unknown line."""
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
        keep_history(name, result, results)
        print(path)
        write_table(LINES, results, folder / "README.md")
    print(write_table(LINES, results, folder / "README.md"))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _run(name: str, path: Path) -> dict[str, Any] | None:
    """Return the results of a line, or why there are none; None if another machine's results are kept."""
    try:
        module = importlib.import_module(f"tools.bench.{name}")
        # A line may need things that not every machine has, and then says what is missing.
        missing = module.missing() if hasattr(module, "missing") else None
        if missing is None:
            return module.run()
    except Exception as error:
        traceback.print_exc()
        # The page is public, so this machine's folders are removed from it.
        reason = " ".join(str(error).replace(os.environ.get("SEPKIT_DATA") or "\0", "$SEPKIT_DATA").split())
        return {"failed": f"{type(error).__name__}: {reason}"}
    print(f"{name}: left out, {missing}", flush=True)
    return None if path.exists() else {"left_out": missing}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
