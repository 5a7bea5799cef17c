"""Three Gaussians: networks of 49 hypotheses by several ways of matching; and free hypotheses against theory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import lambertw
from scipy.stats import norm
from torch import Tensor
from tqdm import tqdm

from sepkit.annealing.planning import Cooling, split_time
from sepkit.cells import cell_seed, run_cells
from sepkit.errors import UserError
from sepkit.objectives.assignment import AnnealedMCL, Assignment
from sepkit.schedules import TruncatedExponential, TruncatedLinear
from sepkit.studies.quantization.config import FreeConfig, GaussiansConfig, settings
from sepkit.studies.quantization.deterministic_annealing import anneal_points, settle_points, three_gaussians
from sepkit.studies.quantization.laws import ThreeGaussians
from sepkit.studies.quantization.measures import distortion, lloyd, mutual_information_bits
from sepkit.studies.quantization.points import HypothesisNetworks, build_method, point_losses, squared_distances

_LLOYD_POINTS = 10_000
_LLOYD_STARTS = 3
# Number of test points kept for the figures.
_SHOWN = 300
# Share of the plateau of the distortion below which hypotheses have parted.
_TOGETHER = 0.5
# Deviation by which settled hypotheses are pushed before each temperature.
_PUSH = 1e-3


def gaussians(config: GaussiansConfig, folder: Path) -> dict[str, Any]:
    """Return what every method does on fixed and on moving Gaussians, beside Lloyd's solution as floor.

    Trainings are cells below the folder: the same call again continues.
    """
    kinds = ("fixed", "moving")
    methods = {name: _method(name, config) for name in config.methods}  # an unknown one is refused at once
    shared = settings(config, "methods", "lloyd_inputs")
    cells = {f"{kind}_{name}": {"kind": kind, "method": name, "config": shared} for kind in kinds for name in methods}
    rows = run_cells(cells, lambda **cell: _train(cell["kind"], cell["method"], config), folder / "cells", config.seed)
    floors = {f"floor_{kind}": {"kind": kind, "config": shared, "inputs": config.lloyd_inputs} for kind in kinds}
    found = run_cells(floors, lambda **cell: _floor(cell["kind"], config), folder / "cells", config.seed)
    law = ThreeGaussians(moving=True)
    return {
        "rows": [row | {"split_temperatures": split_temperatures(row)} for row in rows.values()],
        "floors": {kind: found[f"floor_{kind}"]["distortion"] for kind in kinds},
        "critical_temperatures": {f"{x:g}": law.critical_temperature(x) for x in config.probes},
        "entropy_nats": ThreeGaussians().entropy_nats(config.seed),
    }


def split_temperatures(row: dict[str, Any]) -> dict[str, list[float | None]]:
    """Return, by probe, the temperature at which the hypotheses of each network were seen to part.

    While they are at one place their hard distortion is the trace of the covariance, but for the few points that are
    watched. They have parted for good after the last record with at least half of it. None: hypotheses were never
    together, or never parted.
    """
    law = ThreeGaussians(row["kind"] == "moving")
    found: dict[str, list[float | None]] = {}
    temperatures = [*row["temperatures"], None]
    for place, probe in enumerate(row["probes"] if row["temperatures"] else []):
        distortions = np.array(row["distortions"])[:, place]  # (records, networks)
        found[f"{probe:g}"] = [temperatures[_parted(law, probe, values)] for values in distortions.T]
    return found


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
    optimizer: torch.optim.Optimizer
    if law.moving:
        optimizer = torch.optim.Adam(networks.parameters(), lr=config.learning_rate, fused=True)
    else:
        optimizer = torch.optim.SGD(networks.parameters(), lr=config.learning_rate)
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
    """What hypotheses do at a few inputs while training goes on.

    A list of records, each by probe, then by network: `distortions` (hard), `soft_distortions` and `bits` (mutual
    information of hypothesis and target). `temperatures` has one number a record, and none for methods without.
    """

    def __init__(self, law: ThreeGaussians, config: GaussiansConfig) -> None:
        # In the fixed case all inputs have one law, so that one is watched.
        self.inputs = config.probes if law.moving else config.probes[-1:]
        generator = torch.Generator().manual_seed(cell_seed(config.seed, "probes"))
        places = torch.tensor(self.inputs)[:, None].expand(-1, config.probe_points)
        self.targets = law.sample(places, generator)
        self.points: list[Tensor] = []
        self.records: dict[str, Any] = {"probes": self.inputs}
        self.records |= {name: [] for name in ("temperatures", "distortions", "soft_distortions", "bits")}

    @torch.no_grad()
    def record(self, networks: HypothesisNetworks, assignment: Assignment) -> None:
        points, _ = networks(torch.tensor(self.inputs)[None, :, None])  # (S, P, n, 2)
        self.points.append(points[0])
        distances = squared_distances(points.unsqueeze(2), self.targets[None])  # (S, P, N, n)
        weights = assignment.weights(distances.flatten(0, 2).unsqueeze(-1)).view_as(distances)
        records = self.records
        records["distortions"].append(_rounded(distances.amin(-1).mean(-1).T, 6))
        records["soft_distortions"].append(_rounded((weights * distances).sum(-1).mean(-1).T, 6))
        bits = [[mutual_information_bits(at) for at in of.double()] for of in weights.transpose(0, 1)]
        records["bits"].append(_rounded(bits, 5))
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
        middles = [(parted[place] + parted[place + 1]) // 2 for place in (1, 2)]
        times = [parted[0] // 2, *middles, len(self.points) - 1]
        phases = {
            "temperatures": [self.records["temperatures"][time] for time in times],
            "hypotheses": [[_rounded(at, 3) for at in self.points[time]] for time in times],
            "targets": [_rounded(at, 3) for at in self.targets],
        }
        return {"phases": phases}


def _rounded(values: Tensor | list[list[float]], digits: int) -> list[list[float]]:
    rows = values.tolist() if isinstance(values, Tensor) else values
    return [[round(value, digits) for value in row] for row in rows]


@torch.no_grad()
def _final(law: ThreeGaussians, networks: HypothesisNetworks, config: GaussiansConfig) -> dict[str, Any]:
    """Hard distortion and used hypotheses on fresh points, and what figures show of the first network."""
    x, y = _draw(law, config.test_points, _generators(config, "test"))
    points, _ = networks(x)
    nearest = squared_distances(points, y).min(-1)
    last, last_scores = networks(torch.tensor([[[config.probes[-1]]]]))
    return {
        "distortion": nearest.values.mean(1).tolist(),
        "used": [len(winners.unique()) for winners in nearest.indices],
        "hypotheses": _rounded(last[0, 0], 4),
        "scores": _rounded(last_scores[0].sigmoid(), 4)[0],
        "targets": _rounded(y[0, :_SHOWN], 4),
    }


def _floor(kind: str, config: GaussiansConfig) -> dict[str, Any]:
    """The distortion of Lloyd's solutions, the best of a few starts, averaged over inputs in the moving case."""
    law = ThreeGaussians(kind == "moving")
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


# --------------------------------------------------------------------------------------------------- free hypotheses


def free(config: FreeConfig, folder: Path) -> dict[str, Any]:
    """Return the rate-distortion table of N(0, 1), deterministic annealing on three Gaussians, and delayed splits."""
    schedules: dict[str, tuple[str, Cooling]] = {}
    for kind, second, most in (("linear", "epochs", math.inf), ("exponential", "decay between 0 and 1", 1.0)):
        for pair in getattr(config, kind):
            if len(pair) != 2 or pair[0] <= 0 or not 0 < pair[1] < most:
                raise UserError(f"free.{kind}: found {pair}, expected an initial temperature above 0 and the {second}")
            first, last = pair
            linear = kind == "linear"
            cooling = Cooling("linear", first, last) if linear else Cooling("exponential", first, math.inf, last)
            title = f"{kind} from {first:g}, " + (f"{last:g} steps" if linear else f"decay {last:g}")
            schedules[f"{kind}_{first:g}_{last:g}"] = title, cooling
    rate_settings = {name: getattr(config, name) for name in ("hypotheses", "points", "temperatures")}
    run = lambda cells, compute: run_cells(cells, compute, folder / "cells", config.seed)  # noqa: E731
    rate = run({"rate": rate_settings}, lambda **_: {"rows": gaussian_rates(config)})["rate"]
    annealing_settings = {name: getattr(config, name) for name in ("annealed_hypotheses", "split_points")}
    annealing = run({"annealing": annealing_settings}, lambda **_: annealed_gaussians(config))["annealing"]
    shared = settings(config, "linear", "exponential", "annealed_hypotheses", *rate_settings)
    cells = {name: {"schedule": title, "name": name, "setting": shared} for name, (title, _) in schedules.items()}
    splits = run(cells, lambda name, **_: delayed_split(config, schedules[name][1]))
    return {"rate": rate["rows"], "annealing": annealing, "splits": list(splits.values())}


def annealed_gaussians(config: FreeConfig) -> dict[str, Any]:
    """Return `anneal_points` of three Gaussians, with places along the longest axis of the points alone."""
    points = three_gaussians(config.split_points, config.seed)
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
        squares = torch.cdist(points, settled).square()
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


def delayed_split(config: FreeConfig, cooling: Cooling) -> dict[str, Any]:
    """Return the temperature at which hypotheses that descend the gradient are seen apart, by seed, and predictions.

    `predicted` is the closed form, for small steps; `predicted_by_steps` adds up what each step does.
    """
    points = three_gaussians(config.split_points, config.seed)
    centered = points - points.mean(0)
    values, vectors = torch.linalg.eigh(centered.mT @ centered / len(points))
    critical, axis = 2 * float(values[-1]), vectors[:, -1]
    if cooling.kind == "linear":
        schedule, steps = TruncatedLinear(cooling.initial, cooling.epochs), math.ceil(cooling.epochs)
    else:
        schedule = TruncatedExponential(cooling.initial, cooling.decay)
        steps = math.ceil(math.log(1e-4 * critical / cooling.initial) / math.log(cooling.decay))
    starts = [torch.Generator().manual_seed(config.seed + k) for k in range(config.split_seeds)]
    shape = (config.split_hypotheses, 2)
    noise = torch.stack([torch.randn(*shape, generator=generator, dtype=torch.float64) for generator in starts])
    places = config.start_spread * noise
    lengths = [math.log(config.seen_spread / float(spread)) for spread in _spread(places, axis)]
    times = [split_time(cooling, critical, config.step_size, length) for length in lengths]
    seen: list[float | None] = [None] * config.split_seeds
    for step in range(steps):
        places = _descend(places, centered, schedule(step), config.step_size)
        spread = _spread(places, axis)
        for k in range(config.split_seeds):
            if seen[k] is None and float(spread[k]) >= config.seen_spread:
                seen[k] = schedule(step)
        if None not in seen:
            break
    return {
        "critical": critical,
        "kind": cooling.kind,
        "predicted": [small_step_split(cooling, critical, length / (2 * config.step_size)) for length in lengths],
        "predicted_by_steps": [
            schedule(steps - 1 if time is None else min(steps - 1, math.floor(time))) for time in times
        ],
        "seen": seen,
    }


def small_step_split(cooling: Cooling, critical: float, delay: float) -> float:
    """Return the temperature at which the split is seen if steps are small; 0 if only at the very end.

    Distances then grow by 2 eta (T_c / T - 1) nats an epoch, more than the ln |1 + 2 eta (T_c / T - 1)| that
    `split_time` adds up. From a start at T_c the temperature is -W_0(-exp(-1 - delay / E)) T_c for linear cooling, and
    T_c / -W_{-1}(-exp(-1 - delay ln(1 / decay))) for exponential cooling; the delay is Lambda / (2 eta), epochs.
    """
    if cooling.kind == "linear":  # y - ln y = constant, y = T / T_c below 1
        ratio = cooling.initial / critical
        constant = ratio - math.log(ratio) + delay * cooling.initial / cooling.epochs / critical
        return critical * max(0.0, -float(lambertw(-math.exp(-constant), 0).real))
    ratio = critical / cooling.initial  # the same for y = T_c / T above 1
    constant = ratio - math.log(ratio) + delay * math.log(1 / cooling.decay)
    return critical / -float(lambertw(-math.exp(-constant), -1).real)


def _descend(places: Tensor, points: Tensor, temperature: float, step_size: float) -> Tensor:
    """One step of (R, n, d) hypotheses: f_k <- f_k - 2 eta n mean_y q_k (f_k - y), each loss over its share 1 / n."""
    squares = (places.unsqueeze(1) - points[None, :, None]).square().sum(-1)  # (R, N, n)
    weights = (-squares / temperature).softmax(2)
    count = places.shape[1]
    pull = weights.mean(1).unsqueeze(-1) * places - weights.mT @ points / len(points)
    return places - 2 * step_size * count * pull


def _spread(places: Tensor, axis: Tensor) -> Tensor:
    """(R,) root mean square of differences from the mean hypothesis, along an axis."""
    along = places @ axis
    return (along - along.mean(1, keepdim=True)).square().mean(1).sqrt()
