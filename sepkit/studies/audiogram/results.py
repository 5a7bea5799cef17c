"""Tables in Markdown and figures of simulated sessions: strategies, stopping, rate and distortion, overfitting.

Audiograms are drawn as audiologists do: decibels downwards, a red O for the right ear and a blue X for the left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sepkit.cleaning import escaped
from sepkit.errors import UserError, one_line
from sepkit.evaluation.run_folder import Curve
from sepkit.evaluation.statistics import paired_difference
from sepkit.files import read_json, write_text
from sepkit.reporting.curve_figures import rate_distortion_curve
from sepkit.reporting.figures import COLORS, panels, save_figure
from sepkit.reporting.tables import markdown_table, mean_and_deviation
from sepkit.studies.audiogram.config import EARS
from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE, read_audiograms
from sepkit.studies.audiogram.model import Prediction, TrainedVAE, load_model
from sepkit.studies.audiogram.simulation import SIMULATION, STRATEGIES, area, play

RULES = {
    "ridge": "ridge with uncertainty",
    "number": "number alone",
    "best_index": "best single index",
    "oracle": "oracle",
}
"""Stopping rule -> its name in tables and figures."""

_MARKERS = dict(zip(EARS, (("#c9524f", "o"), ("#3d86c6", "x")), strict=True))
_SHOWN_STEPS = (0, 1, 2, 3, 5)

Groups = Mapping[str, list[dict[str, Any]]]
"""Name -> contents of simulation.json that belong together: seeds of one draw of data, or models of several rates."""


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
        groups[f"{path.parent.name}/{path.name}" if path.name == "simulations" else path.name] = list(
            map(read_json, files)
        )
    return groups


def write_tables(
    simulations: Sequence[str | Path], out: str | Path, kind: Literal["strategies", "rates", "gap"] = "strategies"
) -> str:
    """Write tables in Markdown, with figures beside them; return the text.

    Args:
        simulations: Folders that `sepkit audiogram simulate` wrote, or folders of such folders.
        out: The file, FILE.md.
        kind: As of `sepkit audiogram tables`.

    Raises:
        UserError: there is no simulation, or it does not hold what the table needs.
    """
    path, groups = Path(out), load_groups(simulations)
    try:
        sections = {"strategies": _strategies, "rates": _rates, "gap": _gap}[kind](groups, path)
        text = "\n".join([*sections, f"{NOT_A_MEDICAL_DEVICE}.\n"])
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


# ---------------------------------------------------------------------------------------------------------- strategies


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
    steps = range(next(iter(curves.values())).shape[1])
    rows = [[str(step), *(_cell(curve[:, step]) for curve in curves.values())] for step in steps]
    yield markdown_table(["measured", *curves], rows)
    figure = _information_figure(curves, _title("single_best") if "single_best" in names else None)
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


# --------------------------------------------------------------------------------------------------------------- rates

_STOP = {
    name: ("stopping", "5", "ridge", name.removeprefix("stopping_")) for name in ("stopping_offset", "stopping_index")
}
_MEASURES = {
    "distortion_nats": ("rate_distortion", "test", "distortion_nats"),
    "negative_elbo_nats": ("rate_distortion", "test", "negative_elbo_nats"),
    "rmse_area_db": ("strategies", "largest_variance", "area_rmse_db"),
    **_STOP,
}
_HEADER = ["distortion [nats]", "negative ELBO [nats]", "area [dB]", "offset O", "stopping index"]


def _rates(groups: Groups, path: Path) -> Iterator[str]:
    """Yield tables and figures of groups of models that were trained towards different rates."""
    optima, reached = [], []
    for name, group in groups.items():
        targets = _values(group, "training", "target_rate")
        columns = [_values(group, *keys) for keys in (("rate_distortion", "test", "rate_nats"), *_MEASURES.values())]
        means = {t: [column[targets == t] for column in columns] for t in np.unique(targets)}
        best = [min(means, key=lambda t, k=k: means[t][k].mean()) for k in range(1, len(columns))]
        optima.append([escaped(name), *(f"{means[t][k + 1].mean():.2f} at {t:g}" for k, t in enumerate(best))])
        for t, (rate, *cells) in means.items():
            reached.append([escaped(name), f"{t:g}", f"{100 * (rate.mean() / t - 1):+.1f} %", *map(_cell, cells)])
    yield "### Best mean over seeds, and the target rate [nats] that has it\n"
    yield markdown_table(["models and data", *_HEADER], optima)
    yield "### All target rates\n"
    yield markdown_table(["models and data", "target [nats]", "rate on test data, off by", *_HEADER], reached)
    first = next(iter(groups))
    rules = {RULES[rule]: (groups[first], rule) for rule in ("number", "ridge")}
    of_groups = {name: (group, "ridge") for name, group in groups.items()}
    for name, curves, measures, title in (
        ("distortion", of_groups, ["distortion_nats", "negative_elbo_nats"], "Rate and distortion"),
        ("acquisition", of_groups, ["rmse_area_db", *_STOP], "Acquisition against rate"),
        ("stopping", rules, list(_STOP), f"Stopping against rate, {first}"),
    ):
        figure = _rate_figure(curves, measures)
        file = save_figure(figure, path.with_name(f"{path.stem}_{name}.png"))
        yield f"![{title}]({file.name})\n"
    yield "A dot is a model, lines are running means over three models in order of rate, stars the best.\n"


def _rate_figure(curves: Mapping[str, tuple[list[dict[str, Any]], str]], measures: Sequence[str]) -> Figure:
    shown: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for measure in measures:
        shown[measure] = {}
        for name, (group, rule) in curves.items():
            keys = [rule if key == "ridge" else key for key in _MEASURES[measure]]
            shown[measure][name] = _values(group, "rate_distortion", "test", "rate_nats"), _values(group, *keys)
    return rate_distortion_curve(Curve("rate_nats", shown))


# ----------------------------------------------------------------------------------------------------------------- gap


def _gap(groups: Groups, path: Path) -> Iterator[str]:
    """Yield how much larger the distortion on test data is than on training data, by missingness, target and epochs."""
    rows = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for group in groups.values():
        targets, epochs = _values(group, "training", "target_rate"), _values(group, "training", "epochs")[0]
        kind = str(group[0]["training"]["missingness"]["kind"])
        train, test = (
            _values(group, "rate_distortion", name, "distortion_nats") for name in ("train", "test_same_masks")
        )
        for target in np.unique(targets):
            mine = targets == target
            gap = (test - train)[mine]
            curves.setdefault(f"{kind}, {target:g} nats", []).append((float(epochs), float(gap.mean())))
            rows.append([escaped(kind), f"{epochs:g}", f"{target:g}", *map(_cell, (train[mine], test[mine], gap))])
    yield "### Distortion on training and on test data [nats] by epochs, both under the training's own masks\n"
    yield markdown_table(["missingness", "epochs", "target", "training data", "test data", "gap"], rows)
    figure = panels("epochs", ["test minus training distortion [nats]"])
    for color, (name, points) in zip(COLORS * len(curves), curves.items(), strict=False):
        style = "o--" if name.startswith("static") else "o-"
        figure.axes[0].plot(*np.array(sorted(points)).T, style, markersize=4, color=color, label=name)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.axes[0].set_xscale("log")
    yield f"![Gap]({save_figure(figure, path.with_name(f'{path.stem}.png')).name})\n"


# ---------------------------------------------------------------------------------------------------------- one model


def draw_session(model: str | Path, manifest: str | Path, out: str | Path, first: int | None) -> Path:
    """Draw the session with the median area, step by step (thesis, figure 2), as a PNG file; return its folder.

    Args:
        model: EXP or EXP/model.
        manifest: CSV file of test audiograms.
        out: Folder of the file.
        first: Number of audiograms, from the beginning; None: all.
    """
    vae = load_model(model).vae
    tests = read_audiograms(manifest, vae.config.dimensions).complete_ones(first)
    sessions = play(vae, tests, vae.draws)
    chosen = int(np.argsort(area(sessions.rmse))[len(tests) // 2])
    names = [vae.names[place] for place in vae.measurable]
    colors = [_MARKERS[name.partition("_")[0]][0] for name in names]
    figure = Figure(figsize=(8, 2.7 * len(_SHOWN_STEPS)), layout="constrained")
    for (left, right), step in zip(figure.subplots(len(_SHOWN_STEPS), 2), _SHOWN_STEPS, strict=True):
        observed = vae.nothing_measured(1)
        observed[0, sessions.orders[chosen, :step]] = True
        prediction = vae.predict(tests.values[chosen : chosen + 1], observed, vae.draws)
        draw_audiogram(left, vae, prediction, tests.reference[chosen])
        deviation = prediction.deviation[0, vae.measurable]
        right.bar(range(len(names)), deviation, color=colors)
        upcoming = list(vae.measurable).index(sessions.orders[chosen, step])
        right.plot(upcoming, deviation[upcoming] + 1.5, "v", color="black")
        right.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
        right.set_ylabel("deviation [dB]")
    figure.axes[0].set_title("truth (dashed), estimate, measured (large)", fontsize=9)
    figure.axes[1].set_title("predicted deviation; the triangle is next", fontsize=9)
    return save_figure(figure, Path(out) / "figure_2_session.png").parent


def draw_audiogram(axes: Axes, vae: TrainedVAE, prediction: Prediction, reference: np.ndarray) -> None:
    """Draw both ears on empty axes: measured thresholds large, others small with a bar of one standard deviation.

    Args:
        axes: Empty axes.
        vae: The model.
        prediction: Belief about one person.
        reference: (D,) whole audiogram to compare with, dB HL, drawn as dashed lines.
    """
    estimate, deviation, observed = prediction.estimate[0], prediction.deviation[0], prediction.observed[0]
    for ear, (color, marker) in _MARKERS.items():
        places = np.array([place for place in vae.measurable if vae.names[place].startswith(f"{ear}_")])
        hz = np.array([int(vae.names[place].rpartition("_")[2]) for place in places])
        axes.plot(hz, reference[places], "--", color=color, linewidth=1, alpha=0.8)
        for some, size in ((observed[places], 8), (~observed[places], 5)):
            bars = deviation[places][some] * ~observed[places][some]
            axes.errorbar(hz[some], estimate[places][some], bars, fmt=marker, color=color, markersize=size, alpha=0.7)
    axes.set(xscale="log", ylim=(120, -10), xlim=(400, 10000), xlabel="frequency [kHz]", ylabel="threshold [dB HL]")
    axes.minorticks_off()
    axes.set_xticks([500, 1000, 2000, 4000, 8000], [".5", "1", "2", "4", "8"])
    axes.grid(color="black", alpha=0.12, linewidth=0.8)
