"""Measure what `sepkit cluster` wrote against a table of known speakers: NMI and more.

`sepkit.evaluation.meeting` measures who speaks when.

Measures of clusters take (N,) labels, which are true, and the (N,) clusters that were found.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data.segments import Segment, read_segments
from sepkit.errors import UserError
from sepkit.matching import linear_sum_assignment


def read_reference(path: str | Path) -> dict[str, list[Segment]]:
    """Return recording -> segments with who really speaks in them.

    Args:
        path: a CSV file with the columns path and speaker, and perhaps start_seconds and duration_seconds.

    Raises:
        UserError: an RTTM file, an unreadable file, or a row without a speaker.
    """
    if Path(path).suffix.lower() == ".rttm":
        raise UserError(
            f"--reference {path}: expected a CSV file with the columns path and speaker; an RTTM file is for "
            "sepkit evaluate --meeting, whose --hypothesis takes the RTTM files that sepkit cluster writes"
        )
    known: dict[str, list[Segment]] = {}
    for row in read_segments(path):
        if row.speaker is None:
            raise UserError(f"{path}: {row.path} has no speaker, expected one in every row")
        known.setdefault(_name(row.path), []).append(row)
    return known


def score_clusters(table: str | Path, known: Mapping[str, Sequence[Segment]]) -> dict[str, Any]:
    """Return NMI, ACC, ARI and purity of the segments, each with the speaker who has most of it.

    Args:
        table: segments.csv of `sepkit cluster`.
        known: Result of `read_reference`.

    Raises:
        UserError: nothing of the clusters is in the reference.
    """
    segments = read_segments(table)
    labels, found, unlabeled = [], [], 0
    for segment in segments:
        speaker = _speaker_of(segment, known.get(_recording_of(segment, known), []))
        if speaker is None or segment.speaker is None:
            unlabeled += 1
            continue
        labels.append(speaker)
        found.append(segment.speaker)
    if not labels:
        raise UserError(f"--reference: names none of the recordings of {table}, such as {segments[0].path}")
    names = {_recording_of(segment, known) for segment in segments}
    return {
        "n_segments": len(labels),
        "n_without_label": unlabeled,
        "unknown_paths": sorted(set(known) - names),
        **clustering_scores(labels, found),
        "n_speakers": len({row.speaker for rows in known.values() for row in rows}),
        "n_clusters": len({segment.speaker for segment in segments}),
    }


def _name(path: str) -> str:
    """Return a path without ending: another format of the same recording has the same name."""
    return str(Path(path).with_suffix("")) if Path(path).name else path


def _recording_of(segment: Segment, known: Mapping[str, Any]) -> str:
    """Return the name of a segment's recording in the reference: by its path, by its file's name, or as an estimate."""
    name = _name(segment.path)
    stem, mark, number = name.rpartition("_s")
    names = [name, Path(name).name]
    if mark and number.isdigit():
        names += [stem, Path(stem).name]
    return next((candidate for candidate in names if candidate in known), name)


def _speaker_of(segment: Segment, rows: Sequence[Segment]) -> str | None:
    """Return the speaker with most of a segment; None: no speaker."""
    shares: dict[str, float] = {}
    end = segment.start_seconds + segment.duration_seconds
    for row in rows:
        overlap = min(end, row.start_seconds + row.duration_seconds) - max(segment.start_seconds, row.start_seconds)
        if overlap > 0 and row.speaker is not None:
            shares[row.speaker] = shares.get(row.speaker, 0.0) + overlap
    return max(shares, key=lambda name: shares[name]) if shares else None


def contingency(labels: Sequence[Any], clusters: Sequence[Any]) -> np.ndarray:
    """Return (classes, clusters) counts of items, both in sorted order.

    Raises:
        ValueError: nothing, or lists of different lengths.
    """
    if len(labels) != len(clusters) or not len(labels):
        raise ValueError(f"found {len(labels)} labels and {len(clusters)} clusters, expected equal numbers, 1 or more")
    rows, columns = (np.unique(np.asarray(values), return_inverse=True)[1] for values in (labels, clusters))
    counts = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(counts, (rows, columns), 1)
    return counts


def normalized_mutual_information(labels: Sequence[Any], clusters: Sequence[Any]) -> float:
    """Return the mutual information over the mean of both entropies, 0 to 1; 1 if both have one group alone."""
    joint = contingency(labels, clusters)
    joint = joint / joint.sum()
    row, column = joint.sum(1), joint.sum(0)
    mean_entropy = 0.5 * (_entropy(row) + _entropy(column))
    if mean_entropy == 0:
        return 1.0
    shared = joint[joint > 0]
    expected = np.outer(row, column)[joint > 0]
    return float(np.clip((shared * np.log(shared / expected)).sum() / mean_entropy, 0.0, 1.0))


def _entropy(shares: np.ndarray) -> float:
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def clustering_accuracy(labels: Sequence[Any], clusters: Sequence[Any]) -> float:
    """Return the share of items in the right cluster under the best one-to-one naming of clusters."""
    counts = contingency(labels, clusters)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / counts.sum())


def adjusted_rand_index(labels: Sequence[Any], clusters: Sequence[Any]) -> float:
    """Return the share of pairs that both agree on, corrected for chance: 1 for equal groups, 0 in the mean by chance.

    Source: Hubert and Arabie, "Comparing partitions", 1985.
    """
    counts = contingency(labels, clusters)

    def pairs(values: np.ndarray) -> float:
        return float((values * (values - 1)).sum() / 2)

    together, rows, columns = pairs(counts), pairs(counts.sum(1)), pairs(counts.sum(0))
    every = pairs(np.array([counts.sum()]))
    expected = rows * columns / every if every else 0.0
    most = 0.5 * (rows + columns)
    return 1.0 if most == expected else (together - expected) / (most - expected)


def purity(labels: Sequence[Any], clusters: Sequence[Any]) -> float:
    """Return the share of items whose label is the most frequent one of their cluster."""
    counts = contingency(labels, clusters)
    return float(counts.max(0).sum() / counts.sum())


def clustering_scores(labels: Sequence[Any], clusters: Sequence[Any]) -> dict[str, float]:
    """Return all of these scores, and by how many groups the clusters exceed the labels."""
    return {
        "nmi": normalized_mutual_information(labels, clusters),
        "acc": clustering_accuracy(labels, clusters),
        "ari": adjusted_rand_index(labels, clusters),
        "purity": purity(labels, clusters),
        "count_error": float(len(set(clusters)) - len(set(labels))),
    }
