"""Audiograms as audiologists draw them: decibels downwards, a red O for the right ear and a blue X for the left."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sepkit.errors import UserError

AUDIOGRAMS = "audiograms.csv"
"""File of sessions to draw: id, ear, frequency_hz, measured, reference_db, estimate_db, deviation_db."""

_EARS = {"right": ("#c9524f", "o"), "left": ("#3d86c6", "x")}
_LOWEST_DB, _HIGHEST_DB = -10, 120


def draw_audiogram(
    axes: Axes,
    thresholds: Mapping[str, float],
    deviations: Mapping[str, float] | None = None,
    measured: Collection[str] | None = None,
    reference: Mapping[str, float] | None = None,
    bare: bool = False,
) -> None:
    """Draw both ears on empty axes.

    Args:
        axes: empty.
        thresholds: `right_1000` -> dB HL.
        deviations: of the same; drawn as bars of one deviation up and down for thresholds that are not measured.
        measured: names of measured thresholds, drawn large, and the others small and faint. None: all are.
        reference: whole audiogram to compare with, as dashed lines.
        bare: without labels and ticks.
    """
    for ear, (color, marker) in _EARS.items():
        names = sorted((n for n in thresholds if n.startswith(f"{ear}_")), key=_frequency)
        x = [_frequency(name) for name in names]
        y = [thresholds[name] for name in names]
        if reference is not None:
            axes.plot(x, [reference[name] for name in names], "--", color=color, linewidth=1, alpha=0.8)
        else:
            axes.plot(x, y, color=color, linewidth=1)
        for name, hz, db in zip(names, x, y, strict=True):
            known = measured is None or name in measured
            face = "none" if marker == "o" else color
            axes.plot(
                hz, db, marker, color=color, markerfacecolor=face, markersize=3 if bare else 8 if known else 5,
                markeredgewidth=1 if bare else 2 if known else 1, alpha=1.0 if known else 0.7,
            )  # fmt: skip
            if deviations is not None and not known:
                axes.errorbar(hz, db, yerr=deviations[name], color=color, alpha=0.35, linewidth=3, capsize=0)
    axes.set(xscale="log", ylim=(_HIGHEST_DB, _LOWEST_DB), xlim=(400, 10000))
    axes.minorticks_off()
    if bare:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.set_xticks([500, 1000, 2000, 4000, 8000], [".5", "1", "2", "4", "8"])
    axes.set_yticks(range(0, _HIGHEST_DB + 1, 20))
    axes.grid(color="black", alpha=0.12, linewidth=0.8)
    axes.set(xlabel="frequency [kHz]", ylabel="threshold [dB HL]")


def audiogram_figure(rows: list[dict[str, str]]) -> Figure:
    """Return a figure of one audiogram: measured and expected thresholds, the truth dashed.

    Args:
        rows: of that audiogram in an `audiograms.csv`.
    """
    figure = Figure(figsize=(4.2, 3.8), layout="constrained")
    names = [f"{row['ear']}_{row['frequency_hz']}" for row in rows]

    def column(name: str) -> dict[str, float]:
        return {key: float(row[name]) for key, row in zip(names, rows, strict=True) if row[name]}

    measured = {key for key, row in zip(names, rows, strict=True) if row["measured"] == "1"}
    draw_audiogram(
        figure.subplots(), column("estimate_db"), column("deviation_db"), measured, column("reference_db") or None
    )
    return figure


def read_audiogram_rows(path: Path) -> dict[str, list[dict[str, str]]]:
    """Return id -> rows of a file `audiograms.csv`.

    Args:
        path: of the file.

    Raises:
        UserError: a column is missing.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    needed = {"id", "ear", "frequency_hz", "measured", "reference_db", "estimate_db", "deviation_db"}
    if rows and not needed <= rows[0].keys():
        raise UserError(f"{path}: found no column {', '.join(sorted(needed - rows[0].keys()))}; simulate again")
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return found


def _frequency(name: str) -> float:
    return float(name.rpartition("_")[2])
