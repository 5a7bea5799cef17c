"""Figures of curves and of scores of groups: rate and distortion, boxes, temperature."""

from collections.abc import Mapping
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from sepkit.evaluation.labels import label_of
from sepkit.evaluation.run_folder import Curve
from sepkit.reporting.compared_runs import better
from sepkit.reporting.figures import COLORS, curves, legend, panels

_WINDOW = 3
_STYLES = ("--", "-", ":", "-.")


def rate_distortion_curve(curve: Curve) -> Figure:
    """Return a figure of distortion over rate: dots for models, their running mean, a star for each condition's best.

    There is one panel per measure. The first condition, that of training, is black.

    Source: thesis, appendix B, figure 2; appendix M, figure 10.
    """
    figure = panels(label_of(curve.x_name), [label_of(name) for name in curve.panels])
    for axes, name in zip(figure.axes, curve.panels, strict=True):
        for place, (condition, (rates, values)) in enumerate(curve.panels[name].items()):
            several = len(curve.panels[name]) > 1
            color = "black" if place == 0 and several else COLORS[(place - several) % len(COLORS)]
            order = np.argsort(rates, kind="stable")
            x, y = rates[order], values[order]
            style = _STYLES[place % len(_STYLES)] if several else "-"
            axes.plot(x, running_mean(y), style, color=color, linewidth=1.6, label=condition or None)
            axes.plot(x, y, "o", color=color, markersize=3.5, alpha=0.55, markeredgewidth=0)
            best = optimum(name, y)
            if best is not None:
                axes.plot(x[best], y[best], "*", color=color, markersize=12, markeredgecolor="white")
    legend(figure.axes[0])
    return figure


def score_boxes(scores: Mapping[str, ArrayLike], label: str) -> Figure:
    """Return boxes of scores: median, quartiles, whiskers up to 1.5 times the box, and the mean as a triangle.

    Args:
        scores: (N,) each, by name.
        label: Label of the scores.

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


def scores_by_temperature(series: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """Return a figure of scores while the temperature falls, a line with its own markers for each run.

    Args:
        series: Run -> temperatures, (S,) dB, and negative MCL SI-SDR on dev, (S,) dB; temperatures of zero are left
            out.

    Source: aMCL paper, figure 8.
    """
    positive = {}
    for name, (temperatures, values) in series.items():
        t, v = np.asarray(temperatures, dtype=np.float64), np.asarray(values, dtype=np.float64)
        positive[name] = t[t > 0], v[t > 0]
    figure = curves(positive, "temperature [dB]", "negative MCL SI-SDR on dev [dB]")
    figure.set_size_inches(6.0, 4.0)
    axes = figure.axes[0]
    for line, style, marker in zip(axes.lines, cycle(("-", "--", "-.", ":")), cycle("os^Dv"), strict=False):
        line.set(linestyle=style, marker=marker)
    falling(axes)
    legend(axes, 1)
    return figure


def falling(axes: Axes) -> None:
    """Set a logarithmic axis of temperatures from high to low, the order of a run."""
    axes.set_xscale("log")
    axes.invert_xaxis()
    if axes.get_ylabel().startswith("groups"):
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def running_mean(values: np.ndarray, window: int = _WINDOW) -> np.ndarray:
    """Return the mean of each value and its existing neighbors in a window, (R,); NaN is left out.

    Args:
        values: (R,).
        window: Number of values in the window, odd.
    """
    half = window // 2
    parts = [values[max(0, place - half) : place + half + 1] for place in range(len(values))]
    return np.array([part[~np.isnan(part)].mean() if not np.isnan(part).all() else np.nan for part in parts])


def optimum(name: str, values: np.ndarray) -> int | None:
    """Return the index of the best value of a measure; None if there is none.

    Args:
        name: Name of the measure, which states whether larger is better.
        values: (R,).
    """
    return None if np.isnan(values).all() else int(np.nanargmax(better(name) * values))
