"""Keep the scores of a run of more.sh as a small JSON, and compare all runs that are kept.

more.py record RUN --manifest test.jsonl --out FILE.json
more.py table RUNS --out RUNS.md
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import yaml

from sepkit.errors import UserError
from sepkit.evaluation.statistics import resample_weights
from sepkit.files import parse_json, read_json, write_text

METHODS = ("pit", "mcl", "relaxed_wta", "amcl", "amcl_exponential", "sinkhorn", "grown")
SCORES = ("si_sdri_db", "mcl_si_sdr_db")


def record(run: Path, manifest: Path) -> dict:
    """Return what is kept of a run: settings, scores of each test mixture, and the course of its entropy."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    entries = [parse_json(line) for line in manifest.read_text().splitlines() if '"sources"' in line]
    speakers = {entry["id"]: [source["speaker"] for source in entry["sources"]] for entry in entries}
    with (run / "evaluation" / "test" / "utterances.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["id"])
    summary = parse_json((run / "evaluation" / "test" / "summary.json").read_text())
    log = [parse_json(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in log if line["kind"] == "epoch"]
    method = run.name.split("_seed")[0]
    return {
        "speakers": len(next(iter(speakers.values()))),
        "hypotheses": max(int(row["hypotheses"]) for row in rows),
        "method": method,
        "seed": config["trainer"]["seed"],
        "steps": epochs[-1]["step"],
        "mixtures_a_step": config["data"]["batch_size"],
        "seconds": round(sum(line["seconds"] for line in epochs)),
        "collapse_rate": summary["matching"]["collapse_rate"],
        "usage": [round(share, 4) for share in summary["matching"]["hypothesis_usage"]],
        "entropy": [
            [round(line["temperature"], 5), round(line["train_entropy_nats"], 4)]
            for line in epochs[::4]
            if "temperature" in line
        ],
        "test_speakers": [speakers[row["id"]] for row in rows],
        "si_sdri_db": [round(float(row["si_sdri_db"]), 2) for row in rows],
        "mcl_si_sdr_db": [round(float(row["mcl_si_sdr_db"]), 2) for row in rows],
    }


def interval(differences: np.ndarray, speakers: list[list[str]]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of differences (seeds, mixtures), bootstrapped over seeds and speakers."""
    generator, means = np.random.default_rng(0), []
    for weights in resample_weights(differences.shape[1], speakers, 10_000):
        drawn = generator.integers(len(differences), size=(len(weights), len(differences)))
        by_seed = weights @ differences.T / weights.sum(1, keepdims=True)
        means.append(np.take_along_axis(by_seed, drawn, 1).mean(1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def matching_milliseconds(method: str, sources: int, hypotheses: int, utterances: int = 8, repeats: int = 50) -> float:
    """Return the median time of one matching of a batch, milliseconds; costs are uniform within 20 dB."""
    import torch

    from sepkit.choices import from_dict
    from sepkit.config import AssignmentConfig
    from sepkit.objectives import assignment  # noqa: F401  registers the assignments
    from sepkit.registry import build

    name = {"grown": "mcl", "amcl_exponential": "amcl"}.get(method, method)
    rule = build(from_dict(AssignmentConfig, {"name": name}))
    costs = 20 * torch.rand(repeats, utterances, hypotheses, sources, generator=torch.Generator().manual_seed(0))
    times = []
    for cost in costs:
        began = time.perf_counter()
        rule.weights(cost)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def table(runs: list[dict]) -> str:
    """Return Markdown: a row for each number of speakers, of hypotheses and method, and paired differences."""
    cells: dict[tuple, dict[int, dict]] = defaultdict(dict)
    for run in runs:
        cells[run["speakers"], run["hypotheses"], run["method"]][run["seed"]] = run
    order = sorted(cells, key=lambda key: (key[0], key[1], METHODS.index(key[2])))
    columns = "| speakers, hypotheses | training | seeds | SI-SDRi, dB | best hypothesis, SI-SDR, dB"
    lines = [columns + " | unused hypotheses, % | matching a batch of 8, ms |", "|" + "---|" * 7]
    for m, n, method in order:
        found = cells[m, n, method].values()
        mean = [[statistics.fmean(run[score]) for run in found] for score in SCORES]
        spread = [f"{statistics.fmean(x):.2f}" + (f" ± {statistics.stdev(x):.2f}" if len(x) > 1 else "") for x in mean]
        unused = 100 * statistics.fmean(run["collapse_rate"] for run in found)
        ms = matching_milliseconds(method, m, n)
        lines.append(f"| {m}, {n} | {method} | {len(found)} | {spread[0]} | {spread[1]} | {unused:.0f} | {ms:.2f} |")
    lines += [
        "",
        "| speakers, hypotheses | difference, SI-SDRi, dB | seeds in common | mean | 95 %, over seeds and speakers |",
        "|" + "---|" * 5,
    ]
    for (m, n, a), (other_m, other_n, b) in combinations(order, 2):
        seeds = sorted(cells[m, n, a].keys() & cells[other_m, other_n, b].keys())
        if (m, n) != (other_m, other_n) or not seeds or a not in ("pit", "mcl"):
            continue
        first, second = ([cells[m, n, method][seed] for seed in seeds] for method in (a, b))
        if any(run["test_speakers"] != first[0]["test_speakers"] for run in first + second):
            raise UserError(f"runs of {m} speakers: {a} and {b} have other test mixtures, expected those of one --data")
        differences = np.array([y["si_sdri_db"] for y in second]) - np.array([x["si_sdri_db"] for x in first])
        low, high = interval(differences, first[0]["test_speakers"])
        lines.append(f"| {m}, {n} | {b} - {a} | {len(seeds)} | {differences.mean():+.2f} | {low:+.2f} to {high:+.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("run", type=Path)
    one.add_argument("--manifest", type=Path, required=True)
    every = commands.add_parser("table")
    every.add_argument("runs", type=Path)
    for command in (one, every):
        command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "record":
        text = json.dumps(record(options.run, options.manifest)) + "\n"
    else:
        again = "delete it, and run the same command again"
        text = table([read_json(file, again) for file in sorted(options.runs.glob("m*_seed*.json"))])
    write_text(options.out, text)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from error
