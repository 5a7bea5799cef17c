"""Write the findings of `sepkit find-temperature` as JSON and as a figure."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from sepkit.annealing.free_hypotheses import SourceAnnealing
from sepkit.annealing.temperature import ENTROPY_SHARE, EntropyByTemperature, Findings
from sepkit.files import write_json
from sepkit.reporting.curve_figures import falling
from sepkit.reporting.figures import COLORS, curves, save_figure


def temperature_figure(findings: Findings) -> Figure:
    """Return a figure of the splits of hypotheses, or of the entropy of their assignment, over temperature."""
    found = findings.found
    if isinstance(found, EntropyByTemperature):
        return _entropy_by_temperature(
            found.temperatures, found.entropies_nats, found.hypotheses, found.initial, ENTROPY_SHARE, found.unit
        )
    return _groups_by_temperature(found.annealing, found.spread_db, found.expected_db)


def write_findings(findings: Findings, folder: str | os.PathLike[str]) -> Path:
    """Write temperature.json and temperature.png, and return their folder.

    Raises:
        UserError: the folder cannot be written to.
    """
    folder = Path(folder)
    save_figure(temperature_figure(findings), folder / "temperature.png", dpi=160)
    skipped = [{"id": name, "reason": reason} for name, reason in findings.skipped.items()]
    write_json(folder / "temperature.json", findings.data | {"skipped": skipped})
    return folder


def _groups_by_temperature(found: SourceAnnealing, spread_db: float, expected_db: float) -> Figure:
    """Return a figure of the mean number of places of free hypotheses while the temperature falls.

    Args:
        found: result of annealing.
        spread_db: unit of temperatures; its multiples 2 and 10 are marked.
        expected_db: temperature at which uncorrelated sources split.
    """
    mean = found.groups.double().mean(1).numpy()
    figure = curves({"mean over mixtures": (found.temperatures_db, mean)}, "temperature [dB]", "groups of hypotheses")
    axes = figure.axes[0]
    axes.axvline(expected_db, color="black", linestyle=":", linewidth=1.6, label="expected, uncorrelated sources")
    for place, multiple in enumerate((2, 10), 1):
        style = ("-.", "--")[place - 1]
        label = f"{multiple} times the spread"
        axes.axvline(multiple * spread_db, color=COLORS[place], linestyle=style, linewidth=1.2, label=label)
    axes.set_ylim(bottom=0.9)
    falling(axes)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _entropy_by_temperature(
    temperatures: np.ndarray, entropies: np.ndarray, hypotheses: int, initial: float, share: float, unit: str
) -> Figure:
    """Return a figure of the mean entropy of a soft assignment while the temperature falls, as a share of log n.

    Args:
        temperatures: (S,).
        entropies: (S,) nats.
        hypotheses: n.
        initial: the proposed temperature.
        share: of log n, from which the proposal follows.
        unit: of temperatures.
    """
    percent = 100 * entropies / np.log(hypotheses)
    figure = curves({"hypotheses of the model": (temperatures, percent)}, f"temperature [{unit}]", "")
    axes = figure.axes[0]
    axes.axhline(100 * share, color="black", linestyle=":", linewidth=1.6, label=f"{100 * share:.0f} %")
    axes.axvline(initial, color=COLORS[1], linestyle="--", linewidth=1.4, label=f"T0 = {initial:g}")
    axes.axvline(initial / 2, color=COLORS[2], linestyle="-.", linewidth=1.4, label="T0 / 2")
    axes.set_ylabel(f"entropy of the assignment [% of log {hypotheses}]")
    axes.set_ylim(0, 104)
    falling(axes)
    axes.legend(frameon=False, fontsize=9)
    return figure
