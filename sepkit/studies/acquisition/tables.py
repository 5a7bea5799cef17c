"""Tables in Markdown, and their figures, of simulations of many models: strategies, stopping, rate and distortion."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from sepkit.errors import UserError
from sepkit.evaluation.run_folder import read_curve
from sepkit.evaluation.statistics import paired_difference
from sepkit.files import atomic_output, read_json, write_text
from sepkit.reporting.curve_figures import rate_distortion_curve
from sepkit.reporting.markdown import escaped, markdown_table
from sepkit.studies.acquisition.audiogram import NOT_A_MEDICAL_DEVICE
from sepkit.studies.acquisition.evaluate import SIMULATION
from sepkit.studies.acquisition.figures import gap_figure, information_figure

_NAMES = {
    "largest_variance": "largest variance",
    "mean_variance": "mean of variances (eq. 3 as printed)",
    "information_gain": "information gain",
    "single_best": "single best order",
    "random": "random",
    "ridge": "ridge with uncertainty",
    "number": "number alone",
    "best_index": "best single index",
    "oracle": "oracle",
}
_RULES = ("ridge", "number", "best_index", "oracle")
_DPI = 110


@dataclass
class Group:
    """Simulations that belong together: seeds of one draw of data, or models towards different rates.

    Args:
        name: of the folder.
        folders: one per model.
        summaries: their simulation.json.
    """

    name: str
    folders: list[Path]
    summaries: list[dict[str, Any]]

    def values(self, *keys: str) -> np.ndarray:
        """Return the values of each summary under some keys, (models, ...).

        Args:
            keys: one after the other, from the outside in.
        """
        found = []
        for folder, summary in zip(self.folders, self.summaries, strict=True):
            value: Any = summary
            for key in keys:
                if not isinstance(value, dict) or value.get(key) is None:
                    raise UserError(
                        f"{folder / SIMULATION}: found no {'.'.join(keys)}; simulate again with all options"
                    )
                value = value[key]
            found.append(value)
        return np.array(found, float)


def load_groups(simulations: Sequence[str | Path]) -> list[Group]:
    """Return a group for each folder.

    Args:
        simulations: folders; each is one simulation, or holds several.

    Raises:
        UserError: a folder without any.
    """
    groups = []
    for path in map(Path, simulations):
        found = [path] if (path / SIMULATION).is_file() else [p.parent for p in sorted(path.glob(f"*/{SIMULATION}"))]
        if not found:
            raise UserError(f"{path}: found no {SIMULATION}, expected what `sepkit audiogram simulate` wrote")
        name = f"{path.parent.name}/{path.name}" if path.name == "simulations" else path.name
        groups.append(Group(name, found, [read_json(folder / SIMULATION) for folder in found]))
    return groups


def write_tables(
    simulations: Sequence[str | Path], out: str | Path, kind: Literal["strategies", "rates", "gap"] = "strategies"
) -> str:
    """Write tables in Markdown to the file OUT, with figures beside it; return the text.

    Args:
        simulations: folders, as in `load_groups`.
        out: the file.
        kind: which tables.

    Raises:
        UserError: a folder without simulations, or ones that lack values for the tables.
    """
    path = Path(out)
    groups = load_groups(simulations)
    sections = {"strategies": _strategies, "rates": _rates, "gap": _gap}[kind](groups, path)
    text = "\n".join([*sections, f"{NOT_A_MEDICAL_DEVICE}.\n"])
    write_text(path, text)
    return text


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as a PNG file and return its path.

    Args:
        figure: what is written.
        path: of the PNG.
    """
    with atomic_output(path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI)
    return path


# ---------------------------------------------------------------------------------------------------------- strategies


def _strategies(groups: Sequence[Group], path: Path) -> Iterator[str]:
    strategies = list(groups[0].summaries[0]["strategies"])
    reference = groups[0].summaries[0]["reference"]
    yield f"### Area below the information curve [dB], against the {reference} audiogram\n"
    yield _area_table(groups, strategies)
    if {"largest_variance", "single_best"} <= set(strategies):
        yield "### Largest variance minus single best order, paired over data\n"
        yield _paired_table(groups)
    yield "### RMSE [dB] by number of measurements\n"
    yield _curve_table(groups, strategies)
    figure = information_figure(
        {_NAMES[name]: _curves_of(groups, name, "rmse_db") for name in strategies},
        "single best order" if "single_best" in strategies else None,
    )
    yield f"![Information curves]({save_figure(figure, path.with_name(f'{path.stem}_information.png')).name})\n"
    yield "### Stopping\n"
    yield _stopping_table(groups)


def _curves_of(groups: Sequence[Group], strategy: str, measure: str) -> np.ndarray:
    """Return (models of all groups, M + 1)."""
    return np.concatenate([group.values("strategies", strategy, measure) for group in groups])


def _area_table(groups: Sequence[Group], strategies: Sequence[str]) -> str:
    header = ["data", "models", *(_NAMES[name] for name in strategies)]
    compared = {"largest_variance", "random"} <= set(strategies)
    if compared:
        header.append("largest variance below random")
    rows = []
    means: dict[str, list[float]] = {name: [] for name in strategies}
    below: list[float] = []
    for group in groups:
        areas = {name: group.values("strategies", name, "area_rmse_db") for name in strategies}
        for name, values in areas.items():
            means[name].append(float(values.mean()))
        row = [escaped(group.name), str(len(group.folders)), *(_mean(values) for values in areas.values())]
        if compared:
            below.append(100 * (1 - areas["largest_variance"].mean() / areas["random"].mean()))
            row.append(f"{below[-1]:.1f} %")
        rows.append(row)
    if len(groups) > 1:
        row = ["all, deviation over data", "", *(_mean(np.array(values)) for values in means.values())]
        rows.append([*row, f"{np.mean(below):.1f} %"] if compared else row)
    return markdown_table(header, rows)


def _paired_table(groups: Sequence[Group]) -> str:
    rows = []
    for group in groups:
        areas = [_areas_by_id(folder) for folder in group.folders]
        ids = list(areas[0]["largest_variance"])
        first, second = (
            np.mean([[part[name][i] for i in ids] for part in areas], axis=0)
            for name in ("largest_variance", "single_best")
        )
        found = paired_difference(first, second)
        adaptive, fixed = (_curves_of([group], name, "rmse_db")[:, 2:] for name in ("largest_variance", "single_best"))
        low, high = found.ci95 or (np.nan, np.nan)
        ahead = sum(a["largest_variance"] < a["single_best"] for a in _mean_areas(group))
        rows.append(
            [
                escaped(group.name),
                f"{found.mean:+.2f}",
                f"{low:+.2f} to {high:+.2f}",
                f"{ahead} of {len(group.folders)}",
                f"{(adaptive - fixed).sum(1).mean():+.2f}",
            ]
        )
    header = [
        "data",
        "difference of areas [dB]",
        "95 % interval over data",
        "models ahead",
        "after the first measurement",
    ]
    return markdown_table(header, rows)


def _areas_by_id(folder: Path) -> dict[str, dict[str, float]]:
    """Return strategy -> id -> area below the information curve."""
    areas: dict[str, dict[str, float]] = {}
    with (folder / "sequences.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            areas.setdefault(row["strategy"], {})[row["id"]] = float(row["area_rmse_db"])
    return areas


def _mean_areas(group: Group) -> list[dict[str, float]]:
    return [{name: part["area_rmse_db"] for name, part in summary["strategies"].items()} for summary in group.summaries]


def _curve_table(groups: Sequence[Group], strategies: Sequence[str]) -> str:
    """Return means over data sets and models, and the standard deviation over all of them."""
    header = ["measured", *(_NAMES[name] for name in strategies)]
    curves = [_curves_of(groups, name, "rmse_db") for name in strategies]
    noisy = groups[0].summaries[0]["reference"] == "noise-free"
    if noisy:
        header.append(f"{_NAMES[strategies[0]]}, against the measured data")
        curves.append(_curves_of(groups, strategies[0], "rmse_measured_db"))
    rows = [[str(m), *(_mean(curve[:, m]) for curve in curves)] for m in range(curves[0].shape[1])]
    return markdown_table(header, rows)


def _stopping_table(groups: Sequence[Group]) -> str:
    thresholds = [key for key in groups[0].summaries[0]["stopping"] if key != "correlation"]
    rows = []
    for threshold in thresholds:
        scores = groups[0].summaries[0]["stopping"][threshold]
        for rule in (r for r in _RULES if r in scores):
            cells = []
            for what in ("offset", "index", "error_db", "predicted_db"):
                of_groups = [
                    group.values("stopping", threshold, rule, what) for group in groups if what in scores[rule]
                ]
                values = of_groups[0] if len(of_groups) == 1 else np.array([part.mean() for part in of_groups])
                cells.append(_mean(values) if len(values) else "")
            rows.append([f"{threshold} dB", _NAMES[rule], *cells])
    spread = "data sets" if len(groups) > 1 else "models"
    header = ["threshold", "rule", "offset O", "stopping index", "error there [dB]", "predicted there [dB]"]
    return markdown_table(header, rows, words=(0, 1)) + f"\nMean and standard deviation over {spread}.\n"


def _mean(values: np.ndarray) -> str:
    spread = f" +- {values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{spread}"


# --------------------------------------------------------------------------------------------------------------- rates

_MEASURES = {
    "distortion_nats": ("rate_distortion", "test", "distortion_nats"),
    "negative_elbo_nats": ("rate_distortion", "test", "negative_elbo_nats"),
    "rmse_area_db": ("strategies", "largest_variance", "area_rmse_db"),
    "stopping_offset": ("stopping", "5", "ridge", "offset"),
    "stopping_index": ("stopping", "5", "ridge", "index"),
    "stopping_error_db": ("stopping", "5", "ridge", "error_db"),
}
_NUMBER_ALONE = {
    "stopping_offset": ("stopping", "5", "number", "offset"),
    "stopping_index": ("stopping", "5", "number", "index"),
    "stopping_error_db": ("stopping", "5", "number", "error_db"),
}


def _rates(groups: Sequence[Group], path: Path) -> Iterator[str]:
    """Yield tables and figures of groups of models that were trained towards different rates."""
    yield "### Optima over rates\n"
    yield _optimum_table(groups)
    for group in groups:
        yield f"### {group.name}\n"
        yield _target_table(group)
    shown = {
        "distortion": (("distortion_nats", "negative_elbo_nats"), _MEASURES, "Rate and distortion"),
        "acquisition": (("rmse_area_db", "stopping_offset", "stopping_index"), _MEASURES, "Acquisition against rate"),
    }
    for name, (measures, keys, title) in shown.items():
        file = path.with_name(f"{path.stem}_{name}.csv")
        _write_curves(file, {group.name: (group, keys) for group in groups}, measures)
        figure = rate_distortion_curve(read_curve(file))
        yield f"![{title}]({save_figure(figure, file.with_suffix('.png')).name})\n"
    file = path.with_name(f"{path.stem}_stopping.csv")
    first = groups[0]
    rules = {"number alone": (first, _NUMBER_ALONE), "ridge with uncertainty": (first, _MEASURES)}
    _write_curves(file, rules, tuple(_NUMBER_ALONE))
    figure = rate_distortion_curve(read_curve(file))
    yield f"![Stopping against rate, {first.name}]({save_figure(figure, file.with_suffix('.png')).name})\n"
    yield "A dot is a model, lines are running means over three models in order of rate, stars the best.\n"


def _write_curves(
    path: Path, curves: dict[str, tuple[Group, dict[str, tuple[str, ...]]]], measures: Sequence[str]
) -> None:
    with atomic_output(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["rate_nats", *measures, "curve"])
        for name, (group, keys) in curves.items():
            columns = [_test_rates(group), *(group.values(*keys[measure]) for measure in measures)]
            for row in sorted(zip(*columns, strict=True)):
                writer.writerow([*(f"{value:.6g}" for value in row), name])


def _test_rates(group: Group) -> np.ndarray:
    return group.values("rate_distortion", "test", "rate_nats")


def _optimum_table(groups: Sequence[Group]) -> str:
    """Return the target rate whose models are best on average, by each measure."""
    rows = []
    for group in groups:
        targets = group.values("training", "target_rate")
        row = [escaped(group.name)]
        for keys in _MEASURES.values():
            if keys[-1] == "error_db":
                continue
            means = {t: float(group.values(*keys)[targets == t].mean()) for t in np.unique(targets)}
            best = min(means, key=lambda target: means[target])
            row.append(f"{means[best]:.2f} at {best:g}")
        rows.append(row)
    header = ["models and data", "distortion [nats]", "negative ELBO [nats]", "area [dB]", "offset O", "stopping index"]
    return markdown_table(header, rows) + "\nBest mean over seeds, and the target rate (nats) that has it.\n"


def _target_table(group: Group) -> str:
    targets, rates = group.values("training", "target_rate"), _test_rates(group)
    has_train = all("train" in summary["rate_distortion"] for summary in group.summaries)
    rows = []
    for target in np.unique(targets):
        mine = targets == target
        cells = [f"{target:g}", f"{rates[mine].mean():.3f}", f"{100 * (rates[mine].mean() / target - 1):+.1f} %"]
        if has_train:
            on_train = group.values("rate_distortion", "train", "rate_nats")[mine].mean()
            cells.append(f"{100 * (on_train / target - 1):+.1f} %")
            cells.append(_mean(group.values("rate_distortion", "train", "distortion_nats")[mine]))
        cells += [_mean(group.values(*keys)[mine]) for keys in _MEASURES.values()]
        rows.append(cells)
    header = ["target", "rate on test", "off", *(["off on train", "distortion, train"] if has_train else [])]
    header += ["distortion, test", "negative ELBO", "area [dB]", "offset O", "stopping index", "error there [dB]"]
    return markdown_table(header, rows)


# ----------------------------------------------------------------------------------------------------------------- gap


def _gap(groups: Sequence[Group], path: Path) -> Iterator[str]:
    """Yield how much larger the distortion on test data is than on training data, by missingness, target and epochs."""
    yield "### Distortion on training and on test data [nats] by epochs, both under the training's own masks\n"
    rows = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for group in groups:
        targets = group.values("training", "target_rate")
        training = group.summaries[0]["training"]
        kind, epochs = training["missingness"].get("kind", "dynamic"), str(training["epochs"])
        train = group.values("rate_distortion", "train", "distortion_nats")
        test = group.values("rate_distortion", "test_same_masks", "distortion_nats")
        areas = group.values("strategies", "largest_variance", "area_rmse_db")
        for target in np.unique(targets):
            mine = targets == target
            gap = test[mine] - train[mine]
            curves.setdefault(f"{kind}, {target:g} nats", []).append((float(epochs), float(gap.mean())))
            cells = (train[mine], test[mine], gap, areas[mine])
            rows.append([kind, epochs, f"{target:g}", *(_mean(values) for values in cells)])
    header = ["missingness", "epochs", "target", "training data", "test data"]
    header += ["gap", "area [dB]"]
    yield markdown_table(header, rows)
    yield f"![Gap]({save_figure(gap_figure(curves), path.with_name(f'{path.stem}.png')).name})\n"
