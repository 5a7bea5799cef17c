"""Regression on UCI sets: one network a split, all splits of a set as one stack for each way of matching.

Which checkpoint counts is the point. `last` is the end of training. `held_out` trains on fewer rows and takes the
checkpoint of least hard distortion on the others. `reference` takes the checkpoint of least training loss (at the
temperature of its epoch) on the test part, as the published code does: that is a leak, and is named so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sepkit.cells import run_cells
from sepkit.errors import UserError
from sepkit.studies.quantization.config import UCIConfig
from sepkit.studies.quantization.methods import Annealing, build_method
from sepkit.studies.quantization.model import HypothesisNetworks, point_losses, weighted_mean
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


@dataclass(frozen=True)
class Split:
    """One split, standardized by its training rows.

    Args:
        features: (N, d) of training.
        target: (N, 1).
        other_features: (M, d) of held-out rows, or none.
        other_target: (M, 1).
        test_features: (L, d).
        test_target: (L, 1).
        deviation: of the target, to return to its unit.
    """

    features: Tensor
    target: Tensor
    other_features: Tensor
    other_target: Tensor
    test_features: Tensor
    test_target: Tensor
    deviation: float


def standardized_splits(table: Table, config: UCIConfig, held_out: bool) -> list[Split]:
    """The splits of a set by the mean and population deviation of their training parts.

    Args:
        table: the set.
        config: seed and share of held-out rows.
        held_out: whether a share of the training rows is held out.
    """
    splits = []
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
        parts = []
        for rows in (train, other, test):
            parts += [(table.features[rows] - mean) / deviation, (table.target[rows] - y_mean)[:, None] / y_deviation]
        splits.append(Split(*(torch.from_numpy(part).float() for part in parts), deviation=float(y_deviation)))
    return splits


@dataclass
class Scores:
    """What each network of a stack does on rows that it was not trained on, (S,) each.

    Args:
        distortion: mean squared distance to the nearest hypothesis, in the target's unit squared.
        rmse: of the weighted mean, in the target's unit.
        loss: training loss at the temperature of the epoch, with the scores' cross-entropy.
    """

    distortion: Tensor
    rmse: Tensor
    loss: Tensor


class SplitStack:
    """The networks of all splits of a set for one way of matching, trained at once.

    Every network starts from the seed of its split, whatever the method, and sees its rows in an order of its own.

    Args:
        splits: of a set.
        method: name of the assignment.
        config: the experiment.
        hidden: width.
    """

    def __init__(self, splits: Sequence[Split], method: str, config: UCIConfig, hidden: int) -> None:
        self.config = config
        self.assignment = build_method(
            method,
            Annealing(config.initial_temperature, config.decay, config.epochs, config.floor, config.initial_epsilon),
        )
        generators = [self._generator(_WEIGHTS, number) for number in range(len(splits))]
        inputs = splits[0].features.shape[1]
        self.networks = HypothesisNetworks(inputs, [hidden], config.hypotheses, 1, generators)
        self.optimizer = torch.optim.Adam(self.networks.parameters(), lr=config.learning_rate, fused=True)
        self.train_rows = _Rows([(split.features, split.target) for split in splits])
        self.test_rows = _Rows([(split.test_features, split.test_target) for split in splits])
        self.other_rows = _Rows([(split.other_features, split.other_target) for split in splits])
        self.deviation = torch.tensor([split.deviation for split in splits])

    def _generator(self, *key: int) -> torch.Generator:
        seed = int(np.random.SeedSequence([self.config.seed, *key]).generate_state(1)[0])
        return torch.Generator().manual_seed(seed)

    def train_epoch(self, epoch: int) -> None:
        """Pass once over the training rows of every split.

        Args:
            epoch: from 0 on; temperatures and the order of rows follow it.
        """
        self.assignment.set_progress(epoch)
        for rows in self._batches(epoch):
            points, scores = self.networks(rows.features)
            losses = point_losses(points, scores, rows.target, self.assignment)
            total = losses.matching + self.config.score_weight * losses.scoring
            self.optimizer.zero_grad()
            # A sum over networks: none of them knows of the others.
            (total * rows.weights).sum().backward()
            self.optimizer.step()

    def _batches(self, epoch: int) -> list[_Rows]:
        rows, size = self.train_rows, self.config.batch_size
        longest = rows.features.shape[1]
        if longest <= size:
            return [rows]
        order = torch.stack(
            [
                torch.cat(
                    [
                        torch.randperm(count, generator=self._generator(_ORDER, number, epoch)),
                        torch.arange(count, longest),
                    ]
                )
                for number, count in enumerate(rows.counts)
            ]
        )
        return [rows.chosen(part) for part in order.split(size, dim=1)]

    @torch.no_grad()
    def score(self, rows: _Rows) -> Scores:
        """What the networks do on these rows at the temperature of the present epoch.

        Args:
            rows: of one part of every split, such as `test_rows`.
        """
        points, scores = self.networks(rows.features)
        losses = point_losses(points, scores, rows.target, self.assignment)
        error = (weighted_mean(points, scores) - rows.target).square().sum(-1)
        loss = losses.matching + self.config.score_weight * losses.scoring
        return Scores(
            (losses.nearest * rows.weights).sum(1) * self.deviation.square(),
            (error * rows.weights).sum(1).sqrt() * self.deviation,
            (loss * rows.weights).sum(1),
        )


class _Rows:
    """Rows of all splits, padded to the longest; weights are 1 / (number of rows) and 0 for padding."""

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.counts = [len(target) for _, target in parts]
        self.features = torch.nn.utils.rnn.pad_sequence([features for features, _ in parts], batch_first=True)
        self.target = torch.nn.utils.rnn.pad_sequence([target for _, target in parts], batch_first=True)
        place = torch.arange(self.target.shape[1])
        self.counted = (place < torch.tensor(self.counts)[:, None]).float()

    @property
    def weights(self) -> Tensor:
        """(S, N), of sum 1 over the rows of each split."""
        return self.counted / self.counted.sum(1, keepdim=True).clamp_min(1)

    def chosen(self, places: Tensor) -> _Rows:
        """The rows at (S, B) places."""
        rows = object.__new__(_Rows)
        rows.counts = [places.shape[1]] * len(places)
        flat = (places + self.counted.shape[1] * torch.arange(len(places))[:, None]).flatten()
        for name in ("features", "target", "counted"):
            own = getattr(self, name)
            # A fifth of the time of own[splits, places].
            setattr(rows, name, own.flatten(0, 1).index_select(0, flat).view(*places.shape, *own.shape[2:]))
        return rows


def train_splits(table: Table, method: str, config: UCIConfig, held_out: bool) -> dict[str, Any]:
    """Train the networks of all splits; return the epoch, distortion and RMSE of each split for each selection.

    Args:
        table: the set.
        method: name of the assignment.
        config: the experiment.
        held_out: whether to train on fewer rows and select by the others; else by `last` and `reference`.
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
        test = stack.score(stack.test_rows)
        judged = stack.score(stack.other_rows).distortion if held_out else test.loss
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

    Args:
        data: folder of the sets.
        sets: names.
        methods: names, see `METHODS`.
        selections: of `SELECTIONS`.
        config: the experiment.
        folder: of the cells.
        drop_constant: whether to leave out features that never change.

    Raises:
        UserError: a bad set, or an unknown method.
    """
    for method in methods:
        build_method(method, Annealing(1.0, 0.5, 1.0, 0.0, 0.5))
    tables = {name: read_table(data, name, drop_constant) for name in sets}
    protocols = [held_out for held_out in (False, True) if set(selections) & _selected_by(held_out)]
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
                "config": asdict(config),
            }
            for method in methods
            for held_out in protocols
        }
        results = list(run_cells(cells, compute, folder / "cells", config.seed).values())
        for selection in selections:
            rows += [_row(name, result, selection) for result in results if selection in result["selected"]]
    return rows


def _selected_by(held_out: bool) -> set[str]:
    return {"held_out"} if held_out else {"last", "reference"}


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
