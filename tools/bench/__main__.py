"""`python -m tools.bench [LINE ...]` runs the lines named, or all, and writes tools/bench/results/LINE.json."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

LINES = ("assignment", "data", "evaluate", "train")


def main(names: list[str]) -> int:
    """Exit code: 0, or 2 for an unknown line."""
    unknown = [name for name in names if name not in LINES]
    if unknown:
        print(f"{', '.join(unknown)}: unknown, expected {', '.join(LINES)}", file=sys.stderr)
        return 2
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    for name in names or LINES:
        print(name)
        result = importlib.import_module(f"tools.bench.{name}").run()
        path = results / f"{name}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
