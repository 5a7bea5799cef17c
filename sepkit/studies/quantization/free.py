"""Free hypotheses against theory: the rate and distortion of a Gaussian, and temperatures at which splits are seen."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import lambertw
from scipy.stats import norm
from torch import Tensor

from sepkit.annealing.planning import Cooling, split_time
from sepkit.cells import run_cells
from sepkit.errors import UserError
from sepkit.schedules import Schedule, TruncatedExponential, TruncatedLinear
from sepkit.studies.quantization.config import FreeConfig
from sepkit.studies.quantization.deterministic_annealing import anneal_points, settle_points, three_gaussians
from sepkit.studies.quantization.measures import gaussian_rate_bits, mutual_information_bits

_PUSH = 1e-3


def free(config: FreeConfig, folder: Path) -> dict[str, Any]:
    """The rate-distortion table of N(0, 1), deterministic annealing on three Gaussians, and delayed splits.

    Args:
        config: the experiment.
        folder: of the cells.

    Raises:
        UserError: a schedule that is not a pair of numbers, or a decay outside (0, 1).
    """
    for kind, second in (("linear", "epochs"), ("exponential", "decay")):
        for schedule in getattr(config, kind):
            if (
                len(schedule) != 2
                or schedule[0] <= 0
                or not 0 < schedule[1] < (1 if kind == "exponential" else math.inf)
            ):
                between = " between 0 and 1" if kind == "exponential" else ""
                raise UserError(
                    f"free.{kind}: found {schedule}, expected an initial temperature above 0 and the {second}{between}"
                )
    own = {name: getattr(config, name) for name in ("hypotheses", "points", "temperatures")}
    cells = {"rate": own | {"config_seed": config.seed}}
    rate = run_cells(cells, lambda **_: {"rows": gaussian_rates(config)}, folder / "cells", config.seed)["rate"]
    cells = {"annealing": {name: getattr(config, name) for name in ("annealed_hypotheses", "split_points", "seed")}}
    cells["annealing"]["config_seed"] = cells["annealing"].pop("seed")
    annealing = run_cells(cells, lambda **_: annealed_gaussians(config), folder / "cells", config.seed)
    settings = {f"linear_{t:g}_{e:g}": Cooling("linear", t, e) for t, e in config.linear}
    settings |= {f"exponential_{t:g}_{d:g}": Cooling("exponential", t, math.inf, d) for t, d in config.exponential}
    shared = {
        name: getattr(config, name)
        for name in (
            "split_points", "split_hypotheses", "step_size", "start_spread", "seen_spread", "split_seeds", "seed"
        )
    }  # fmt: skip
    names = {
        name: {"cooling": [c.kind, c.initial, None if math.isinf(c.epochs) else c.epochs, c.decay], "setting": shared}
        for name, c in settings.items()
    }

    def compute(cooling: list[Any], **_: Any) -> dict[str, Any]:
        kind, initial, epochs, decay = cooling
        return delayed_split(config, Cooling(kind, initial, math.inf if epochs is None else epochs, decay))

    splits = [
        {"schedule": _described(*row["cooling"])} | row
        for row in run_cells(names, compute, folder / "cells", config.seed).values()
    ]
    return {
        "rate": rate["rows"], "annealing": annealing["annealing"], "splits": splits, "config": asdict(config),
    }  # fmt: skip


def annealed_gaussians(config: FreeConfig) -> dict[str, Any]:
    """Return `anneal_points` of three Gaussians, with places along the longest axis of the points alone.

    Args:
        config: points and hypotheses.
    """
    points = three_gaussians(config.split_points, config.seed)
    found = anneal_points(points, config.annealed_hypotheses, seed=config.seed)
    axis = torch.linalg.eigh(points.mT.cov())[1][:, -1]
    places = torch.tensor(found.pop("places"), dtype=torch.float64) - points.mean(0)
    return found | {"places": (places @ axis).tolist()}


def gaussian_rates(config: FreeConfig) -> list[dict[str, float]]:
    """Return soft distortion and rate of settled hypotheses for N(0, 1), beside T / 2 and the bound, by temperature.

    Below T_c = 2 the rate-distortion function of a Gaussian has slope -1/T at D = T / 2.

    Args:
        config: hypotheses, points and falling temperatures.
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
        found = float((weights * squares).sum(1).mean())
        rows.append(
            {
                "temperature": temperature,
                "distortion": found,
                "expected_distortion": min(1.0, temperature / 2),
                "bits": mutual_information_bits(weights),
                "bound_bits": gaussian_rate_bits(1.0, min(1.0, temperature / 2)),
                "hard_distortion": float(squares.amin(1).mean()),
            }
        )
    return rows


def _described(kind: str, initial: float, epochs: float | None, decay: float) -> str:
    return f"{kind} from {initial:g}, " + (f"decay {decay:g}" if epochs is None else f"{epochs:g} steps")


def delayed_split(config: FreeConfig, cooling: Cooling) -> dict[str, Any]:
    """The temperature at which hypotheses that descend the gradient are seen apart, by seed, and the closed form.

    Args:
        config: points, hypotheses, step size and spreads.
        cooling: the schedule.
    """
    points = three_gaussians(config.split_points, config.seed)
    centered = points - points.mean(0)
    values, vectors = torch.linalg.eigh(centered.mT @ centered / len(points))
    critical, axis = 2 * float(values[-1]), vectors[:, -1]
    schedule: Schedule
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
    predicted = [small_step_split(cooling, critical, length / (2 * config.step_size)) for length in lengths]
    times = [split_time(cooling, critical, config.step_size, length) for length in lengths]
    by_steps = [schedule(steps - 1 if time is None else min(steps - 1, math.floor(time))) for time in times]
    seen = [math.nan] * config.split_seeds
    for step in range(steps):
        places = _descend(places, centered, schedule(step), config.step_size)
        spread = _spread(places, axis)
        for k in range(config.split_seeds):
            if math.isnan(seen[k]) and float(spread[k]) >= config.seen_spread:
                seen[k] = schedule(step)
        if not any(map(math.isnan, seen)):
            break
    mean_seen, mean_predicted = float(np.mean(seen)), float(np.mean(predicted))
    return {
        "critical": critical,
        "predicted": predicted,
        "predicted_by_steps": by_steps,
        "seen": [None if math.isnan(value) else value for value in seen],
        "mean_predicted": mean_predicted,
        "mean_predicted_by_steps": float(np.mean(by_steps)),
        "mean_seen": None if math.isnan(mean_seen) else mean_seen,
    }


def small_step_split(cooling: Cooling, critical: float, delay: float) -> float:
    """Return the temperature at which the split is seen if steps are small; 0 if only at the very end.

    Distances then grow by 2 eta (T_c / T - 1) nats an epoch, more than the ln |1 + 2 eta (T_c / T - 1)| that
    `split_time` adds up. From a start at T_c the temperature is -W_0(-exp(-1 - delay / E)) T_c for linear cooling, and
    T_c / -W_{-1}(-exp(-1 - delay ln(1 / decay))) for exponential cooling.

    Args:
        cooling: the schedule.
        critical: T_c.
        delay: Lambda / (2 eta), epochs.
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
