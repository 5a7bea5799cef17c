"""Show whether a model knows from the mixture how well it will separate it: bound on the evidence over distortion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sepkit.cleaning import escaped
from sepkit.errors import UserError
from sepkit.evaluation.calibration import agreement
from sepkit.evaluation.labels import MIXTURE_ELBO
from sepkit.evaluation.run_folder import Run
from sepkit.evaluation.statistics import drawn_speakers
from sepkit.reporting.figures import COLORS, panels, save_png
from sepkit.reporting.seeds import group_runs
from sepkit.reporting.text import INTERVALS, markdown_table

_DISTORTION = "blr_nats_per_sample"
_SHOWN_PERCENT = 98


def evidence_section(runs: Sequence[Run], path: Path) -> str:
    """Return Markdown about evidence and distortion; write FILE_evidence.png beside `path`.

    Every run and test set has a row: the rank correlation over mixtures of the negative evidence lower bound of the
    mixture with the distortion of its separation (the negative log evidence of the references), with its interval.

    Args:
        runs: of models with variational encodings, measured with `sepkit evaluate --metrics blr`.
        path: FILE.md.

    Raises:
        UserError: no evaluation has both, or fewer than three mixtures.

    Source: thesis, appendix B, section 4.3 and figure 3.
    """
    found: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    rows = []
    for run in runs:
        for evaluation in run.evaluations:
            bound, distortion = -evaluation.scores(MIXTURE_ELBO), -evaluation.scores(_DISTORTION)
            both = np.flatnonzero(np.isfinite(bound + distortion))
            if len(both) < 3:
                continue
            bound, distortion = bound[both], distortion[both]
            found.setdefault(evaluation.name, {})[run.name] = bound, distortion
            speakers = evaluation.speakers(both)
            known = agreement(bound, distortion, speakers=speakers)
            interval = "" if known.spearman_ci95 is None else "{:.2f} to {:.2f}".format(*known.spearman_ci95)
            correlation = "" if known.spearman is None else f"{known.spearman:.2f}"
            names = [escaped(evaluation.name), escaped(run.name), str(len(both)), f"{drawn_speakers(speakers) or '-'}"]
            rows.append([*names, *(f"{values.mean():.3f}" for values in (bound, distortion)), correlation, interval])
    if not found:
        raise UserError(
            f"--figure evidence: found no evaluation of {', '.join(run.name for run in runs)} with {MIXTURE_ELBO} and "
            f"{_DISTORTION} of three mixtures or more; evaluate models with variational encodings with --metrics blr"
        )
    rows.sort(key=lambda row: list(map(escaped, found)).index(row[0]))
    group_of = {run.name: group.name for group in group_runs(runs) for run in group.runs}
    file = save_png(evidence_figure(found, group_of), path, "evidence")
    header = ["test set", "model", "mixtures", "speakers", "negative bound on the mixture's evidence [nats per sample]"]
    header += ["distortion [nats per sample]", "rank correlation", "95 % interval"]
    return "\n".join(
        [
            markdown_table(header, rows, words=(0, 1)),
            f"![Distortion against the bound on the mixture's evidence]({file})\n",
            "A dot is a mixture, a color a model with all its seeds. Lower is better on both axes. Of the bounds, the "
            f"{100 - _SHOWN_PERCENT} % that are largest are left out of the figure. "
            f"{INTERVALS}\n",
        ]
    )


def evidence_figure(found: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]], group_of: Mapping[str, str]) -> Figure:
    """Return a figure with a panel per test set, a dot per mixture, a color per group of models.

    A few mixtures with hardly any evidence would push all others together, so they are left out.

    Args:
        found: test set -> model -> negative bounds and distortions of its mixtures.
        group_of: model -> the name of its group.
    """
    figure = panels(
        "negative bound on the mixture's evidence [nats per sample]", ["distortion [nats per sample]"] * len(found)
    )
    groups = dict.fromkeys(group_of[name] for models in found.values() for name in models)
    colors = {group: COLORS[k % len(COLORS)] for k, group in enumerate(groups)}
    for axes, (test_set, models) in zip(figure.axes, found.items(), strict=True):
        axes.set_title(test_set, fontsize=10)
        most = np.percentile(np.concatenate([bound for bound, _ in models.values()]), _SHOWN_PERCENT)
        for name, (bound, distortion) in models.items():
            shown, color = bound <= most, colors[group_of[name]]
            axes.scatter(bound[shown], distortion[shown], s=8, color=color, alpha=0.4, linewidths=0)
    if len(colors) > 1:
        handles = [
            Line2D([], [], color=color, marker="o", linestyle="", label=group) for group, color in colors.items()
        ]
        figure.axes[0].legend(handles=handles, frameon=False, fontsize=9)
    return figure
