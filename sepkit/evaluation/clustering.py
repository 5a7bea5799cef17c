"""Agreement of clusters with true labels: NMI, accuracy, adjusted Rand index and purity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def contingency(labels: Sequence[Any], clusters: Sequence[Any]) -> np.ndarray:
    """Return (classes, clusters) counts of items, both in sorted order.

    Args:
        labels: (N,), what is true.
        clusters: (N,), what was found.

    Raises:
        ValueError: nothing, or lists of different lengths.
    """
    if len(labels) != len(clusters) or not len(labels):
        raise ValueError(
            f"found {len(labels)} labels and {len(clusters)} clusters, expected as many of each, at least 1"
        )
    rows, columns = (np.unique(np.asarray(values), return_inverse=True)[1] for values in (labels, clusters))
    counts = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(counts, (rows, columns), 1)
    return counts


def normalized_mutual_information(labels: Sequence[Any], clusters: Sequence[Any]) -> float:
    """Return the mutual information over the mean of both entropies, 0 to 1; 1 if both have one group alone.

    Args:
        labels: (N,), what is true.
        clusters: (N,), what was found.
    """
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
    """Return the share of items in the right cluster under the best one-to-one naming of clusters.

    Args:
        labels: (N,), what is true.
        clusters: (N,), what was found.
    """
    from scipy.optimize import linear_sum_assignment

    counts = contingency(labels, clusters)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / counts.sum())


def adjusted_rand_index(labels: Sequence[Any], clusters: Sequence[Any]) -> float:
    """Return the share of pairs that both agree on, corrected for chance: 1 for equal groups, 0 in the mean by chance.

    Args:
        labels: (N,), what is true.
        clusters: (N,), what was found.

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
    """Return the share of items whose label is the most frequent one of their cluster.

    Args:
        labels: (N,), what is true.
        clusters: (N,), what was found.
    """
    counts = contingency(labels, clusters)
    return float(counts.max(0).sum() / counts.sum())


def clustering_scores(labels: Sequence[Any], clusters: Sequence[Any]) -> dict[str, float]:
    """Return all of these scores, and by how many groups the clusters exceed the labels.

    Args:
        labels: (N,), what is true.
        clusters: (N,), what was found.
    """
    return {
        "nmi": normalized_mutual_information(labels, clusters),
        "acc": clustering_accuracy(labels, clusters),
        "ari": adjusted_rand_index(labels, clusters),
        "purity": purity(labels, clusters),
        "count_error": float(len(set(clusters)) - len(set(labels))),
    }
