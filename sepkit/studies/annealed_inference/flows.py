"""Figure 4: how often a RealNVP loses a mode; replicas of it are trained together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepkit.cells import run_cells
from sepkit.models.stacked import RealNVP
from sepkit.schedules import Constant, InverseTemperature, Schedule
from sepkit.studies.annealed_inference.config import AnnealedInferenceConfig
from sepkit.studies.annealed_inference.mixtures import Failure, Mixture

# Number of samples of each trained student for its deviation.
_MEASURED = 4096


def diagonal_target(dimension: int, radius: float, heavy_weight: float) -> Mixture:
    """Return the bimodal target with mu* of length R along the diagonal, so that no coordinate or mask is special."""
    mean = torch.full((dimension,), radius / math.sqrt(dimension))
    weights = torch.tensor([heavy_weight, 1 - heavy_weight])
    return Mixture(torch.stack([mean, -mean]), torch.ones(2), weights)


def full_deviation(radius: float, heavy_weight: float) -> float:
    """Return the target's deviation along mu*, sqrt(1 + 4 R^2 w* (1 - w*)): 2.6 for R = 3, w* = .8; 1 for a mode."""
    return math.sqrt(1 + 4 * radius**2 * heavy_weight * (1 - heavy_weight))


def tempered_loss(flow: RealNVP, target: Mixture, beta: float, count: int, generator: torch.Generator) -> Tensor:
    """Return the mean over samples of log q - beta log pi, (S,) nats with gradient: KL(q | pi^beta) up to log
    Z_beta."""
    x, log_q = flow.sample(count, generator)
    return (log_q - beta * target.log_prob(x)).mean(-1)


@dataclass
class FlowRun:
    """The result of training.

    Args:
        deviations: (S,) standard deviation of samples along mu*; NaN for a failed replica.
        losses: (S,) of the last step; NaN for a failed replica.
    """

    flow: RealNVP
    deviations: Tensor
    losses: Tensor
    failures: list[Failure] = field(default_factory=list)


def fit_flows(
    flow: RealNVP,
    target: Mixture,
    schedule: Schedule,
    *,
    steps: int,
    samples: int,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> FlowRun:
    """Train all replicas on the tempered reverse KL divergence with Adam; return their width along mu* by step.

    The schedule is beta of the step. A replica whose loss is not finite is recorded and stops; the others continue.

    Source: annealed VI paper, section 4; reference code annealed_vi_gmms.
    """
    device = next(flow.parameters()).device
    target = Mixture(target.means.to(device), target.variances.to(device), target.weights.to(device))
    generator = torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.Adam(flow.parameters(), learning_rate)
    ended = torch.zeros(flow.replicas, dtype=torch.bool, device=device)
    loss = torch.full((flow.replicas,), math.nan, device=device)
    failures: list[Failure] = []
    flow.train()
    for step in range(steps):
        optimizer.zero_grad()
        loss = tempered_loss(flow, target, schedule(float(step)), samples, generator)
        broken = ~loss.isfinite() & ~ended
        if bool(broken.any()):
            failures += [Failure(int(replica), step) for replica in broken.nonzero()[:, 0].tolist()]
            ended |= broken
        loss.sum().backward()
        if bool(ended.any()):
            # No product joins replicas, so values that are not finite stay in one slice of every parameter.
            for parameter in flow.parameters():
                if parameter.grad is not None:
                    parameter.grad[ended] = 0.0
        optimizer.step()
    flow.eval()
    with torch.no_grad():
        x, _ = flow.sample(_MEASURED, generator)
        along = x @ (target.means[0] / target.means[0].norm())
    deviations = along.double().std(-1).masked_fill(ended, math.nan)
    return FlowRun(flow, deviations.cpu(), loss.detach().masked_fill(ended, math.nan).cpu(), failures)


def flows(config: AnnealedInferenceConfig, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Return the share of collapsed replicas in each cell and without annealing, by two rules.

    A student has collapsed if its standard deviation along mu* is below the threshold. The paper says variance where
    its code records the deviation, and the same threshold then is another rule; both are reported. The row without
    annealing has temperature 1 and the longest t0.
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
