"""Figures of hypotheses: temperatures at which they split, entropies of assignments, scores of groups of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from sepkit.annealing.free_hypotheses import SourceAnnealing
from sepkit.reporting.figures import COLORS, curves


def groups_by_temperature(found: SourceAnnealing, spread_db: float, expected_db: float) -> Figure:
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
    _falling(axes)
    axes.legend(frameon=False, fontsize=9)
    return figure


def entropy_by_temperature(
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
    _falling(axes)
    axes.legend(frameon=False, fontsize=9)
    return figure


def score_boxes(scores: Mapping[str, ArrayLike], label: str) -> Figure:
    """Return boxes of scores: median, quartiles, whiskers up to 1.5 times the box, and the mean as a triangle.

    Args:
        scores: (N,) each, by name.
        label: of the scores.

    Source: aMCL paper, figure 7.
    """
    figure = curves({}, "", label)
    figure.set_size_inches(max(4.8, 0.9 * len(scores) + 1.2), 3.6)
    axes = figure.axes[0]
    kept = [values[np.isfinite(values)] for values in (np.asarray(v, dtype=np.float64) for v in scores.values())]
    for place, values in enumerate(kept):
        if not len(values):
            continue
        color = COLORS[place % len(COLORS)]
        axes.boxplot(
            values, positions=[place], widths=0.55, whis=1.5, showmeans=True, patch_artist=True,
            boxprops={"facecolor": f"{color}40", "edgecolor": color, "linewidth": 1.4},
            medianprops={"color": "black", "linewidth": 1.8},
            meanprops={"marker": "^", "markerfacecolor": "black", "markeredgecolor": "black", "markersize": 6},
            whiskerprops={"color": color, "linewidth": 1.4}, capprops={"color": color, "linewidth": 1.4},
            flierprops={"marker": ".", "markersize": 3, "markerfacecolor": color, "markeredgecolor": color},
        )  # fmt: skip
    long = sum(len(name) for name in scores) > 40
    axes.set_xticks(range(len(scores)), list(scores), rotation=25 * long, ha="right" if long else "center")
    axes.set_xlim(-0.6, max(1, len(scores)) - 0.4)
    axes.grid(axis="x", visible=False)
    return figure


def scores_by_temperature(
    series: Mapping[str, tuple[ArrayLike, ArrayLike]], unit: str = "dB", label: str = "negative MCL SI-SDR on dev [dB]"
) -> Figure:
    """Return a figure of scores while the temperature falls, a line with its own markers for each run.

    Args:
        series: run -> (S,) temperatures and (S,) scores; temperatures of zero are left out.
        unit: of temperatures.
        label: of the scores.

    Source: aMCL paper, figure 8.
    """
    positive = {}
    for name, (temperatures, values) in series.items():
        t, v = np.asarray(temperatures, dtype=np.float64), np.asarray(values, dtype=np.float64)
        positive[name] = t[t > 0], v[t > 0]
    figure = curves(positive, f"temperature [{unit}]", label)
    figure.set_size_inches(6.0, 4.0)
    axes = figure.axes[0]
    for line, style, marker in zip(axes.lines, _cycle(("-", "--", "-.", ":")), _cycle("os^Dv"), strict=False):
        line.set(linestyle=style, marker=marker)
    _falling(axes)
    if positive:
        axes.legend(frameon=False, fontsize=9)
    return figure


def _cycle(values: Sequence[str]) -> Sequence[str]:
    return [values[place % len(values)] for place in range(64)]


def _falling(axes: Axes) -> None:
    """Set a logarithmic axis of temperatures from high to low, the order of a run."""
    axes.set_xscale("log")
    axes.invert_xaxis()
    if axes.get_ylabel().startswith("groups"):
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
