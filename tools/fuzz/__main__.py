"""`python -m tools.fuzz --cases N`: N cases, fewer of slow kinds; what falls is written to tests/fuzz/cases.

Case I of a kind is the same for every run. The exit code is 1 if a case fell.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tools.fuzz.kinds import KINDS, Files
from tools.fuzz.oracle import run_cases

_TOGETHER = 50
"""Cases in a process."""

CASES = Path(__file__).parents[2] / "tests" / "fuzz" / "cases"


def main() -> int:
    """Return how many cases fell, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, metavar="N", help="of all kinds together (default: 1000)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case of each kind")
    options = parser.parse_args()
    fell = 0
    counts: dict[str, Counter[int]] = {kind: Counter() for kind in options.kinds}
    peaks = dict.fromkeys(options.kinds, 0)
    for kind, numbers in _portions(options.kinds, options.first, options.cases):
        cases = [KINDS[kind]().case(number) for number in numbers]
        for number, files, outcome in zip(numbers, cases, run_cases(kind, cases), strict=True):
            counts[kind][outcome.code] += 1
            peaks[kind] = max(peaks[kind], outcome.peak_bytes)
            if outcome.falls:
                fell += 1
                print(f"{kind} {number}: {'; '.join(outcome.falls)}", flush=True)
                keep(kind, number, files)
        told = ", ".join(f"exit {code}: {count}" for code, count in sorted(counts[kind].items()))
        total = sum(counts[kind].values())
        print(f"{kind}: {total} cases ({told}), at most {peaks[kind] >> 20} MiB of memory with imports", flush=True)
    print(f"{fell} fell")
    return min(fell, 1)


def _portions(kinds: Sequence[str], first: int, cases: int) -> list[tuple[str, range]]:
    """Return portions of the cases of each kind, the kinds in turn: a run that is stopped has tried some of each."""
    shares = {kind: KINDS[kind]().share for kind in kinds}
    portions = []
    for position, kind in enumerate(kinds):
        last = first + round(cases * shares[kind] / sum(shares.values()))
        for start in range(first, last, _TOGETHER):
            portions.append(
                ((start - first) / shares[kind], position, kind, range(start, min(start + _TOGETHER, last)))
            )
    return [(kind, numbers) for _, _, kind, numbers in sorted(portions, key=lambda portion: portion[:2])]


def keep(kind: str, number: int, files: Files) -> None:
    """Write a case to the corpus of cases: the files that are not as they were."""
    folder = CASES / kind.replace(" ", "_") / str(number)
    for name, data in files.items():
        if data != KINDS[kind]().files[name]:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
