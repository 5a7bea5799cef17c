"""The figure of `sepkit plan-schedule`: how much annealing separates the means, for every initial temperature."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from sepkit.annealing.planning import Plan, growth_curve
from sepkit.files import atomic_output
from sepkit.reporting.figures import COLORS


def growth_figure(plan: Plan) -> Figure:
    """Return a figure of the growth exponent I over the initial beta, both ends of the hot phase, and the plan.

    Args:
        plan: of `plan_inverse_temperature`.
    """
    data = plan.data
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    ends = {
        "paper's form": ("alpha", "growth_exponent_paper"),
        "stability form": ("stability_alpha", "growth_exponent"),
    }
    for color, (label, (alpha, growth)) in zip(COLORS, ends.items(), strict=False):
        betas, values = growth_curve(data["radius"], data["steps"], data["step_size"], data[alpha], data["schedule"])
        axes.plot(betas, values, color=color, label=f"{label}, alpha {data[alpha]:.4g}")
        axes.plot([data["initial_beta"]], [data[growth]], "o", color=color)
    axes.axvline(data["optimal_initial_beta"], color="black", linestyle=":", label="optimal initial beta")
    axes.set(xscale="log", xlabel="initial beta", ylabel="growth exponent I", title=f"{data['steps']:g} steps")
    axes.legend()
    return figure


def write_growth_figure(plan: Plan, path: str | os.PathLike[str]) -> Path:
    """Write `growth_figure` as PNG and return its path.

    Args:
        plan: of `plan_inverse_temperature`.
        path: of the PNG.

    Raises:
        UserError: the folder cannot be written to.
    """
    with atomic_output(path) as temporary:
        growth_figure(plan).savefig(temporary, format="png", dpi=160)
    return Path(path)
