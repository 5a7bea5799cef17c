"""Regression on UCI sets with published splits: one network a split, all splits of a set as one stack.

Which checkpoint counts is the point. `last` is the end of training. `held_out` trains on fewer rows and takes the
checkpoint of least hard distortion on the others. `reference` takes the checkpoint of least training loss (at the
temperature of its epoch) on the test part, as the published code does: that is a leak, and is named so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import ttest_rel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from sepkit.cells import run_cells
from sepkit.errors import UserError
from sepkit.files import write_json, write_text
from sepkit.objectives.assignment import Assignment
from sepkit.reporting.figures import COLORS, panels
from sepkit.reporting.tables import markdown_table
from sepkit.studies.quantization.config import UCIConfig, settings
from sepkit.studies.quantization.quantizers import HypothesisNetworks, build_method, point_losses, weighted_mean
from sepkit.studies.quantization.uci_sets import SHORT_NAMES, Table, read_table

SELECTIONS = {
    "last": "last epoch",
    "held_out": "least distortion on held-out training rows",
    "reference": "least loss on the test rows: a leak, as in the published code",
}
"""Which checkpoint counts -> its title in tables."""

DEFAULT_METHODS = (
    "mcl", "amcl_linear", "amcl_exponential", "relaxed_wta_0.1", "relaxed_wta_0.5", "relaxed_wta_annealed",
)  # fmt: skip

_MEASURES = ("distortion", "rmse")
_WEIGHTS, _ORDER, _HELD_OUT = range(3)


# ------------------------------------------------------------------------------------------------------------- training


@dataclass
class Rows:
    """Rows of S splits, padded to the longest.

    Args:
        features: (S, N, d) features.
        target: (S, N, 1) targets.
        counted: (S, N) ones, and zeros for padding.
    """

    features: Tensor
    target: Tensor
    counted: Tensor

    @property
    def weights(self) -> Tensor:
        """(S, N), of sum 1 over the rows of each split."""
        return self.counted / self.counted.sum(1, keepdim=True).clamp_min(1)

    def chosen(self, places: Tensor) -> Rows:
        """Return the rows at (S, B) places."""
        flat = (places + self.counted.shape[1] * torch.arange(len(places))[:, None]).flatten()
        # A fifth of the time of own[splits, places].
        parts = (self.features, self.target, self.counted)
        return Rows(*(o.flatten(0, 1).index_select(0, flat).view(*places.shape, *o.shape[2:]) for o in parts))


@dataclass
class Splits:
    """The splits of a set, standardized by their training rows.

    Args:
        train: Rows of training.
        held_out: Rows that `held_out` selects by.
        test: Rows of the test.
        deviation: (S,) deviations of the target, to return to its unit.
    """

    train: Rows
    held_out: Rows
    test: Rows
    deviation: Tensor


def standardized_splits(table: Table, config: UCIConfig, held_out: bool) -> Splits:
    """Return the splits of a set, by the mean and population deviation of their training parts.

    Args:
        table: The set.
        config: Seed and share of the rows that are held out.
        held_out: Whether any are.

    Raises:
        UserError: fewer training rows than hypotheses, or a target that is constant in one of the splits.
    """
    parts: list[list[tuple[Tensor, Tensor, Tensor]]] = [[], [], []]
    deviations = []
    for number, (train, test) in enumerate(table.splits):
        order = np.random.default_rng([config.seed, _HELD_OUT, number]).permutation(train)
        count = round(config.held_out_share * len(train)) if held_out else 0
        train = order[count:]
        if len(train) < config.hypotheses:
            raise UserError(
                f"{table.name}: split {number} has {len(train)} training rows, expected {config.hypotheses} or more"
            )
        features, target = table.features - table.features[train].mean(0), table.target - table.target[train].mean()
        scale, deviation = table.features[train].std(0), table.target[train].std()
        if deviation == 0:
            raise UserError(f"{table.name}: the target is constant in split {number}; there is nothing to predict")
        features /= np.where(scale > 0, scale, 1.0)
        target /= deviation
        for part, rows in zip(parts, (train, order[:count], test), strict=True):
            own = torch.from_numpy(features[rows]).float(), torch.from_numpy(target[rows, None]).float()
            part.append((*own, torch.ones(len(rows))))
        deviations.append(float(deviation))
    padded = [Rows(*(pad_sequence(list(c), batch_first=True) for c in zip(*part, strict=True))) for part in parts]
    return Splits(*padded, deviation=torch.tensor(deviations))


class SplitStack:
    """The networks of all splits of a set for one way of matching, trained at once.

    Every network starts from the seed of its split, whatever the method, and sees its rows in an order of its own.

    Args:
        splits: The splits.
        method: Way of matching, see `build_method`.
        config: Configuration of the experiment.
        hidden: Width of the hidden layer.
    """

    def __init__(self, splits: Splits, method: str, config: UCIConfig, hidden: int) -> None:
        self.config, self.splits, self.assignment = config, splits, _method(method, config)
        count, _, inputs = splits.train.features.shape
        generators = [self._generator(_WEIGHTS, number) for number in range(count)]
        self.networks = HypothesisNetworks(inputs, [hidden], config.hypotheses, 1, generators)
        self.optimizer = torch.optim.Adam(self.networks.parameters(), lr=config.learning_rate, fused=True)

    def _generator(self, *key: int) -> torch.Generator:
        return torch.Generator().manual_seed(int(np.random.SeedSequence([self.config.seed, *key]).generate_state(1)[0]))

    def train_epoch(self, epoch: int) -> None:
        """Pass once over the training rows of every split; temperatures and the order of rows follow the epoch."""
        self.assignment.set_progress(epoch)
        for rows in self._batches(epoch):
            points, scores = self.networks(rows.features)
            matching, scoring, _ = point_losses(points, scores, rows.target, self.assignment)
            self.optimizer.zero_grad()
            # A sum over networks, which are independent.
            ((matching + scoring) * rows.weights).sum().backward()
            self.optimizer.step()

    def _batches(self, epoch: int) -> list[Rows]:
        rows, size = self.splits.train, self.config.batch_size
        longest = rows.features.shape[1]
        if longest <= size:
            return [rows]
        order = []
        for number, count in enumerate(rows.counted.sum(1).int().tolist()):
            drawn = torch.randperm(count, generator=self._generator(_ORDER, number, epoch))
            order.append(torch.cat([drawn, torch.arange(count, longest)]))
        return [rows.chosen(part) for part in torch.stack(order).split(size, dim=1)]

    @torch.no_grad()
    def score(self, rows: Rows) -> dict[str, Tensor]:
        """Return the networks' results on one part of every split at the temperature of the present epoch.

        Args:
            rows: Rows that they were not trained on.

        Returns:
            (S,) each: `distortion`, mean squared distance to the nearest hypothesis, in the target's unit squared;
            `rmse`, in the target's unit; `loss`, the training loss with the scores' cross-entropy.
        """
        points, scores = self.networks(rows.features)
        matching, scoring, distances = point_losses(points, scores, rows.target, self.assignment)
        error = (weighted_mean(points, scores) - rows.target).square().sum(-1)
        deviation = self.splits.deviation
        return {
            "distortion": (distances.amin(-1) * rows.weights).sum(1) * deviation.square(),
            "rmse": (error * rows.weights).sum(1).sqrt() * deviation,
            "loss": ((matching + scoring) * rows.weights).sum(1),
        }


def _method(name: str, config: UCIConfig) -> Assignment:
    return build_method(
        name,
        temperature=config.initial_temperature,
        decay=config.decay,
        epochs=config.epochs,
        floor=config.floor,
        epsilon=config.initial_epsilon,
    )


def train_splits(table: Table, method: str, config: UCIConfig, held_out: bool) -> dict[str, Any]:
    """Train the networks of all splits; return the epoch, distortion and RMSE of each split for each selection.

    Args:
        table: The set.
        method: Way of matching.
        config: Configuration of the experiment.
        held_out: Whether training is on fewer rows and selection by the others; else there are `last` and `reference`.
    """
    hidden = config.hidden_large if table.name == SHORT_NAMES["protein"] else config.hidden
    stack = SplitStack(standardized_splits(table, config, held_out), method, config, hidden)
    every = config.check_every_mcl if method == "mcl" and not held_out else config.check_every
    best = torch.full((len(table.splits),), torch.inf)
    chosen = {name: best.clone() for name in ("epoch", *_MEASURES)}
    found = chosen
    for epoch in tqdm(range(config.epochs), desc=f"{table.name} {method}", unit="epoch", disable=None, leave=False):
        stack.train_epoch(epoch)
        if epoch < config.epochs - 1 and (epoch + 1) % every:
            continue
        found = stack.score(stack.splits.test) | {"epoch": torch.full_like(best, epoch + 1)}
        judged = stack.score(stack.splits.held_out)["distortion"] if held_out else found["loss"]
        chosen = {name: found[name].where(judged < best, chosen[name]) for name in chosen}
        best = judged.minimum(best)
    selected = {"held_out": chosen} if held_out else {"reference": chosen, "last": found}
    return {"selected": {s: {name: values[name].tolist() for name in chosen} for s, values in selected.items()}}


def uci(
    data: Path, sets: Sequence[str], methods: Sequence[str], selections: Sequence[str], config: UCIConfig, folder: Path
) -> list[dict[str, Any]]:
    """Return rows of distortion and RMSE, mean and sample deviation over splits, for each set, method and selection.

    Trainings are cells below the folder: the same call again, or one with more sets or methods, continues.

    Args:
        data: Folder of the sets.
        sets: Names of sets.
        methods: Ways of matching.
        selections: Names of `SELECTIONS`.
        config: Configuration of the experiment.
        folder: Folder of the results.

    Raises:
        UserError: an unknown method, or what `read_table` refuses.
    """
    for method in methods:
        _method(method, config)
    tables = [read_table(data, name) for name in sets]
    protocols = {selection == "held_out" for selection in selections}
    rows = []
    for name, table in zip(sets, tables, strict=True):

        def compute(method: str, held_out: bool, table: Table = table, **_: Any) -> dict[str, Any]:
            return train_splits(table, method, config, held_out)

        # The seed of a cell is not used: all methods of a set start from the same weights.
        shared, cells = {"checksum": table.checksum, "config": settings(config)}, {}
        for method, held_out in product(methods, sorted(protocols)):
            own = shared | {"method": method, "held_out": held_out}
            cells[f"{name}_{method}{'_held_out' if held_out else ''}"] = own
        results = list(run_cells(cells, compute, folder / "cells", config.seed).values())
        for selection in selections:
            rows += [_row(name, result, selection) for result in results if selection in result["selected"]]
    return rows


def _row(name: str, result: dict[str, Any], selection: str) -> dict[str, Any]:
    found = result["selected"][selection]
    row: dict[str, Any] = {"set": name, "method": result["method"], "select": selection, "folds": len(found["rmse"])}
    for measure in _MEASURES:
        row[f"{measure}_mean"] = float(np.mean(found[measure]))
        row[f"{measure}_std"] = float(np.std(found[measure], ddof=1)) if row["folds"] > 1 else 0.0
        row[f"{measure}s"] = found[measure]
    return row | {"median_epoch": float(np.median(found["epoch"])), "processor_seconds": result["processor_seconds"]}


# --------------------------------------------------------------------------------------------------- tables and figures


def uci_figures(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Return figure 6 for each set: RMSE against distortion of all methods, one panel a selection.

    Args:
        rows: Result of `uci`.
    """
    sets = dict.fromkeys(row["set"] for row in rows)
    return {f"figure_6_{name}": _trade_off([row for row in rows if row["set"] == name]) for name in sets}


def _trade_off(rows: Sequence[dict[str, Any]]) -> Figure:
    selections = list(dict.fromkeys(row["select"] for row in rows))
    figure = panels("RMSE", ["distortion"] * len(selections))
    for axes, selection in zip(figure.axes, selections, strict=True):
        for place, row in enumerate(row for row in rows if row["select"] == selection):
            x, y = ((row[f"{name}_mean"], row[f"{name}_std"] / row["folds"] ** 0.5) for name in ("rmse", "distortion"))
            color, marker = COLORS[place % len(COLORS)], "os^D"[place // len(COLORS) % 4]
            axes.errorbar(x[0], y[0], y[1], x[1], fmt=marker, color=color, label=row["method"])
        leak = " (a leak)" if selection == "reference" else ""
        axes.set_title(f"{selection.replace('_', ' ')}{leak}; bars: standard errors", fontsize=10)
        axes.legend(frameon=False, fontsize=7)
    return figure


def write_uci_tables(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Write FOLDER/table.json and table.md (tables 1, 2, 4 and 5), print the latter, and return the former's path.

    Args:
        rows: Result of `uci`.
        folder: Folder of the tables.
    """
    text = ""
    for name, selection in dict.fromkeys((row["set"], row["select"]) for row in rows):
        part = [row for row in rows if (row["set"], row["select"]) == (name, selection)]
        cells = [
            [row["method"], *(f"{row[f'{m}_mean']:.4g} ± {row[f'{m}_std']:.2g}" for m in _MEASURES),
             f"{row['median_epoch']:.0f}"]
            for row in part
        ]  # fmt: skip
        table = markdown_table(["method", "distortion", "RMSE", "median epoch"], cells)
        text += f"## {name}, {SELECTIONS[selection]}\n\n{table}\n{_differences(part)}\n"
    print(text)
    write_text(folder / "table.md", text)
    return write_json(folder / "table.json", rows)


def _differences(rows: Sequence[dict[str, Any]]) -> str:
    """Paired differences of each method from the one of least mean distortion, with 95 % intervals."""
    text = ""
    for measure in _MEASURES if len(rows) > 1 and rows[0]["folds"] > 1 else ():
        best, *others = sorted(rows, key=lambda row: row[f"{measure}_mean"])
        words = []
        for row in others:
            mean, half = paired_difference(row[f"{measure}s"], best[f"{measure}s"])
            words.append(f"{row['method']} {mean:+.3g} ± {half:.2g}")
        text += f"{measure} above {best['method']} (paired, 95 % interval): {'; '.join(words)}.\n"
    return text


def paired_difference(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values - others over splits, and half its 95 % interval by Student's t."""
    low, high = ttest_rel(values, others).confidence_interval()
    return float(low + high) / 2, float(high - low) / 2
