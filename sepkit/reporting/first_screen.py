"""The part of a report below its headline: the most wanted figures, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.errors import UserError
from sepkit.evaluation.run_folder import EvaluationFolder, Run
from sepkit.files import read_yaml

_LEVELS_DB = (0, 5, 10)
# Of fewer mixtures neither means nor quartiles are reliable.
_FEW_MIXTURES = 20


def facts_row(run: Run) -> str:
    """Return a row of figures: mixtures above 0, 5 and 10 dB, voices of one sex and of two, parameters, speed.

    They are those of the run's first test set. The row is empty if none of them is known.

    Args:
        run: the one that the report is about.
    """
    facts = [*(_of_scores(run.evaluations[0]) if run.evaluations else ()), *_of_model(run)]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{cells}</dl>' if cells else ""


def few_mixtures(run: Run) -> str:
    """Return a warning about test sets that are too small for reliable means; "" if there are none.

    Args:
        run: the one that the report is about.
    """
    small = [
        f"{evaluation.name} ({evaluation.summary['n_utterances']})"
        for evaluation in run.evaluations
        if evaluation.summary.get("n_utterances", _FEW_MIXTURES) < _FEW_MIXTURES
    ]
    if not small:
        return ""
    text = f"Fewer than {_FEW_MIXTURES} mixtures: {', '.join(small)}. Means of so few say little; look at the examples."
    return f'<p class="note">{escape(text)}</p>'


def _of_scores(evaluation: EvaluationFolder) -> Iterator[tuple[str, str]]:
    scores = evaluation.scores("si_sdr_db")
    known = scores[np.isfinite(scores)]
    if len(known):
        shares = " · ".join(f"{100 * np.mean(known > level):.0f} %" for level in _LEVELS_DB)
        yield f"mixtures above {', '.join(map(str, _LEVELS_DB))} dB SI-SDR", shares
    pairs = np.array([row.get("sex_pair") or "" for row in evaluation.rows], dtype=str)
    alike = np.array([len(set(pair.split("-"))) == 1 for pair in pairs], dtype=bool)
    kinds = (("same sex", alike & (pairs != "")), ("different sexes", ~alike & (pairs != "")))
    means = [
        f"{kind} {scores[chosen].mean():.1f} dB" for kind, rows in kinds if (chosen := rows & np.isfinite(scores)).any()
    ]
    if len(means) > 1:
        yield "mean SI-SDR by voices", " · ".join(means)
    factor = evaluation.summary.get("real_time_factor")
    if factor:
        yield "real-time factor", f"{factor:.3g}"


def _of_model(run: Run) -> Iterator[tuple[str, str]]:
    parameters = _description(run.folder).get("parameters")
    if isinstance(parameters, int):
        yield "parameters", f"{parameters:,}"


def _description(folder: Path) -> dict[str, Any]:
    """Return what was noted when an experiment's model was saved; empty without a model."""
    try:
        found = read_yaml(folder / "model" / "model.yaml")
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}
