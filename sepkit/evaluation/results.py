"""Turn rows of scores into utterances.csv and the figures of summary.json, also by property of the mixtures."""

import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data.manifest import MixtureEntry
from sepkit.evaluation.labels import BOUNDS, FROM_LATENTS, NO_SCORES, PREDICTED, PROPERTIES, WEIGHTED
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.evaluation.scoring import COLUMNS, MISSED, PER_UTTERANCE, UtteranceScores
from sepkit.evaluation.statistics import PairedDifference, Speakers, Summary, summarize_columns
from sepkit.files import write_csv
from sepkit.signals import active_frames, frame_powers

Row = dict[str, Any]
"""The journal's record of an utterance; "reason" in it means that it was skipped."""

_FRAME_SECONDS = 0.032
# References are clean, so their quiet sounds count as speech too.
_HEARD_DB = 40.0
# Groups of fewer utterances have intervals too wide to be useful.
_LEAST_IN_QUANTILE = 10


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
        rows: Rows of a journal.
        columns: Columns with scores, from `columns_of`.
    """
    done = _done(rows)
    scores = _means(done, columns)
    summary = _counts(rows) | _summarized(summarize_columns(scores, speakers_of(done)))
    # Metric -> number of utterances with a source that it failed for, and the first of them with its reason.
    failures: dict[str, dict[str, Any]] = {}
    for row in done:
        for name, reason in row["scores"]["reasons"].items():
            failures.setdefault(name, {"n": 0, "first": {"id": row["id"], "reason": reason}})["n"] += 1
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
        path: Path of the CSV file.
        rows: Rows of a journal; those without scores are left out.
        columns: Columns with scores, from `columns_of`.
    """
    rows = _done(rows)
    per_source = [column for column in columns if column not in ("speaker_count_accuracy", *FROM_LATENTS)]
    # Mixtures have no interval, because the interval of a mean is not the mean of intervals.
    per_source += BOUNDS if PREDICTED in columns else ()
    sources = range(1, 1 + max((row["sources"] for row in rows), default=0))
    counted = ["speaker_count"] * any(row["scores"]["speaker_count"] is not None for row in rows)
    header = [*_PLAIN, *(f"speaker_s{j}" for j in sources), *PROPERTIES, "assignment", *counted, *columns]
    header += [*(f"{column}_s{j}" for column in per_source for j in sources), "reasons"]

    def cells_of(row: Row) -> Row:
        scores = _scores(row)
        cells = {f"speaker_s{j}": name for j, name in enumerate(row["speakers"], start=1)}
        cells |= {column: scores.mean(column) for column in columns}
        for column in per_source:
            cells |= {f"{column}_s{j}": value for j, value in enumerate(scores.values.get(column, []), start=1)}
        return {
            **row,
            **row["mixture"],
            **cells,
            "assignment": " ".join(str(k + 1) if k >= 0 else _UNMATCHED.get(k, "-") for k in scores.assignment),
            "speaker_count": scores.speaker_count,
            "reasons": "; ".join(f"{name}: {reason}" for name, reason in scores.reasons.items()),
        }

    write_csv(path, header, ([_cell(cells.get(name)) for name in header] for cells in map(cells_of, rows)))


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


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
    """Return the unit of the bootstrap: "speaker", or "mixture" if one of them lacks speakers."""
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


def _by_manifest(rows: Sequence[Row], manifests: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the summary of every manifest, with each metric's drop from the first."""
    found: list[dict[str, Any]] = []
    for manifest in manifests:
        mine = [row for row in rows if row["manifest"] == manifest]
        summarized = _summarized(summarize_columns(_means(_done(mine), columns), speakers_of(_done(mine))))
        if found:
            for name, summary in summarized["metrics"].items():
                if name not in NO_SCORES:
                    seen, unseen = found[0]["metrics"][name]["mean"], summary["mean"]
                    drop = None if seen is None or unseen is None else seen - unseen
                    summary["drop_db" if name.endswith("_db") else "drop"] = drop
        found.append({"manifest": manifest} | _counts(mine) | summarized)
    return found


def describe_mixture(entry: MixtureEntry, sources: np.ndarray, mixture: np.ndarray) -> dict[str, Any]:
    """Return the `PROPERTIES` of a mixture, None for unknown ones.

    sex_pair: the sexes of all speakers in alphabetical order (F-M). overlap_ratio: that of the manifest's line, or else
    the share of 32 ms frames with two or more speakers within 40 dB of their loudest, among those with any.
    level_difference_db: the strongest source over the weakest. input_si_sdr_db: of the mixture, mean over sources.
    Silent sources only enter sex_pair.

    Args:
        entry: line of the manifest.
        sources: (m, T).
        mixture: (T,).
    """
    sexes = [source.sex for source in entry.sources]
    energies = np.square(sources, dtype=np.float64).sum(axis=1)
    energies = energies[energies > 0]
    inputs = si_sdr_db(np.asarray(mixture)[None], sources)
    inputs = inputs[~np.isnan(inputs)]
    several = len(energies) > 1
    return {
        "sex_pair": "-".join(sorted(sex for sex in sexes if sex)) if all(sexes) else None,
        "overlap_ratio": _overlap_ratio(entry, sources),
        "level_difference_db": float(10 * np.log10(energies.max() / energies.min())) if several else None,
        "duration_seconds": entry.duration_seconds,
        "input_si_sdr_db": float(inputs.mean()) if len(inputs) else None,
    }


def by_group(
    properties: Mapping[str, Sequence[Any]], columns: Mapping[str, Sequence[float]], speakers: Speakers | None
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return property -> group -> column -> mean, ci95, n and n_speakers.

    Each word is a group. Numbers are cut into four groups of equal size, or two if a group would have fewer than 10
    utterances. Properties with one group are left out.

    Args:
        properties: name -> (N,) values, None where not known.
        columns: name -> (N,) scores.
        speakers: Speakers of the N utterances; None: unknown.
    """
    scores = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, values in properties.items():
        groups = _groups(values)
        if len(groups) > 1:
            found[name] = {label: _short(scores, speakers, rows) for label, rows in groups.items()}
    return found


def _short(columns: Mapping[str, np.ndarray], speakers: Speakers | None, rows: np.ndarray) -> dict[str, Any]:
    own = None if speakers is None else [speakers[int(row)] for row in rows]
    summaries = summarize_columns({name: scores[rows] for name, scores in columns.items()}, own)
    kept = ("mean", "ci95", "n", "n_speakers")
    return {name: {key: getattr(summary, key) for key in kept} for name, summary in summaries.items()}


def _groups(values: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return label -> indices of the utterances in that group, in the order of labels or of numbers."""
    known = [i for i, value in enumerate(values) if value is not None]
    if not known or isinstance(values[known[0]], str):
        labels = sorted({values[i] for i in known})
        return {label: np.array([i for i in known if values[i] == label]) for label in labels}
    numbers = np.array([values[i] for i in known], dtype=np.float64)
    count = 4 if len(numbers) >= 4 * _LEAST_IN_QUANTILE else 2 if len(numbers) >= 2 * _LEAST_IN_QUANTILE else 1
    edges = _rounded(np.unique(np.quantile(numbers, np.linspace(0, 1, count + 1))))
    places = np.searchsorted(edges[1:-1], numbers, side="right")
    parts = [np.array(known)[places == place] for place in range(max(1, len(edges) - 1))]
    labels = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    return {label: rows for label, rows in zip(labels, parts, strict=False) if len(rows)}


def _rounded(edges: np.ndarray) -> np.ndarray:
    """Round edges as far as their least distance allows, the outer ones outwards: 0 to 0.6, not 0.00512 to 0.594."""
    if len(edges) < 2:
        return edges
    step = 10.0 ** math.floor(math.log10(float(np.diff(edges).min())))
    rounded = np.round(edges / step)
    rounded[0], rounded[-1] = math.floor(edges[0] / step), math.ceil(edges[-1] / step)
    return rounded * step


def _overlap_ratio(entry: MixtureEntry, sources: np.ndarray) -> float | None:
    stated = entry.extra.get("overlap_ratio")
    if isinstance(stated, int | float) and not isinstance(stated, bool):
        return float(stated)
    frame = max(1, round(_FRAME_SECONDS * entry.sample_rate))
    if sources.shape[1] < frame or len(sources) < 2:
        return None
    speaking = active_frames(frame_powers(sources, frame), _HEARD_DB).sum(axis=0)
    return float((speaking > 1).sum() / (speaking > 0).sum()) if speaking.any() else None


def commit() -> str | None:
    """Return the commit of the source tree in use, followed by + if tracked files have changed; None for an installed
    package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        # Without locks, git does not write its index.
        command = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain=v2", "--branch", "-uno"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
        return lines[0].split()[-1] + "+" * any(not line.startswith("#") for line in lines)
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
