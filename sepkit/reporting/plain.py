"""Scores as aligned text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sepkit.evaluation.labels import NO_SCORES, label_of
from sepkit.reporting.compared_runs import digits_of

# Printed only on request, or if they tell more than the others; summary.json has them all.
_ASIDE = frozenset({*NO_SCORES, "mcl_si_sdr_db", "blr_nats_per_sample"})


def score_lines(summary: Mapping[str, Any], asked: Sequence[str] | None = None) -> list[str]:
    """Return the scores of summary.json as an aligned table: one row per metric with mean, 95 % interval and mixtures.

    Several manifests stand side by side, each with its mean, and the drop of SI-SDR improvement from the first.

    Args:
        summary: of summary.json.
        asked: names of columns; None: the usual ones.
    """
    parts = summary.get("by_manifest") or []
    names = [
        name
        for name, score in summary["metrics"].items()
        if score["n"] and (name not in _ASIDE if asked is None else name in asked)
    ]
    if "si_sdr_db" in names and "mcl_si_sdr_db" in names:
        names.remove("mcl_si_sdr_db")
    head = ["", "mean", "95 % interval", "mixtures", *(part["manifest"] for part in parts)]
    rows = []
    for name in names:
        score, digits = summary["metrics"][name], digits_of(name)
        interval = "" if score["ci95"] is None else f"{score['ci95'][0]:.{digits}f} to {score['ci95'][1]:.{digits}f}"
        row = [label_of(name), f"{score['mean']:.{digits}f}", interval, str(score["n"])]
        for part in parts:
            found = part["metrics"].get(name, {})
            mean, drop = found.get("mean"), found.get("drop_db") if name == "si_sdri_db" else None
            row.append(
                "" if mean is None else f"{mean:.{digits}f}" + (f" (drop {drop:.2f})" if drop is not None else "")
            )
        rows.append(row)
    return aligned([head, *rows]) if rows else ["no mixture has a score"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines: the first column aligned to the left, others to the right, two blanks between.

    Args:
        rows: of equal length, one or more.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
