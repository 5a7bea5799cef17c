"""Figures of acquisition: the representation, a session, information curves, what predicts errors, stopping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from sepkit.reporting.audiograms import draw_audiogram
from sepkit.reporting.figures import COLORS, panels
from sepkit.studies.acquisition import network
from sepkit.studies.acquisition.predictive import Prediction, TrainedVAE
from sepkit.studies.acquisition.simulation import Sessions


def archetype_figure(vae: TrainedVAE, archetypes: np.ndarray) -> Figure:
    """Return a figure of the archetypes that synthetic data are combinations of (thesis, figure 1a).

    Args:
        vae: has names and places of the dimensions.
        archetypes: (A, D).
    """
    figure = Figure(figsize=(2.6 * len(archetypes), 2.9), layout="constrained")
    for axes, row in zip(np.atleast_1d(figure.subplots(1, len(archetypes), sharey=True)), archetypes, strict=True):
        draw_audiogram(axes, {vae.names[place]: float(row[place]) for place in vae.measurable})
        known = [place for place in range(len(vae.names)) if place not in vae.measurable]
        axes.set_title(", ".join(f"{vae.names[place]} {row[place]:.0f}" for place in known), fontsize=9)
    return figure


def representation_figure(vae: TrainedVAE, values: np.ndarray, archetypes: np.ndarray, side: int = 5) -> Figure:
    """Return a figure of encodings of data and archetypes, and the decoded grid of latents (thesis, figure 1b and 1c).

    Args:
        vae: has two latent dimensions.
        values: (N, D), data.
        archetypes: (A, D).
        side: points on a side of the grid.
    """
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    grid_of_two = figure.add_gridspec(1, 2)
    left, right = figure.add_subfigure(grid_of_two[0]), figure.add_subfigure(grid_of_two[1])
    axes = left.subplots()
    everything = np.ones(values.shape, bool)
    mean, _ = vae.posterior(values, everything)
    axes.plot(mean[:, 0], mean[:, 1], ".", markersize=2, alpha=0.4, color="black")
    corners, deviation = vae.posterior(archetypes, np.ones(archetypes.shape, bool))
    for place, (center, width) in enumerate(zip(corners, deviation, strict=True)):
        axes.plot(*center[:2], "o", color=COLORS[place % len(COLORS)], markersize=9)
        axes.add_patch(Ellipse((center[0], center[1]), *(4 * width[:2]), fill=False, color=COLORS[place % len(COLORS)]))
    axes.set(xlabel="$z_1$", ylabel="$z_2$", title="encodings of data (dots) and of archetypes")
    grid = right.subplots(side, side)
    ticks = np.linspace(-2, 2, side)
    for row, second in enumerate(reversed(ticks)):
        for column, first in enumerate(ticks):
            z = np.array([[[first, second]]], np.float32)
            noise = (vae.noise / vae.scale).astype(np.float32)
            decoded, _ = network.decode(vae.weights, z, noise, np)
            thresholds = decoded[0, 0] * vae.scale + vae.center
            cell = grid[row, column]
            draw_audiogram(cell, {vae.names[p]: float(thresholds[p]) for p in vae.measurable}, bare=True)
    right.suptitle("decoded grid, $z$ from -2 to 2", fontsize=10)
    return figure


def session_figure(
    vae: TrainedVAE, predictions: Sequence[Prediction], reference: np.ndarray, full: Prediction, chosen: Sequence[int]
) -> Figure:
    """Return a figure of a session, one row per step: estimate and truth, deviation, posterior (thesis, figure 2).

    Args:
        vae: the model; its first two latents are drawn.
        predictions: of one datum each, after more and more measurements.
        reference: (D,) the whole datum.
        full: the belief when everything is measured.
        chosen: place of the dimension measured next, one per step.
    """
    rows = len(predictions)
    figure = Figure(figsize=(10, 2.7 * rows), layout="constrained")
    table = figure.subplots(rows, 3, squeeze=False)
    for (first, second, third), prediction, upcoming in zip(table, predictions, chosen, strict=True):
        names = [vae.names[place] for place in vae.measurable]
        draw_audiogram(
            first,
            {name: float(prediction.estimate[0, place]) for name, place in zip(names, vae.measurable, strict=True)},
            {name: float(prediction.deviation[0, place]) for name, place in zip(names, vae.measurable, strict=True)},
            {name for name, place in zip(names, vae.measurable, strict=True) if prediction.observed[0, place]},
            {name: float(reference[place]) for name, place in zip(names, vae.measurable, strict=True)},
        )
        deviations = prediction.deviation[0, vae.measurable]
        colors = [COLORS[4] if name.startswith("right") else COLORS[0] for name in names]
        second.bar(range(len(names)), deviations, color=colors)
        if upcoming >= 0:
            place = int(np.flatnonzero(vae.measurable == upcoming)[0])
            second.plot(place, deviations[place] + 1.5, "v", color="black")
        second.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
        second.set_ylabel("deviation [dB]")
        for belief, color in ((full, "black"), (prediction, COLORS[2])):
            _draw_posterior(third, belief, color)
        third.set(xlim=(-3, 3), ylim=(-3, 3), xlabel="$z_1$", ylabel="$z_2$")
    table[0][0].set_title("truth (lines), estimate, measured (filled)", fontsize=9)
    table[0][1].set_title("predicted deviation; the triangle is next", fontsize=9)
    table[0][2].set_title("posterior; black: everything measured", fontsize=9)
    return figure


def _draw_posterior(axes: Axes, prediction: Prediction, color: str) -> None:
    mean, deviation = (part[0] for part in prediction.posterior)
    if len(mean) < 2:
        return
    for width in (1.0, 2.0):
        size = 2 * width * deviation[:2]
        axes.add_patch(Ellipse((mean[0], mean[1]), size[0], size[1], fill=False, color=color, linewidth=1.3))


def information_figure(curves: Mapping[str, np.ndarray], relative_to: str | None = None) -> Figure:
    """Return a figure of RMSE by number of measurements, and relative to one of the curves (thesis, figures 3b and 6).

    Args:
        curves: name -> (models, M + 1) dB; lines are means, bands standard deviations.
        relative_to: name of the curve that the right panel divides by; None: no right panel.
    """
    labels = ["RMSE [dB]", *([f"RMSE relative to {relative_to}"] if relative_to else [])]
    figure = panels("number of measurements", labels)
    for place, (name, values) in enumerate(curves.items()):
        color, x = COLORS[place % len(COLORS)], np.arange(values.shape[1])
        parts = [values, *([values / curves[relative_to].mean(0)] if relative_to else [])]
        for axes, shown in zip(figure.axes, parts, strict=False):
            mean, deviation = shown.mean(0), shown.std(0)
            axes.plot(x, mean, color=color, marker="o", markersize=3.5, label=name)
            axes.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.18, linewidth=0)
    figure.axes[0].legend(frameon=False, fontsize=9)
    return figure


def predictor_figure(sessions: Sessions, predicted: np.ndarray) -> Figure:
    """Return a figure of errors over their predictors; a dot is a moment of a session (thesis, figure 4).

    Args:
        sessions: N of them.
        predicted: (N, M + 1) errors, by the stopping rule, dB.
    """
    count, columns = sessions.rmse.shape
    numbers = np.tile(np.arange(columns), (count, 1))
    shown = {
        "number of measurements": numbers,
        "mean predictive variance [dB²]": sessions.acquisition,
        "partial ELBO [nats]": sessions.partial_elbo,
        "predicted RMSE [dB]": predicted,
    }
    figure = Figure(figsize=(4 * len(shown), 3.2), layout="constrained")
    for axes, (label, values) in zip(figure.subplots(1, len(shown), sharey=True), shown.items(), strict=True):
        x, y = values[:, 1:].ravel(), sessions.rmse[:, 1:].ravel()
        axes.scatter(x, y, c=numbers[:, 1:].ravel(), s=3, alpha=0.5, cmap="viridis", linewidths=0)
        correlation = np.corrcoef(x, y)[0, 1]
        axes.set(xlabel=label, title=f"correlation {correlation:.2f}")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("RMSE [dB]")
    return figure


def stopping_figure(stops: Mapping[str, np.ndarray], oracle: np.ndarray) -> Figure:
    """Return histograms of how far each rule's stopping index is from the oracle's (thesis, figure 5).

    Args:
        stops: rule -> (N,) stopping indices.
        oracle: (N,).
    """
    figure = Figure(figsize=(4 * len(stops), 3.0), layout="constrained")
    reach = int(max(np.abs(values - oracle).max() for values in stops.values()))
    bins = np.arange(-reach - 0.5, reach + 1.5)
    for axes, (name, values) in zip(
        np.atleast_1d(figure.subplots(1, len(stops), sharey=True)), stops.items(), strict=True
    ):
        offsets = values - oracle
        for chosen, color in ((offsets < 0, COLORS[4]), (offsets == 0, COLORS[2]), (offsets > 0, COLORS[3])):
            axes.hist(offsets[chosen], bins=bins.tolist(), color=color)
        axes.set(xlabel="stopping index minus the oracle's", title=f"{name}: O = {np.abs(offsets).mean():.2f}")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("sessions")
    return figure


def gap_figure(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Return a figure of how much larger the distortion on test data is than on training data.

    Args:
        curves: name -> (epochs, nats) pairs.
    """
    figure = panels("epochs", ["test minus training distortion [nats]"])
    for place, (name, points) in enumerate(curves.items()):
        x, y = zip(*sorted(points), strict=True)
        style = "--" if name.startswith("static") else "-"
        figure.axes[0].plot(x, y, style, marker="o", markersize=4, color=COLORS[place % len(COLORS)], label=name)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.axes[0].set_xscale("log")
    epochs = sorted({x for points in curves.values() for x, _ in points})
    figure.axes[0].set_xticks(epochs, [f"{x:g}" for x in epochs])
    figure.axes[0].set_xticks([], minor=True)
    return figure
