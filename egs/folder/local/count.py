"""Divide the manifests of count.sh by number of speakers, keep the scores of a run as JSON, and compare the runs kept.

count.py divide DATA
count.py record RUN --out FILE.json
count.py table RUNS
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from sepkit.files import parse_json, write_text


def divide(data: Path) -> None:
    """Write every manifest of `data` to a folder per number of speakers, with its mixtures of that number."""
    for manifest in data.glob("*.jsonl"):
        parts = defaultdict(list)
        for line in manifest.read_text().splitlines(keepends=True):
            parts[len(parse_json(line)["sources"])].append(line)
        for speakers, lines in parts.items():
            (data / str(speakers)).mkdir(exist_ok=True)
            write_text(data / str(speakers) / manifest.name, "".join(lines))


def record(run: Path) -> dict:
    """Return for each test set, by mixture: speakers, how many were found (as many if told), and SI-SDRi in dB.

    SI-SDRi is the sum over the matched sources, divided by the larger of the true and the found number of speakers. So
    a source without an estimate and an estimate without a source count as 0 dB, which is more than a failed one has.
    """
    sets = {}
    for folder in sorted((run / "evaluation").glob("test_*")):
        with (folder / "utterances.csv").open(newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: row["id"])
        speakers = [int(row["sources"]) for row in rows]
        found = [int(row["speaker_count"]) for row in rows] if "speaker_count" in rows[0] else speakers
        total = [
            sum(float(row[f"si_sdri_db_s{k}"] or 0) for k in range(1, m + 1))
            for m, row in zip(speakers, rows, strict=True)
        ]
        score = [round(sum_db / max(m, n), 2) for sum_db, m, n in zip(total, speakers, found, strict=True)]
        sets[folder.name] = {"speakers": speakers, "found": found, "si_sdri_db": score}
    return {"run": run.name} | sets


def table(runs: Path) -> str:
    """Return a Markdown table: share counted correctly and mean SI-SDRi by run, test set and number of speakers."""
    lines = ["| run, test set | speakers | counted correctly | SI-SDRi, dB |", "|---|---|---|---|"]
    for path in sorted(runs.glob("count_*.json")):
        kept = parse_json(path.read_text())
        for name, scores in kept.items():
            if name == "run":
                continue
            speakers, found, score = (np.array(scores[key]) for key in ("speakers", "found", "si_sdri_db"))
            for m in [*sorted(set(speakers.tolist())), None]:
                of = np.ones(len(speakers), bool) if m is None else speakers == m
                right = (speakers == found)[of].mean()
                lines.append(f"| {kept['run']}, {name} | {m or 'all'} | {right:.2f} | {score[of].mean():.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("divide", "record", "table"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "divide":
        divide(options.path)
    elif options.what == "record":
        write_text(options.out, json.dumps(record(options.path)) + "\n")
    else:
        print(table(options.path))
