"""Tables of several evaluations, best first, with the command that made each row."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

from sepkit.errors import UserError
from sepkit.evaluation.labels import NO_SCORES
from sepkit.evaluation.run_folder import EvaluationFolder, load_evaluation

# Unit at the end of a column's name -> its form in a heading.
_UNITS = {"_db": " (dB)", "_nats_per_sample": " (nats/sample)"}
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}


def leaderboard(folders: Sequence[str | os.PathLike[str]], format: str = "md", sort_by: str | None = None) -> str:
    """Return a table: one row per run, sorted by score; one column per metric with mean and half the 95 % interval.

    Args:
        folders: of evaluations; rows are named after them, with parent folders if two names are equal.
        format: "md", "latex" (booktabs) or "csv" (mean, low and high end in separate columns).
        sort_by: metric, highest first; None: si_sdri_db, or the first that the first run has.

    Raises:
        UserError: no folders, no such evaluation, an unknown format or metric.
    """
    if format not in FORMATS:
        raise UserError(f"format: found {format!r}, expected one of {', '.join(FORMATS)}")
    if not folders:
        raise UserError("leaderboard: no folders given, expected those of one evaluation or more")
    runs = [load_evaluation(folder) for folder in folders]
    columns = list(dict.fromkeys(name for run in runs for name in run.metrics))
    by = sort_by or ("si_sdri_db" if "si_sdri_db" in columns else (columns or [""])[0])
    if columns and by not in columns:
        raise UserError(f"sort_by: found {by!r}, expected one of {', '.join(columns)}")
    names = dict(zip(map(id, runs), _names(runs), strict=True))
    # Python's sort is stable: equal runs stay in the order given, and those without a score come last.
    runs = sorted(runs, key=lambda run: -_score(run, by)["mean"] if _score(run, by).get("n") else float("inf"))
    return FORMATS[format](runs, [names[id(run)] for run in runs], columns)


def _score(run: EvaluationFolder, column: str) -> dict[str, Any]:
    return run.summary.get("metrics", {}).get(column, {})


def _names(runs: Sequence[EvaluationFolder]) -> list[str]:
    """Return as many last parts of the folders as make them differ."""
    paths = [run.folder.resolve().parts for run in runs]
    by_length = (["/".join(parts[-length:]) for parts in paths] for length in range(1, max(map(len, paths)) + 1))
    # The same folder twice has no different names.
    return next((names for names in by_length if len(set(names)) == len(names)), [str(run.folder) for run in runs])


def _title(column: str) -> str:
    for ending, unit in _UNITS.items():
        if column.endswith(ending):
            return column.removesuffix(ending) + unit
    return column


def _cells(run: EvaluationFolder, columns: Sequence[str], plus_minus: str, best: dict[str, float]) -> list[tuple]:
    cells = []
    for column in columns:
        score = _score(run, column)
        if not score.get("n"):
            cells.append(("", False))
            continue
        half = (score["ci95"][1] - score["ci95"][0]) / 2
        cells.append((f"{score['mean']:.2f} {plus_minus} {half:.2f}", score["mean"] == best.get(column)))
    return cells


def _best(runs: Sequence[EvaluationFolder], columns: Sequence[str]) -> dict[str, float]:
    scores = [column for column in columns if column not in NO_SCORES]
    return {c: max(_score(run, c)["mean"] for run in runs if _score(run, c).get("n")) for c in scores}


def _command(run: EvaluationFolder) -> str:
    return run.summary.get("command") or ""


def _markdown(runs: Sequence[EvaluationFolder], names: Sequence[str], columns: Sequence[str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("|", "\\|")

    best = _best(runs, columns)
    lines = [
        ["run", "n", *map(_title, columns), "command"],
        ["---", *["---:"] * (len(columns) + 1), "---"],
    ]
    for run, name in zip(runs, names, strict=True):
        cells = [f"**{text}**" if top and len(runs) > 1 else text for text, top in _cells(run, columns, "±", best)]
        command = f"`{_command(run)}`" if _command(run) else ""
        lines.append([escaped(name), str(run.summary.get("n_utterances", "")), *cells, escaped(command)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latex(runs: Sequence[EvaluationFolder], names: Sequence[str], columns: Sequence[str]) -> str:
    def escaped(text: str) -> str:
        return "".join(_LATEX.get(c, c) for c in text)

    best = _best(runs, columns)
    head = " & ".join(map(escaped, ["run", "n", *map(_title, columns)]))
    lines = [f"\\begin{{tabular}}{{l{'r' * (len(columns) + 1)}}}", "\\toprule", head + " \\\\", "\\midrule"]
    for run, name in zip(runs, names, strict=True):
        cells = [
            f"$\\mathbf{{{text}}}$" if top and len(runs) > 1 else f"${text}$" if text else "--"
            for text, top in _cells(run, columns, r"\pm", best)
        ]
        # Written as a comment, because a command is wider than any column.
        lines.append(f"% {name}: {' '.join(_command(run).split()) or 'command not recorded'}")
        lines.append(" & ".join([escaped(name), str(run.summary.get("n_utterances", "")), *cells]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _csv(runs: Sequence[EvaluationFolder], names: Sequence[str], columns: Sequence[str]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    ends = [f"{column}{ending}" for column in columns for ending in ("", "_ci95_low", "_ci95_high")]
    writer.writerow(["run", "n", *ends, "command"])
    for run, name in zip(runs, names, strict=True):
        scores = [_score(run, column) for column in columns]
        cells = [cell for s in scores for cell in ([s["mean"], *s["ci95"]] if s.get("n") else [""] * 3)]
        writer.writerow([name, run.summary.get("n_utterances", ""), *cells, _command(run)])
    return file.getvalue()


FORMATS: dict[str, Callable[[Sequence[EvaluationFolder], Sequence[str], Sequence[str]], str]] = {
    "md": _markdown,
    "latex": _latex,
    "csv": _csv,
}
"""Name of a format -> the function that writes it."""
