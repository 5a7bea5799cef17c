"""Figure 4: how often a RealNVP student loses a mode, over initial temperature and annealing time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sepkit.annealing.flows import diagonal_target, fit_flows, full_deviation
from sepkit.cells import run_cells
from sepkit.models.coupling import RealNVP
from sepkit.schedules import Constant, InverseTemperature, Schedule
from sepkit.studies.annealed_inference.config import AnnealedInferenceConfig


def flows(config: AnnealedInferenceConfig, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Return the share of collapsed replicas in each cell and without annealing, by two rules.

    A student has collapsed if its standard deviation along mu* is below the threshold. The paper says variance where
    its code records the deviation, and the same threshold then is another rule; both are reported. The row without
    annealing has temperature 1 and the longest t0.

    Args:
        config: its section `flows`, and the target.
        folder: where cells are kept.
        device: where the flows are trained.
    """
    own = config.flows

    def compute(temperature: float, steps: int, seed: int, **_: Any) -> dict[str, Any]:
        torch.manual_seed(seed)
        flow = RealNVP(own.dimension, own.couplings, own.hidden, own.replicas).to(device)
        schedule: Schedule = Constant(1.0) if temperature == 1 else InverseTemperature(1 / temperature, steps)
        run = fit_flows(
            flow,
            diagonal_target(own.dimension, config.radius, config.heavy_weight),
            schedule,
            steps=steps + own.after,
            samples=own.samples,
            learning_rate=own.learning_rate,
            seed=seed,
        )
        alive = run.deviations[run.deviations.isfinite()]
        return {
            "collapse": float((alive < own.threshold).double().mean()),
            "collapse_by_variance": float((alive**2 < own.threshold).double().mean()),
            "deviations": [round(value, 4) for value in alive.tolist()],
            "losses": [round(value, 4) for value in run.losses[run.losses.isfinite()].tolist()],
            "failures": [str(failure) for failure in run.failures],
        }

    shared = {
        "radius": config.radius,
        "heavy_weight": config.heavy_weight,
        "dimension": own.dimension,
        "couplings": own.couplings,
        "hidden": own.hidden,
        "samples": own.samples,
        "replicas": own.replicas,
        "after": own.after,
        "learning_rate": own.learning_rate,
        "threshold": own.threshold,
    }
    settings = [(1.0, max(own.steps)), *((t, s) for s in own.steps for t in own.temperatures)]
    cells = {f"temperature_{t:g}_steps_{s}": shared | {"temperature": t, "steps": s} for t, s in settings}
    rows = list(run_cells(cells, compute, folder / "flows", config.seed).values())
    return {"full_deviation": full_deviation(config.radius, config.heavy_weight), "rows": rows}
