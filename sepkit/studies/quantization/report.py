"""Tables and figures of the experiments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import t as student

from sepkit.files import write_json, write_text
from sepkit.reporting.figures import COLORS, panels, save_figure
from sepkit.reporting.text import markdown_table
from sepkit.studies.quantization.measures import shannon_lower_bound_bits

Row = Mapping[str, Any]
Figures = dict[str, Callable[[], Figure]]
"""Name -> function that draws it."""

METHOD_TITLES = {
    "mcl": "MCL",
    "amcl_linear": "annealed, linear",
    "amcl_exponential": "annealed, exponential",
    "relaxed_wta_annealed": "relaxed WTA, annealed epsilon",
}
SELECTION_TITLES = {
    "last": "last epoch",
    "held_out": "least distortion on held-out training rows",
    "reference": "least loss on the test rows: a leak, as in the published code",
}


def write_figures(drawn: Figures, folder: Path) -> None:
    """Write each figure as FOLDER/NAME.png."""
    for name, draw in drawn.items():
        save_figure(draw(), folder / f"{name}.png")


def seeds_table(rows: Sequence[Row], labels: Sequence[str], measures: Mapping[str, str]) -> str:
    """Return a Markdown table: a line for each combination of labels, mean ± sample deviation of each measure. A
    measure has one number a seed, in a list or in rows of their own; a row may lack labels and measures."""
    groups = _grouped(rows, labels)
    shown = [[*words, *(_summary(part, measure) for measure in measures)] for words, part in groups.items()]
    return markdown_table([*labels, *measures.values()], shown, words=range(len(labels)))


def _grouped(rows: Iterable[Row], labels: Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(label, "")) for label in labels), []).append(row)
    return groups


def _summary(rows: Sequence[Row], measure: str) -> str:
    found = [value for row in rows for value in np.ravel(row.get(measure, [])) if value is not None]
    if not found:
        return ""
    values = np.array(found, float)
    mean = f"{values.mean():.4g}"
    return mean if len(values) == 1 else f"{mean} ± {values.std(ddof=1):.2g}"


def _title(method: str) -> str:
    return METHOD_TITLES.get(method, method.replace("relaxed_wta_", "relaxed WTA, epsilon "))


# ----------------------------------------------------------------------------------------------------------- Gaussians


def gaussians_figures(table: dict[str, Any]) -> Figures:
    """Return figures 1 and 5 (predictions), 2 (rate and distortion), 3 (distortion against temperature) and, for each
    annealed method whose hypotheses part input by input, 4 (phases)."""
    fixed = [row for row in table["rows"] if row["kind"] == "fixed"]
    annealed = [row for row in table["rows"] if row["kind"] == "moving" and row["temperatures"]]
    return {
        "figure_1_predictions": lambda: _predictions(fixed),
        "figure_2_rate": lambda: _rates(fixed, table["entropy_nats"]),
        "figure_3_distortion": lambda: _by_temperature(annealed, table["critical_temperatures"]),
    } | {f"figure_4_phases_{row['method']}": lambda row=row: _phases(row) for row in annealed if "phases" in row}


def _predictions(rows: Sequence[Row]) -> Figure:
    figure = panels("y1", ["y2"] * len(rows))
    for axes, row in zip(figure.axes, rows, strict=True):
        targets, points = np.array(row["targets"]), np.array(row["hypotheses"])
        axes.scatter(*targets.T, s=6, color=COLORS[2], alpha=0.5, linewidths=0)
        axes.scatter(*points.T, s=30, color=COLORS[0], alpha=np.clip(row["scores"], 0.15, 1.0))
        axes.set_title(f"{_title(row['method'])}, D {row['distortion'][0]:.4f}", fontsize=10)
        axes.set(xlim=(-1, 1), ylim=(-1, 1))
    return figure


def _rates(rows: Sequence[Row], entropy_nats: float) -> Figure:
    figure = panels("soft distortion", ["mutual information [bits]"])
    axes: Axes = figure.axes[0]
    for color, row in zip(COLORS, rows, strict=False):
        distortions, bits = (np.array(row[name])[:, 0, 0] for name in ("soft_distortions", "bits"))
        axes.plot(distortions, bits, color=color, linewidth=1.4, label=_title(row["method"]))
        axes.plot(distortions[-1], bits[-1], "o", color=color, markersize=4)
    grid = np.geomspace(2e-3, 0.4, 100)
    bound = shannon_lower_bound_bits(entropy_nats, grid, 2)
    axes.plot(grid, bound, "k--", linewidth=1, label="Shannon lower bound")
    axes.set(xscale="log", ylim=(-0.1, 6))
    axes.legend(frameon=False, fontsize=8)
    return figure


def _by_temperature(rows: Sequence[Row], critical: dict[str, float]) -> Figure:
    figure = panels("temperature", ["hard distortion"] * max(1, len(rows)))
    for axes, row in zip(figure.axes, rows, strict=False):
        distortions = np.array(row["distortions"])  # (records, probes, networks)
        for place, (color, probe) in enumerate(zip(COLORS, row["probes"], strict=False)):
            means = distortions[:, place].mean(1)
            axes.plot(row["temperatures"], means, color=color, linewidth=1.6, label=f"x = {probe:g}")
            axes.axvline(critical[f"{probe:g}"], color=color, linestyle=":", linewidth=1.2)
        axes.set(xscale="log", yscale="log")
        axes.invert_xaxis()
        axes.set_title(f"{_title(row['method'])}; dotted: critical temperatures", fontsize=10)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _phases(row: Row) -> Figure:
    """Rows: inputs; columns: times, from hot to cold."""
    phases, inputs = row["phases"], row["probes"]
    times = phases["temperatures"]
    figure = Figure(figsize=(2.1 * len(times), 2.0 * len(inputs)), layout="constrained")
    grid = figure.subplots(len(inputs), len(times), squeeze=False, sharex=True, sharey=True)
    for place, axes in enumerate(grid.flat):
        probe, time = divmod(place, len(times))
        axes.scatter(*np.array(phases["targets"][probe]).T, s=4, color=COLORS[2], alpha=0.4, linewidths=0)
        axes.scatter(*np.array(phases["hypotheses"][time][probe]).T, s=14, color=COLORS[0], alpha=0.6, linewidths=0)
        axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[], yticks=[])
        if probe == 0:
            axes.set_title(f"T(t{time + 1}) = {times[time]:.3g}", fontsize=9)
        if time == 0:
            axes.set_ylabel(f"x = {inputs[probe]:g}", fontsize=9)
    return figure


def annealing_figure(found: Row) -> Figure:
    """Return a figure of hypotheses that part as the temperature falls."""
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


# --------------------------------------------------------------------------------------------------------------- sines


def sines_figures(table: dict[str, Any]) -> Figures:
    """Return figures 2 and 3 of the CCLVQ paper, a panel for each way of training, raw or standardized targets: points
    with what every expert predicts, and the experts' weights beside the probabilities of the modes."""
    found: Figures = {}
    # Rows of an earlier version have no points.
    for (target,), rows in _grouped([row for row in table["rows"] if "shown" in row], ["target"]).items():
        found[f"figure_2_points_{target}"] = lambda rows=rows: _sines_points(rows)
        found[f"figure_3_weights_{target}"] = lambda rows=rows: _sines_weights(rows)
    return found


def _sines_points(rows: Sequence[Row]) -> Figure:
    figure = panels("x", ["y"] * len(rows))
    for axes, row in zip(figure.axes, rows, strict=True):
        shown = row["shown"]
        axes.scatter(*shown["points"], s=4, color="0.7", linewidths=0)
        for mode, values in zip(shown["modes"], shown["predictions"], strict=True):
            axes.plot(shown["x"], values, ".", color=COLORS[mode], markersize=3)
        axes.set_title(f"{row['kind']}, distortion {row['distortion'][0]:.2f}", fontsize=10)
    return figure


def _sines_weights(rows: Sequence[Row]) -> Figure:
    figure = panels("x", ["weight of the expert"] * len(rows))
    for axes, row in zip(figure.axes, rows, strict=True):
        shown = row["shown"]
        for mode, values in zip(shown["modes"], shown["weights"], strict=True):
            axes.plot(shown["x"], values, color=COLORS[mode], linewidth=1.4)
        for mode, values in enumerate(shown["truth"]):
            axes.plot(shown["x"], values, color=COLORS[mode], linewidth=1.2, linestyle="--")
        axes.set_title(f"{row['kind']}; dashed: probability of the mode", fontsize=10)
        axes.set_ylim(0, 1)
    return figure


# -------------------------------------------------------------------------------------------------------------- digits


def digits_figures(table: dict[str, Any]) -> Figures:
    """Return what the experts of the first seed make of unseen digits, one figure a task and number of experts, and
    figure 1 of the CCLVQ paper for each task, the loss while experts are added."""
    shown = [row for row in table["rows"] if "examples" in row and row["run"] == 0]
    found = {f"digits_{row['task']}_{row['experts']}": lambda row=row: _restored(row) for row in shown}
    tasks = _grouped([row for row in shown if "losses" in row], ["task"])
    return found | {f"figure_1_loss_{task}": lambda rows=rows: _losses(rows) for (task,), rows in tasks.items()}


def _losses(rows: Sequence[Row]) -> Figure:
    figure = panels("step", ["squared distance of the nearest expert"])
    axes: Axes = figure.axes[0]
    for color, row in zip(COLORS, rows, strict=False):
        steps = row["steps_a_record"] * (np.arange(len(row["losses"])) + 0.5)
        axes.plot(steps, row["losses"], color=color, linewidth=1.3, label=f"n = {row['experts']}")
        for split in row["splits"]:
            axes.axvline(split, color=color, linestyle=":", linewidth=1.2)
    # The first steps are far above all that follows.
    shown = np.concatenate([row["losses"][len(row["losses"]) // 20 :] for row in rows])
    axes.set_ylim(0.95 * shown.min(), 1.05 * shown.max())
    axes.set_title("dotted: one more expert", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _restored(row: Row) -> Figure:
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


# ----------------------------------------------------------------------------------------------------------------- UCI


def uci_figures(rows: Sequence[Row]) -> Figures:
    """Return figure 6 for each set: RMSE against distortion of all methods, one panel a selection."""
    sets = _grouped(rows, ["set"])
    return {f"figure_6_{name}": lambda part=part: _trade_off(part) for (name,), part in sets.items()}


def _trade_off(rows: Sequence[Row]) -> Figure:
    selections = _grouped(rows, ["select"])
    figure = panels("RMSE", ["distortion"] * len(selections))
    for axes, ((selection,), chosen) in zip(figure.axes, selections.items(), strict=True):
        for place, row in enumerate(chosen):
            # Standard errors of means over splits.
            bars = {
                f"{axis}err": row[f"{name}_std"] / math.sqrt(row["folds"])
                for axis, name in (("x", "rmse"), ("y", "distortion"))
            }
            color, marker = COLORS[place % len(COLORS)], "os^D"[place // len(COLORS) % 4]
            means = row["rmse_mean"], row["distortion_mean"]
            axes.errorbar(*means, **bars, fmt=marker, color=color, label=_title(row["method"]))
        leak = " (a leak)" if selection == "reference" else ""
        axes.set_title(f"{selection.replace('_', ' ')}{leak}; bars: standard errors", fontsize=10)
        axes.legend(frameon=False, fontsize=7)
    return figure


def write_uci_tables(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Write FOLDER/table.json and table.md (tables 1, 2, 4 and 5), print the latter, and return the former's path."""
    text = "\n".join(
        f"## {name}, {SELECTION_TITLES[select]}\n\n{_scores(part)}\n{_differences(part)}"
        for (name, select), part in _grouped(rows, ["set", "select"]).items()
    )
    print(text)
    write_text(folder / "table.md", text)
    return write_json(folder / "table.json", rows)


def _scores(rows: Sequence[Row]) -> str:
    cells = [
        [
            row["method"],
            *(f"{row[f'{measure}_mean']:.4g} ± {row[f'{measure}_std']:.2g}" for measure in ("distortion", "rmse")),
            f"{row['median_epoch']:.0f}",
        ]
        for row in rows
    ]
    return markdown_table(["method", "distortion", "RMSE", "median epoch"], cells)


def _differences(rows: Sequence[Row]) -> str:
    """Paired differences of each method from the one of least mean distortion, with 95 % intervals."""
    if len(rows) < 2 or rows[0]["folds"] < 2:
        return ""
    parts = []
    for measure, title in (("distortion", "distortion"), ("rmse", "RMSE")):
        best, *others = sorted(rows, key=lambda row: row[f"{measure}_mean"])
        words = []
        for row in others:
            mean, half = paired_difference(row[f"{measure}s"], best[f"{measure}s"])
            words.append(f"{row['method']} {mean:+.3g} ± {half:.2g}")
        parts.append(f"{title} above {best['method']} (paired, 95 % interval): {'; '.join(words)}.")
    return "\n".join(parts) + "\n"


def paired_difference(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values - others over splits, and half its 95 % interval by Student's t."""
    difference = np.array(values) - np.array(others)
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return float(difference.mean()), float(student.ppf(0.975, len(difference) - 1) * error)
