"""Figures of the study: audiograms, the representation, a session, information curves, what predicts errors, stopping.

Audiograms are drawn as audiologists do: decibels downwards, a red O for the right ear and a blue X for the left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from sepkit.errors import UserError
from sepkit.evaluation.run_folder import Run, read_rows
from sepkit.reporting import page
from sepkit.reporting.figures import COLORS, panels, save_figure
from sepkit.studies.audiogram.config import EARS
from sepkit.studies.audiogram.data import read_audiograms
from sepkit.studies.audiogram.evaluate import AUDIOGRAMS, fit_rules
from sepkit.studies.audiogram.network import Prediction, TrainedVAE
from sepkit.studies.audiogram.session import load_model
from sepkit.studies.audiogram.simulation import Sessions, area, play
from sepkit.studies.audiogram.stopping import stopping_index

_MARKERS = dict(zip(EARS, (("#c9524f", "o"), ("#3d86c6", "x")), strict=True))
_LOWEST_DB, _HIGHEST_DB = -10, 120
_COLUMNS = frozenset({"id", "ear", "frequency_hz", "measured", "reference_db", "estimate_db", "deviation_db"})
_SHOWN_STEPS = (0, 1, 2, 3, 5)
_THRESHOLD_DB = 5.0
RULES = {"number": "number alone", "ridge": "ridge with uncertainty"}


# ---------------------------------------------------------------------------------------------------------- the report


def sections(runs: Sequence[Run]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the section of a report with the audiograms of simulated sessions, if the runs have any."""
    yield "audiograms", "Audiograms", list(_audiograms(runs))


def _audiograms(runs: Sequence[Run]) -> Iterator[str]:
    drawn = []
    for run in runs:
        files = [run.folder / AUDIOGRAMS, *sorted(run.folder.glob(f"*/{AUDIOGRAMS}"))]
        for file in (file for file in files if file.is_file()):
            for name, figure in _session_figures(file):
                text = f"{run.name}: {name}"
                drawn.append(page.figure_html(figure, page.slug(text), f"Audiogram: {text}", escape(text)))
    if drawn:
        yield f'<div class="figures">{"".join(drawn)}</div>'
        yield (
            '<p class="quiet">Red O: right ear, blue X: left ear; large where measured, small with a bar of one '
            "standard deviation where estimated; dashed: the whole audiogram. Not a medical device.</p>"
        )


def _session_figures(path: Path) -> Iterator[tuple[str, Figure]]:
    rows = read_rows(path)
    for name in dict.fromkeys(row.get("id", "") for row in rows):
        figure = Figure(figsize=(4.2, 3.8), layout="constrained")
        own = {f"{row.get('ear')}_{row.get('frequency_hz')}": row for row in rows if row.get("id") == name}
        try:
            estimate, deviation, reference = (
                {key: float(row[column]) for key, row in own.items()}
                for column in ("estimate_db", "deviation_db", "reference_db")
            )
            measured = {key for key, row in own.items() if row["measured"] == "1"}
            draw_audiogram(figure.subplots(), estimate, deviation, measured, reference)
        except (KeyError, TypeError, ValueError) as error:
            expected = ", ".join(sorted(_COLUMNS))
            raise UserError(f"{path}: damaged ({error}), expected columns {expected}; simulate again") from error
        yield name, figure


# ---------------------------------------------------------------------------------------------------------- one model


def draw_figures(
    model: str | Path,
    manifest: str | Path,
    dev: str | Path,
    out: str | Path,
    archetypes: str | Path | None = None,
    first: int | None = None,
) -> Path:
    """Draw figures 1 to 5 of the thesis as PNG files; return their folder. Arguments are those of the command."""
    folder, loaded = Path(out), load_model(model)
    vae, draws = loaded.vae, loaded.draws
    tests, validation = (read_audiograms(f, vae.config.dimensions).complete_ones(first) for f in (manifest, dev))
    if archetypes is not None:
        corners = read_audiograms(archetypes, vae.config.dimensions).values
        save_figure(archetype_figure(vae, corners), folder / "figure_1_archetypes.png")
        if vae.config.latent == 2:
            figure = representation_figure(vae, tests.values, corners)
            save_figure(figure, folder / "figure_1_representation.png")
    sessions, fitted_on = (play(vae, data, draws) for data in (tests, validation))
    # The session whose area is the median of all.
    chosen = int(np.argsort(area(sessions.rmse))[len(tests) // 2])
    datum, order = tests.values[chosen : chosen + 1], sessions.orders[chosen]
    predictions = []
    for step in (*_SHOWN_STEPS, len(order)):
        observed = vae.nothing_measured(1)
        observed[0, order[:step]] = True
        predictions.append(vae.predict(datum, observed, draws))
    upcoming = [int(order[step]) for step in _SHOWN_STEPS]
    figure = session_figure(vae, predictions[:-1], tests.reference[chosen], predictions[-1], upcoming)
    save_figure(figure, folder / "figure_2_session.png")
    save_figure(information_figure({"largest variance": sessions.rmse}), folder / "figure_3_information.png")
    predicted = {name: rule.predict(sessions.features) for name, rule in fit_rules(fitted_on).items()}
    save_figure(predictor_figure(sessions, predicted["ridge"]), folder / "figure_4_predictors.png")
    stops = {RULES[name]: stopping_index(predicted[name], _THRESHOLD_DB) for name in RULES}
    oracle = stopping_index(sessions.rmse, _THRESHOLD_DB)
    save_figure(stopping_figure(stops, oracle), folder / "figure_5_stopping.png")
    return folder


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
        thresholds: `right_1000` -> dB HL.
        deviations: of the same; drawn as bars of one deviation up and down for thresholds that are not measured.
        measured: names of measured thresholds, drawn large, and the others small and faint. None: all are.
        reference: whole audiogram to compare with, as dashed lines.
        bare: without labels and ticks.
    """
    for ear, (color, marker) in _MARKERS.items():
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


def _frequency(name: str) -> float:
    return float(name.rpartition("_")[2])


def _thresholds(vae: TrainedVAE, row: np.ndarray) -> dict[str, float]:
    return {vae.names[place]: float(row[place]) for place in vae.measurable}


def archetype_figure(vae: TrainedVAE, archetypes: np.ndarray) -> Figure:
    """Return a figure of the (A, D) archetypes that synthetic data are combinations of (thesis, figure 1a)."""
    figure = Figure(figsize=(2.6 * len(archetypes), 2.9), layout="constrained")
    for axes, row in zip(np.atleast_1d(figure.subplots(1, len(archetypes), sharey=True)), archetypes, strict=True):
        draw_audiogram(axes, _thresholds(vae, row))
        known = [place for place in range(len(vae.names)) if place not in vae.measurable]
        axes.set_title(", ".join(f"{vae.names[place]} {row[place]:.0f}" for place in known), fontsize=9)
    return figure


def representation_figure(vae: TrainedVAE, values: np.ndarray, archetypes: np.ndarray) -> Figure:
    """Return a figure of encodings of (N, D) data and archetypes, and the decoded grid of latents (figure 1b, c)."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    grid_of_two = figure.add_gridspec(1, 2)
    left, right = figure.add_subfigure(grid_of_two[0]), figure.add_subfigure(grid_of_two[1])
    axes = left.subplots()
    mean, _ = vae.posterior(values, np.ones(values.shape, bool))
    axes.plot(mean[:, 0], mean[:, 1], ".", markersize=2, alpha=0.4, color="black")
    corners, deviation = vae.posterior(archetypes, np.ones(archetypes.shape, bool))
    for place, (center, width) in enumerate(zip(corners, deviation, strict=True)):
        axes.plot(*center[:2], "o", color=COLORS[place % len(COLORS)], markersize=9)
        axes.add_patch(Ellipse((center[0], center[1]), *(4 * width[:2]), fill=False, color=COLORS[place % len(COLORS)]))
    axes.set(xlabel="$z_1$", ylabel="$z_2$", title="encodings of data (dots) and of archetypes")
    ticks = np.linspace(-2, 2, 5)
    grid = right.subplots(len(ticks), len(ticks))
    for row, second in enumerate(reversed(ticks)):
        for column, first in enumerate(ticks):
            thresholds, _ = vae.decoded(np.array([[first, second]], np.float32))
            draw_audiogram(grid[row, column], _thresholds(vae, thresholds[0]), bare=True)
    right.suptitle("decoded grid, $z$ from -2 to 2", fontsize=10)
    return figure


def session_figure(
    vae: TrainedVAE, predictions: Sequence[Prediction], reference: np.ndarray, full: Prediction, chosen: Sequence[int]
) -> Figure:
    """Return a figure of a session, one row per step: estimate and truth, deviation, posterior (thesis, figure 2).

    Args:
        predictions: of one datum, after more and more measurements.
        reference: (D,) the whole datum.
        chosen: place of the dimension measured next, one per step.
    """
    rows = len(predictions)
    figure = Figure(figsize=(10, 2.7 * rows), layout="constrained")
    table = figure.subplots(rows, 3, squeeze=False)
    for (first, second, third), prediction, upcoming in zip(table, predictions, chosen, strict=True):
        estimate, deviation, truth = (
            _thresholds(vae, part) for part in (prediction.estimate[0], prediction.deviation[0], reference)
        )
        names = list(estimate)
        measured = {name for name in names if prediction.observed[0, vae.names.index(name)]}
        draw_audiogram(first, estimate, deviation, measured, truth)
        colors = [COLORS[4] if name.startswith("right") else COLORS[0] for name in names]
        second.bar(range(len(names)), list(deviation.values()), color=colors)
        name = vae.names[upcoming]
        second.plot(names.index(name), deviation[name] + 1.5, "v", color="black")
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
    Lines are means, and bands standard deviations, of (models, M + 1) dB."""
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
    """Return a figure of errors over their predictors; a dot is a moment of a session (thesis, figure 4)."""
    labels = ("number of measurements", "mean predictive variance [dB²]", "partial ELBO [nats]", "predicted RMSE [dB]")
    numbers = sessions.features["measurements"]
    shown = dict(zip(labels, (*sessions.features.values(), predicted), strict=True))
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
    """Return histograms of how far each rule's (N,) stopping indices are from the oracle's (thesis, figure 5)."""
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
    """Return a figure of how much larger the distortion on test data is than in training: name -> (epochs, nats)."""
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
