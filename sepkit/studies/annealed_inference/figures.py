"""Draw figures 1 to 7 of the annealed VI paper from the tables of the experiments.

Each caption gives the number of samples per step, because it changes the probability of collapse.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sepkit.reporting.figures import COLORS, save_figure
from sepkit.studies.annealed_inference import planning
from sepkit.studies.annealed_inference.config import AnnealedInferenceConfig

Rows = list[dict[str, Any]]

_TITLES = {
    "vanilla": "no annealing",
    "covering": "no annealing, covering start",
    "annealed": "annealing",
    "frozen_variances": "variances fixed",
    "frozen_means": "means fixed",
}


def _new(columns: int = 1, rows: int = 1, width: float = 4.8, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(rows, columns)).flat)


def _setting(config: AnnealedInferenceConfig, samples: Sequence[int]) -> str:
    return (
        f"d = {config.dimension}, R = {config.radius:g}, w* = {config.heavy_weight:g},"
        f" n = {', '.join(map(str, samples))} samples a step"
    )


def _values(rows: Rows, key: str) -> list[float]:
    return sorted({row[key] for row in rows})


def _heat_map(figure: Figure, axes: Axes, rows: Rows) -> None:
    """Draw the probability of collapse with its value in each cell; the axes count cells."""
    temperatures, steps = _values(rows, "temperature"), _values(rows, "steps")
    found = {(row["steps"], row["temperature"]): row["collapse"] for row in rows}
    values = np.array([[found[s, t] for t in temperatures] for s in steps])
    image = axes.imshow(values, origin="lower", aspect="auto", vmin=0, vmax=1)
    for (i, j), value in np.ndenumerate(values):
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value < 0.6 else "black", fontsize=8)
    axes.set_xticks(range(len(temperatures)), [f"{t:g}" for t in temperatures])
    axes.set_yticks(range(len(steps)), [f"{s:g}" for s in steps])
    axes.set(xlabel="initial temperature 1 / beta_i", ylabel="annealing time t0 [steps]")
    figure.colorbar(image, ax=axes, label="probability of collapse")


def _phase_diagram(rows: Rows, config: AnnealedInferenceConfig) -> Figure:
    """Draw figure 2: the map, and the lines on which either closed form is one half."""
    own = config.phase_diagram
    main = [row for row in rows if row["samples"] == own.samples]
    figure, (axes,) = _new(width=6.4, height=4.4)
    _heat_map(figure, axes, main)
    temperatures, steps = _values(main, "temperature"), _values(main, "steps")
    stable = planning.stability_alpha(config.radius, config.heavy_weight)
    fine = np.geomspace(temperatures[0], temperatures[-1], 200)
    x = np.interp(np.log(fine), np.log(temperatures), np.arange(len(temperatures)))
    for name, style in (("paper", "--"), ("stability", ":")):
        alpha, repelled = (planning.PAPER_ALPHA, False) if name == "paper" else (stable, True)
        found = [
            planning.steps_for_probability(
                0.5, 1 / t, config.step_size, config.dimension, config.radius, config.heavy_weight, alpha,
                repelled=repelled,
            )
            for t in fine
        ]  # fmt: skip
        y = np.interp(found, steps, np.arange(len(steps)), left=np.nan, right=np.nan)
        axes.plot(x, y, color="black", linestyle=style, label=f"one half, {name} form")
    axes.set_xlim(-0.5, len(temperatures) - 0.5)
    axes.set_ylim(-0.5, len(steps) - 0.5)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    axes.set_title(f"{_setting(config, [own.samples])}\n{own.replicas} replicas a cell", fontsize=9)
    return figure


def _by_rate(rows: Rows, config: AnnealedInferenceConfig) -> Figure:
    """Draw figure 5: over the rate of cooling alone, with the asymptote for hot starts."""
    main = [row for row in rows if row["samples"] == config.phase_diagram.samples]
    figure, (axes,) = _new()
    for color, temperature in zip(COLORS, _values(main, "temperature"), strict=False):
        row = [r for r in main if r["temperature"] == temperature]
        rates = [temperature ** (1 / r["steps"]) for r in row]
        axes.plot(rates, [r["collapse"] for r in row], "o-", color=color, label=f"1 / beta_i = {temperature:g}")
    rates = np.geomspace(1.002, 1.1, 200)
    growths = [planning.growth_by_rate(rate, config.step_size, planning.PAPER_ALPHA) for rate in rates]
    setting = (config.dimension, config.radius, config.heavy_weight)
    limit = [planning.collapse_probability(growth, *setting) for growth in growths]
    axes.plot(rates, limit, "--", color="black", label="hot limit")
    axes.set(xlabel="rate of cooling beta_i^(-1 / t0)", ylabel="probability of collapse", ylim=(0, 1))
    axes.set_title(_setting(config, [config.phase_diagram.samples]), fontsize=8)
    axes.legend(fontsize=7)
    return figure


def _by_steps(rows: Rows, config: AnnealedInferenceConfig) -> Figure:
    """Draw figure 7: over the annealing time, with both closed forms, one panel per temperature."""
    own = config.phase_diagram
    temperatures = _values(rows, "temperature")
    columns = 3
    figure, panels = _new(columns, -(-len(temperatures) // columns), 3.4, 2.6)
    for axes, temperature in zip(panels, temperatures, strict=False):
        row = [r for r in rows if r["temperature"] == temperature and r["samples"] == own.samples]
        steps = [r["steps"] for r in row]
        errors = [np.sqrt(max(r["collapse"] * (1 - r["collapse"]), 0.0025) / r["replicas"]) for r in row]
        axes.errorbar(steps, [r["collapse"] for r in row], errors, fmt="o", color=COLORS[0], label=f"n = {own.samples}")
        for color, samples in zip(COLORS[1:], own.row_samples, strict=False):
            other = [r for r in rows if r["temperature"] == temperature and r["samples"] == samples]
            axes.plot(
                [r["steps"] for r in other], [r["collapse"] for r in other], "s", color=color, label=f"n = {samples}"
            )
        axes.plot(steps, [r["paper"] for r in row], "--", color="black", label="paper's form")
        axes.plot(steps, [r["stability"] for r in row], ":", color="black", label="stability form")
        axes.set(title=f"1 / beta_i = {temperature:g}", ylim=(0, 1))
    panels[0].legend(fontsize=6)
    figure.supxlabel("annealing time t0 [steps]")
    figure.supylabel("probability of collapse")
    figure.suptitle(_setting(config, [own.samples, *own.row_samples]), fontsize=9)
    return figure


def _density(x: np.ndarray, means: np.ndarray, variances: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    parts = [
        w * np.exp(-((x - m) ** 2) / (2 * v)) / np.sqrt(2 * np.pi * v)
        for w, m, v in zip(weights, means, variances, strict=True)
    ]
    return np.sum(parts, axis=0)


def _strategies(table: dict[str, Any], config: AnnealedInferenceConfig, names: Sequence[str]) -> Figure:
    """Draw figures 1 and 6: the density along mu* at four stages of the first run, and the variances of all."""
    figure, panels = _new(5, len(names), 2.5, 2.2)
    heavy, radius = config.heavy_weight, config.radius
    x = np.linspace(-4 * radius, 4 * radius, 400)
    target = _density(x, np.array([radius, -radius]), np.ones(2), [heavy, 1 - heavy])
    for row, name in enumerate(names):
        found = table["strategies"][name]
        overlaps, variances = np.array(found["overlaps"]), np.array(found["variances"])
        for column, stage in enumerate(np.linspace(0, len(overlaps) - 1, 4).round().astype(int)):
            axes = panels[5 * row + column]
            axes.fill_between(x, target, color="0.85")
            axes.plot(x, _density(x, radius * overlaps[stage, 0], variances[stage, 0], [0.5, 0.5]), color=COLORS[0])
            axes.plot(radius * overlaps[stage, 0], [0, 0], "^", color="black", markersize=5)
            axes.set_title(f"step {found['recorded_steps'][stage]}", fontsize=8)
            axes.set_yticks([])
        # Fixed means cannot collapse.
        outcome = "" if name == "frozen_means" else f"\ncollapse {found['collapse']:.2f}"
        panels[5 * row].set_ylabel(f"{_TITLES[name]}{outcome}", fontsize=8)
        axes = panels[5 * row + 4]
        axes.plot(found["recorded_steps"], variances[:, :, 0], color=COLORS[0], linewidth=0.5)
        axes.plot(found["recorded_steps"], 1 / np.array(found["betas"]), "--", color="black", linewidth=1)
        axes.set(yscale="log")
        axes.set_title("sigma^2 of all runs, 1 / beta", fontsize=8)
    figure.suptitle(f"{_setting(config, [config.runs.samples])}, {config.runs.seeds} runs", fontsize=9)
    return figure


def _summary_statistics(table: dict[str, Any], config: AnnealedInferenceConfig) -> Figure:
    """Draw figure 3: m1, m2 and s of the first annealed run, and the flow from its start."""
    annealed = table["strategies"]["annealed"]
    overlaps = np.array(annealed["overlaps"])
    seen = {"m1": overlaps[:, 0, 0], "m2": overlaps[:, 0, 1], "s": np.array(annealed["similarity"])[:, 0]}
    figure, (axes,) = _new(width=5.6)
    for k, (name, values) in enumerate(seen.items()):
        axes.plot(annealed["recorded_steps"], values, color=COLORS[k], label=name)
        for kind, style in (("quasi_static", "--"), ("integrated", ":")):
            path = np.array(table["flow"][kind]["path"])[:, k]
            label = f"flow, variances {kind.replace('_', '-')}" if k == 0 else None
            axes.plot(annealed["recorded_steps"], path, style, color="black", linewidth=1, label=label)
    axes.set(xlabel="step", ylabel="order parameter", ylim=(-1.05, 1.05))
    axes.set_title(_setting(config, [config.runs.samples]), fontsize=8)
    axes.legend(fontsize=7)
    return figure


def _flows(table: dict[str, Any], config: AnnealedInferenceConfig) -> Figure:
    """Draw figure 4: the map of the RealNVP student."""
    own = config.flows
    rows = [row for row in table["rows"] if row["temperature"] != 1]
    (plain,) = (row for row in table["rows"] if row["temperature"] == 1)
    figure, (axes,) = _new()
    _heat_map(figure, axes, rows)
    axes.set_title(
        f"RealNVP, d = {own.dimension}, {own.couplings} couplings, n = {own.samples} samples a step,\n"
        f"{own.replicas} replicas a cell; without annealing {plain['collapse']:.2f}",
        fontsize=8,
    )
    return figure


FIGURES: dict[str, dict[str, Callable[[Any, AnnealedInferenceConfig], Figure]]] = {
    "phase-diagram": {"figure_2": _phase_diagram, "figure_5": _by_rate, "figure_7": _by_steps},
    "runs": {
        "figure_1": partial(_strategies, names=("vanilla", "covering", "annealed")),
        "figure_3": _summary_statistics,
        "figure_6": partial(_strategies, names=("frozen_variances", "frozen_means")),
    },
    "flows": {"figure_4": _flows},
}
"""Experiment -> name of a figure -> what draws it from the experiment's table."""


def write_figures(experiment: str, table: Any, config: AnnealedInferenceConfig, folder: Path) -> list[Path]:
    """Write the figures of an experiment as PNG files, and return their paths.

    Args:
        experiment: Experiment of `sepkit annealed-inference`.
        table: Result of the experiment.
        config: Configuration of the experiment.
        folder: Folder of the figures.
    """
    drawn = FIGURES.get(experiment, {})
    return [save_figure(draw(table, config), folder / f"{name}.png") for name, draw in drawn.items()]
