"""The experiments with Gaussian mixture students: formulas, agreement of both updates, phase diagram, single runs.

Each takes the configuration and a folder, and returns a table of plain numbers; cells are kept below the folder.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sepkit.cells import cell_seed, run_cells
from sepkit.schedules import Constant, InverseTemperature, Schedule
from sepkit.studies.annealed_inference import collapse
from sepkit.studies.annealed_inference.config import AnnealedInferenceConfig
from sepkit.studies.annealed_inference.mixtures import bimodal_target, fit_mixtures, random_student
from sepkit.studies.annealed_inference.order_parameters import (
    Flow,
    OrderParameters,
    Variance,
    bias,
    collapsed,
    integrate,
    random_starts,
)
from sepkit.studies.annealed_inference.reduced import ReducedRun, fit_reduced, random_means

STRATEGIES = ("vanilla", "covering", "annealed", "frozen_variances", "frozen_means")
"""Rows of figures 1 (the first three) and 6."""

KINDS: tuple[Variance, ...] = ("quasi_static", "integrated")
"""Variances of the flow."""

_RECORDS = 100


def _closed_forms(config: AnnealedInferenceConfig, temperature: float, steps: int) -> dict[str, float]:
    setting = (config.dimension, config.radius, config.heavy_weight)
    found = {}
    forms = {
        "paper": (collapse.PAPER_ALPHA, False),
        "stability": (collapse.stability_alpha(config.radius, config.heavy_weight), True),
    }
    for name, (alpha, repelled) in forms.items():
        growth = collapse.growth_exponent(1 / temperature, steps, config.step_size, config.radius, alpha)
        found[name] = collapse.collapse_probability(growth, *setting, repelled=repelled)
    return found


# ------------------------------------------------------------------------------------------------------------ formulas


def formulas(config: AnnealedInferenceConfig, folder: Path) -> list[dict[str, Any]]:
    """Return the share of collapsed flows in each cell, for quasi-static and integrated variances, and closed forms."""
    own = config.formulas

    def compute(temperature: float, steps: int, starts: int, after: int, seed: int, **_: Any) -> dict[str, Any]:
        start = random_starts(starts, config.dimension, seed)
        return {kind: _integrate(config, start, temperature, steps, steps + after, variance=kind)[1] for kind in KINDS}

    counts = {"starts": own.starts, "after": own.after}
    cells = {
        f"temperature_{t:g}_steps_{s}": _setting(config) | {"temperature": t, "steps": s} | counts
        for t in own.temperatures
        for s in own.steps
    }
    results = run_cells(cells, compute, folder / "formulas", config.seed)
    return [row | _closed_forms(config, row["temperature"], row["steps"]) for row in results.values()]


def _setting(config: AnnealedInferenceConfig) -> dict[str, Any]:
    return {
        "radius": config.radius,
        "heavy_weight": config.heavy_weight,
        "dimension": config.dimension,
        "step_size": config.step_size,
    }


def _integrate(
    config: AnnealedInferenceConfig, start: OrderParameters, temperature: float, steps: int, total: int, **more: Any
) -> tuple[Flow, float]:
    flow = integrate(
        start,
        InverseTemperature(1 / temperature, steps),
        steps=total,
        radius=config.radius,
        heavy_weight=config.heavy_weight,
        step_size=config.step_size,
        **more,
    )
    return flow, float(collapsed(flow.end, config.radius, config.heavy_weight).mean())


# ------------------------------------------------------------------------------------------------- both kinds of update


def agreement(config: AnnealedInferenceConfig, folder: Path) -> dict[str, Any]:
    """Return the collapse under the full and the reduced update, cell by cell, and the processor time of either."""
    own = config.agreement

    def compute(
        update: str, dimension: int, temperature: float, steps: int, replicas: int, samples: int, seed: int, **_: Any
    ) -> dict[str, Any]:
        schedule = InverseTemperature(1 / temperature, steps)
        total = steps + config.after
        if update == "full":
            end = _fit_full(config, schedule, dimension, replicas, samples, total, seed)
        else:
            end = _fit_reduced(config, schedule, dimension, replicas, samples, total, seed).order_parameters
        return {"collapse": float(collapsed(end, config.radius, config.heavy_weight).mean())}

    shared = {key: value for key, value in _setting(config).items() if key != "dimension"}
    shared |= {"after": config.after, "replicas": own.replicas, "samples": own.samples}
    cells = {
        f"{update}_{d}_temperature_{t:g}_steps_{s}": shared
        | {"update": update, "dimension": d, "temperature": t, "steps": s}
        for d in own.dimensions
        for t in own.temperatures
        for s in own.steps
        for update in ("full", "reduced")
    }
    results = run_cells(cells, compute, folder / "agreement", config.seed)
    rows: list[dict[str, Any]] = []
    both = ([row for row in results.values() if row["update"] == update] for update in ("full", "reduced"))
    for full, reduced in zip(*both, strict=True):
        pooled = (full["collapse"] + reduced["collapse"]) / 2
        error = math.sqrt(max(pooled * (1 - pooled), 1e-12) * 2 / own.replicas)
        rows.append(
            {key: full[key] for key in ("dimension", "temperature", "steps", "replicas", "samples")}
            | {"full": full["collapse"], "reduced": reduced["collapse"], "standard_error": error}
            | {"full_seconds": full["processor_seconds"], "reduced_seconds": reduced["processor_seconds"]}
        )
    return {"rows": rows}


def _fit_full(
    config: AnnealedInferenceConfig,
    schedule: Schedule,
    dimension: int,
    replicas: int,
    samples: int,
    steps: int,
    seed: int,
) -> OrderParameters:
    student = random_student(
        replicas, dimension, config.radius, 1 / schedule(0), seed=cell_seed(seed, "start"), dtype=torch.float32
    )
    target = bimodal_target(dimension, config.radius, config.heavy_weight, torch.float32)
    run = fit_mixtures(
        student,
        target,
        schedule,
        steps=steps,
        samples=samples,
        step_size=config.step_size,
        record_every=steps,
        seed=seed,
    )
    m1, m2 = run.overlaps[-1].double().numpy().T
    return OrderParameters(m1, m2, run.similarity[-1].double().numpy())


def _fit_reduced(
    config: AnnealedInferenceConfig,
    schedule: Schedule,
    dimension: int,
    replicas: int,
    samples: int,
    steps: int,
    seed: int,
    **more: Any,
) -> ReducedRun:
    options: dict[str, Any] = {"initial_variance": 1 / schedule(0)} | more
    return fit_reduced(
        schedule,
        replicas=replicas,
        steps=steps,
        samples=samples,
        dimension=dimension,
        radius=config.radius,
        heavy_weight=config.heavy_weight,
        step_size=config.step_size,
        seed=seed,
        **options,
    )


# ------------------------------------------------------------------------------------------------------- phase diagram


def phase_diagram(config: AnnealedInferenceConfig, folder: Path) -> list[dict[str, Any]]:
    """Return the share of collapsed replicas in each cell under the reduced update, and both closed forms."""
    own = config.phase_diagram

    def compute(temperature: float, steps: int, replicas: int, samples: int, seed: int, **_: Any) -> dict[str, Any]:
        schedule = InverseTemperature(1 / temperature, steps)
        run = _fit_reduced(config, schedule, config.dimension, replicas, samples, steps + config.after, seed)
        end, failed = run.order_parameters, {failure.replica for failure in run.failures}
        alive = np.array([replica not in failed for replica in range(replicas)])
        epsilon = bias(config.radius, config.heavy_weight)
        same = collapsed(end, config.radius, config.heavy_weight)
        return {
            "collapse": float(same[alive].mean()),
            "on_light_mode": float((same & (end.m1 < -epsilon))[alive].mean()),
            "failures": [str(failure) for failure in run.failures],
        }

    def cell(temperature: float, steps: int, samples: int) -> tuple[str, dict[str, Any]]:
        settings = {"temperature": temperature, "steps": steps, "replicas": own.replicas, "samples": samples}
        return f"temperature_{temperature:g}_steps_{steps}_samples_{samples}", _setting(config) | {
            "after": config.after
        } | settings

    cells = dict(cell(t, s, own.samples) for s in own.steps for t in own.temperatures)
    cells |= dict(cell(t, own.row_steps, n) for n in own.row_samples for t in own.temperatures)
    results = run_cells(cells, compute, folder / "phase_diagram", config.seed)
    return [row | _closed_forms(config, row["temperature"], row["steps"]) for row in results.values()]


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
        every = max(1, steps // _RECORDS)
        more = more | {"means": means, "record_every": every}
        run = _fit_reduced(config, schedule, config.dimension, own.seeds, samples, steps, seed, **more)
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
    return {"strategies": results, "flow": _flow_of(config, means, results["annealed"])}


def _flow_of(config: AnnealedInferenceConfig, means: np.ndarray, annealed: dict[str, Any]) -> dict[str, Any]:
    scaled = means / config.radius
    start = OrderParameters(scaled[:, 0, 0], scaled[:, 1, 0], (scaled[:, 0] * scaled[:, 1]).sum(-1))
    every = annealed["recorded_steps"][1]
    overlaps = np.array(annealed["overlaps"])
    seen = np.stack([overlaps[..., 0], overlaps[..., 1], np.array(annealed["similarity"])], 1)
    found = {}
    for kind in KINDS:
        last = annealed["recorded_steps"][-1]
        own = config.runs
        flow, share = _integrate(
            config, start, own.temperature, own.steps, last, variance=kind, record_every=every
        )  # fmt: skip
        gaps = np.abs(flow.path - seen).max((0, 1))
        found[kind] = {
            "path": np.round(flow.path[..., 0], 6).tolist(),
            "gap": float(gaps[0]),
            "median_gap": float(np.median(gaps)),
            "gaps": np.round(gaps, 4).tolist(),
            "collapse": share,
        }
    return found
