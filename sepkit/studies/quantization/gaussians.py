"""Three Gaussians: networks of 49 hypotheses by several ways of matching; and free hypotheses against theory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.sparse.csgraph import connected_components
from scipy.stats import norm
from torch import Tensor
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.objectives.assignment import AnnealedMCL, Assignment
from sepkit.reporting.figures import COLORS, panels
from sepkit.studies.quantization.config import FreeConfig, GaussiansConfig, settings
from sepkit.studies.quantization.quantizers import (
    HypothesisNetworks,
    anneal_points,
    build_method,
    clvq,
    distortion,
    lbg,
    lloyd,
    mutual_information_bits,
    point_losses,
    settle_points,
    squared_distances,
)

MEANS = ((-0.5, -0.5), (0.0, 0.5), (0.5, -0.5))
"""Means of the three Gaussians, at input 1 in the moving case."""

KINDS = ("fixed", "moving")
"""Kinds of the three Gaussians: fixed, or moving with the input."""

_LLOYD_POINTS = 10_000
_LLOYD_STARTS = 3
# Number of test points kept for the figures.
_SHOWN = 300
# Share of the plateau of the distortion below which hypotheses have split.
_TOGETHER = 0.5
# Deviation by which settled hypotheses are pushed before each temperature.
_PUSH = 1e-3


@dataclass(frozen=True)
class ThreeGaussians:
    """y given x is one of three Gaussians with equal chances, around their means or around x times their means.

    Source: aMCL paper, appendix D.
    """

    moving: bool = False
    deviation: float = 0.1

    def sample(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return targets (..., 2) for inputs (...) between 0 and 1."""
        means = torch.tensor(MEANS)[torch.randint(3, inputs.shape, generator=generator)]
        noise = torch.randn(*inputs.shape, 2, generator=generator)
        return (inputs.unsqueeze(-1) * means if self.moving else means) + self.deviation * noise

    def covariance(self, x: float = 1.0) -> Tensor:
        """Return the covariance of y given x, (2, 2): that of the means plus that of one Gaussian."""
        means = torch.tensor(MEANS, dtype=torch.float64) * (x if self.moving else 1.0)
        centered = means - means.mean(0)
        return centered.mT @ centered / 3 + self.deviation**2 * torch.eye(2, dtype=torch.float64)

    def critical_temperature(self, x: float = 1.0) -> float:
        """Return 2 lambda_max of the covariance: where free hypotheses for y given x split first (eq. 14)."""
        return 2 * float(torch.linalg.eigvalsh(self.covariance(x))[-1])

    def entropy_nats(self, seed: int = 0, count: int = 200_000) -> float:
        """Return the differential entropy of y at input 1, by `count` samples; its standard error is about 0.002."""
        points = self.sample(torch.ones(count), torch.Generator().manual_seed(seed)).double()
        squares = torch.cdist(points, torch.tensor(MEANS, dtype=torch.float64)).square()
        log_density = (-squares / (2 * self.deviation**2)).logsumexp(1) - math.log(6 * math.pi * self.deviation**2)
        return -float(log_density.mean())


def gaussians(config: GaussiansConfig, folder: Path) -> dict[str, Any]:
    """Return results of every method on fixed and moving Gaussians, beside quantizers that are given the distribution.

    Trainings are cells below the folder: the same call again continues.

    Args:
        config: Configuration of the experiment.
        folder: Folder of the results.

    Returns:
        rows: one for each kind and method; quantizers: rows of kind, method (lloyd, clvq or lbg) and distortion;
        critical_temperatures, by probe; entropy_nats of the fixed law.

    Raises:
        UserError: an unknown method.
    """
    for name in config.methods:
        _method(name, config)
    shared = settings(config, "methods", "lloyd_inputs", "clvq_steps")
    cells = {
        f"{kind}_{name}": {"kind": kind, "method": name, "config": shared}
        for kind, name in product(KINDS, config.methods)
    }
    rows = run_cells(cells, lambda kind, method, **_: _train(kind, method, config), folder / "cells", config.seed)
    cells = {f"quantizers_{kind}": {"kind": kind, "config": settings(config, "methods")} for kind in KINDS}
    found = run_cells(cells, lambda kind, **_: {"rows": _quantize(kind, config)}, folder / "cells", config.seed)
    law = ThreeGaussians(moving=True)
    return {
        "rows": list(rows.values()),
        "quantizers": [row for cell in found.values() for row in cell["rows"]],
        "critical_temperatures": {f"{x:g}": law.critical_temperature(x) for x in config.probes},
        "entropy_nats": ThreeGaussians().entropy_nats(config.seed),
    }


def _parted(law: ThreeGaussians, probe: float, distortions: np.ndarray) -> int:
    """The first record of (R,) from which on hypotheses are apart for good; R if they never were together or apart."""
    last = np.flatnonzero(distortions >= _TOGETHER * float(law.covariance(probe).trace()))
    return int(last[-1]) + 1 if len(last) else len(distortions)


def _method(name: str, config: GaussiansConfig) -> Assignment:
    linear = name == "amcl_linear"
    return build_method(
        name,
        temperature=config.initial_temperature_linear if linear else config.initial_temperature_exponential,
        decay=config.decay,
        # The reference code's linear temperature is not zero before the end.
        epochs=config.epochs + 1 if linear else config.epochs,
        floor=1e-10,
        epsilon=config.initial_epsilon,
    )


def _generators(config: GaussiansConfig, name: str) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(cell_seed(config.seed, f"{name} {k}")) for k in range(config.seeds)]


def _train(kind: str, method: str, config: GaussiansConfig) -> dict[str, Any]:
    law = ThreeGaussians(kind == "moving")
    assignment = _method(method, config)
    # All methods have the same initial weights, training points and test points.
    networks = HypothesisNetworks(1, config.hidden, config.hypotheses, 2, _generators(config, "weights"), bounded=True)
    kind_of = torch.optim.Adam if law.moving else torch.optim.SGD
    optimizer = kind_of(networks.parameters(), lr=config.learning_rate, fused=law.moving)
    draws = _generators(config, "training")
    watch = _Watch(law, config)
    for epoch in tqdm(range(config.epochs), desc=f"{kind} {method}", unit="epoch", disable=None, leave=False):
        assignment.set_progress(epoch)
        for _ in range(config.steps_per_epoch):
            x, y = _draw(law, config.batch_size, draws)
            points, scores = networks(x)
            matching, scoring, _ = point_losses(points, scores, y, assignment)
            optimizer.zero_grad()
            (matching + scoring).mean(1).sum().backward()
            optimizer.step()
        if epoch % config.record_every == 0 or epoch == config.epochs - 1:
            watch.record(networks, assignment)
    return watch.records | _final(law, networks, config) | watch.phases(law)


def _draw(law: ThreeGaussians, count: int, generators: list[torch.Generator]) -> tuple[Tensor, Tensor]:
    """(S, B, 1) inputs in [0, 1] and (S, B, 2) targets, of each network its own."""
    inputs = [torch.rand(count, generator=generator) for generator in generators]
    targets = [law.sample(x, generator) for x, generator in zip(inputs, generators, strict=True)]
    return torch.stack(inputs).unsqueeze(-1), torch.stack(targets)


class _Watch:
    """Hypotheses at a few inputs during training.

    A list of records, each by probe, then by network: `distortions` (hard), `soft_distortions`, `bits` (mutual
    information of hypothesis and target) and `groups` of hypotheses, linked within the deviation of one Gaussian.
    `temperatures` has one number a record, and none for methods without. Groups by temperature are what annealing at
    inference time would find for an input: aMCL paper, appendix B.1.
    """

    def __init__(self, law: ThreeGaussians, config: GaussiansConfig) -> None:
        # In the fixed case all inputs have one law, so that one is watched.
        self.inputs = config.probes if law.moving else config.probes[-1:]
        generator = torch.Generator().manual_seed(cell_seed(config.seed, "probes"))
        places = torch.tensor(self.inputs)[:, None].expand(-1, config.probe_points)
        self.targets = law.sample(places, generator)
        self.points: list[Tensor] = []
        self.records: dict[str, Any] = {"probes": self.inputs}
        self.records |= {name: [] for name in ("temperatures", "distortions", "soft_distortions", "bits", "groups")}
        self.linked = law.deviation

    @torch.no_grad()
    def record(self, networks: HypothesisNetworks, assignment: Assignment) -> None:
        points, _ = networks(torch.tensor(self.inputs)[None, :, None])  # (S, P, n, 2)
        self.points.append(points[0])
        distances = _distances(points.unsqueeze(2), self.targets)  # (S, P, N, n)
        weights = assignment.weights(distances.flatten(0, 2).unsqueeze(-1)).view_as(distances)
        records = self.records
        records["distortions"].append(_rounded(distances.amin(-1).mean(-1).T, 6))
        records["soft_distortions"].append(_rounded((weights * distances).sum(-1).mean(-1).T, 6))
        bits = [[mutual_information_bits(at) for at in of.double()] for of in weights.transpose(0, 1)]
        records["bits"].append(_rounded(torch.tensor(bits, dtype=torch.float64), 5))
        near = (torch.cdist(points, points) < self.linked).transpose(0, 1).numpy()  # (P, S, n, n)
        records["groups"].append([[connected_components(at)[0] for at in of] for of in near])
        if isinstance(assignment, AnnealedMCL):
            records["temperatures"].append(assignment.temperature)

    def phases(self, law: ThreeGaussians) -> dict[str, Any]:
        """Return where the hypotheses of the first network were at four times, if they parted input by input: halfway
        to the first parting, between the partings of the second, third and last input, and at the end."""
        inputs = enumerate(self.inputs if self.records["temperatures"] else [])
        distortions = [np.array([record[place][0] for record in self.records["distortions"]]) for place, _ in inputs]
        parted = sorted(_parted(law, x, values) for x, values in zip(self.inputs, distortions, strict=False))
        if len(parted) < 4 or parted[-1] == len(self.points):
            return {}
        times = [parted[0] // 2, *[(parted[place] + parted[place + 1]) // 2 for place in (1, 2)], len(self.points) - 1]
        phases = {
            "temperatures": [self.records["temperatures"][time] for time in times],
            "hypotheses": [[_rounded(at, 3) for at in self.points[time]] for time in times],
            "targets": [_rounded(at, 3) for at in self.targets],
        }
        return {"phases": phases}


def _distances(points: Tensor, targets: Tensor) -> Tensor:
    """(..., n) squared distances of points (..., n, d) from targets (..., d)."""
    return (points - targets.unsqueeze(-2)).square().sum(-1)


def _rounded(values: Tensor, digits: int) -> list[list[float]]:
    return [[round(value, digits) for value in row] for row in values.tolist()]


@torch.no_grad()
def _final(law: ThreeGaussians, networks: HypothesisNetworks, config: GaussiansConfig) -> dict[str, Any]:
    """Hard distortion and used hypotheses on fresh points, and what figures show of the first network."""
    x, y = _draw(law, config.test_points, _generators(config, "test"))
    points, _ = networks(x)
    nearest = _distances(points, y).min(-1)
    last, last_scores = networks(torch.tensor([[[config.probes[-1]]]]))
    return {
        "distortion": nearest.values.mean(1).tolist(),
        "used": [len(winners.unique()) for winners in nearest.indices],
        "hypotheses": _rounded(last[0, 0], 4),
        "scores": _rounded(last_scores[0].sigmoid(), 4)[0],
        "targets": _rounded(y[0, :_SHOWN], 4),
    }


def _quantize(kind: str, config: GaussiansConfig) -> list[dict[str, Any]]:
    """Distortion of centroids by Lloyd's algorithm (the best of a few starts), CLVQ and LBG for each input, averaged
    over inputs in the moving case."""
    law = ThreeGaussians(kind == "moving")
    inputs = [(place + 0.5) / config.lloyd_inputs for place in range(config.lloyd_inputs)] if law.moving else [1.0]
    generator = torch.Generator().manual_seed(cell_seed(config.seed, "floor"))
    found: dict[str, list[float]] = {"lloyd": [], "clvq": [], "lbg": []}
    for x in inputs:
        points = law.sample(torch.full((_LLOYD_POINTS,), x), generator)
        # Not the points that the centroids were fitted to.
        others = law.sample(torch.full((_LLOYD_POINTS,), x), generator)
        starts = [torch.randperm(len(points), generator=generator)[: config.hypotheses] for _ in range(_LLOYD_STARTS)]
        solutions = [lloyd(points, points[start], tolerance=1e-5) for start in starts]
        best = min(solutions, key=lambda centroids: distortion(points, centroids))
        learned = clvq(points, config.hypotheses, config.clvq_steps, config.seed).float()
        grown = lbg(points, config.hypotheses, tolerance=1e-5, seed=config.seed)
        for name, centroids in (("lloyd", best), ("clvq", learned), ("lbg", grown)):
            found[name].append(distortion(others, centroids))
    return [{"kind": kind, "method": name, "distortion": float(np.mean(of))} for name, of in found.items()]


# --------------------------------------------------------------------------------------------------- free hypotheses


def free(config: FreeConfig, folder: Path) -> dict[str, Any]:
    """Return the rate-distortion table of N(0, 1), and deterministic annealing on three Gaussians.

    Both are cells below the folder: the same call again reads them.

    Args:
        config: Configuration of the experiment.
        folder: Folder of the results.
    """
    parts = {"rate": lambda: {"rows": gaussian_rates(config)}, "annealing": lambda: annealed_gaussians(config)}
    cells = {name: {"name": name, "config": settings(config)} for name in parts}
    found = run_cells(cells, lambda name, **_: parts[name](), folder / "cells", config.seed)
    return {"rate": found["rate"]["rows"], "annealing": found["annealing"]}


def annealed_gaussians(config: FreeConfig) -> dict[str, Any]:
    """Return `anneal_points` of three Gaussians, with places along the longest axis of the points alone."""
    law, generator = ThreeGaussians(), torch.Generator().manual_seed(config.seed)
    points = law.sample(torch.ones(config.split_points), generator).double()
    found = anneal_points(points, config.annealed_hypotheses, seed=config.seed)
    axis = torch.linalg.eigh(points.mT.cov())[1][:, -1]
    places = torch.tensor(found.pop("places"), dtype=torch.float64) - points.mean(0)
    return found | {"places": (places @ axis).tolist()}


def gaussian_rates(config: FreeConfig) -> list[dict[str, float]]:
    """Return soft distortion and rate of settled hypotheses for N(0, 1), beside T / 2 and the bound, by temperature.

    Below T_c = 2 the rate-distortion function of a Gaussian, log2(1 / D) / 2 bits, has slope -1/T at D = T / 2.
    """
    quantiles = norm.ppf((np.arange(config.points) + 0.5) / config.points)
    points = torch.from_numpy(quantiles / quantiles.std())[:, None]
    generator = torch.Generator().manual_seed(config.seed)
    settled = torch.zeros(config.hypotheses, 1, dtype=torch.float64)
    rows = []
    for temperature in sorted(config.temperatures, reverse=True):
        push = torch.randn(settled.shape, generator=generator, dtype=settled.dtype)
        settled = settle_points(points, settled + _PUSH * push, temperature)
        squares = squared_distances(points, settled)
        weights = (-squares / temperature).softmax(1)
        expected = min(1.0, temperature / 2)
        rows.append(
            {
                "temperature": temperature,
                "distortion": float((weights * squares).sum(1).mean()),
                "expected_distortion": expected,
                "bits": mutual_information_bits(weights),
                "bound_bits": 0.5 * math.log2(1 / expected),
                "hard_distortion": float(squares.amin(1).mean()),
            }
        )
    return rows


def gaussians_figures(table: Mapping[str, Any]) -> dict[str, Figure]:
    """Return figures 1 and 5 (predictions), 2 (rate and distortion), 3 (distortion against temperature) and, for each
    annealed method whose hypotheses split input by input, 4 (phases)."""
    fixed = [row for row in table["rows"] if row["kind"] == "fixed"]
    annealed = [row for row in table["rows"] if row["kind"] == "moving" and row["temperatures"]]
    return {
        "figure_1_predictions": _predictions(fixed),
        "figure_2_rate": _rates(fixed, table["entropy_nats"]),
        "figure_3_distortion": _by_temperature(annealed, table["critical_temperatures"]),
    } | {f"figure_4_phases_{row['method']}": _phases(row) for row in annealed if "phases" in row}


def _predictions(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure = panels("y1", ["y2"] * len(rows))
    for axes, row in zip(figure.axes, rows, strict=True):
        targets, points = np.array(row["targets"]), np.array(row["hypotheses"])
        axes.scatter(*targets.T, s=6, color=COLORS[2], alpha=0.5, linewidths=0)
        axes.scatter(*points.T, s=30, color=COLORS[0], alpha=np.clip(row["scores"], 0.15, 1.0))
        axes.set_title(f"{row['method']}, D {row['distortion'][0]:.4f}", fontsize=10)
        axes.set(xlim=(-1, 1), ylim=(-1, 1))
    return figure


def _rates(rows: Sequence[Mapping[str, Any]], entropy_nats: float) -> Figure:
    figure = panels("soft distortion", ["mutual information [bits]"])
    axes: Axes = figure.axes[0]
    for color, row in zip(COLORS, rows, strict=False):
        distortions, bits = (np.array(row[name])[:, 0, 0] for name in ("soft_distortions", "bits"))
        axes.plot(distortions, bits, color=color, linewidth=1.4, label=row["method"])
        axes.plot(distortions[-1], bits[-1], "o", color=color, markersize=4)
    grid = np.geomspace(2e-3, 0.4, 100)
    # No code of mean squared error D has a lower rate (aMCL paper, eq. 33): h(Y) - log(2 pi e D / 2) in the plane.
    bound = (entropy_nats - np.log(math.pi * math.e * grid)) / math.log(2)
    axes.plot(grid, bound, "k--", linewidth=1, label="Shannon lower bound")
    axes.set(xscale="log", ylim=(-0.1, 6))
    axes.legend(frameon=False, fontsize=8)
    return figure


def _by_temperature(rows: Sequence[Mapping[str, Any]], critical: dict[str, float]) -> Figure:
    figure = panels("temperature", ["hard distortion"] * max(1, len(rows)))
    for axes, row in zip(figure.axes, rows, strict=False):
        distortions = np.array(row["distortions"])  # (records, probes, networks)
        for place, (color, probe) in enumerate(zip(COLORS, row["probes"], strict=False)):
            means = distortions[:, place].mean(1)
            axes.plot(row["temperatures"], means, color=color, linewidth=1.6, label=f"x = {probe:g}")
            axes.axvline(critical[f"{probe:g}"], color=color, linestyle=":", linewidth=1.2)
        axes.set(xscale="log", yscale="log")
        axes.invert_xaxis()
        axes.set_title(f"{row['method']}; dotted: critical temperatures", fontsize=10)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _phases(row: Mapping[str, Any]) -> Figure:
    """Rows: inputs; columns: times, from hot to cold."""
    phases, inputs = row["phases"], row["probes"]
    times = phases["temperatures"]
    figure = Figure(figsize=(2.1 * len(times), 2.0 * len(inputs)), layout="constrained")
    grid = figure.subplots(len(inputs), len(times), squeeze=False, sharex=True, sharey=True)
    for place, axes in enumerate(grid.flat):
        probe, time = divmod(place, len(times))
        axes.scatter(*np.array(phases["targets"][probe]).T, s=4, color=COLORS[2], alpha=0.4, linewidths=0)
        axes.scatter(*np.array(phases["hypotheses"][time][probe]).T, s=14, color=COLORS[0], alpha=0.6, linewidths=0)
        axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[], yticks=[])
        if probe == 0:
            axes.set_title(f"T(t{time + 1}) = {times[time]:.3g}", fontsize=9)
        if time == 0:
            axes.set_ylabel(f"x = {inputs[probe]:g}", fontsize=9)
    return figure


def annealing_figure(found: Mapping[str, Any]) -> Figure:
    """Return a figure of hypotheses that part as the temperature falls."""
    figure = panels("temperature", ["position on the longest axis"])
    axes = figure.axes[0]
    axes.plot(found["temperatures"], found["places"], color=COLORS[0], marker="o", markersize=3, linewidth=1.3)
    for split in found["splits"]:
        axes.axvline(split["temperature"], color=COLORS[1], linestyle="--", linewidth=1.2)
    axes.axvline(found["critical_temperature"], color="black", linestyle=":", label="first split expected")
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.legend(frameon=False, fontsize=8)
    return figure
