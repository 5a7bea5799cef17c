"""The experiments, figures 1 to 7 of the paper: formulas, phase diagram, single runs, and a RealNVP as student.

Each takes the configuration and a folder, and returns a table of plain numbers; cells are kept below the folder.
"""

import math
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.cells import cell_seed, run_cells
from sepkit.models.stacked import RealNVP
from sepkit.schedules import Constant, InverseTemperature, Schedule
from sepkit.studies.annealed_inference import planning
from sepkit.studies.annealed_inference.config import AnnealedInferenceConfig
from sepkit.studies.annealed_inference.order_parameters import (
    Flow,
    OrderParameters,
    Variance,
    bias,
    collapsed,
    integrate,
    random_starts,
)
from sepkit.studies.annealed_inference.reduced import Failure, Problem, fit_reduced, random_means

STRATEGIES = ("vanilla", "covering", "annealed", "frozen_variances", "frozen_means")
"""Rows of figures 1 (the first three) and 6."""

KINDS: tuple[Variance, ...] = ("quasi_static", "integrated")
"""Variances of the flow."""

_RECORDS = 100
# Number of samples of each trained flow for its deviation.
_MEASURED = 4096


def _setting(config: AnnealedInferenceConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("radius", "heavy_weight", "dimension", "step_size")}


def _closed_forms(config: AnnealedInferenceConfig, row: dict[str, Any]) -> dict[str, float]:
    """Return the collapse probability of a cell by the paper's form, and by the one of stability."""
    found = {}
    stable = planning.stability_alpha(config.radius, config.heavy_weight)
    for name, alpha in (("paper", planning.PAPER_ALPHA), ("stability", stable)):
        growth = planning.growth_exponent(1 / row["temperature"], row["steps"], config.step_size, config.radius, alpha)
        found[name] = planning.collapse_probability(
            growth, config.dimension, config.radius, config.heavy_weight, repelled=name == "stability"
        )
    return found


def _flow(
    config: AnnealedInferenceConfig, start: OrderParameters, temperature: float, steps: int, total: int, **more: Any
) -> tuple[Flow, float]:
    """Return the flow from some starts, and the share of them that collapses."""
    schedule = InverseTemperature(1 / temperature, steps)
    setting = {name: getattr(config, name) for name in ("radius", "heavy_weight", "step_size")}
    flow = integrate(start, schedule, steps=total, **setting, **more)
    return flow, float(collapsed(flow.end, config.radius, config.heavy_weight).mean())


def formulas(config: AnnealedInferenceConfig, folder: Path) -> list[dict[str, Any]]:
    """Return the share of collapsed flows in each cell, for quasi-static and integrated variances, and closed forms."""
    own = config.formulas

    def compute(temperature: float, steps: int, starts: int, after: int, seed: int, **_: Any) -> dict[str, Any]:
        start = random_starts(starts, config.dimension, seed)
        return {kind: _flow(config, start, temperature, steps, steps + after, variance=kind)[1] for kind in KINDS}

    shared = _setting(config) | {"starts": own.starts, "after": own.after}
    cells = {
        f"temperature_{t:g}_steps_{s}": shared | {"temperature": t, "steps": s}
        for t, s in product(own.temperatures, own.steps)
    }
    rows = run_cells(cells, compute, folder / "formulas", config.seed).values()
    return [row | _closed_forms(config, row) for row in rows]


def phase_diagram(config: AnnealedInferenceConfig, folder: Path) -> list[dict[str, Any]]:
    """Return the share of collapsed replicas in each cell under the reduced update, and both closed forms."""
    own = config.phase_diagram

    def compute(temperature: float, steps: int, replicas: int, samples: int, seed: int, **_: Any) -> dict[str, Any]:
        run = fit_reduced(
            Problem(**_setting(config), samples=samples),
            InverseTemperature(1 / temperature, steps),
            replicas=replicas,
            steps=steps + config.after,
            initial_variance=temperature,
            seed=seed,
        )
        end, alive = run.order_parameters, np.ones(replicas, bool)
        alive[[failure.replica for failure in run.failures]] = False
        same = collapsed(end, config.radius, config.heavy_weight)
        on_light_mode = same & (end.m1 < -bias(config.radius, config.heavy_weight))
        return {
            "collapse": float(same[alive].mean()),
            "on_light_mode": float(on_light_mode[alive].mean()),
            "failures": [str(failure) for failure in run.failures],
        }

    shared = _setting(config) | {"after": config.after, "replicas": own.replicas}
    places = [(s, t, own.samples) for s, t in product(own.steps, own.temperatures)]
    places += [(own.row_steps, t, n) for n, t in product(own.row_samples, own.temperatures)]
    cells = {
        f"temperature_{t:g}_steps_{s}_samples_{n}": shared | {"temperature": t, "steps": s, "samples": n}
        for s, t, n in places
    }
    rows = run_cells(cells, compute, folder / "phase_diagram", config.seed).values()
    return [row | _closed_forms(config, row) for row in rows]


# --------------------------------------------------------------------------------------------------------- single runs


def runs(config: AnnealedInferenceConfig, folder: Path) -> dict[str, Any]:
    """Return all strategies' paths from the same starts, their collapse rates, and the flow from the first start."""
    own = config.runs
    annealing = InverseTemperature(1 / own.temperature, own.steps)
    hot = {"initial_variance": own.temperature}
    plans: dict[str, tuple[Schedule, int, dict[str, Any]]] = {
        "vanilla": (Constant(1.0), own.plain_steps, {"initial_variance": 1.0}),
        "covering": (Constant(1.0), own.plain_steps, hot),
        "annealed": (annealing, own.steps + config.after, hot),
        "frozen_variances": (Constant(1.0), own.plain_steps, hot | {"learn_variances": False}),
        "frozen_means": (Constant(1.0), own.plain_steps, hot | {"learn_means": False}),
    }
    # All strategies begin at the same means.
    generator = np.random.default_rng(cell_seed(config.seed, "starts"))
    means = random_means(own.seeds, config.dimension, config.radius, generator=generator)

    def compute(strategy: str, samples: int, seed: int, **_: Any) -> dict[str, Any]:
        schedule, steps, more = plans[strategy]
        run = fit_reduced(
            Problem(**_setting(config), samples=samples),
            schedule,
            replicas=own.seeds,
            steps=steps,
            means=means,
            record_every=max(1, steps // _RECORDS),
            seed=seed,
            **more,
        )
        return {
            "collapse": float(collapsed(run.order_parameters, config.radius, config.heavy_weight).mean()),
            "recorded_steps": run.steps,
            "betas": [schedule(float(step)) for step in run.steps],
            "overlaps": np.round(run.overlaps, 6).tolist(),
            "similarity": np.round(run.similarity, 6).tolist(),
            "variances": np.round(run.variance_path, 6).tolist(),
            "failures": [str(failure) for failure in run.failures],
        }

    shared = _setting(config) | {"seeds": own.seeds, "samples": own.samples, "temperature": own.temperature}
    cells = {name: shared | {"strategy": name, "steps": plans[name][1], "annealing": own.steps} for name in STRATEGIES}
    results = run_cells(cells, compute, folder / "runs", config.seed)
    recorded = results["annealed"]["recorded_steps"]
    scaled = means / config.radius
    start = OrderParameters(scaled[:, 0, 0], scaled[:, 1, 0], (scaled[:, 0] * scaled[:, 1]).sum(-1))
    flow = {}
    for kind in KINDS:
        more = {"variance": kind, "record_every": recorded[1]}
        found, share = _flow(config, start, own.temperature, own.steps, recorded[-1], **more)
        flow[kind] = {"path": np.round(found.path[..., 0], 6).tolist(), "collapse": share}
    return {"strategies": results, "flow": flow}


# --------------------------------------------------------------------------------------------------------------- flows


def full_deviation(radius: float, heavy_weight: float) -> float:
    """Return the target's deviation along mu*, sqrt(1 + 4 R^2 w* (1 - w*)): 2.6 for R = 3, w* = .8; 1 for a mode."""
    return math.sqrt(1 + 4 * radius**2 * heavy_weight * (1 - heavy_weight))


def _along_diagonal(x: Tensor) -> Tensor:
    return x.sum(-1) / math.sqrt(x.shape[-1])


def target_log_prob(x: Tensor, radius: float, heavy_weight: float) -> Tensor:
    """Return the log density, (..., n) nats, of the target whose mu* lies along the diagonal, where no mask is special.

    Args:
        x: (..., n, d) points.
        radius: R.
        heavy_weight: w*.
    """
    pull = radius * _along_diagonal(x)
    weights = torch.logaddexp(pull + math.log(heavy_weight), -pull + math.log(1 - heavy_weight))
    return weights - 0.5 * (x.square().sum(-1) + radius**2 + x.shape[-1] * math.log(2 * math.pi))


def fit_flows(
    flow: RealNVP, config: AnnealedInferenceConfig, schedule: Schedule, steps: int, seed: int
) -> tuple[Tensor, Tensor, list[Failure]]:
    """Train all replicas of a flow on the tempered reverse KL divergence with Adam.

    A replica whose loss is not finite is recorded and stops; the others continue.

    Args:
        flow: S replicas.
        config: Target, samples per step and learning rate.
        schedule: beta of the step.
        steps: Number of steps.
        seed: Seed of the samples.

    Returns:
        Standard deviation of samples along mu*, (S,), and the last loss, (S,) nats, both NaN for a failed replica; and
        the failures.

    Source: annealed VI paper, section 4; reference code annealed_vi_gmms.
    """
    device = next(flow.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.Adam(flow.parameters(), config.flows.learning_rate)
    ended = torch.zeros(flow.replicas, dtype=torch.bool, device=device)
    loss = torch.full((flow.replicas,), math.nan, device=device)
    failures: list[Failure] = []
    flow.train()
    for step in range(steps):
        optimizer.zero_grad()
        x, log_q = flow.sample(config.flows.samples, generator)
        loss = (log_q - schedule(float(step)) * target_log_prob(x, config.radius, config.heavy_weight)).mean(-1)
        broken = ~loss.isfinite() & ~ended
        failures += [Failure(replica, step) for replica in broken.nonzero()[:, 0].tolist()]
        ended |= broken
        loss.sum().backward()
        if failures:
            # No product joins replicas, so values that are not finite stay in one slice of every parameter.
            for parameter in flow.parameters():
                if parameter.grad is not None:
                    parameter.grad[ended] = 0.0
        optimizer.step()
    flow.eval()
    with torch.no_grad():
        deviations = _along_diagonal(flow.sample(_MEASURED, generator)[0]).double().std(-1)
    return deviations.masked_fill(ended, math.nan).cpu(), loss.detach().masked_fill(ended, math.nan).cpu(), failures


def flows(config: AnnealedInferenceConfig, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Return the share of collapsed replicas in each cell and without annealing, by two rules.

    A student has collapsed if its standard deviation along mu* is below the threshold. The paper says variance where
    its code records the deviation, and the same threshold then is another rule; both are reported. The row without
    annealing has temperature 1 and the longest t0.

    Args:
        config: The experiment.
        folder: Folder of the cells.
        device: Device that trains the flows.
    """
    own = config.flows

    def compute(temperature: float, steps: int, seed: int, **_: Any) -> dict[str, Any]:
        torch.manual_seed(seed)
        flow = RealNVP(own.dimension, own.couplings, own.hidden, own.replicas).to(device)
        schedule: Schedule = Constant(1.0) if temperature == 1 else InverseTemperature(1 / temperature, steps)
        deviations, losses, failures = fit_flows(flow, config, schedule, steps + own.after, seed)
        alive = deviations[deviations.isfinite()]
        return {
            "collapse": float((alive < own.threshold).double().mean()),
            "collapse_by_variance": float((alive**2 < own.threshold).double().mean()),
            "deviations": [round(value, 4) for value in alive.tolist()],
            "losses": [round(value, 4) for value in losses[losses.isfinite()].tolist()],
            "failures": [str(failure) for failure in failures],
        }

    shared = {"radius": config.radius, "heavy_weight": config.heavy_weight} | asdict(own)
    del shared["temperatures"]
    places = [(1.0, max(own.steps)), *((t, s) for s, t in product(own.steps, own.temperatures))]
    cells = {f"temperature_{t:g}_steps_{s}": shared | {"temperature": t, "steps": s} for t, s in places}
    rows = list(run_cells(cells, compute, folder / "flows", config.seed).values())
    return {"full_deviation": full_deviation(config.radius, config.heavy_weight), "rows": rows}
