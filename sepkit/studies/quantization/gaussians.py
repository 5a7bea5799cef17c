"""Networks of 49 hypotheses on three Gaussians by several ways of matching: distortion, splits, rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.objectives.assignment import AnnealedMCL, Assignment
from sepkit.studies.quantization.config import GaussiansConfig
from sepkit.studies.quantization.data import ThreeGaussians
from sepkit.studies.quantization.deterministic_annealing import count_groups
from sepkit.studies.quantization.measures import distortion, mutual_information_bits
from sepkit.studies.quantization.methods import Annealing, build_method
from sepkit.studies.quantization.model import HypothesisNetworks, point_losses, squared_distances
from sepkit.studies.quantization.quantizers import lloyd

Kind = Literal["fixed", "moving"]

_LLOYD_POINTS = 10_000
_LLOYD_STARTS = 3
# Number of test points kept for the figures.
_SHOWN = 300


def gaussians(config: GaussiansConfig, folder: Path) -> dict[str, Any]:
    """Every method on fixed and on moving Gaussians, beside Lloyd's solution as floor.

    Trainings are cells below the folder: the same call again continues.

    Args:
        config: the experiment.
        folder: of the cells.
    """
    kinds: tuple[Kind, ...] = ("fixed", "moving")
    methods = {name: _method(name, config) for name in config.methods}  # an unknown one is refused at once
    shared = {name: value for name, value in asdict(config).items() if name not in ("methods", "lloyd_inputs")}
    cells = {f"{kind}_{name}": {"kind": kind, "method": name, "config": shared} for kind in kinds for name in methods}
    rows = run_cells(cells, lambda **cell: _train(cell["kind"], cell["method"], config), folder / "cells", config.seed)
    floors = {f"floor_{kind}": {"kind": kind, "config": shared, "inputs": config.lloyd_inputs} for kind in kinds}
    found = run_cells(floors, lambda **cell: _floor(cell["kind"], config), folder / "cells", config.seed)
    law = ThreeGaussians(config.deviation, moving=True)
    return {
        "rows": [row | {"split_temperatures": split_temperatures(row, config)} for row in rows.values()],
        "floors": {kind: found[f"floor_{kind}"]["distortion"] for kind in kinds},
        "critical_temperatures": {f"{x:g}": law.critical_temperature(x) for x in config.probes},
        "entropy_nats": ThreeGaussians(config.deviation).entropy_nats(config.seed),
        "plateau": float(np.mean([float(law.covariance(x).trace()) for x in np.linspace(0, 1, 1001)])),
    }


def split_temperatures(row: dict[str, Any], config: GaussiansConfig) -> dict[str, list[float | None]]:
    """Return, by probe, the temperature at which the hypotheses of each network were seen to part.

    While they are at one place their hard distortion is the trace of the covariance. They have parted for good after
    the last record with at least nine tenths of it.

    Args:
        row: records of a training, see `_Watch`.
        config: of the experiment.

    Returns:
        Probe -> one temperature a network; None if its hypotheses were never together, or never parted. Nothing for a
        training without temperatures.
    """
    law = ThreeGaussians(config.deviation, row["kind"] == "moving")
    found: dict[str, list[float | None]] = {}
    for place, probe in enumerate(row["probes"] if row["groups"] else []):
        together = 0.9 * float(law.covariance(probe).trace())
        distortions = np.array(row["distortions"])[:, place]  # (records, networks)
        of_networks = []
        for values in distortions.T:
            last = np.flatnonzero(values >= together)
            parted = last[-1] + 1 if len(last) else len(values)
            of_networks.append(row["temperatures"][parted] if parted < len(values) else None)
        found[f"{probe:g}"] = of_networks
    return found


def _method(name: str, config: GaussiansConfig) -> Assignment:
    linear = name == "amcl_linear"
    initial = config.initial_temperature_linear if linear else config.initial_temperature_exponential
    # The reference code's linear temperature is not zero before the end.
    end = config.epochs + 1 if linear else config.epochs
    return build_method(name, Annealing(initial, config.decay, end, 1e-10, config.initial_epsilon))


def _generators(config: GaussiansConfig, name: str) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(cell_seed(config.seed, f"{name} {k}")) for k in range(config.seeds)]


def _train(kind: Kind, method: str, config: GaussiansConfig) -> dict[str, Any]:
    law = ThreeGaussians(config.deviation, kind == "moving")
    assignment = _method(method, config)
    # All methods have the same initial weights, training points and test points.
    networks = HypothesisNetworks(1, config.hidden, config.hypotheses, 2, _generators(config, "weights"), bounded=True)
    optimizer: torch.optim.Optimizer
    if kind == "fixed":
        optimizer = torch.optim.SGD(networks.parameters(), lr=config.learning_rate)
    else:
        optimizer = torch.optim.Adam(networks.parameters(), lr=config.learning_rate, fused=True)
    draws = _generators(config, "training")
    watch = _Watch(law, config, kind)
    for epoch in tqdm(range(config.epochs), desc=f"{kind} {method}", unit="epoch", disable=None, leave=False):
        assignment.set_progress(epoch)
        for _ in range(config.steps_per_epoch):
            x, y = _draw(law, config.batch_size, draws)
            points, scores = networks(x)
            losses = point_losses(points, scores, y, assignment)
            optimizer.zero_grad()
            (losses.matching + config.score_weight * losses.scoring).mean(1).sum().backward()
            optimizer.step()
        if epoch % config.record_every == 0 or epoch == config.epochs - 1:
            watch.record(networks, assignment, epoch)
    return watch.records | _final(law, networks, config)


def _draw(law: ThreeGaussians, count: int, generators: list[torch.Generator]) -> tuple[Tensor, Tensor]:
    """(S, B, 1) inputs in [0, 1] and (S, B, 2) targets, of each network its own."""
    inputs = [torch.rand(count, generator=generator) for generator in generators]
    targets = [law.sample(x, generator) for x, generator in zip(inputs, generators, strict=True)]
    return torch.stack(inputs).unsqueeze(-1), torch.stack(targets)


class _Watch:
    """What hypotheses do at a few inputs while training goes on.

    `temperatures` is None for methods without one. By probe, then by network: `groups` (places of hypotheses, for
    annealed methods), `distortions` (hard), `soft_distortions`, `bits` (mutual information of hypothesis and target).
    """

    def __init__(self, law: ThreeGaussians, config: GaussiansConfig, kind: Kind) -> None:
        # In the fixed case all inputs have one law, so that one is watched.
        self.inputs = config.probes if kind == "moving" else config.probes[-1:]
        generator = torch.Generator().manual_seed(cell_seed(config.seed, "probes"))
        places = torch.tensor(self.inputs)[:, None].expand(-1, config.probe_points)
        self.targets = law.sample(places, generator)
        self.records: dict[str, Any] = {"probes": self.inputs, "epochs": [], "temperatures": []}
        self.records |= {name: [] for name in ("groups", "distortions", "soft_distortions", "bits")}

    @torch.no_grad()
    def record(self, networks: HypothesisNetworks, assignment: Assignment, epoch: int) -> None:
        """Note where the networks are after this epoch."""
        points, _ = networks(torch.tensor(self.inputs)[None, :, None])  # (S, P, n, 2)
        distances = squared_distances(points.unsqueeze(2), self.targets[None])  # (S, P, N, n)
        weights = assignment.weights(distances.flatten(0, 2).unsqueeze(-1)).view_as(distances)
        temperature = assignment.temperature if isinstance(assignment, AnnealedMCL) else None
        records = self.records
        records["epochs"].append(epoch)
        records["temperatures"].append(temperature)
        records["distortions"].append(_rounded(distances.amin(-1).mean(-1).T))
        records["soft_distortions"].append(_rounded((weights * distances).sum(-1).mean(-1).T))
        records["bits"].append(_each(lambda s, p: round(mutual_information_bits(weights[s, p].double()), 5), weights))
        if temperature:
            groups = _each(lambda s, p: count_groups(points[s, p].double(), temperature), weights)
            records["groups"].append(groups)


def _each(of: Callable[[int, int], Any], values: Tensor) -> list[list[Any]]:
    """By probe, then by network."""
    return [[of(s, p) for s in range(values.shape[0])] for p in range(values.shape[1])]


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, 6) for value in row] for row in values.tolist()]


@torch.no_grad()
def _final(law: ThreeGaussians, networks: HypothesisNetworks, config: GaussiansConfig) -> dict[str, Any]:
    """Hard distortion and used hypotheses on fresh points, and what figures show of the first network."""
    x, y = _draw(law, config.test_points, _generators(config, "test"))
    points, scores = networks(x)
    nearest = squared_distances(points, y).min(-1)
    shown = [[round(float(value), 4) for value in place] for place in y[0, :_SHOWN]]
    at = torch.tensor([[[config.probes[-1]]]])
    last, last_scores = networks(at)
    return {
        "distortion": nearest.values.mean(1).tolist(),
        "used": [len(winners.unique()) for winners in nearest.indices],
        "hypotheses": [[round(value, 4) for value in place] for place in last[0, 0].tolist()],
        "scores": [round(value, 4) for value in last_scores[0, 0].sigmoid().tolist()],
        "targets": shown,
        "mean_score": float(scores.sigmoid().mean()),
    }


def _floor(kind: Kind, config: GaussiansConfig) -> dict[str, Any]:
    """The distortion of Lloyd's solutions, the best of a few starts, averaged over inputs in the moving case."""
    law = ThreeGaussians(config.deviation, kind == "moving")
    inputs = [(place + 0.5) / config.lloyd_inputs for place in range(config.lloyd_inputs)] if law.moving else [1.0]
    generator = torch.Generator().manual_seed(cell_seed(config.seed, "floor"))
    found = []
    for x in inputs:
        points = law.sample(torch.full((_LLOYD_POINTS,), x), generator)
        # Not the points that the centroids were fitted to.
        others = law.sample(torch.full((_LLOYD_POINTS,), x), generator)
        starts = [torch.randperm(len(points), generator=generator)[: config.hypotheses] for _ in range(_LLOYD_STARTS)]
        solutions = [lloyd(points, points[start], tolerance=1e-5) for start in starts]
        best = min(solutions, key=lambda centroids: distortion(points, centroids))
        found.append(distortion(others, best))
    return {"distortion": float(np.mean(found))}
