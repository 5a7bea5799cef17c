"""Show whether a model knows from the mixture how well it will separate it: bound on the evidence over distortion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from sepkit.errors import UserError
from sepkit.evaluation.calibration import agreement
from sepkit.evaluation.labels import MIXTURE_ELBO
from sepkit.evaluation.run_folder import Run
from sepkit.files import atomic_output, write_text
from sepkit.reporting.figures import COLORS, panels
from sepkit.reporting.markdown import escaped, markdown_table

_DISTORTION = "blr_nats_per_sample"
_MOST_SHARP = 2000


def write_evidence(runs: Sequence[Run], path: str | Path) -> str:
    """Write a Markdown file, with FILE_evidence.png beside it; return the text.

    Every run and test set has a row: the rank correlation over mixtures of the negative evidence lower bound of the
    mixture with the distortion of its separation (the negative log evidence of the references), with its interval.

    Args:
        runs: of models with variational encodings, measured with `sepkit evaluate --metrics blr`.
        path: FILE.md.

    Raises:
        UserError: no evaluation has both, or fewer than three mixtures.

    Source: thesis, appendix B, section 4.3 and figure 3.
    """
    path = Path(path)
    found: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for run in runs:
        for evaluation in run.evaluations:
            points = evidence_points(evaluation.scores(MIXTURE_ELBO), evaluation.scores(_DISTORTION))
            if len(points[0]) >= 3:
                found.setdefault(evaluation.name, {})[run.name] = points
    if not found:
        raise UserError(
            f"--figure evidence: found no evaluation of {', '.join(run.name for run in runs)} with {MIXTURE_ELBO} and "
            f"{_DISTORTION} of three mixtures or more; evaluate models with variational encodings with --metrics blr"
        )
    rows = []
    for test_set, models in found.items():
        for name, (bound, distortion) in models.items():
            known = agreement(bound, distortion)
            interval = "" if known.spearman_ci95 is None else "{:.2f} to {:.2f}".format(*known.spearman_ci95)
            correlation = "" if known.spearman is None else f"{known.spearman:.2f}"
            means = [f"{values.mean():.3f}" for values in (bound, distortion)]
            rows.append([escaped(test_set), escaped(name), str(len(bound)), *means, correlation, interval])
    figure_path = path.with_name(f"{path.stem}_evidence.png")
    with atomic_output(figure_path) as temporary:
        evidence_figure(found).savefig(temporary, format="png", dpi=160)
    header = ["test set", "model", "mixtures", "negative bound on the mixture's evidence [nats per sample]"]
    header += ["distortion [nats per sample]", "rank correlation", "95 % interval"]
    text = "\n".join(
        [
            markdown_table(header, rows, words=(0, 1)),
            f"![Distortion against the bound on the mixture's evidence]({figure_path.name})\n",
            "A dot is a mixture. Lower is better on both axes. The interval is a bootstrap over mixtures.\n",
        ]
    )
    write_text(path, text)
    return text


def evidence_points(mixture_elbo: np.ndarray, log_evidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return negative bounds and distortions of the mixtures that have both, (M,) each.

    All are nats per sample.

    Args:
        mixture_elbo: (N,) bounds on the evidence of the mixtures, NaN where there is none.
        log_evidence: (N,), of the references given the estimates, NaN where there is none.
    """
    both = np.isfinite(mixture_elbo) & np.isfinite(log_evidence)
    return -mixture_elbo[both], -log_evidence[both]


def evidence_figure(found: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]) -> Figure:
    """Return a figure with a panel per test set, a dot per mixture, a color per model.

    Args:
        found: test set -> model -> negative bounds and distortions of its mixtures.
    """
    figure = panels(
        "negative bound on the mixture's evidence [nats per sample]", ["distortion [nats per sample]"] * len(found)
    )
    colors = {
        name: COLORS[k % len(COLORS)] for k, name in enumerate(dict.fromkeys(n for m in found.values() for n in m))
    }
    for axes, (test_set, models) in zip(figure.axes, found.items(), strict=True):
        axes.set_title(test_set, fontsize=10)
        for name, (bound, distortion) in models.items():
            many = len(bound) > _MOST_SHARP
            axes.scatter(
                bound, distortion, s=8, color=colors[name], alpha=0.4, linewidths=0, label=name, rasterized=many
            )
    if len(colors) > 1:
        figure.axes[0].legend(frameon=False, fontsize=9)
    return figure
