"""Regression on UCI sets: one network a split, all splits of a set as one stack for each way of matching.

Which checkpoint counts is the point. `last` is the end of training. `held_out` trains on fewer rows and takes the
checkpoint of least hard distortion on the others. `reference` takes the checkpoint of least training loss (at the
temperature of its epoch) on the test part, as the published code does: that is a leak, and is named so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sepkit.cells import run_cells
from sepkit.errors import UserError
from sepkit.objectives.assignment import Assignment
from sepkit.studies.quantization.config import UCIConfig, settings
from sepkit.studies.quantization.points import HypothesisNetworks, build_method, point_losses, weighted_mean
from sepkit.studies.quantization.uci_data import Table, read_table

SELECTIONS = ("last", "held_out", "reference")

DEFAULT_METHODS = (
    "mcl",
    "amcl_linear",
    "amcl_exponential",
    "relaxed_wta_0.1",
    "relaxed_wta_0.5",
    "relaxed_wta_annealed",
)

_LARGE = "protein-tertiary-structure"
_WEIGHTS, _ORDER, _HELD_OUT = range(3)


@dataclass
class Scores:
    """What each network of a stack does on rows that it was not trained on, (S,) each.

    Args:
        distortion: mean squared distance to the nearest hypothesis, in the target's unit squared.
        loss: training loss at the temperature of the epoch, with the scores' cross-entropy.
    """

    distortion: Tensor
    rmse: Tensor
    loss: Tensor


@dataclass
class Rows:
    """Rows of all splits, padded to the longest: features (S, N, d), target (S, N, 1), and what counts, 1, or 0 for
    padding."""

    features: Tensor
    target: Tensor
    counted: Tensor

    @classmethod
    def padded(cls, features: Sequence[Tensor], target: Sequence[Tensor]) -> Rows:
        """Return the rows of splits, (N_s, d) and (N_s, 1) each."""
        pad = lambda parts: torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)  # noqa: E731
        return cls(pad(features), pad(target), pad(torch.ones(len(part)) for part in target))

    @property
    def weights(self) -> Tensor:
        """(S, N), of sum 1 over the rows of each split."""
        return self.counted / self.counted.sum(1, keepdim=True).clamp_min(1)

    def chosen(self, places: Tensor) -> Rows:
        """Return the rows at (S, B) places."""
        flat = (places + self.counted.shape[1] * torch.arange(len(places))[:, None]).flatten()
        # A fifth of the time of own[splits, places].
        return Rows(
            *(
                own.flatten(0, 1).index_select(0, flat).view(*places.shape, *own.shape[2:])
                for own in (self.features, self.target, self.counted)
            )
        )


@dataclass
class Splits:
    """The splits of a set, standardized by their training rows, with the target's deviations (S,) to return to its
    unit."""

    train: Rows
    held_out: Rows
    test: Rows
    deviation: Tensor


def standardized_splits(table: Table, config: UCIConfig, held_out: bool) -> Splits:
    """Return the splits of a set, by the mean and population deviation of their training parts."""
    parts: list[list[Tensor]] = []
    deviations = []
    for number, (train, test) in enumerate(table.splits):
        order = np.random.default_rng([config.seed, _HELD_OUT, number]).permutation(train)
        count = round(config.held_out_share * len(train)) if held_out else 0
        other, train = order[:count], order[count:]
        if len(train) < config.hypotheses:
            raise UserError(
                f"{table.name}: split {number} has {len(train)} training rows, expected {config.hypotheses} or more"
            )
        mean, deviation = table.features[train].mean(0), table.features[train].std(0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        y_mean, y_deviation = table.target[train].mean(), table.target[train].std()
        if y_deviation == 0:
            raise UserError(f"{table.name}: the target is constant in split {number}; there is nothing to predict")
        of = []
        for rows in (train, other, test):
            of += [(table.features[rows] - mean) / deviation, (table.target[rows] - y_mean)[:, None] / y_deviation]
        parts.append([torch.from_numpy(part).float() for part in of])
        deviations.append(float(y_deviation))
    columns = list(zip(*parts, strict=True))
    rows = [Rows.padded(*columns[place : place + 2]) for place in (0, 2, 4)]
    return Splits(*rows, deviation=torch.tensor(deviations))


class SplitStack:
    """The networks of all splits of a set for one way of matching, trained at once.

    Every network starts from the seed of its split, whatever the method, and sees its rows in an order of its own.
    """

    def __init__(self, splits: Splits, method: str, config: UCIConfig, hidden: int) -> None:
        self.config, self.splits, self.assignment = config, splits, _method(method, config)
        count, _, inputs = splits.train.features.shape
        generators = [self._generator(_WEIGHTS, number) for number in range(count)]
        self.networks = HypothesisNetworks(inputs, [hidden], config.hypotheses, 1, generators)
        self.optimizer = torch.optim.Adam(self.networks.parameters(), lr=config.learning_rate, fused=True)

    def _generator(self, *key: int) -> torch.Generator:
        seed = int(np.random.SeedSequence([self.config.seed, *key]).generate_state(1)[0])
        return torch.Generator().manual_seed(seed)

    def train_epoch(self, epoch: int) -> None:
        """Pass once over the training rows of every split; temperatures and the order of rows follow the epoch."""
        self.assignment.set_progress(epoch)
        for rows in self._batches(epoch):
            points, scores = self.networks(rows.features)
            matching, scoring, _ = point_losses(points, scores, rows.target, self.assignment)
            self.optimizer.zero_grad()
            # A sum over networks: none of them knows of the others.
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
    def score(self, rows: Rows) -> Scores:
        """Return what the networks do on one part of every split at the temperature of the present epoch."""
        points, scores = self.networks(rows.features)
        matching, scoring, distances = point_losses(points, scores, rows.target, self.assignment)
        error = (weighted_mean(points, scores) - rows.target).square().sum(-1)
        deviation = self.splits.deviation
        return Scores(
            (distances.amin(-1) * rows.weights).sum(1) * deviation.square(),
            (error * rows.weights).sum(1).sqrt() * deviation,
            ((matching + scoring) * rows.weights).sum(1),
        )


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

    With `held_out`, training is on fewer rows and selection by the others; else there are `last` and `reference`.
    """
    hidden = config.hidden_large if table.name == _LARGE else config.hidden
    stack = SplitStack(standardized_splits(table, config, held_out), method, config, hidden)
    choice = "held_out" if held_out else "reference"
    every = config.check_every_mcl if method == "mcl" and not held_out else config.check_every
    best = torch.full((len(table.splits),), torch.inf)
    chosen = {"epoch": best.clone(), "distortion": best.clone(), "rmse": best.clone()}
    test = None
    for epoch in tqdm(range(config.epochs), desc=f"{table.name} {method}", unit="epoch", disable=None, leave=False):
        stack.train_epoch(epoch)
        last = epoch == config.epochs - 1
        if not last and (epoch + 1) % every:
            continue
        test = stack.score(stack.splits.test)
        judged = stack.score(stack.splits.held_out).distortion if held_out else test.loss
        better = judged < best
        best = judged.where(better, best)
        found = {"epoch": torch.full_like(best, epoch + 1), "distortion": test.distortion, "rmse": test.rmse}
        chosen = {name: found[name].where(better, chosen[name]) for name in chosen}
    assert test is not None
    selected = {choice: {name: values.tolist() for name, values in chosen.items()}}
    if not held_out:
        epochs = [config.epochs] * len(table.splits)
        selected["last"] = {"epoch": epochs, "distortion": test.distortion.tolist(), "rmse": test.rmse.tolist()}
    return {"selected": selected}


def uci(
    data: Path,
    sets: Sequence[str],
    methods: Sequence[str],
    selections: Sequence[str],
    config: UCIConfig,
    folder: Path,
    drop_constant: bool = False,
) -> list[dict[str, Any]]:
    """Return rows of distortion and RMSE, mean and sample deviation over splits, for each set, method and selection.

    Trainings are cells below the folder: the same call again, or one with more sets or methods, continues.
    """
    for method in methods:
        _method(method, config)
    tables = {name: read_table(data, name, drop_constant) for name in sets}
    protocols = [
        held_out
        for held_out in (False, True)
        if set(selections) & ({"held_out"} if held_out else {"last", "reference"})
    ]
    rows = []
    for name, table in tables.items():

        def compute(method: str, held_out: bool, table: Table = table, **_: Any) -> dict[str, Any]:
            return train_splits(table, method, config, held_out)

        # The seed of a cell is not used: all methods of a set start from the same weights.
        cells = {
            f"{name}_{method}{'_held_out' if held_out else ''}": {
                "checksum": table.checksum,
                "method": method,
                "held_out": held_out,
                "config": settings(config),
            }
            for method in methods
            for held_out in protocols
        }
        results = list(run_cells(cells, compute, folder / "cells", config.seed).values())
        for selection in selections:
            rows += [_row(name, result, selection) for result in results if selection in result["selected"]]
    return rows


def _row(name: str, result: dict[str, Any], selection: str) -> dict[str, Any]:
    found = result["selected"][selection]
    count = len(found["rmse"])
    row: dict[str, Any] = {"set": name, "method": result["method"], "select": selection}
    for measure in ("distortion", "rmse"):
        values = np.array(found[measure])
        row[f"{measure}_mean"] = float(values.mean())
        row[f"{measure}_std"] = float(values.std(ddof=1)) if count > 1 else 0.0
    return row | {
        "folds": count,
        "median_epoch": float(np.median(found["epoch"])),
        "distortions": found["distortion"],
        "rmses": found["rmse"],
        "processor_seconds": result["processor_seconds"],
    }
