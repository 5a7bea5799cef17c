"""Divide manifests by number of speakers, keep the scores of a run as JSON, and compare the runs kept.

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
import yaml

import sepkit
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.files import parse_json, read_json, write_text

BINS = np.linspace(0, 1, 6)
"""Ends of the bins of probabilities, whose shares of true ones are compared with their means."""


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
    With binary scores, also the probability that each hypothesis is a speaker, and whether it is a source's best one.
    """
    sets = {}
    scoring = yaml.safe_load((run / "config.yaml").read_text())["model"]["scoring"]
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
        if scoring is not None and scoring["loss"] == "binary":
            sets[folder.name] |= _probabilities(sepkit.load_model(run / "model"), folder / "journal.jsonl")
    return {"run": run.name} | sets


def _probabilities(separator: sepkit.Separator, journal: Path) -> dict[str, list]:
    rows = {(row["manifest"], row["id"]): row for row in map(parse_json, journal.read_text().splitlines())}
    probability, best = [], []
    for manifest in sorted({manifest for manifest, _ in rows}):
        for entry in read_manifest(Path(manifest)):
            scores = separator.separate(mix_entry(entry).mixture, entry.sample_rate, evidence=True).scores
            probability += [round(float(1 / (1 + np.exp(-score))), 3) for score in scores]
            winners = rows[manifest, entry.id]["scores"]["winners"]
            best += [int(k in winners) for k in range(len(scores))]
    return {"probability": probability, "best": best}


def calibration(runs: list[dict]) -> str:
    """Return a Markdown table: by bin of probability, how many hypotheses are the best one of a source."""
    lines = [
        "| run, test set | probability | mean | share that is the best of a source | hypotheses |",
        "|" + "---|" * 5,
    ]
    for kept in runs:
        for name, scores in kept.items():
            if name == "run" or "probability" not in scores:
                continue
            probability, best = np.array(scores["probability"]), np.array(scores["best"])
            of = np.clip(np.digitize(probability, BINS) - 1, 0, len(BINS) - 2)
            for k in np.unique(of):
                mean, share = probability[of == k].mean(), best[of == k].mean()
                ends = f"{BINS[k]:.1f} to {BINS[k + 1]:.1f}"
                lines.append(f"| {kept['run']}, {name} | {ends} | {mean:.2f} | {share:.2f} | {(of == k).sum()} |")
    return "\n".join(lines)


def table(runs: list[dict]) -> str:
    """Return a Markdown table: share counted correctly and mean SI-SDRi by run, test set and number of speakers."""
    lines = ["| run, test set | speakers | counted correctly | SI-SDRi, dB |", "|---|---|---|---|"]
    for kept in runs:
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
        again = "delete it, and run the same command again"
        try:
            kept_runs = [read_json(path, again) for path in sorted(options.path.glob("count_*.json"))]
        except UserError as error:
            raise SystemExit(str(error)) from error
        print(table(kept_runs), calibration(kept_runs), sep="\n\n")
