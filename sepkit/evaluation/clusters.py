"""Measure what `sepkit cluster` wrote against known speakers: a table of segments, or RTTM."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sepkit.data.segments import Segment, read_segments
from sepkit.errors import UserError
from sepkit.evaluation.clustering import clustering_scores
from sepkit.evaluation.diarization import DiarizationErrors, Turns, diarization_errors, read_rttm
from sepkit.files import write_json

COLLARS_SECONDS = (0.0, 0.25)


def evaluate_clusters(clusters: str | Path, reference: str | Path, out: str | Path) -> dict[str, Any]:
    """Write OUT/summary.json with the scores of clusters, and return it.

    NMI, ACC, ARI and purity are of the segments, each with the speaker who has most of it. With an RTTM reference there
    is the diarization error rate, too, of all recordings together and of each; overlapping speech is counted.

    Args:
        clusters: folder that `sepkit cluster` or `sepkit separate --rttm` wrote, its segments.csv, or an RTTM file.
        reference: FILE.rttm, or a CSV file with the columns path and speaker, and perhaps start_seconds and
            duration_seconds.
        out: folder of the result.

    Raises:
        UserError: files that cannot be read, or nothing of the clusters is in the reference.
    """
    table = Path(clusters)
    if table.is_dir() and (table / "segments.csv").is_file():
        table = table / "segments.csv"
    segments = _read_clusters(table)
    if Path(reference).suffix.lower() == ".rttm":
        turns = read_rttm(reference)
        known = {name: _segments_of(name, own) for name, own in turns.items()}
    else:
        turns = {}
        known = {}
        for row in read_segments(reference):
            if row.speaker is None:
                raise UserError(f"{reference}: {row.path} has no speaker, expected one in every row")
            known.setdefault(_name(row.path), []).append(row)
    labels, found, unlabeled = [], [], 0
    for segment in segments:
        speaker = _speaker_of(segment, known.get(_recording_of(segment, known), []))
        if speaker is None or segment.speaker is None:
            unlabeled += 1
            continue
        labels.append(speaker)
        found.append(segment.speaker)
    if not labels:
        raise UserError(f"{reference}: names none of the recordings of {table}, such as {segments[0].path}")
    names = {_recording_of(segment, known) for segment in segments}
    summary: dict[str, Any] = {
        "clusters": str(table),
        "reference": str(reference),
        "n_segments": len(labels),
        "n_without_label": unlabeled,
        "unknown_paths": sorted(set(known) - names),
        **clustering_scores(labels, found),
        "n_speakers": len({row.speaker for rows in known.values() for row in rows}),
        "n_clusters": len({segment.speaker for segment in segments}),
    }
    if turns:
        summary |= _error_rates(turns, segments, known)
    write_json(Path(out) / "summary.json", summary)
    return summary


def _read_clusters(path: Path) -> list[Segment]:
    """Return the segments of a table, of an RTTM file, or of all RTTM files in a folder."""
    files = sorted(path.rglob("*.rttm")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: found no segments.csv and no RTTM file, expected what `sepkit cluster` wrote")
    if files[0].suffix.lower() != ".rttm":
        return read_segments(path)
    found = [segment for file in files for name, own in read_rttm(file).items() for segment in _segments_of(name, own)]
    if not found:
        raise UserError(f"{path}: nobody speaks in it, expected turns")
    return found


def _name(path: str) -> str:
    """Return a path without ending: what an RTTM file, or another format of the same recording, calls it."""
    return str(Path(path).with_suffix("")) if Path(path).name else path


def _recording_of(segment: Segment, known: Mapping[str, Any]) -> str:
    """Return the name of a segment's recording in the reference: by its path, by its file's name, or as an estimate."""
    name = _name(segment.path)
    stem, mark, number = name.rpartition("_s")
    names = [name, Path(name).name]
    if mark and number.isdigit():
        names += [stem, Path(stem).name]
    return next((candidate for candidate in names if candidate in known), name)


def _segments_of(name: str, turns: Turns) -> list[Segment]:
    return [Segment(name, start, length, speaker) for speaker, own in turns.items() for start, length in own]


def _speaker_of(segment: Segment, rows: Sequence[Segment]) -> str | None:
    """Return who has most of a segment; None for nobody."""
    shares: dict[str, float] = {}
    end = segment.start_seconds + segment.duration_seconds
    for row in rows:
        overlap = min(end, row.start_seconds + row.duration_seconds) - max(segment.start_seconds, row.start_seconds)
        if overlap > 0 and row.speaker is not None:
            shares[row.speaker] = shares.get(row.speaker, 0.0) + overlap
    return max(shares, key=lambda name: shares[name]) if shares else None


def _error_rates(turns: Mapping[str, Turns], segments: Sequence[Segment], known: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for segment in segments:
        if not math.isfinite(segment.start_seconds + segment.duration_seconds):
            raise UserError(f"{segment.path}: a segment has no beginning or end, which error rates need; name them")
        own = found.setdefault(_recording_of(segment, known), {}).setdefault(str(segment.speaker), [])
        own.append((segment.start_seconds, segment.duration_seconds))
    rates: dict[str, Any] = {"recordings": {name: {} for name in turns}}
    for collar in COLLARS_SECONDS:
        name = "der" if collar == 0 else f"der_collar_{collar:g}"
        errors = {key: diarization_errors(own, found.get(key, {}), collar) for key, own in turns.items()}
        total = sum(errors.values(), DiarizationErrors(0.0, 0.0, 0.0, 0.0))
        rates[name] = total.rate
        if collar == 0:
            parts = {"missed": total.missed, "false_alarm": total.false_alarm, "confused": total.confused}
            rates |= {f"{part}_share": value / total.speech if total.speech else 0.0 for part, value in parts.items()}
        for key, own in errors.items():
            rates["recordings"][key][name] = own.rate
    return rates
