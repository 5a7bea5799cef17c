"""Turn rows of scores into utterances.csv and the figures of summary.json."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.evaluation.groups import PROPERTIES, by_group
from sepkit.evaluation.labels import BOUNDS, FROM_LATENTS, NO_SCORES, PREDICTED, WEIGHTED
from sepkit.evaluation.scoring import COLUMNS, MISSED, PER_UTTERANCE, UtteranceScores
from sepkit.evaluation.statistics import PairedDifference, Summary, summarize_columns
from sepkit.files import write_csv

Row = dict[str, Any]
"""The journal's record of an utterance; "reason" in it means that it was skipped."""

_PLAIN = ("manifest", "id", "corpus", "task", "sample_rate", "num_samples", "sources", "hypotheses", "silent_sources")

# Entries of the column "assignment" for sources without a hypothesis.
_UNMATCHED = {MISSED: "missed"}


def columns_of(rows: Sequence[Row], metrics: Sequence[str]) -> list[str]:
    """Return the columns with scores, in a fixed order: of the metrics, and of `PER_UTTERANCE` where a row has one."""
    scores = [_scores(row) for row in _done(rows)]
    present = {
        "attenuation_db": any(one.silent_sources for one in scores),
        "speaker_count_accuracy": any(one.speaker_count is not None for one in scores),
    }
    present |= {column: any(column in one.rates for one in scores) for column in FROM_LATENTS}
    present |= {column: any(np.isfinite(one.mean(column)) for one in scores) for column in (*WEIGHTED, PREDICTED)}
    asked = [column for name in COLUMNS if name in metrics for column in COLUMNS[name]]
    return asked + [column for column in PER_UTTERANCE if present[column]]


def summarize_rows(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, Any]:
    """Return the figures of summary.json: over all rows, by manifest if there are several, and by kind of mixture.

    "matching" describes the use of the hypotheses, see `summarize_matching`.

    Args:
        rows: of a journal.
        columns: with scores, of `columns_of`.
    """
    done = _done(rows)
    scores = _means(done, columns)
    summary = _counts(rows) | _summarized(summarize_columns(scores, speakers_of(done)))
    failures = _failures(done)
    if failures:
        summary["failures"] = failures
    counts = [counts for row in done for counts in row["scores"]["word_counts"]]
    if counts:
        errors, words = np.sum(counts, axis=0).tolist()
        summary["wer"] = {"errors": errors, "words": words, "word_error_rate": errors / words}
    manifests = list(dict.fromkeys(row["manifest"] for row in rows))
    if len(manifests) > 1:
        summary["by_manifest"] = _by_manifest(rows, manifests, columns)
    if done:
        summary["matching"] = summarize_matching(done)
    properties = {name: [row["mixture"][name] for row in done] for name in PROPERTIES}
    summary["by"] = by_group(
        {"speakers": [str(_scores(row).active_sources) for row in done]} | properties, scores, speakers_of(done)
    )
    return summary


def summarize_matching(rows: Sequence[Row]) -> dict[str, Any]:
    """Return numbers that describe the use of the hypotheses.

    `hypothesis_usage`: the share of the speaking sources that each hypothesis is the best for (MCL, ties to the lowest
    index). `collapse_rate`: the share of hypotheses that are the best for none. If the model counts speakers,
    `speaker_count` holds the shares of all `n` mixtures with the right number (`accuracy`), too many
    (`over_separation_rate`) and too few (`under_separation_rate`), how many got no number (`n_without_number`), and the
    `confusion`, true number -> number found (or "no number") -> mixtures. If only speakers were
    matched, `missed_sources` are sources left without a hypothesis, `extra_hypotheses` found speakers without a source,
    and `missed_source_rate` is over the sources that speak.
    """
    scores = [_scores(row) for row in rows]
    winners = [k for one in scores for k in one.winners if k >= 0]
    usage = np.bincount(np.array(winners, dtype=int), minlength=max(row["hypotheses"] for row in rows))
    found: dict[str, Any] = {
        "n_sources": len(winners),
        "hypothesis_usage": (usage / max(1, len(winners))).tolist(),
        "collapse_rate": float(np.mean(usage == 0)) if len(winners) else None,
    }
    if any(one.speaker_count is not None for one in scores):
        found["speaker_count"] = _summarize_counts([(one.active_sources, one.speaker_count) for one in scores])
    if any(row.get("only_speakers") for row in rows):
        missed = sum(one.missed_sources for one in scores)
        matched = sum(k >= 0 for one in scores for k in one.assignment)
        found |= {
            "missed_sources": missed,
            "missed_source_rate": missed / max(1, len(winners)),
            "extra_hypotheses": sum(one.speaker_count or 0 for one in scores) - matched,
        }
    return found


def _summarize_counts(counts: Sequence[tuple[int, int | None]]) -> dict[str, Any]:
    """Summarize pairs (how many speak, how many were found; None: no number)."""
    true, found = np.array(counts, np.float64).T
    numbers = {str(number): found == number for number in range(int(np.nanmax(found)) + 1)}
    if np.isnan(found).any():
        numbers["no number"] = np.isnan(found)
    return {
        "n": len(counts),
        "n_without_number": int(np.isnan(found).sum()),
        "accuracy": float(np.mean(found == true)),
        "over_separation_rate": float(np.mean(found > true)),
        "under_separation_rate": float(np.mean(found < true)),
        "confusion": {
            f"{speak:.0f}": {number: int(np.sum(chosen & (true == speak))) for number, chosen in numbers.items()}
            for speak in np.unique(true).tolist()
        },
    }


def write_rows(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write one line per scored utterance, in order; an empty cell is a score that is not defined.

    `assignment` holds the hypothesis of each source, from 1, "-" for a silent source and "missed" for one without;
    `speaker_count` is the model's number of speakers, if it has one; `speaker_s1` and so on are the manifest's names.

    Args:
        path: of the CSV file.
        rows: of a journal; those without scores are left out.
        columns: with scores, of `columns_of`.
    """
    rows = _done(rows)
    places = range(max((row["sources"] for row in rows), default=0))
    per_source = [column for column in columns if column not in ("speaker_count_accuracy", *FROM_LATENTS)]
    # Mixtures have no interval, because the interval of a mean is not the mean of intervals.
    bounded = [*per_source, *(BOUNDS if PREDICTED in columns else ())]
    counted = ["speaker_count"] * any(row["scores"]["speaker_count"] is not None for row in rows)
    named = [f"speaker_s{place + 1}" for place in places]
    header = [
        *_PLAIN,
        *named,
        *PROPERTIES,
        "assignment",
        *counted,
        *columns,
        *(f"{c}_s{j + 1}" for c in bounded for j in places),
    ]

    def cells_of(row: Row) -> list[Any]:
        scores = _scores(row)
        of_sources = [scores.values.get(c, []) for c in bounded]
        numbers = [scores.mean(column) for column in columns]
        numbers += [values[j] if j < len(values) else np.nan for values in of_sources for j in places]
        cells = ["" if np.isnan(number) else repr(float(number)) for number in numbers]
        matched = " ".join(str(k + 1) if k >= 0 else _UNMATCHED.get(k, "-") for k in scores.assignment)
        count = [scores.speaker_count] * len(counted)
        reasons = "; ".join(f"{name}: {reason}" for name, reason in scores.reasons.items())
        described = ["" if row["mixture"][name] is None else row["mixture"][name] for name in PROPERTIES]
        names = [*row["speakers"], *[""] * (len(named) - len(row["speakers"]))]
        return [*(row[name] for name in _PLAIN), *names, *described, matched, *count, *cells, reasons]

    write_csv(path, [*header, "reasons"], map(cells_of, rows))


def _done(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "reason" not in row]


def _scores(row: Row) -> UtteranceScores:
    return UtteranceScores(**row["scores"])


def _means(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, list[float]]:
    scores = [_scores(row) for row in rows]
    return {column: [one.mean(column) for one in scores] for column in columns}


def speakers_of(rows: Sequence[Row]) -> list[list[str]]:
    """Return the names of each row's speakers."""
    return [row["speakers"] for row in rows]


def interval_unit(summaries: Iterable[Summary | PairedDifference]) -> str:
    """Return what intervals draw: "speaker", or "mixture" if one of them does not know the speakers."""
    return "speaker" if all(found.n_speakers for found in summaries if found.n) else "mixture"


def _summarized(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    metrics = {name: asdict(summary) for name, summary in summaries.items()}
    return {"interval_unit": interval_unit(summaries.values()), "metrics": metrics}


def _counts(rows: Sequence[Row]) -> dict[str, Any]:
    skipped = [{"id": row["id"], "reason": row["reason"]} for row in rows if "reason" in row]
    return {
        "n_utterances": len(rows) - len(skipped),
        "n_skipped": len(skipped),
        "skipped": skipped,
        "n_silent_sources": sum(row["silent_sources"] for row in _done(rows)),
        "n_without_improvement": sum(row["scores"].get("mixture_is_source", False) for row in _done(rows)),
    }


def _failures(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return metric -> number of utterances with a source that it failed for, and the first of them with its reason."""
    counts: Counter[str] = Counter()
    first: dict[str, dict[str, str]] = {}
    for row in rows:
        for name, reason in row["scores"]["reasons"].items():
            counts[name] += 1
            first.setdefault(name, {"id": row["id"], "reason": reason})
    return {name: {"n": count, "first": first[name]} for name, count in counts.items()}


def _by_manifest(rows: Sequence[Row], manifests: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the summary of every manifest, with each metric's drop from the first, in its unit and in per cent."""
    found: list[dict[str, Any]] = []
    for manifest in manifests:
        mine = [row for row in rows if row["manifest"] == manifest]
        summarized = _summarized(summarize_columns(_means(_done(mine), columns), speakers_of(_done(mine))))
        if found:
            for name, summary in summarized["metrics"].items():
                if name in NO_SCORES:
                    continue
                summary |= _drop(name, found[0]["metrics"][name], summary)
        found.append({"manifest": manifest} | _counts(mine) | summarized)
    return found


def _drop(name: str, seen: Mapping[str, Any], unseen: Mapping[str, Any]) -> dict[str, float | None]:
    unit = "_db" if name.endswith("_db") else ""
    if seen["mean"] is None or unseen["mean"] is None:
        return {f"drop{unit}": None, "drop_percent": None}
    drop = seen["mean"] - unseen["mean"]
    # The share of a score at or below zero means nothing.
    return {f"drop{unit}": drop, "drop_percent": 100 * drop / seen["mean"] if seen["mean"] > 0 else None}


def commit() -> str | None:
    """Return the commit of the source tree that this runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def hardware(device: str) -> str:
    """Return CPU, accelerator if one is used, and what ran models with its version, in one line."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [
            line.partition(":")[2].strip() for line in cpuinfo.read_text().split("\n") if line.startswith("model name")
        ]
        name = models[0] if models else name
    name = f"{name}, {os.cpu_count()} CPUs"
    # Whatever was not imported has not run a model.
    if (torch := sys.modules.get("torch")) is not None:
        name = f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"
        return f"{torch.cuda.get_device_name(device)}, {name}" if device.startswith("cuda") else name
    runtime = sys.modules.get("onnxruntime")
    return name if runtime is None else f"{name}, onnxruntime {runtime.__version__}"
