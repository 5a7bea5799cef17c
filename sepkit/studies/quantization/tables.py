"""What `sepkit quantize` prints at its end: means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sepkit.reporting.markdown import markdown_table


def seeds_table(rows: Sequence[Mapping[str, Any]], labels: Sequence[str], measures: Mapping[str, str]) -> str:
    """Return a Markdown table: a line for each combination of labels, mean ± sample deviation of each measure.

    Args:
        rows: a measure has one number a seed, in a list or in rows of their own; a row may lack labels and measures.
        labels: columns to the left.
        measures: name in the rows -> heading.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(label, "")) for label in labels), []).append(row)
    shown = [[*words, *(_summary(part, measure) for measure in measures)] for words, part in groups.items()]
    return markdown_table([*labels, *measures.values()], shown, words=range(len(labels)))


def _summary(rows: Sequence[Mapping[str, Any]], measure: str) -> str:
    values = np.concatenate([np.ravel(row[measure]) for row in rows if measure in row] or [np.empty(0)])
    if not len(values):
        return ""
    mean = f"{values.mean():.4g}"
    return mean if len(values) == 1 else f"{mean} ± {values.std(ddof=1):.2g}"
