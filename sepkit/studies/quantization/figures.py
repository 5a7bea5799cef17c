"""Figures of the experiments: where hypotheses are, distortion against temperature, rate against distortion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sepkit.files import atomic_output
from sepkit.reporting.figures import COLORS, panels

TITLES = {
    "mcl": "MCL",
    "amcl_linear": "annealed, linear",
    "amcl_exponential": "annealed, exponential",
    "relaxed_wta_annealed": "relaxed WTA, annealed epsilon",
}


def write_figures(drawn: dict[str, Callable[[], Figure]], folder: Path) -> list[Path]:
    """Write each figure as FOLDER/NAME.png, and return the paths.

    Args:
        drawn: name -> function that draws it.
        folder: of the files.

    Raises:
        UserError: the folder cannot be written to.
    """
    paths = []
    for name, draw in drawn.items():
        paths.append(folder / f"{name}.png")
        with atomic_output(paths[-1]) as temporary:
            draw().savefig(temporary, format="png", dpi=100)
    return paths


def gaussians_figures(table: dict[str, Any]) -> dict[str, Callable[[], Figure]]:
    """Return figures 1 and 5 (predictions), 2 (rate and distortion) and 3 (distortion against temperature).

    Args:
        table: of `gaussians`.
    """
    rows = table["rows"]
    fixed = [row for row in rows if row["kind"] == "fixed"]
    annealed = [row for row in rows if row["kind"] == "moving" and row["groups"]]
    return {
        "figure_1_predictions": lambda: _predictions(fixed),
        "figure_2_rate": lambda: _rates(fixed, table["entropy_nats"]),
        "figure_3_distortion": lambda: _by_temperature(annealed, table["critical_temperatures"]),
    }


def _title(method: str) -> str:
    return TITLES.get(method, method.replace("relaxed_wta_", "relaxed WTA, epsilon "))


def _predictions(rows: Sequence[dict[str, Any]]) -> Figure:
    figure = panels("y1", ["y2"] * len(rows))
    for axes, row in zip(figure.axes, rows, strict=True):
        targets, points = np.array(row["targets"]), np.array(row["hypotheses"])
        axes.scatter(*targets.T, s=6, color=COLORS[2], alpha=0.5, linewidths=0)
        axes.scatter(*points.T, s=30, color=COLORS[0], alpha=np.clip(row["scores"], 0.15, 1.0))
        axes.set_title(f"{_title(row['method'])}, D {row['distortion'][0]:.4f}", fontsize=10)
        axes.set(xlim=(-1, 1), ylim=(-1, 1))
    return figure


def _rates(rows: Sequence[dict[str, Any]], entropy_nats: float) -> Figure:
    figure = panels("soft distortion", ["mutual information [bits]"])
    axes: Axes = figure.axes[0]
    for color, row in zip(COLORS, rows, strict=False):
        distortions, bits = (np.array(row[name])[:, 0, 0] for name in ("soft_distortions", "bits"))
        axes.plot(distortions, bits, color=color, linewidth=1.4, label=_title(row["method"]))
        axes.plot(distortions[-1], bits[-1], "o", color=color, markersize=4)
    grid = np.geomspace(2e-3, 0.4, 100)
    bound = entropy_nats / math.log(2) - np.log2(2 * math.pi * math.e * grid / 2)
    axes.plot(grid, bound, "k--", linewidth=1, label="Shannon lower bound")
    axes.set(xscale="log", ylim=(-0.1, 6))
    axes.legend(frameon=False, fontsize=8)
    return figure


def _by_temperature(rows: Sequence[dict[str, Any]], critical: dict[str, float]) -> Figure:
    figure = panels("temperature", ["hard distortion"] * max(1, len(rows)))
    for axes, row in zip(figure.axes, rows, strict=False):
        temperatures = np.array(row["temperatures"])
        distortions = np.array(row["distortions"])  # (records, probes, networks)
        for place, (color, probe) in enumerate(zip(COLORS, row["probes"], strict=False)):
            axes.plot(temperatures, distortions[:, place].mean(1), color=color, linewidth=1.6, label=f"x = {probe:g}")
            axes.axvline(critical[f"{probe:g}"], color=color, linestyle=":", linewidth=1.2)
        axes.set(xscale="log", yscale="log")
        axes.invert_xaxis()
        axes.set_title(f"{_title(row['method'])}; dotted: critical temperatures", fontsize=10)
        axes.legend(frameon=False, fontsize=8)
    return figure


def free_figures(table: dict[str, Any]) -> dict[str, Callable[[], Figure]]:
    """Return figures of hypotheses that part as the temperature falls, and of predicted against seen splits.

    Args:
        table: of `free`.
    """
    return {"annealing": lambda: _annealing(table["annealing"]), "splits": lambda: _splits(table["splits"])}


def _annealing(found: dict[str, Any]) -> Figure:
    figure = panels("temperature", ["position on the longest axis"])
    axes = figure.axes[0]
    axes.plot(found["temperatures"], found["places"], color=COLORS[0], marker="o", markersize=3, linewidth=1.3)
    for split in found["splits"]:
        axes.axvline(split["temperature"], color=COLORS[1], linestyle="--", linewidth=1.2)
    axes.axvline(found["critical_temperature"], color="black", linestyle=":", label="first split expected")
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.legend(frameon=False, fontsize=8)
    return figure


def _splits(rows: Sequence[dict[str, Any]]) -> Figure:
    figure = panels("predicted split / critical temperature", ["seen split / critical temperature"])
    axes = figure.axes[0]
    for color, kind in zip(COLORS, ("linear", "exponential"), strict=False):
        chosen = [row for row in rows if row["cooling"][0] == kind and row["mean_seen"]]
        x = [row["mean_predicted"] / row["critical"] for row in chosen]
        axes.plot(x, [row["mean_seen"] / row["critical"] for row in chosen], "o", color=color, label=kind)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    axes.legend(frameon=False, fontsize=8)
    return figure


def uci_figures(rows: Sequence[dict[str, Any]]) -> dict[str, Callable[[], Figure]]:
    """Return figure 6 for each set: RMSE against distortion of all methods, one panel a selection.

    Args:
        rows: of `uci`.
    """
    names = dict.fromkeys(row["set"] for row in rows)
    return {f"figure_6_{name}": lambda name=name: _trade_off([r for r in rows if r["set"] == name]) for name in names}


def digits_figures(table: dict[str, Any]) -> dict[str, Callable[[], Figure]]:
    """What the experts of the first seed make of unseen digits, one figure a task and number of experts.

    Args:
        table: of `digits`.

    Returns:
        Name -> function that draws the figure.
    """
    shown = [row for row in table["rows"] if "examples" in row and row["run"] == 0]
    return {f"digits_{row['task']}_{row['experts']}": lambda row=row: _restored(row) for row in shown}


def _restored(row: dict[str, Any]) -> Figure:
    """Rows: truth, what the experts see, and what each makes of it, with its probability below."""
    examples = row["examples"]
    restored = np.array(examples["restored"])  # (shown, n, pixels)
    lines = [("truth", np.array(examples["truth"])[:, 0]), ("seen", np.array(examples["spoiled"])[:, 0])]
    lines += [(f"expert {k + 1}", restored[:, k]) for k in range(restored.shape[1])]
    count, side = len(restored), math.isqrt(restored.shape[2])
    figure = Figure(figsize=(0.8 * count + 0.8, 0.95 * len(lines)), layout="constrained")
    for place, axes in enumerate(figure.subplots(len(lines), count, squeeze=False).flat):
        (line, images), column = lines[place // count], place % count
        axes.imshow(images[column].reshape(side, side), cmap="gray_r", vmin=0, vmax=255)
        axes.set(xticks=[], yticks=[])
        if column == 0:
            axes.set_ylabel(line, fontsize=8)
        if place >= 2 * count:
            axes.set_xlabel(f"{examples['probabilities'][column][place // count - 2]:.2f}", fontsize=8)
    return figure


def _trade_off(rows: Sequence[dict[str, Any]]) -> Figure:
    selections = list(dict.fromkeys(row["select"] for row in rows))
    figure = panels("RMSE", ["distortion"] * len(selections))
    for axes, selection in zip(figure.axes, selections, strict=True):
        chosen = [row for row in rows if row["select"] == selection]
        for place, row in enumerate(chosen):
            # Standard errors of means over splits.
            bars = {
                f"{axis}err": row[f"{name}_std"] / math.sqrt(row["folds"])
                for axis, name in (("x", "rmse"), ("y", "distortion"))
            }
            color, marker = COLORS[place % len(COLORS)], "os^D"[place // len(COLORS) % 4]
            axes.errorbar(
                row["rmse_mean"], row["distortion_mean"], **bars, fmt=marker, color=color, label=_title(row["method"])
            )
        leak = " (a leak)" if selection == "reference" else ""
        axes.set_title(f"{selection.replace('_', ' ')}{leak}; bars: standard errors", fontsize=10)
        axes.legend(frameon=False, fontsize=7)
    return figure
