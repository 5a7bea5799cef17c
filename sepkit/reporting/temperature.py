"""Write the findings of `sepkit find-temperature` as JSON and as a figure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sepkit.annealing.temperature import ENTROPY_SHARE
from sepkit.files import write_json
from sepkit.reporting.curve_figures import falling
from sepkit.reporting.figures import COLORS, curves, legend, save_figure


def write_findings(data: Mapping[str, Any], folder: str | os.PathLike[str]) -> Path:
    """Write temperature.json and temperature.png, and return their folder.

    Args:
        data: Data of the findings, of hypotheses that move freely or of a model's.
        folder: Folder of both files.

    Raises:
        UserError: the folder cannot be written to.
    """
    folder = Path(folder)
    save_figure(temperature_figure(data), folder / "temperature.png", dpi=160)
    write_json(folder / "temperature.json", data)
    return folder


def temperature_figure(data: Mapping[str, Any]) -> Figure:
    """Return a figure of the splits of free hypotheses, or of the entropy of a model's assignment, over temperature.

    Args:
        data: Data of the findings.
    """
    figure = _entropy_by_temperature(data) if "entropies_nats" in data else _groups_by_temperature(data)
    falling(figure.axes[0])
    legend(figure.axes[0], 1)
    return figure


def _groups_by_temperature(data: Mapping[str, Any]) -> Figure:
    """Return a figure of the mean number of places of free hypotheses while the temperature falls."""
    lines = {"mean over mixtures": (data["temperatures_db"], data["mean_groups"])}
    figure = curves(lines, "temperature [dB]", "groups of hypotheses")
    axes = figure.axes[0]
    expected = data["expected_first_split_db"]
    axes.axvline(expected, color="black", linestyle=":", linewidth=1.6, label="expected, uncorrelated sources")
    for multiple, style, color in ((2, "-.", COLORS[1]), (10, "--", COLORS[2])):
        label = f"{multiple} times the spread"
        axes.axvline(multiple * data["spread_db"], color=color, linestyle=style, linewidth=1.2, label=label)
    axes.set_ylim(bottom=0.9)
    return figure


def _entropy_by_temperature(data: Mapping[str, Any]) -> Figure:
    """Return a figure of the mean entropy of a soft assignment while the temperature falls, as a share of log n."""
    n, initial = data["hypotheses"], data["initial_temperature"]
    percent = 100 * np.array(data["entropies_nats"]) / np.log(n)
    figure = curves({"hypotheses of the model": (data["temperatures"], percent)}, f"temperature [{data['unit']}]", "")
    axes = figure.axes[0]
    axes.axhline(100 * ENTROPY_SHARE, color="black", linestyle=":", linewidth=1.6, label=f"{100 * ENTROPY_SHARE:.0f} %")
    axes.axvline(initial, color=COLORS[1], linestyle="--", linewidth=1.4, label=f"T0 = {initial:g}")
    axes.axvline(initial / 2, color=COLORS[2], linestyle="-.", linewidth=1.4, label="T0 / 2")
    axes.set_ylabel(f"entropy of the assignment [% of log {n}]")
    axes.set_ylim(0, 104)
    return figure
