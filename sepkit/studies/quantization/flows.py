"""A mixture of RealNVPs trained by hard assignment: how much mass lies between the modes, for more and more experts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.models.coupling import RealNVP
from sepkit.objectives.assignment import MCL
from sepkit.studies.quantization.config import FlowsConfig
from sepkit.studies.quantization.data import FLOOR_OFF_MODES, mode_centers, mode_coverage, sample_modes
from sepkit.studies.quantization.experts import RowAdam
from sepkit.studies.quantization.measures import matched_squared_wasserstein


def flows(config: FlowsConfig, folder: Path) -> dict[str, Any]:
    """Return share of samples off every mode, modes hit, transport and likelihood, per target and number of experts.

    Trainings are cells below the folder: the same call again continues.

    Args:
        config: the experiment.
        folder: of the cells.

    Raises:
        UserError: an unknown target.
    """
    for target in config.targets:
        mode_centers(target)
    shared = {name: value for name, value in asdict(config).items() if name not in ("targets", "experts")}
    cells = {
        f"flows_{target}_{count}": {"target": target, "experts": count, "config": shared}
        for target in config.targets
        for count in config.experts
    }
    compute = lambda target, experts, **_: train_flows(config, target, experts)  # noqa: E731
    rows = run_cells(cells, compute, folder / "cells", config.seed)
    return {
        "floor_off_modes": FLOOR_OFF_MODES,
        "floors_wasserstein": {target: _wasserstein_floor(config, target) for target in config.targets},
        "rows": list(rows.values()),
    }


def train_flows(config: FlowsConfig, target: str, experts: int) -> dict[str, Any]:
    """Train the mixtures of all seeds as one stack, and return measures of samples of them.

    A sample is assigned to the expert of highest likelihood, which alone is trained on it; weights of the mixture are
    shares of the assignments in the last tenth of training.

    Args:
        config: the experiment.
        target: "ring" or "grid".
        experts: n.
    """
    centers = mode_centers(target)
    seeds = [cell_seed(config.seed, f"flows {place}") for place in range(config.seeds)]
    # Every flow starts from the seed of its run and its number, whatever the number of experts.
    parts = [_start(config, seed, expert) for seed in seeds for expert in range(experts)]
    flow = RealNVP(2, config.couplings, config.hidden, config.seeds * experts, normalize=False)
    flow.load_state_dict(_joined(parts, flow))
    optimizer = RowAdam(flow.parameters(), config.learning_rate)
    draws = [torch.Generator().manual_seed(seed) for seed in seeds]
    shares = torch.full((config.seeds, experts), 1 / experts)
    counted = torch.zeros(config.seeds, experts)
    assignment = MCL()
    for number in tqdm(range(config.steps), desc=f"{experts} flows", unit="step", disable=None, leave=False):
        x = torch.stack([sample_modes(centers, config.deviation, config.batch_size, g) for g in draws])
        with torch.no_grad():
            cost = -_log_likelihoods(flow, x, experts)  # (R, B, n)
        judged = cost - (shares.log()[:, None] if config.log_share else 0.0)
        weights = assignment.weights(judged.flatten(0, 1).unsqueeze(-1)).view_as(cost)
        wins = weights.sum(1)
        shares = torch.lerp(shares, wins / config.batch_size, 0.01).clamp_min(1e-6)
        if number >= int(0.9 * config.steps):
            counted += wins
        own, counts = _own_samples(x, weights)
        optimizer.zero_grad()
        # The mean over its own samples: an expert's step does not depend on how many the others have.
        (-flow.log_prob(own) * counts).sum().backward()
        optimizer.step((wins > 0).flatten())
    return _measure(flow, counted / counted.sum(1, keepdim=True), centers, config) | {"steps": config.steps}


def _start(config: FlowsConfig, seed: int, expert: int) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + expert)
        return RealNVP(2, config.couplings, config.hidden, 1, normalize=False).state_dict()


def _joined(parts: list[dict[str, Tensor]], flow: RealNVP) -> dict[str, Tensor]:
    """The state of a stack of flows; masks are common to all."""
    learned = {name for name, _ in flow.named_parameters()}
    return {name: torch.cat([part[name] for part in parts]) if name in learned else parts[0][name] for name in parts[0]}


def _own_samples(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The samples that each expert won, (R n, M, 2), padded, and 1 / (their number), or 0 for padding, (R n, M).

    Args:
        x: (R, B, 2).
        weights: (R, B, n), one-hot.
    """
    won = weights.transpose(1, 2).bool()  # (R, n, B)
    longest = max(1, int(won.sum(2).max()))
    # A stable sort by "not won" puts the samples that were won first.
    places = torch.argsort((~won).byte(), dim=2, stable=True)[..., :longest]
    counted = won.gather(2, places)
    own = x.unsqueeze(1).expand(-1, won.shape[1], -1, -1).gather(2, places.unsqueeze(-1).expand(-1, -1, -1, 2))
    share = counted / counted.sum(2, keepdim=True).clamp_min(1)
    return own.flatten(0, 1), share.flatten(0, 1)


def _log_likelihoods(flow: RealNVP, x: Tensor, experts: int) -> Tensor:
    """(R, B, n) of points (R, B, 2) under every expert of their run."""
    found = flow.log_prob(x.repeat_interleave(experts, 0))
    return found.view(len(x), experts, -1).transpose(1, 2)


@torch.no_grad()
def _measure(flow: RealNVP, weights: Tensor, centers: Tensor, config: FlowsConfig) -> dict[str, Any]:
    runs, experts = weights.shape
    generator = torch.Generator().manual_seed(cell_seed(config.seed, "samples"))
    drawn, _ = flow.sample(config.samples, generator)
    drawn = drawn.view(runs, experts, config.samples, 2)
    truth = sample_modes(centers, config.deviation, config.samples, generator)
    log_likelihoods = _log_likelihoods(flow, truth.expand(runs, -1, -1), experts)
    mixture = (log_likelihoods + weights.clamp_min(1e-12).log()[:, None]).logsumexp(2)
    found: dict[str, list[float]] = {"off_modes": [], "modes_hit": [], "squared_wasserstein": []}
    for run in range(runs):
        chosen = torch.multinomial(weights[run], config.samples, replacement=True, generator=generator)
        samples = drawn[run, chosen, torch.arange(config.samples)]
        off, hit = mode_coverage(samples, centers, config.deviation)
        found["off_modes"].append(off)
        found["modes_hit"].append(hit)
        count = config.transport_samples
        found["squared_wasserstein"].append(matched_squared_wasserstein(samples[:count], truth[:count]))
    return found | {
        "nll_nats": (-mixture.mean(1)).tolist(),
        "weights": [[round(value, 4) for value in row] for row in weights.tolist()],
    }


def _wasserstein_floor(config: FlowsConfig, target: str) -> float:
    """The same between two samples of the truth."""
    generator = torch.Generator().manual_seed(cell_seed(config.seed, f"floor {target}"))
    parts = [
        sample_modes(mode_centers(target), config.deviation, config.transport_samples, generator) for _ in range(2)
    ]
    return matched_squared_wasserstein(*parts)
