"""Tables in Markdown of simulated sessions, strategies and stopping, and a figure of information curves."""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sepkit.cleaning import escaped
from sepkit.errors import UserError, one_line
from sepkit.evaluation.statistics import paired_difference
from sepkit.files import read_json, write_text
from sepkit.reporting.figures import COLORS, panels, save_figure
from sepkit.reporting.tables import markdown_table, mean_and_deviation
from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE
from sepkit.studies.audiogram.simulation import SIMULATION, STRATEGIES

RULES = {
    "ridge": "ridge with uncertainty",
    "number": "number alone",
    "best_index": "best single index",
    "oracle": "oracle",
}
"""Stopping rule -> its name in tables and figures."""

Groups = Mapping[str, list[dict[str, Any]]]
"""Name -> contents of simulation.json that belong together: seeds of one draw of data."""


def load_groups(simulations: Sequence[str | Path]) -> Groups:
    """Return a group for each folder, of all simulations in it.

    Raises:
        UserError: a folder has none, or one cannot be read.
    """
    groups = {}
    for path in map(Path, simulations):
        files = sorted(path.rglob(SIMULATION))
        if not files:
            raise UserError(f"{path}: found no {SIMULATION}, expected what `sepkit audiogram simulate` wrote")
        groups[path.name] = list(map(read_json, files))
    return groups


def write_tables(simulations: Sequence[str | Path], out: str | Path) -> str:
    """Write tables in Markdown, with a figure beside them; return the text.

    Args:
        simulations: Folders that `sepkit audiogram simulate` wrote, or folders of such folders.
        out: The file, FILE.md.

    Raises:
        UserError: no simulation, or one that lacks data for the table.
    """
    path, groups = Path(out), load_groups(simulations)
    try:
        text = "\n".join([*_strategies(groups, path), f"{NOT_A_MEDICAL_DEVICE}.\n"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")[:200]
        raise UserError(f"{path}: a {SIMULATION} does not hold what it should ({reason}); simulate again") from error
    write_text(path, text)
    return text


def _values(group: Sequence[dict[str, Any]], *keys: str) -> np.ndarray:
    """Return the numbers of each simulation of a group under some keys, from the outside in, (models, ...)."""
    return np.array([reduce(getitem, keys, found) for found in group], float)


def _cell(values: np.ndarray) -> str:
    return mean_and_deviation(values.tolist())


def _title(strategy: str) -> str:
    return "single best order" if strategy == "single_best" else strategy.replace("_", " ")


def _strategies(groups: Groups, path: Path) -> Iterator[str]:
    first = next(iter(groups.values()))
    names = [name for name in STRATEGIES if name in first[0]["strategies"]]
    areas = {name: [_values(group, "strategies", name, "area_rmse_db") for group in groups.values()] for name in names}
    header = ["data", "models", *map(_title, names)]
    rows = [
        [escaped(group), str(len(found)), *(_cell(areas[name][place]) for name in names)]
        for place, (group, found) in enumerate(groups.items())
    ]
    if len(groups) > 1:
        rows.append(["all, deviation over data", "", *(_cell(np.array([v.mean() for v in areas[n]])) for n in names)])
    yield f"### Area below the information curve [dB], against the {first[0]['reference']} audiogram\n"
    yield markdown_table(header, rows)
    if "largest_variance" in names:
        yield "### Largest variance compared, paired over data\n"
        yield _compared(groups, names)
    yield "### RMSE [dB] by number of measurements\n"
    curves = {
        _title(name): np.concatenate([_values(group, "strategies", name, "rmse_db") for group in groups.values()])
        for name in names
    }
    figure = _information_figure(curves, _title("single_best") if "single_best" in names else None)
    title = f"{_title(names[0])}, posterior mean"
    curves[title] = np.concatenate([_values(g, "strategies", names[0], "posterior_rmse_db") for g in groups.values()])
    steps = range(curves[title].shape[1])
    rows = [[str(step), *(_cell(curve[:, step]) for curve in curves.values())] for step in steps]
    yield markdown_table(["measured", *curves], rows)
    yield f"![Information curves]({save_figure(figure, path.with_name(f'{path.stem}_information.png')).name})\n"
    yield "### Stopping\n"
    yield _stopping_table(groups)


def _compared(groups: Groups, names: Sequence[str]) -> str:
    """Return a table of the area of the largest variance minus that of each other strategy."""
    rows = []
    for group, found in groups.items():
        of = {name: _values(found, "strategies", name, "areas_db").mean(0) for name in names}
        for name in names[1:]:
            difference = paired_difference(of[names[0]], of[name])
            ends = " to ".join(f"{end:+.2f}" for end in difference.ci95 or ())
            share = 100 * (of[names[0]].mean() / of[name].mean() - 1)
            rows.append([escaped(group), _title(name), f"{difference.mean:+.2f}", ends, f"{share:+.1f} %"])
    header = ["data", "largest variance minus", "difference of areas [dB]", "95 % interval over data", "share"]
    return markdown_table(header, rows, words=(0, 1))


def _stopping_table(groups: Groups) -> str:
    stopping = next(iter(groups.values()))[0]["stopping"]
    rows = []
    for threshold, known in stopping.items():
        for rule in (rule for rule in RULES if rule in known):
            cells = []
            for what in ("offset", "index", "error_db"):
                found = [_values(group, "stopping", threshold, rule, what) for group in groups.values()]
                cells.append(_cell(found[0] if len(found) == 1 else np.array([part.mean() for part in found])))
            rows.append([f"{threshold} dB", RULES[rule], *cells])
    spread = "data sets" if len(groups) > 1 else "models"
    header = ["threshold", "rule", "offset O", "stopping index", "error there [dB]"]
    return markdown_table(header, rows, words=(0, 1)) + f"\nMean and standard deviation over {spread}.\n"


def _information_figure(curves: Mapping[str, np.ndarray], relative_to: str | None) -> Figure:
    """Return a figure of RMSE by number of measurements, and relative to one of the curves (thesis, figure 6)."""
    figure = panels("number of measurements", ["RMSE [dB]", *[f"RMSE relative to {relative_to}"] * bool(relative_to)])
    for color, (name, values) in zip(COLORS, curves.items(), strict=False):
        for axes, unit in zip(figure.axes, [1.0, curves[relative_to].mean(0) if relative_to else 1.0], strict=False):
            mean, deviation = (values / unit).mean(0), (values / unit).std(0)
            axes.plot(mean, color=color, marker="o", markersize=3.5, label=name)
            axes.fill_between(range(len(mean)), mean - deviation, mean + deviation, color=color, alpha=0.18)
    figure.axes[0].legend(frameon=False, fontsize=9)
    return figure
