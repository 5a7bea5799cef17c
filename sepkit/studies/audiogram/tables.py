"""Tables in Markdown, and their figures, of simulations of many models: strategies, stopping, rate and distortion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sepkit.cleaning import escaped
from sepkit.errors import UserError, one_line
from sepkit.evaluation.run_folder import read_curve
from sepkit.evaluation.statistics import paired_difference
from sepkit.files import read_csv, read_json, write_csv, write_text
from sepkit.reporting.curve_figures import rate_distortion_curve
from sepkit.reporting.figures import save_figure
from sepkit.reporting.text import markdown_table
from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE
from sepkit.studies.audiogram.evaluate import SIMULATION
from sepkit.studies.audiogram.report import RULES, gap_figure, information_figure

_STRATEGIES = {"largest_variance": "largest variance", "random": "random", "single_best": "single best order"}
_RULES = {"ridge": RULES["ridge"], "number": RULES["number"], "best_index": "best single index", "oracle": "oracle"}


@dataclass
class Group:
    """Simulations that belong together: seeds of one draw of data, or models towards different rates."""

    name: str
    folders: list[Path]
    summaries: list[Any]

    def get(self, *keys: str) -> list[Any]:
        """Return what each summary has under some keys, one after the other, from the outside in; else UserError."""
        found = []
        for folder, value in zip(self.folders, self.summaries, strict=True):
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
                if value is None:
                    raise UserError(
                        f"{folder / SIMULATION}: found no {'.'.join(keys)}; simulate again with all options"
                    )
            found.append(value)
        return found

    def values(self, *keys: str) -> np.ndarray:
        """Return the numbers of each summary under some keys, (models, ...)."""
        try:
            return np.array(self.get(*keys), float)
        except (TypeError, ValueError, OverflowError):
            where = self.folders[0].parent if len(self.folders) > 1 else self.folders[0]
            raise UserError(f"{where}: {'.'.join(keys)} in {SIMULATION}: expected numbers; simulate again") from None

    def keys(self, *keys: str) -> list[str]:
        """Return the names under some keys of the first summary."""
        found = self.get(*keys)[0]
        if not isinstance(found, dict):
            raise UserError(f"{self.folders[0] / SIMULATION}: {'.'.join(keys)}: expected a mapping; simulate again")
        return list(found)

    def curves(self, strategy: str, measure: str = "rmse_db") -> np.ndarray:
        """Return (models, M + 1)."""
        found = self.values("strategies", strategy, measure)
        if found.ndim != 2 or found.shape[1] < 2:
            raise UserError(f"{self.folders[0] / SIMULATION}: {measure}: expected a list; simulate again")
        return found


def load_groups(simulations: Sequence[str | Path]) -> list[Group]:
    """Return a group for each folder; each is one simulation, or holds several. Raise UserError if one has none."""
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
    """Write tables in Markdown to the file OUT, with figures beside it; return the text."""
    path = Path(out)
    sections = {"strategies": _strategies, "rates": _rates, "gap": _gap}[kind](load_groups(simulations), path)
    try:
        text = "\n".join([*sections, f"{NOT_A_MEDICAL_DEVICE}.\n"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")[:200]
        raise UserError(f"{path}: a {SIMULATION} does not hold what it should ({reason}); simulate again") from error
    write_text(path, text)
    return text


# ---------------------------------------------------------------------------------------------------------- strategies


def _strategies(groups: Sequence[Group], path: Path) -> Iterator[str]:
    strategies = [name for name in groups[0].keys("strategies") if name in _STRATEGIES]
    reference = groups[0].get("reference")[0]
    yield f"### Area below the information curve [dB], against the {reference} audiogram\n"
    yield _area_table(groups, strategies)
    if {"largest_variance", "single_best"} <= set(strategies):
        yield "### Largest variance minus single best order, paired over data\n"
        yield _paired_table(groups)
    yield "### RMSE [dB] by number of measurements\n"
    curves = {_STRATEGIES[name]: np.concatenate([group.curves(name) for group in groups]) for name in strategies}
    columns = dict(curves)
    if reference == "noise-free" and strategies:
        measured = [group.curves(strategies[0], "rmse_measured_db") for group in groups]
        columns[f"{_STRATEGIES[strategies[0]]}, against the measured data"] = np.concatenate(measured)
    steps = min((curve.shape[1] for curve in columns.values()), default=0)
    rows = [[str(m), *(_mean(curve[:, m]) for curve in columns.values())] for m in range(steps)]
    yield markdown_table(["measured", *columns], rows)
    figure = information_figure(curves, _STRATEGIES["single_best"] if "single_best" in strategies else None)
    yield f"![Information curves]({save_figure(figure, path.with_name(f'{path.stem}_information.png')).name})\n"
    yield "### Stopping\n"
    yield _stopping_table(groups)


def _area_table(groups: Sequence[Group], strategies: Sequence[str]) -> str:
    header = ["data", "models", *(_STRATEGIES[name] for name in strategies)]
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
    pair = ("largest_variance", "single_best")
    for group in groups:
        areas = [_areas_by_id(folder) for folder in group.folders]
        ids = [key for name, key in areas[0] if name == pair[0]]
        try:
            first, second = (np.mean([[part[name, key] for key in ids] for part in areas], axis=0) for name in pair)
        except KeyError as error:
            raise UserError(f"{group.name}: a sequences.csv lacks {error.args[0]}; simulate again") from None
        found = paired_difference(first, second)
        adaptive, fixed = (group.values("strategies", name, "area_rmse_db") for name in pair)
        later = [group.curves(name)[:, 2:].sum(1) for name in pair]
        rows.append(
            [
                escaped(group.name),
                f"{found.mean:+.2f}",
                " to ".join(f"{end:+.2f}" for end in found.ci95 or ()),
                f"{int((adaptive < fixed).sum())} of {len(group.folders)}",
                f"{(later[0] - later[1]).mean():+.2f}",
            ]
        )
    header = ["data", "difference of areas [dB]", "95 % interval over data", "models ahead"]
    return markdown_table([*header, "after the first measurement"], rows)


def _areas_by_id(folder: Path) -> dict[tuple[str, str], float]:
    file = folder / "sequences.csv"
    try:
        _, rows = read_csv(file)
        return {(str(row["strategy"]), str(row["id"])): float(row["area_rmse_db"] or "") for _, row in rows}
    except (KeyError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({error}); simulate again") from error


def _stopping_table(groups: Sequence[Group]) -> str:
    rows = []
    for threshold in (key for key in groups[0].keys("stopping") if key != "correlation"):
        known = groups[0].keys("stopping", threshold)
        for rule in (rule for rule in _RULES if rule in known):
            cells = []
            for what in ("offset", "index", "error_db", "predicted_db"):
                if what not in groups[0].keys("stopping", threshold, rule):
                    cells.append("")
                    continue
                of_groups = [group.values("stopping", threshold, rule, what) for group in groups]
                values = of_groups[0] if len(of_groups) == 1 else np.array([part.mean() for part in of_groups])
                cells.append(_mean(values))
            rows.append([f"{threshold} dB", _RULES[rule], *cells])
    spread = "data sets" if len(groups) > 1 else "models"
    header = ["threshold", "rule", "offset O", "stopping index", "error there [dB]", "predicted there [dB]"]
    return markdown_table(header, rows, words=(0, 1)) + f"\nMean and standard deviation over {spread}.\n"


def _mean(values: np.ndarray) -> str:
    spread = f" +- {values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{spread}"


# --------------------------------------------------------------------------------------------------------------- rates

_STOP = {name: f"stopping_{name}" for name in ("offset", "index", "error_db")}
_MEASURES = {
    "distortion_nats": ("rate_distortion", "test", "distortion_nats"),
    "negative_elbo_nats": ("rate_distortion", "test", "negative_elbo_nats"),
    "rmse_area_db": ("strategies", "largest_variance", "area_rmse_db"),
    **{column: ("stopping", "5", "ridge", name) for name, column in _STOP.items()},
}
_NUMBER_ALONE = {column: ("stopping", "5", "number", name) for name, column in _STOP.items()}


def _rates(groups: Sequence[Group], path: Path) -> Iterator[str]:
    """Yield tables and figures of groups of models that were trained towards different rates."""
    yield "### Optima over rates\n"
    yield _optimum_table(groups)
    for group in groups:
        yield f"### {group.name}\n"
        yield _target_table(group)
    by_group = {group.name: (group, _MEASURES) for group in groups}
    by_rule = {RULES["number"]: (groups[0], _NUMBER_ALONE), RULES["ridge"]: (groups[0], _MEASURES)}
    acquisition = ("rmse_area_db", "stopping_offset", "stopping_index")
    for name, curves, measures, title in (
        ("distortion", by_group, ("distortion_nats", "negative_elbo_nats"), "Rate and distortion"),
        ("acquisition", by_group, acquisition, "Acquisition against rate"),
        ("stopping", by_rule, tuple(_NUMBER_ALONE), f"Stopping against rate, {groups[0].name}"),
    ):
        file = path.with_name(f"{path.stem}_{name}.csv")
        _write_curves(file, curves, measures)
        figure = rate_distortion_curve(read_curve(file))
        yield f"![{title}]({save_figure(figure, file.with_suffix('.png')).name})\n"
    yield "A dot is a model, lines are running means over three models in order of rate, stars the best.\n"


def _write_curves(
    path: Path, curves: Mapping[str, tuple[Group, Mapping[str, tuple[str, ...]]]], measures: Sequence[str]
) -> None:
    rows = []
    for name, (group, keys) in curves.items():
        columns = [_test_rates(group), *(group.values(*keys[measure]) for measure in measures)]
        rows += [[*(f"{value:.6g}" for value in row), name] for row in sorted(zip(*columns, strict=True))]
    write_csv(path, ["rate_nats", *measures, "curve"], rows)


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
    has_train = "train" in group.keys("rate_distortion")
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
        targets, epochs = group.values("training", "target_rate"), float(group.values("training", "epochs")[0])
        missingness = group.get("training", "missingness")[0]
        kind = str(missingness.get("kind", "dynamic")) if isinstance(missingness, dict) else "dynamic"
        train = group.values("rate_distortion", "train", "distortion_nats")
        test = group.values("rate_distortion", "test_same_masks", "distortion_nats")
        areas = group.values("strategies", "largest_variance", "area_rmse_db")
        for target in np.unique(targets):
            mine = targets == target
            gap = test[mine] - train[mine]
            curves.setdefault(f"{kind}, {target:g} nats", []).append((epochs, float(gap.mean())))
            cells = (train[mine], test[mine], gap, areas[mine])
            rows.append([kind, f"{epochs:g}", f"{target:g}", *(_mean(values) for values in cells)])
    header = ["missingness", "epochs", "target", "training data", "test data", "gap", "area [dB]"]
    yield markdown_table(header, rows)
    yield f"![Gap]({save_figure(gap_figure(curves), path.with_name(f'{path.stem}.png')).name})\n"
