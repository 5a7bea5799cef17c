"""Write the findings of `sepkit find-temperature` as JSON and as a figure."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sepkit.annealing.temperature import ENTROPY_SHARE
from sepkit.files import write_json
from sepkit.reporting.curve_figures import falling
from sepkit.reporting.figures import COLORS, curves, save_figure


def write_findings(data: Mapping[str, Any], folder: str | os.PathLike[str]) -> Path:
    """Write temperature.json and, of a model, temperature.png; return their folder.

    Args:
        data: Data of the findings, of sources or of a model.
        folder: Folder of both files.

    Raises:
        UserError: the folder cannot be written to.
    """
    folder = Path(folder)
    if "entropies_nats" in data:
        save_figure(temperature_figure(data), folder / "temperature.png", dpi=160)
    write_json(folder / "temperature.json", data)
    return folder


def temperature_figure(data: Mapping[str, Any]) -> Figure:
    """Return a figure of the mean entropy of a soft assignment while the temperature falls, as a share of log n.

    Args:
        data: Data of the findings.
    """
    n, initial = data["hypotheses"], data["initial_temperature"]
    percent = 100 * np.array(data["entropies_nats"]) / np.log(n)
    figure = curves({"hypotheses of the model": (data["temperatures"], percent)}, f"temperature [{data['unit']}]", "")
    axes = figure.axes[0]
    axes.axhline(100 * ENTROPY_SHARE, color="black", linestyle=":", linewidth=1.6, label=f"{100 * ENTROPY_SHARE:.0f} %")
    axes.axvline(initial, color=COLORS[1], linestyle="--", linewidth=1.4, label=f"T0 = {initial:g}")
    axes.axvline(initial / 2, color=COLORS[2], linestyle="-.", linewidth=1.4, label="T0 / 2")
    axes.set_ylabel(f"entropy of the assignment [% of log {n}]")
    axes.set_ylim(0, 104)
    falling(axes)
    axes.legend(frameon=False, fontsize=9)
    return figure
